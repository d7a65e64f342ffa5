//! What all file operations share with the main loop: how they wake it, how much waits for them, and their threads.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::EventfdFlags;

use super::{Ticket, Workers, lock};

/// Bytes from clients that may wait for threads before no more is read from those clients, and until when.
const CROWDED_BYTES: usize = 16 * 1024 * 1024;
const RELIEVED_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Exchange {
    /// Readable when somebody has rung.
    event: OwnedFd,
    state: Mutex<State>,
    pub(crate) workers: Arc<Workers>,
}

#[derive(Debug, Default)]
struct State {
    rung: BTreeSet<Ticket>,
    waiting_bytes: usize,
    crowded: bool,
}

/// What has happened since the last look.
#[derive(Debug)]
pub(crate) struct News {
    /// Operations that have frames for their call, or have ended.
    pub tickets: BTreeSet<Ticket>,
    pub crowded: bool,
}

impl Exchange {
    pub fn new() -> rustix::io::Result<Self> {
        super::workers::share_one_heap();
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Exchange { event, state: Mutex::default(), workers: Arc::default() })
    }

    /// Whether so much waits for threads that clients must wait.
    pub fn is_crowded(&self) -> bool {
        lock(&self.state).crowded
    }

    /// What has happened since the last time.
    pub fn news(&self) -> News {
        let mut state = lock(&self.state);
        let mut count = [0; 8];
        // Empty already is fine.
        let _ = rustix::io::read(&self.event, &mut count);
        News { tickets: std::mem::take(&mut state.rung), crowded: state.crowded }
    }

    /// The operation has frames, or has ended.
    pub(super) fn ring(&self, ticket: Ticket) {
        let mut state = lock(&self.state);
        if state.rung.is_empty() {
            self.wake();
        }
        state.rung.insert(ticket);
    }

    /// So much more waits for threads.
    pub(super) fn wait_for(&self, bytes: usize) {
        let mut state = lock(&self.state);
        state.waiting_bytes += bytes;
        state.crowded |= state.waiting_bytes > CROWDED_BYTES;
    }

    /// So much was taken, or is not wanted any more.
    pub(super) fn relieve(&self, bytes: usize) {
        let mut state = lock(&self.state);
        state.waiting_bytes -= bytes;
        if state.crowded && state.waiting_bytes < RELIEVED_BYTES {
            state.crowded = false;
            self.wake();
        }
    }

    fn wake(&self) {
        // The counter is far from full: few write it between two readings.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Exchange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
