//! The main loop of a sandbox: readiness in, verbs called, answers out.
//!
//! One thread and no callbacks. [`Server`] is the state; this file waits and dispatches, its neighbours each know one
//! kind of thing that can become ready: [`links`] connections, [`running`] commands, [`delivery`] what is owed to calls.

mod delivery;
mod episode;
mod keepers;
mod links;
mod memory;
mod parking;
mod running;
mod shells;
mod sinks;
mod transfers;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::cgroup::Leaf;
use crate::commands::{Commands, Number};
use crate::process::arguments::Arguments;
use crate::process::program::Environment;
use crate::process::reaper::Reaper;
use crate::process::spawn::Spawner;
use crate::process::tree::Charge;
use crate::reactor::{Interest, Reactor, Ready, Token};
use crate::sandbox::SandboxContext;
use crate::source::{Loss, Source};
use crate::users::User;

use keepers::Keepers;
pub(crate) use links::{Call, Link};
use memory::MemoryKills;
use parking::Parking;
pub(crate) use parking::Taken;
pub(crate) use shells::Control;
use shells::Shells;
use sinks::Sinks;
use transfers::Transfers;

/// Bytes read from a command in one go: a full pipe of the usual size.
const SCRATCH_BYTES: usize = 64 * 1024;

/// Why the loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The host has closed its end of the source.
    SourceClosed,
    /// Nobody has used the sandbox for its `idle_timeout`.
    Idle,
    /// No authenticated link for the whole grace.
    LinkLost,
    /// The lease was not renewed.
    LeaseExpired,
    /// Somebody outside has sent SIGTERM.
    Terminated,
}

impl Ended {
    /// What the process exits with.
    pub fn exit_code(self) -> u8 {
        match self {
            Ended::SourceClosed => 0,
            Ended::Idle => crate::init::IDLE,
            Ended::LinkLost => 11,
            Ended::LeaseExpired => 12,
            // As a shell tells it: whoever looks sees that it was stopped.
            Ended::Terminated => 128 + libc::SIGTERM as u8,
        }
    }
}

impl From<Loss> for Ended {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Links => Ended::LinkLost,
            Loss::Lease => Ended::LeaseExpired,
        }
    }
}

/// What a descriptor of the loop belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Source,
    Signals,
    Link(u64),
    /// Output of a command: its number and 0 or 1 for standard output or error.
    Output(Number, usize),
    Input(Number),
    /// Output that nobody wants any more.
    Sink(u64),
    ShellOutput(u64, usize),
    ShellStatus(u64),
    /// By its pid.
    Keeper(u32),
    /// Threads of file operations.
    Threads,
}

impl Subject {
    pub(crate) fn token(self) -> Token {
        let (kind, number, stream) = match self {
            Subject::Source => (0, 0, 0),
            Subject::Signals => (1, 0, 0),
            Subject::Link(number) => (2, number, 0),
            Subject::Output(number, stream) => (3, number, stream as u64),
            Subject::Input(number) => (4, number, 0),
            Subject::Sink(number) => (5, number, 0),
            Subject::ShellOutput(number, stream) => (6, number, stream as u64),
            Subject::ShellStatus(number) => (7, number, 0),
            Subject::Threads => (8, 0, 0),
            Subject::Keeper(pid) => (9, u64::from(pid), 0),
        };
        kind << 56 | number << 1 | stream
    }

    fn from_token(token: Token) -> Self {
        let (number, stream) = ((token << 8 >> 8) >> 1, (token & 1) as usize);
        match token >> 56 {
            0 => Subject::Source,
            1 => Subject::Signals,
            2 => Subject::Link(number),
            3 => Subject::Output(number, stream),
            4 => Subject::Input(number),
            5 => Subject::Sink(number),
            6 => Subject::ShellOutput(number, stream),
            7 => Subject::ShellStatus(number),
            8 => Subject::Threads,
            _ => Subject::Keeper(number as u32),
        }
    }
}

/// Whose death a pid stands for.
#[derive(Debug)]
pub(crate) enum Child {
    Command(Number),
    /// A shell that waits for a command.
    Waiting,
    /// Shows what the image's shell can do.
    Proof(Option<Leaf>),
    /// A persistent shell.
    Shell(u64),
    /// Keeps the tree of a command.
    Keeper,
}

