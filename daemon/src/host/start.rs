//! From arguments to a host that serves, and the word to the client about how that went.

use std::ffi::OsString;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Resource, Rlimit};
use serde::Serialize;
use serde_bytes::Bytes;

use super::arguments::Arguments;
use super::birth::Binary;
use super::ids::{Ids, Leases};
use super::plan::Machine;
use super::runtime::{self, Runtime};
use super::service::{Service, Station};
use super::skeleton;
use super::trial;
use super::userns::{self, Source};
use super::warden::Warden;
use crate::cgroup::hierarchy::Hierarchies;
use crate::error::{Code, Error, Result, last_errno};
use crate::frame::PREFIX_BYTES;
use crate::message::Reply;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// The one message on the control descriptor when all went well.
#[derive(Debug, Serialize)]
#[serde(tag = "t", rename = "ready")]
struct ReadyReply<'a> {
    id: u32,
    host: &'a str,
    socket: &'a Bytes,
    pid: u32,
    mode: &'a str,
    swept: &'a [String],
}

/// Bring up a host and tell the client.
pub fn start(arguments: &[OsString]) -> Result<Service> {
    let control = Arguments::control_fd(arguments).map(take_control).transpose()?;
    let started = Arguments::parse(arguments).and_then(|arguments| prepare(&arguments));
    let Some(control) = control else {
        return started.and_then(|_| Err(Error::new(Code::BadRequest, "no control descriptor")));
    };
    match started {
        Ok(prepared) => {
            let ready = prepared.ready()?;
            let service = Service::new(prepared.into_station(control.as_fd())?)?;
            tell(&control, &ready)?;
            Ok(service)
        }
        Err(error) => {
            let mut frame = Vec::new();
            Reply::error(0, &error).encode(&mut frame)?;
            tell(&control, &frame)?;
            Err(error)
        }
    }
}

struct Prepared {
    listener: OwnedFd,
    client: OwnedFd,
    signals: OwnedFd,
    runtime: Runtime,
    binary: Binary,
    ids: Ids,
    machine: Machine,
    warden: Warden,
    swept: Vec<String>,
}

fn prepare(arguments: &Arguments) -> Result<Prepared> {
    let client = watch_client(arguments)?;
    super::leave_terminal()?;
    raise_limits()?;
    let signals = take_signals()?;
    let mut standing = userns::enter(arguments.mode)?;
    let trial = trial::run(standing.sample(), standing.realm)?;
    standing.adjust(&trial, arguments.mode)?;
    let binary = Binary::seal()?;
    let runtime = Runtime::create(&arguments.runtime_dir)?;
    let swept = runtime::sweep(&arguments.runtime_dir)?;
    let hierarchies = Hierarchies::claim(&runtime.id);
    for base in hierarchies.bases() {
        runtime.note("cgroup", &base.path)?;
    }
    let disks = match &arguments.disk_dir {
        Some(shared) => shared.join(&runtime.id),
        None => runtime.path.join("disk"),
    };
    runtime.note(runtime::DISKS, &disks)?;
    let warden = Warden::start(&runtime)?;
    let machine = Machine {
        mode: standing.mode,
        privileges: standing.privileges(),
        realm: standing.realm,
        trial,
        missing: standing.missing,
        hierarchies,
        skeleton: runtime.path.join("image"),
        disks,
        shared: skeleton::shared_directories(&PathBuf::from("/")),
        resolver: skeleton::resolver(&PathBuf::from("/")),
    };
    let listener = listen(&runtime)?;
    let ids = match standing.source {
        Source::Machine => Ids::Leased(Leases::new(&runtime.ids())),
        Source::Shared(map) => Ids::Shared(map),
    };
    Ok(Prepared { listener, client, signals, runtime, binary, ids, machine, warden, swept })
}

impl Prepared {
    fn ready(&self) -> Result<Vec<u8>> {
        let socket = self.runtime.socket();
        let ready = ReadyReply {
            id: 0,
            host: &self.runtime.id,
            socket: Bytes::new(socket.as_os_str().as_encoded_bytes()),
            pid: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
            mode: self.machine.mode.name(),
            swept: &self.swept,
        };
        let payload = rmp_serde::to_vec_named(&ready).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        let length = u32::try_from(payload.len()).map_err(|_| Error::new(Code::Internal, "too long"))?;
        let mut frame = Vec::with_capacity(PREFIX_BYTES + payload.len());
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&payload);
        Ok(frame)
    }

    fn into_station(self, control: std::os::fd::BorrowedFd<'_>) -> Result<Station> {
        let control =
            rustix::io::fcntl_dupfd_cloexec(control, 0).map_err(|errno| Error::system("keep the control", errno))?;
        let Prepared { listener, client, signals, runtime, binary, ids, machine, warden, .. } = self;
        Ok(Station { listener, control, client, signals, runtime, binary, ids, machine, warden })
    }
}

/// Own the control descriptor, keep standard ones open, and close every other one that we were started with.
fn take_control(number: RawFd) -> Result<OwnedFd> {
    let failed = |errno| Error::system("take the control descriptor", errno);
    // SAFETY: before anything else is opened: only the client knows what it has left open, and it has given us this one.
    let control = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&control, rustix::io::FdFlags::CLOEXEC).map_err(failed)?;
    for (first, last) in [(3, number - 1), (number + 1, RawFd::MAX)] {
        if first <= last {
            // SAFETY: closes descriptors that nothing in this process has taken yet.
            let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            if result != 0 {
                return Err(failed(last_errno()));
            }
        }
    }
    // Should standard descriptors be closed, these take their numbers and stay.
    loop {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, FileMode::empty()).map_err(failed)?;
        if std::os::fd::AsRawFd::as_raw_fd(&null) > 2 {
            return Ok(control);
        }
        std::mem::forget(null);
    }
}

fn watch_client(arguments: &Arguments) -> Result<OwnedFd> {
    let client = rustix::process::pidfd_open(arguments.client, PidfdFlags::empty())
        .map_err(|errno| Error::system("watch the client", errno))?;
    // Opened first and compared then: a number that was given to somebody else since is found out.
    if rustix::process::getppid() == Some(arguments.client) {
        Ok(client)
    } else {
        Err(Error::new(Code::BadRequest, "--client-pid is not the process that has started this host"))
    }
}

fn raise_limits() -> Result<()> {
    let files = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files })
        .map_err(|errno| Error::system("raise the limit of open files", errno))
}

/// SIGTERM as a descriptor; SIGINT, SIGHUP and SIGPIPE ignored.
fn take_signals() -> Result<OwnedFd> {
    // SAFETY: an empty signal set is a valid one; the calls only touch it and the process' signal state.
    let fd = unsafe {
        for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(Error::system("take the signals", last_errno()));
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn listen(runtime: &Runtime) -> Result<OwnedFd> {
    let path = runtime.socket();
    let listen = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    };
    listen().map_err(|errno| Error::at_path("listen", errno, path.as_os_str().as_encoded_bytes()))
}

fn tell(control: &OwnedFd, frame: &[u8]) -> Result<()> {
    let mut rest = frame;
    while !rest.is_empty() {
        let count = rustix::net::send(control, rest, SendFlags::NOSIGNAL)
            .map_err(|errno| Error::system("tell the client", errno))?;
        rest = &rest[count..];
    }
    Ok(())
}
