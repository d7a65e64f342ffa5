//! From a bare process to a sandbox that can be served.

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Resource, Rlimit, Signal};

use super::blueprint::{Blueprint, BootReply, Parts, RootPlan};
use super::renewal::{Kept, Renewal};
use super::{episode, handover, outer};
use crate::cgroup::{Leaves, Whole};
use crate::confinement::{self, Confinement};
use crate::descriptors::duplicate;
use crate::error::{Error, Result};
use crate::files::Destination;
use crate::namespaces;
use crate::sandbox::{OnTerminate, SandboxContext};
use crate::source::{HostSource, Source};
use crate::users::IdMaps;

/// Where the host has put its end of our link.
const LINK: RawFd = 3;
/// Files that a program may have open unless it asks for more: the soft limit of nearly every Linux.
const OPEN_FILES: u64 = 1024;
/// What a program finds its programs in when the image does not say.
const DEFAULT_PATH: &[u8] = b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Build the sandbox that the host describes on the link, and tell it how that went.
pub fn boot() -> Result<(Source, SandboxContext)> {
    // SAFETY: the host leaves exactly this descriptor open for us, and this is the only place that takes it.
    let link = unsafe { OwnedFd::from_raw_fd(LINK) };
    let mut spans = Spans::new();
    match build(&link, &mut spans) {
        Ok(context) => {
            answer(&link, &BootReply::Ready { spans: spans.steps })?;
            Ok((Source::Host(HostSource::new(link)), context))
        }
        Err(error) => {
            let reply = BootReply::Failed { code: error.code, message: error.message.to_string(), errno: error.errno };
            answer(&link, &reply)?;
            Err(error)
        }
    }
}

fn build(link: &OwnedFd, spans: &mut Spans) -> Result<SandboxContext> {
    become_daemon()?;
    let (id_maps, null) = (IdMaps::of_self(), open_null()?);
    let (blueprint, mut parts) = receive(link)?;
    spans.mark("start");
    let outer = outer::build(&blueprint, &parts)?;
    spans.mark("outer");
    parts.lowers.clear();
    let first = episode::build(&blueprint, outer.proc.as_fd(), 0)?;
    spans.mark("episode");
    let groups = std::mem::take(&mut parts.group);
    let layout = blueprint.layout.group;
    let whole = Whole::new(layout, &groups).map_err(|errno| Error::system("open the cgroups", errno))?;
    let leaves = Leaves::new(layout, groups)?;
    let root = duplicate(&first.root)?;
    let context = SandboxContext {
        name: blueprint.name.clone(),
        mode: blueprint.mode.clone(),
        features: &[],
        unenforced: blueprint.unenforced.clone(),
        env: with_path(blueprint.env.iter().map(|entry| entry.to_vec()).collect()),
        workdir: blueprint.workdir.as_ref().map_or_else(|| b"/".to_vec(), |workdir| workdir.to_vec()),
        user: blueprint.user.clone(),
        id_maps,
        null,
        root,
        destination: match blueprint.root {
            RootPlan::Bare => Destination::Layer,
            RootPlan::Overlay { .. } => Destination::Files,
        },
        confinement: Confinement::new(blueprint.privileges),
        leaves,
        score: None,
        on_terminate: OnTerminate::PassOn,
        idle_timeout: blueprint.idle_timeout_ms.map(Duration::from_millis),
        hooks: Box::new(Renewal::new(
            Arc::new(blueprint),
            Kept { outer, whole, warden: parts.warden, lock: parts.lock },
            first,
        )?),
    };
    // While the host still listens: it hands the error on to whoever asked for this sandbox.
    context.default_user()?;
    Ok(context)
}

/// What a command without input reads.
pub fn open_null() -> Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(c"/dev/null", flags, rustix::fs::Mode::empty())
        .map_err(|errno| Error::at_path("open", errno, b"/dev/null"))
}

/// What makes PID 1 a daemon that its own sandbox cannot touch, and that does not outlive its host.
fn become_daemon() -> Result<()> {
    let failed = |errno| Error::system("prepare the init", errno);
    // Nobody inside may read or trace us, nor follow the links in our /proc directory.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).map_err(failed)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    rustix::process::setsid().map_err(failed)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    namespaces::unshare(rustix::thread::UnshareFlags::NEWCGROUP)?;
    confinement::bound_capabilities(confinement::CAPABILITIES)?;
    leave_keys();
    forbid_core_dumps()?;
    // Commands get this one; the main loop raises its own.
    let files = rustix::process::getrlimit(Resource::Nofile);
    let current = files.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..files }).map_err(failed)
}

/// A limit of one byte and not of none: a machine may pipe core dumps to a program of its own, outside of the sandbox,
/// and only this value stops that.
pub fn forbid_core_dumps() -> Result<()> {
    let no_core = Rlimit { current: Some(1), maximum: Some(1) };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(|errno| Error::system("forbid core dumps", errno))
}

/// Leave the session keyring of whoever started the host. Where the user's quota of keys is used up we stay in it:
/// commands cannot reach it either way, since they may make no call about keys.
pub fn leave_keys() {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: the call takes a null name and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

fn receive(link: &OwnedFd) -> Result<(Blueprint, Parts)> {
    let mut descriptors = Vec::new();
    handover::receive(link, &mut descriptors)?;
    let blueprint = match descriptors.first() {
        Some(file) => Blueprint::open(file.as_fd())?,
        None => return Err(Error::system("receive the blueprint", Errno::BADMSG)),
    };
    while descriptors.len() < 1 + blueprint.layout.total() {
        handover::receive(link, &mut descriptors)?;
    }
    let parts = blueprint.layout.split(descriptors.split_off(1))?;
    Ok((blueprint, parts))
}

fn answer(link: &OwnedFd, reply: &BootReply) -> Result<()> {
    let bytes =
        rmp_serde::to_vec_named(reply).map_err(|error| Error::new(crate::error::Code::Internal, error.to_string()))?;
    rustix::net::send(link, &bytes, SendFlags::NOSIGNAL)
        .map(drop)
        .map_err(|errno| Error::system("answer the host", errno))
}

/// With a PATH, where the image has none.
pub fn with_path(mut env: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if !env.iter().any(|entry| entry.starts_with(b"PATH=")) {
        env.push(DEFAULT_PATH.to_vec());
    }
    env
}

/// How long each step took.
struct Spans {
    last: Instant,
    steps: Vec<(String, u64)>,
}

impl Spans {
    fn new() -> Self {
        Spans { last: Instant::now(), steps: Vec::new() }
    }

    fn mark(&mut self, step: &str) {
        let now = Instant::now();
        let took_us = u64::try_from((now - self.last).as_micros()).unwrap_or(u64::MAX);
        self.steps.push((step.to_owned(), took_us));
        self.last = now;
    }
}