/// Everything that the daemon of one sandbox knows.
#[derive(Debug)]
pub(crate) struct Server {
    pub context: SandboxContext,
    pub reactor: Reactor,
    pub reaper: Reaper,
    pub spawner: Spawner,
    pub source: Source,
    pub links: BTreeMap<u64, Link>,
    last_link: u64,
    pub commands: Commands,
    pub children: HashMap<u32, Child>,
    sinks: Sinks,
    pub transfers: Transfers,
    pub arguments: Arguments,
    parking: Parking,
    keepers: Keepers,
    pub shells: Shells,
    memory_kills: MemoryKills,
    /// Commands that are dead while their tree is still dying.
    lingering: Vec<Number>,
    /// Trees that were killed and have outlived their commands.
    outlived: Vec<Arc<Charge>>,
    /// What a call without a user runs as, with the environment that it has.
    pub default_user: User,
    pub default_env: Environment,
    scratch: Vec<u8>,
    last_used: Instant,
}

/// Serve the connections that come from `source` until there is no reason left to live: see [`Ended`].
///
/// # Errors
/// Only what makes serving impossible from the start (no epoll, no such default user). After that
/// nothing a client or a command does ends it.
pub fn serve(source: Source, context: SandboxContext) -> crate::error::Result<Ended> {
    Server::new(source, context)?.run()
}

impl Server {
    fn new(source: Source, mut context: SandboxContext) -> crate::error::Result<Self> {
        let system = |doing: &'static str| move |errno: Errno| crate::error::Error::system(doing, errno);
        let reactor = Reactor::new().map_err(system("epoll_create"))?;
        let reaper = Reaper::new().map_err(system("signalfd"))?;
        reactor.add(&source, Subject::Source.token(), Interest::Read).map_err(system("epoll_ctl"))?;
        reactor.add(&reaper, Subject::Signals.token(), Interest::Read).map_err(system("epoll_ctl"))?;
        let transfers = Transfers::new()?;
        reactor.add(&*transfers.exchange, Subject::Threads.token(), Interest::Read).map_err(system("epoll_ctl"))?;
        let confinement = std::mem::take(&mut context.confinement);
        let default_user = context.default_user()?;
        Ok(Server {
            default_env: default_environment(&context, &default_user),
            spawner: Spawner::new(confinement, raise_open_files(), context.score.take()),
            context,
            reactor,
            reaper,
            source,
            links: BTreeMap::new(),
            last_link: 0,
            commands: Commands::default(),
            children: HashMap::new(),
            sinks: Sinks::default(),
            transfers,
            arguments: Arguments::default(),
            parking: Parking::default(),
            keepers: Keepers::default(),
            shells: Shells::default(),
            memory_kills: MemoryKills::default(),
            lingering: Vec::new(),
            outlived: Vec::new(),
            default_user,
            scratch: vec![0; SCRATCH_BYTES],
            last_used: Instant::now(),
        })
    }

    fn run(&mut self) -> crate::error::Result<Ended> {
        let mut ready = Vec::new();
        loop {
            self.wait(&mut ready);
            for event in &ready {
                if let Some(ended) = self.dispatch(*event) {
                    return Ok(ended);
                }
            }
            if let Some(ended) = self.expire(Instant::now()) {
                return Ok(ended);
            }
        }
    }

    /// Wait for something to do. What can be done ahead is done only when nothing else is there to do.
    fn wait(&mut self, ready: &mut Vec<Ready>) {
        ready.clear();
        let deadline = if self.wants_parking() { Some(Instant::now()) } else { self.next_deadline() };
        if let Err(errno) = self.reactor.wait(deadline, ready) {
            // Nothing that this process does can be the cause, and leaving would end the sandbox.
            eprintln!("sandlotd: epoll_wait: {errno}");
        }
        if ready.is_empty() && self.wants_parking() {
            self.park();
        }
    }

