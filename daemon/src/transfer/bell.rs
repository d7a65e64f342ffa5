//! How threads wake the main loop.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::event::EventfdFlags;

use super::Ticket;

/// An eventfd, and the operations that have something for the main loop.
#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
    rung: Mutex<BTreeSet<Ticket>>,
}

impl Bell {
    pub fn new() -> rustix::io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { event, rung: Mutex::new(BTreeSet::new()) })
    }

    /// The operation has frames, or an end, or room again.
    pub fn ring(&self, ticket: Ticket) {
        let mut rung = super::flow::lock(&self.rung);
        let was_silent = rung.is_empty();
        rung.insert(ticket);
        if was_silent {
            // The counter is far from full: it is written once between two readings.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Which operations have rung since the last time.
    pub fn answer(&self) -> BTreeSet<Ticket> {
        let mut rung = super::flow::lock(&self.rung);
        let mut count = [0; 8];
        // Empty already is fine.
        let _ = rustix::io::read(&self.event, &mut count);
        std::mem::take(&mut rung)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
