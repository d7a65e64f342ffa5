//! A process between the daemon and a command, where no cgroup can hold the command's tree: the daemon's view of it.
//!
//! As child subreaper a keeper becomes the parent of every orphan of the tree, so that the tree can be found in the process
//! table. When nobody of it is left it waits for the next command: a new one would be a copy of the daemon, which takes
//! longer to make than many a command runs. Its own side is [`life`].

mod birth;
mod life;
pub mod order;
mod word;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;

use super::child::{Report, Rules};
use super::reaper::Death;
use super::tree::{self, Charge};
use crate::descriptors;
use crate::error::last_errno;

use birth::Birthplace;
use order::Order;
use word::{WORD_BYTES, Word};

/// How long a keeper may take before it is told to go on: commands may stop it, but not for long.
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

#[derive(Debug)]
pub struct Keeper {
    pub pid: u32,
    /// Both ways: orders to it, words from it.
    pub line: OwnedFd,
    birth: Birthplace,
    charge: Arc<Charge>,
}

/// What a keeper has to say.
#[derive(Debug)]
pub enum News {
    Nothing,
    /// The leader has ended, and whether nobody else of its tree is left.
    Ended(Death, bool),
    /// Nobody of the tree is left.
    Free,
    /// The keeper was killed.
    Gone,
}