    fn dispatch(&mut self, event: Ready) -> Option<Ended> {
        match Subject::from_token(event.token) {
            Subject::Source => return self.accept_links(),
            Subject::Signals => return self.reap(),
            Subject::Link(link) => self.link_ready(link, event),
            Subject::Output(number, stream) => self.output_ready(number, stream),
            Subject::Input(number) => self.input_ready(number),
            Subject::Threads => self.hear_threads(),
            Subject::Keeper(pid) => self.keeper_ready(pid),
            Subject::Sink(number) => self.sinks.drain(number, &self.reactor, &mut self.scratch),
            Subject::ShellOutput(number, stream) => self.shell_output_ready(number, stream),
            Subject::ShellStatus(number) => self.shell_status_ready(number),
        }
        None
    }

    fn next_deadline(&self) -> Option<Instant> {
        let idle = self.context.idle_timeout.map(|limit| self.last_used + limit);
        [
            self.commands.next_deadline(),
            self.next_link_deadline(),
            self.sinks.next_deadline(),
            self.linger_deadline(),
            self.source.next_deadline(),
            self.next_watch(),
            idle,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn expire(&mut self, now: Instant) -> Option<Ended> {
        while let Some(number) = self.commands.take_expired(now) {
            self.time_out(number);
        }
        if self.next_watch().is_some_and(|due| due <= now) {
            self.context.hooks.watch(now);
        }
        self.settle_lingering(now);
        self.sinks.resume(now, &self.reactor);
        self.expire_waiting(now);
        self.check_links(now);
        if let Some(loss) = self.source.expire(now) {
            return Some(loss.into());
        }
        self.is_idle(now).then_some(Ended::Idle)
    }

    /// Without a command nothing changes that would have to be watched.
    fn next_watch(&self) -> Option<Instant> {
        if self.keepers.is_empty() { None } else { self.context.hooks.next_watch() }
    }

    fn is_idle(&mut self, now: Instant) -> bool {
        if self.commands.live() > 0 || !self.transfers.is_empty() {
            self.last_used = now;
        }
        self.context.idle_timeout.is_some_and(|limit| now.duration_since(self.last_used) >= limit)
    }

    /// Open a directory of the sandbox: `path` as it is, or relative to the sandbox's workdir.
    pub(crate) fn open_directory(&self, path: Option<&[u8]>) -> crate::error::Result<OwnedFd> {
        let workdir = self.context.workdir.as_slice();
        let path = match path {
            None => workdir.to_vec(),
            Some(path) if path.starts_with(b"/") => path.to_vec(),
            Some(path) => [workdir, b"/", path].concat(),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.context.root, path.as_slice(), flags, Mode::empty(), ResolveFlags::IN_ROOT)
            .map_err(|errno| crate::error::Error::at_path("open the working directory", errno, &path))
    }
}

/// As container engines have it: HOME is there even if neither the image nor the caller says so.
fn default_environment(context: &SandboxContext, user: &User) -> Environment {
    let mut env = Environment::new(&context.env);
    if env.get(b"HOME").is_none() {
        env.set(b"HOME", &user.home);
    }
    env
}

/// Let ourselves have as many files as we may. Returns what commands get: the limit as it was.
fn raise_open_files() -> libc::rlimit {
    let mut former = libc::rlimit { rlim_cur: 1024, rlim_max: 4096 };
    // SAFETY: reads into and from plain memory of ours. Without the raise, fewer commands fit.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut former);
        let raised = libc::rlimit { rlim_cur: former.rlim_max, ..former };
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised);
    }
    former
}

/// Whole microseconds of a duration.
pub(crate) fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every subject comes back from its token.
    #[test]
    fn subjects_survive_their_tokens() {
        let number = (1 << 54) - 1;
        for subject in [
            Subject::Source,
            Subject::Signals,
            Subject::Link(7),
            Subject::Output(number, 0),
            Subject::Output(number, 1),
            Subject::Input(number),
            Subject::Sink(1),
            Subject::ShellOutput(2, 1),
            Subject::ShellStatus(3),
            Subject::Threads,
            Subject::Keeper(u32::MAX),
        ] {
            assert_eq!(Subject::from_token(subject.token()), subject);
        }
    }
}
