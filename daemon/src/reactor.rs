//! Readiness by epoll. One thread, no callbacks: [`Reactor::wait`] returns which tokens are ready.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Events taken from the kernel in one go.
const BATCH: usize = 64;

/// A file descriptor's name in the loop; the owner of the loop gives it a meaning.
pub type Token = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub token: Token,
    /// Readable, closed by the peer, or in error: a read will tell which.
    pub readable: bool,
    pub writable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Watch for errors and hang-up only.
    Neither,
    Read,
    Write,
    Both,
}

impl Interest {
    pub fn new(read: bool, write: bool) -> Self {
        match (read, write) {
            (false, false) => Interest::Neither,
            (true, false) => Interest::Read,
            (false, true) => Interest::Write,
            (true, true) => Interest::Both,
        }
    }

    fn flags(self) -> EventFlags {
        match self {
            Interest::Neither => EventFlags::empty(),
            Interest::Read => EventFlags::IN | EventFlags::RDHUP,
            Interest::Write => EventFlags::OUT,
            Interest::Both => EventFlags::IN | EventFlags::RDHUP | EventFlags::OUT,
        }
    }
}

/// Level-triggered epoll.
pub struct Reactor {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Reactor {
    pub fn new() -> rustix::io::Result<Self> {
        Ok(Reactor { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(BATCH) })
    }

    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), interest.flags())
    }

    pub fn change(&self, fd: impl AsFd, token: Token, interest: Interest) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token), interest.flags())
    }

    /// Stop watching. Needed before a descriptor is closed only if another process may hold a copy of it.
    pub fn remove(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::delete(&self.epoll, fd)
    }

    /// Wait until something is ready or `deadline` has passed, and append what is ready to `ready`.
    pub fn wait(&mut self, deadline: Option<Instant>, ready: &mut Vec<Ready>) -> rustix::io::Result<()> {
        let timeout = deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        ready.extend(self.events.iter().map(|event| {
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
                writable: flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR),
            }
        }));
        Ok(())
    }
}

/// Readable when anything in it is ready: a reactor may be watched by another.
impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reactor").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

fn timespec(duration: Duration) -> Timespec {
    // A microsecond more than asked: waking just before a deadline would spin.
    let rounded = if duration.is_zero() { duration } else { duration + Duration::from_micros(1) };
    Timespec {
        tv_sec: i64::try_from(rounded.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(rounded.subsec_nanos()),
    }
}
