//! The warden: a process of its own that outlives its host by a moment, to remove what a killed host leaves.
//!
//! It also drops what inits hand to it (old episodes, whose files take a while to free), so that a reset need not wait.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::runtime::{self, Runtime, errno_of};
use crate::error::{Code, Error, Result};
use crate::init::handover;
use crate::init::renewal::DROP_UPPER;
use crate::removal;

/// A warden that dies sooner than this after its start is not started again.
const PATIENCE: Duration = Duration::from_secs(1);
/// Descriptors of the warden.
const HOST: RawFd = 3;
const STATE: RawFd = 4;
const DROPS: RawFd = 5;

/// A host's view of its warden.
#[derive(Debug)]
pub struct Warden {
    pub pidfd: OwnedFd,
    drops: Option<OwnedFd>,
    started: Instant,
}

impl Warden {
    /// Start the warden of the host that calls.
    pub fn start(runtime: &Runtime) -> Result<Self> {
        let failed = |errno| Error::system("start the warden", errno);
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        let host = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).map_err(failed)?;
        let given = [host.as_raw_fd(), runtime.lock().as_raw_fd(), theirs.as_raw_fd()];
        let mut command = Command::new("/proc/self/exe");
        command.arg0("sandlotd").arg("warden").arg(&runtime.path).current_dir("/").env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        // SAFETY: between fork and exec only system calls on numbers that were known before.
        unsafe {
            command.pre_exec(move || give(given).map_err(std::io::Error::from));
        }
        let child = command.spawn().map_err(|error| failed(errno_of(&error)))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| failed(Errno::SRCH))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
        Ok(Warden { pidfd, drops: Some(ours), started: Instant::now() })
    }

    /// Collect a dead warden and start another.
    pub fn replace(&mut self, runtime: &Runtime) -> Result<()> {
        super::birth::reap(&self.pidfd);
        self.drops = None;
        if self.started.elapsed() < PATIENCE {
            return Err(Error::new(Code::Internal, "the warden died as soon as it was started"));
        }
        *self = Warden::start(runtime)?;
        Ok(())
    }

    /// Where inits hand over what is to be dropped.
    pub fn drops(&self) -> Option<BorrowedFd<'_>> {
        self.drops.as_ref().map(AsFd::as_fd)
    }
}

/// Put descriptors at the numbers from [`HOST`] on, kept on exec, by way of numbers that are in nobody's way.
fn give(descriptors: [RawFd; 3]) -> rustix::io::Result<()> {
    let mut away = [0; 3];
    for (place, fd) in away.iter_mut().zip(descriptors) {
        // SAFETY: fcntl on a number.
        *place = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 64) };
        if *place < 0 {
            return Err(crate::error::last_errno());
        }
    }
    for (target, fd) in (HOST..).zip(away) {
        // SAFETY: dup2 on numbers; what was at the target is closed on exec anyway.
        if unsafe { libc::dup2(fd, target) } < 0 {
            return Err(crate::error::last_errno());
        }
    }
    Ok(())
}

/// The role `warden`: `sandlotd warden DIR`, with the host's pidfd, the locked state and the socket of drops as
/// descriptors 3 to 5.
pub fn run(arguments: &[OsString]) -> Result<()> {
    let [path] = arguments else {
        return Err(Error::new(Code::BadRequest, "sandlotd warden is started by sandlotd host"));
    };
    // SAFETY: the host has put exactly these descriptors there for us, and nobody else takes them.
    let [host, state, drops] = [HOST, STATE, DROPS].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    for fd in [&host, &state, &drops] {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|errno| Error::system("watch the host", errno))?;
    }
    super::leave_terminal()?;
    wait(&host, &drops)?;
    let result = runtime::remove_remains(&PathBuf::from(path));
    drop(state);
    result
}

/// Take one message and drop what comes with it: the namespace of an old episode and, where its upper was on disk, the
/// directory that holds it and its name there. False when no more will come: the socket ends a little before its host.
fn drop_one(drops: &OwnedFd) -> bool {
    let mut dropped = Vec::new();
    let Ok(text) = handover::receive(drops, &mut dropped) else { return false };
    let mut dropped = dropped.into_iter();
    drop(dropped.next());
    let upper = text.strip_prefix(DROP_UPPER).map(<[u8]>::to_vec).and_then(|name| CString::new(name).ok());
    if let (Some(directory), Some(name)) = (dropped.next(), upper)
        && !name.as_bytes().contains(&b'/')
        && let Err(errno) = removal::remove_in(&directory, name)
    {
        eprintln!("sandlotd warden: remove an old upper: {errno}");
    }
    true
}

/// Drop what comes until the host is dead.
fn wait(host: &OwnedFd, drops: &OwnedFd) -> Result<()> {
    let mut listening = true;
    loop {
        let mut fds = [PollFd::new(host, PollFlags::IN), PollFd::new(drops, PollFlags::IN)];
        let watched = if listening { &mut fds[..] } else { &mut fds[..1] };
        match poll(watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::system("watch the host", errno)),
        }
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
        if listening && !fds[1].revents().is_empty() {
            listening = drop_one(drops);
        }
    }
}
