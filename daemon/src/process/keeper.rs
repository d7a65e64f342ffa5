//! A process between the daemon and a command, where no cgroup can hold the command's tree.
//!
//! As child subreaper it becomes the parent of every orphan of the tree, so that the tree can be found in the process
//! table. It tells of the first process's end over a pipe, and ends itself when nobody is left.

use std::ffi::c_int;
use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;

use super::reaper::{Death, Ending, Reaper};
use super::spawn::Report;
use super::tree;
use crate::error::last_errno;

/// The daemon's view of a keeper.
#[derive(Debug)]
pub struct Keeper {
    pub pid: u32,
    /// Tells of the leader's end, once.
    pub news: OwnedFd,
}

/// How long a keeper may take before it is told to go on.
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Bytes of the leader's pid, and of what is told of its end.
const PID_BYTES: usize = 4;
const NEWS_BYTES: usize = 40;

/// Fork a keeper whose first act is `start`. Returns it and the pid of the leader that it has started.
///
/// # Errors
/// No process or descriptor left, or what `start` failed with.
pub fn fork(report: &Report, start: impl FnOnce() -> rustix::io::Result<u32>) -> rustix::io::Result<(Keeper, u32)> {
    let (news, their_news) = super::spawn::pipe()?;
    // SAFETY: glibc makes its allocator usable in the child, which touches no other lock and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        keep(their_news, report, start);
    }
    drop(their_news);
    let pid = u32::try_from(pid).map_err(|_| last_errno())?;
    let leader = read_leader(pid, &news)?;
    rustix::io::ioctl_fionbio(&news, true)?;
    Ok((Keeper { pid, news }, leader))
}

/// Wait for the keeper's first word. Commands may stop it, but not for long, or kill it.
fn read_leader(keeper: u32, news: &OwnedFd) -> rustix::io::Result<u32> {
    let mut first = [0; PID_BYTES];
    while rustix::event::poll(&mut [PollFd::new(news, PollFlags::IN)], Some(&STEP))? == 0 {
        tree::pid_of(keeper).map_or(Ok(()), |pid| tree::kill(pid, Signal::CONT))?;
    }
    match rustix::io::read(news, &mut first)? {
        PID_BYTES => {
            let leader = i32::from_ne_bytes(first);
            u32::try_from(leader).map_err(|_| Errno::from_raw_os_error(-leader))
        }
        _ => Err(Errno::AGAIN),
    }
}

/// The whole life of a keeper.
fn keep(news: OwnedFd, report: &Report, start: impl FnOnce() -> rustix::io::Result<u32>) -> ! {
    // SAFETY: plain calls on our own process; nothing here uses the descriptors that are closed.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        libc::prctl(libc::PR_SET_NAME, c"sandlotd keeper".as_ptr());
    }
    let started = start();
    let mut pipe = std::fs::File::from(keep_only(news));
    let first = started.map_or_else(|errno| -errno.raw_os_error(), |pid| i32::try_from(pid).unwrap_or(-libc::EIO));
    // Nobody to tell is nobody who waits.
    let mut told = pipe.write_all(&first.to_ne_bytes()).is_err();
    while let Some(death) = Reaper::wait_for_death() {
        if !told && i32::try_from(death.pid) == Ok(first) {
            told = true;
            drop(pipe.write_all(&encode(&death, report)));
        }
    }
    // SAFETY: always.
    unsafe { libc::_exit(0) }
}

/// Let go of everything of the daemon's but the pipe.
fn keep_only(news: OwnedFd) -> OwnedFd {
    use std::os::fd::{AsRawFd, FromRawFd};

    const KEPT: c_int = 3;
    // SAFETY: the pipe is moved to a number that is then owned anew; all others are unused in a keeper.
    unsafe {
        if news.as_raw_fd() != KEPT {
            libc::dup3(news.as_raw_fd(), KEPT, libc::O_CLOEXEC);
        }
        std::mem::forget(news);
        libc::close_range(KEPT as libc::c_uint + 1, libc::c_uint::MAX, 0);
        OwnedFd::from_raw_fd(KEPT)
    }
}

fn encode(death: &Death, report: &Report) -> [u8; NEWS_BYTES] {
    let (stage, errno) = report.raw();
    let mut news = [0; NEWS_BYTES];
    news[0..4].copy_from_slice(&death.ending.to_status().to_ne_bytes());
    news[4..8].copy_from_slice(&stage.to_ne_bytes());
    news[8..12].copy_from_slice(&errno.to_ne_bytes());
    news[16..24].copy_from_slice(&death.user_us.to_ne_bytes());
    news[24..32].copy_from_slice(&death.system_us.to_ne_bytes());
    news[32..40].copy_from_slice(&death.peak_bytes.to_ne_bytes());
    news
}

impl Keeper {
    /// What has become of the leader, when the keeper has told it. `report` then says why it may not have executed.
    pub fn news(&self, leader: u32, report: &Report) -> Option<Death> {
        let mut news = [0; NEWS_BYTES];
        // Written in one piece, far below what a pipe splits.
        if rustix::io::read(&self.news, &mut news) != Ok(NEWS_BYTES) {
            return None;
        }
        let word = |start: usize| i32::from_ne_bytes([news[start], news[start + 1], news[start + 2], news[start + 3]]);
        let long = |start: usize| {
            let bytes = news.get(start..start + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_ne_bytes)
        };
        report.set_raw(u32::from_ne_bytes(word(4).to_ne_bytes()), word(8));
        Some(Death {
            pid: leader,
            ending: Ending::from_status(word(0)),
            user_us: long(16),
            system_us: long(24),
            peak_bytes: long(32),
        })
    }
}