impl Keeper {
    /// Fork a keeper that waits for its first order.
    ///
    /// # Errors
    /// No process, memory or descriptor left.
    pub fn fork(rules: &Rules) -> rustix::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (line, their_line) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let birth = Birthplace::new()?;
        // SAFETY: glibc makes its allocator usable in the child, which touches no other lock and leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            life::keep(their_line, &birth, rules);
        }
        drop(their_line);
        let pid = u32::try_from(pid).map_err(|_| last_errno())?;
        rustix::io::ioctl_fionbio(&line, true)?;
        Ok(Keeper { pid, line, birth, charge: Charge::new(pid) })
    }

    /// Have it start what is ordered, while it keeps nobody. Returns the leader's pid; `None` when the keeper was killed
    /// before it could make one.
    ///
    /// # Errors
    /// What making a process has failed with.
    pub fn start(&mut self, order: &Order<'_>) -> rustix::io::Result<Option<u32>> {
        self.charge = Charge::new(self.pid);
        self.birth.clear();
        let mut rest = order.bytes.as_slice();
        while !rest.is_empty() {
            let is_first = rest.len() == order.bytes.len();
            match descriptors::send(&self.line, rest, if is_first { &order.descriptors } else { &[] }) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        self.told()
    }

    /// Its first word on the order that it has.
    fn told(&self) -> rustix::io::Result<Option<u32>> {
        self.wait(PollFlags::IN)?;
        match self.read() {
            Some(Word::Started(pid)) => Ok(Some(pid)),
            Some(Word::Failed(errno)) => Err(errno),
            // Killed on the way: the kernel knows how far it came.
            _ => Ok(self.birth.pid()),
        }
    }

    /// What it keeps now, or has kept last.
    pub fn charge(&self) -> &Arc<Charge> {
        &self.charge
    }

    /// Wait for the line, and wake a keeper that somebody has stopped.
    fn wait(&self, flags: PollFlags) -> rustix::io::Result<()> {
        while rustix::event::poll(&mut [PollFd::new(&self.line, flags)], Some(&STEP))? == 0 {
            tree::pid_of(self.pid).map_or(Ok(()), |pid| tree::kill(pid, Signal::CONT))?;
        }
        Ok(())
    }

    /// What has become of `leader` and its tree since it was asked last. `report` then says why it may not have executed.
    pub fn news(&self, leader: u32, report: &Report) -> News {
        match self.read() {
            Some(Word::Ended { death, report: (stage, errno), is_free }) => {
                report.set_raw(stage, errno);
                News::Ended(Death { pid: leader, ..death }, is_free)
            }
            Some(Word::Free) => News::Free,
            Some(Word::Nothing) => News::Nothing,
            Some(Word::Started(_) | Word::Failed(_)) | None => News::Gone,
        }
    }

    /// `None` when nothing will come any more.
    fn read(&self) -> Option<Word> {
        let mut word = [0; WORD_BYTES];
        // Each was written in one piece, far below what a socket splits.
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.line, &mut word)) {
            Ok(WORD_BYTES) => Word::decode(&word),
            Err(Errno::AGAIN) => Some(Word::Nothing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Child, Command};
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::process::WaitOptions;

    use super::*;
    use crate::confinement::{Confinement, Identity};
    use crate::process::child::{self, Block, Files, Plan, Stack};
    use crate::process::launch::Launch;
    use crate::process::program::{Environment, Program};

    fn plan() -> Plan {
        let program = Program::from_argv(&[b"/nowhere"], &Environment::default()).unwrap();
        Plan { program, terminal: false, identity: Identity { uid: 0, gid: 0, groups: Vec::new() } }
    }

    /// A keeper whose place a shell has, with the keeper's end of the line as its standard input.
    fn played_by(script: &str) -> (Keeper, Child) {
        let flags = SocketFlags::CLOEXEC;
        let (line, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let player = Command::new("sh").args(["-c", script]).stdin(theirs).spawn().unwrap();
        rustix::io::ioctl_fionbio(&line, true).unwrap();
        let birth = Birthplace::new().unwrap();
        (Keeper { pid: player.id(), line, birth, charge: Charge::new(player.id()) }, player)
    }

    fn start(keeper: &mut Keeper) -> rustix::io::Result<Option<u32>> {
        let null = std::fs::File::open("/dev/null").unwrap();
        let launch = Launch { plan: plan(), stdio: [null.as_fd(); 3], extra: &[], cwd: null.as_fd(), leaf: None };
        keeper.start(&Order::new(&launch).unwrap())
    }

    /// The kernel writes the number of a child down before it runs.
    #[test]
    fn a_birth_is_known_to_whoever_shares_the_place() {
        let (birth, stack) = (Birthplace::new().unwrap(), Stack::new().unwrap());
        let null = std::fs::File::open("/dev/null").unwrap();
        let open_files = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        let rules = Rules { confinement: Arc::new(Confinement::none()), open_files };
        let files = Files::new(&[null.as_fd(); 4], &[0, 1, 2], None);
        let block = Box::into_raw(Box::new(Block::new(plan(), files, rules, Arc::default(), stack)));
        assert_eq!(birth.pid(), None);
        // SAFETY: from `into_raw`, freed below when the child is dead.
        let made = unsafe { child::start(block, birth.as_ptr()) }.unwrap();
        assert_eq!(birth.pid(), Some(made));
        rustix::process::waitpid(tree::pid_of(made), WaitOptions::empty()).unwrap();
        // SAFETY: from `into_raw`, and the child that read it is dead.
        drop(unsafe { Box::from_raw(block) });
    }

    /// Killed between making the leader and telling of it: there is one, and it is not made again.
    #[test]
    fn a_leader_whose_keeper_could_not_tell_of_it_is_found() {
        let (mut keeper, mut player) = played_by("head -c 1 >/dev/null");
        assert_eq!(start(&mut keeper), Ok(None), "it took the order, made nobody and is gone");
        // SAFETY: the place lives as long as its keeper.
        unsafe { keeper.birth.as_ptr().write_volatile(4242) };
        assert_eq!(keeper.told(), Ok(Some(4242)));
        player.wait().unwrap();
    }

    /// Whoever has stopped a keeper, a start does not wait for ever.
    #[test]
    fn a_stopped_keeper_is_told_to_go_on_while_it_is_waited_for() {
        let (done, waited) = mpsc::channel();
        std::thread::spawn(move || {
            let (mut keeper, mut player) = played_by("kill -STOP $$; head -c 1 >/dev/null");
            let started = start(&mut keeper);
            player.wait().unwrap();
            done.send(started).unwrap();
        });
        assert_eq!(waited.recv_timeout(Duration::from_secs(60)), Ok(Ok(None)));
    }
}
