//! Shells that wait for a script, executed ahead of the command so that a short one need not pay for it.
//!
//! A waiting shell is used only for a command for which a new one would be the same: no user, environment, input or
//! terminal of its own, the same directory, the same `/bin/sh`. Everything else is spawned. Shells wait only where
//! commands come in quick succession, at most two, and not for long.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::process::Signal;

use super::{Child, Server, Subject};
use crate::cgroup::Leaf;
use crate::commands::{Number, Process};
use crate::message::{Exec, Kill, Mode};
use crate::process::child::Plan;
use crate::process::launch::{Launch, SCRIPT_FD};
use crate::process::program::Program;
use crate::process::reaper::{Death, Ending};
use crate::process::recipe::{PROVEN, Recipe};
use crate::process::spawn::Spawned;
use crate::process::stdio::{self, Stdio, Wiring};
use crate::reactor::Interest;

const MAX_WAITING: usize = 2;
/// Commands closer together than this are a burst.
const BURST: Duration = Duration::from_secs(1);
/// How long a shell waits in vain.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file that is the same one, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    /// Seconds and nanoseconds; nothing for a directory, whose contents may change.
    changed: (i64, i64),
}

/// A shell that waits.
#[derive(Debug)]
struct Waiting {
    /// Reserved for the command it will run.
    number: Number,
    process: Process,
    script: OwnedFd,
    stdio: Stdio,
    directory: FileId,
}

/// What is known of the image's `/bin/sh`.
#[derive(Clone, Copy, Debug, Default)]
enum Shell {
    #[default]
    Unknown,
    /// A process proves a recipe.
    Proving { file: FileId, recipe: Recipe, pid: u32 },
    /// With no recipe, its scripts are always spawned.
    Known { file: FileId, recipe: Option<Recipe> },
}

#[derive(Debug, Default)]
pub(super) struct Parking {
    /// The one that has waited longest first: the last may still be on its way.
    waiting: VecDeque<Waiting>,
    shell: Shell,
    /// When the last suited command came.
    last_suited: Option<Instant>,
    in_burst: bool,
    /// Shells are to be made when there is nothing else to do.
    wanted: bool,
    /// The directory of the last suited command, as it was asked for.
    directory: Option<Vec<u8>>,
}

/// A shell taken for a command.
#[derive(Debug)]
pub(crate) struct Taken {
    pub number: Number,
    pub process: Process,
    pub stdio: Stdio,
    /// Our end of what its script went through.
    pub channel: OwnedFd,
}

impl Server {
    /// A waiting shell that has begun to run the script of `request`, if there is one for which nothing differs.
    pub(crate) fn take_waiting(&mut self, request: &Exec<'_>, cwd: BorrowedFd<'_>) -> Option<Taken> {
        let script = request.script.filter(|_| is_suited(request))?;
        let now = Instant::now();
        self.parking.in_burst = self.parking.last_suited.replace(now).is_some_and(|last| now - last < BURST);
        self.parking.wanted = false;
        self.parking.directory = request.cwd.map(|path| path.to_vec());
        if self.parking.waiting.is_empty() {
            return None;
        }
        let Shell::Known { file, recipe: Some(recipe) } = self.parking.shell else { return None };
        let text = recipe.encode(script)?;
        let directory = directory_id(cwd)?;
        if self.shell_file() != Some(file) {
            self.dismiss_waiting();
            return None;
        }
        while let Some(waiting) = self.parking.waiting.pop_front() {
            // Somebody may have stopped it, or be about to: this undoes both.
            let going = waiting.process.signal_leader(Signal::CONT).is_ok();
            if going && waiting.directory == directory && hand_over(&waiting.script, &text) {
                let Waiting { number, process, stdio, script: channel, .. } = waiting;
                return Some(Taken { number, process, stdio, channel });
            }
            self.dismiss(waiting);
        }
        None
    }

    /// A command is over. Only now: a shell in the making would take the processor from the command.
    pub(super) fn resume_parking(&mut self) {
        self.parking.wanted = self.parking.in_burst;
    }

    /// Whether there is something to do here when nothing else is.
    pub(super) fn wants_parking(&self) -> bool {
        self.parking.wanted
    }

