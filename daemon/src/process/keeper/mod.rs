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