    /// One step towards the shells that are wanted: learn about `/bin/sh`, or make one shell wait.
    pub(super) fn park(&mut self) {
        let Some(file) = self.shell_file() else {
            self.parking.wanted = false;
            return;
        };
        match self.parking.shell {
            Shell::Known { file: known, recipe } if known == file => match recipe {
                Some(recipe) if self.parking.waiting.len() < MAX_WAITING => {
                    self.parking.wanted = self.make_waiting(recipe);
                }
                _ => self.parking.wanted = false,
            },
            Shell::Proving { file: proved, .. } if proved == file => self.parking.wanted = false,
            _ => {
                self.parking.wanted = false;
                self.prove(file, Recipe::ALL[0]);
            }
        }
    }

    /// False when no shell can be had.
    fn make_waiting(&mut self, recipe: Recipe) -> bool {
        let made = self.start_waiting(recipe);
        let waiting = match made {
            Ok(waiting) => waiting,
            Err(error) => {
                eprintln!("sandlotd: a waiting shell: {error}");
                return false;
            }
        };
        self.children.insert(waiting.process.pid, Child::Waiting);
        self.parking.waiting.push_back(waiting);
        true
    }

    fn start_waiting(&mut self, recipe: Recipe) -> crate::error::Result<Waiting> {
        let directory = self.parking.directory.clone();
        let cwd = self.open_directory(directory.as_deref())?;
        let unidentified = || crate::error::Error::new(crate::error::Code::NotFound, "the directory is gone");
        let directory = directory_id(cwd.as_fd()).ok_or_else(unidentified)?;
        let leaf = self.context.leaves.take();
        let (spawned, script, stdio) = self.start_shell(recipe, cwd.as_fd(), leaf.as_ref())?;
        let number = self.commands.reserve();
        for (stream, fd) in stdio.outputs.iter().enumerate() {
            let Some(fd) = fd else { continue };
            self.reactor
                .add(fd, Subject::Output(number, stream).token(), Interest::Read)
                .map_err(|errno| crate::error::Error::system("epoll_ctl", errno))?;
        }
        let process = Process::new(&spawned, leaf);
        self.add_keeper(spawned);
        Ok(Waiting { number, process, script, stdio, directory })
    }

    fn start_shell(
        &mut self,
        recipe: Recipe,
        cwd: BorrowedFd<'_>,
        leaf: Option<&Leaf>,
    ) -> crate::error::Result<(Spawned, OwnedFd, Stdio)> {
        let failed = |errno| crate::error::Error::system("start a shell", errno);
        let (their_script, script) = script_pair().map_err(failed)?;
        let identity = self.default_user.identity.clone();
        let wiring = Wiring { input: false, merge: false, terminal: None };
        let (stdio, theirs) = stdio::open(wiring, self.context.null.as_fd(), &identity)?;
        let [null, out, err] = theirs.each_ref().map(AsFd::as_fd);
        let (input, extra) = match recipe.is_standard_input() {
            true => (their_script.as_fd(), vec![]),
            false => (null, vec![(their_script.as_fd(), SCRIPT_FD)]),
        };
        let launch = Launch {
            plan: Plan { program: Program::shell(recipe.argv(), &self.default_env), terminal: false, identity },
            stdio: [input, out, err],
            extra: &extra,
            cwd,
            leaf,
        };
        let spawned = self.spawner.spawn(launch).map_err(failed)?;
        Ok((spawned, script, stdio))
    }

    /// Start a process that shows whether the image's shell can be used with a recipe.
    fn prove(&mut self, file: FileId, recipe: Recipe) {
        let leaf = self.context.leaves.take();
        let root = self.context.root.try_clone();
        let started = root
            .map_err(|_| crate::error::Error::new(crate::error::Code::Capacity, "no descriptor left"))
            .and_then(|root| self.start_shell(recipe, root.as_fd(), leaf.as_ref()));
        // Its output goes nowhere: our ends are dropped here, and a proof prints nothing.
        let proof = recipe.proof();
        match started {
            Ok((spawned, script, _)) if hand_over(&script, &proof) => {
                let pid = spawned.pid;
                self.children.insert(pid, Child::Proof(leaf));
                self.add_keeper(spawned);
                self.parking.shell = Shell::Proving { file, recipe, pid };
            }
            _ => self.parking.shell = Shell::Known { file, recipe: None },
        }
    }

    pub(super) fn proof_ended(&mut self, death: &Death) {
        let Shell::Proving { file, recipe, pid } = self.parking.shell else { return };
        if pid != death.pid {
            return;
        }
        let next = Recipe::ALL.iter().position(|other| *other == recipe).and_then(|index| Recipe::ALL.get(index + 1));
        match (death.ending == Ending::Code(PROVEN), next) {
            (true, _) => {
                self.parking.shell = Shell::Known { file, recipe: Some(recipe) };
                self.parking.wanted = true;
            }
            (false, Some(next)) => self.prove(file, *next),
            (false, None) => self.parking.shell = Shell::Known { file, recipe: None },
        }
    }

    /// A waiting shell has died, by whatever hand.
    pub(super) fn waiting_died(&mut self, pid: u32) {
        let index = self.parking.waiting.iter().position(|waiting| waiting.process.pid == pid);
        index
            .and_then(|index| self.parking.waiting.remove(index))
            .into_iter()
            .for_each(|waiting| self.dismiss(waiting));
    }

    /// Something came out of a shell that has run nothing: whoever did that may keep it.
    pub(super) fn dismiss_number(&mut self, number: Number) {
        let index = self.parking.waiting.iter().position(|waiting| waiting.number == number);
        index
            .and_then(|index| self.parking.waiting.remove(index))
            .into_iter()
            .for_each(|waiting| self.dismiss(waiting));
    }

    pub(crate) fn dismiss_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.parking.waiting) {
            self.dismiss(waiting);
        }
        self.parking.wanted = false;
    }

    fn dismiss(&mut self, waiting: Waiting) {
        if let Err(errno) = waiting.process.signal_leader(Signal::KILL) {
            eprintln!("sandlotd: kill of a waiting shell: {errno}");
        }
        if let Some(leaf) = waiting.process.tree.into_leaf() {
            self.context.leaves.recycle(leaf);
        }
    }

    pub(super) fn is_parked(&self, pid: u32) -> bool {
        self.parking.waiting.iter().any(|waiting| waiting.process.pid == pid)
            || matches!(self.parking.shell, Shell::Proving { pid: proving, .. } if proving == pid)
    }

    pub(super) fn next_parking_deadline(&self) -> Option<Instant> {
        let occupied = !self.parking.waiting.is_empty();
        self.parking.last_suited.filter(|_| occupied).map(|last| last + PATIENCE)
    }

    pub(super) fn expire_waiting(&mut self, now: Instant) {
        if self.next_parking_deadline().is_some_and(|deadline| deadline <= now) {
            self.dismiss_waiting();
        }
    }

    fn shell_file(&self) -> Option<FileId> {
        // Our own root is the sandbox's: absolute links in it lead nowhere else.
        let stat = rustix::fs::statat(&self.context.root, "bin/sh", AtFlags::empty()).ok()?;
        let changed = (stat.st_ctime as i64, stat.st_ctime_nsec as i64);
        Some(FileId { device: stat.st_dev as u64, inode: stat.st_ino as u64, changed })
    }
}

fn directory_id(directory: BorrowedFd<'_>) -> Option<FileId> {
    let stat = rustix::fs::fstat(directory).ok()?;
    Some(FileId { device: stat.st_dev as u64, inode: stat.st_ino as u64, changed: (0, 0) })
}

fn is_suited(request: &Exec<'_>) -> bool {
    let plain = request.user.is_none() && request.env.is_empty() && request.stdin.is_none() && !request.stdin_open;
    plain
        && request.pty.is_none()
        && !request.login
        && !request.merge
        && request.mode == Mode::Collect
        && request.kill == Kill::Tree
}

/// A shell's end and ours of what its script comes through. Not a pipe: a copy of our end in a child that has not
/// executed yet would hold back the end of the script.
fn script_pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Write a whole script and its end. False when the shell is not there any more.
fn hand_over(script: &OwnedFd, text: &[u8]) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::send(script, text, flags) == Ok(text.len()) && rustix::net::shutdown(script, Shutdown::Write).is_ok()
}
