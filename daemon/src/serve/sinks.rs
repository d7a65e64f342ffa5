//! Output of background children that outlive their command: read and dropped, so that they neither block nor get
//! SIGPIPE, and not faster than is fair.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::Subject;
use crate::reactor::{Interest, Reactor};

/// Pipes that are drained at the same time; beyond, the oldest is closed.
const MAX_SINKS: usize = 1024;
/// Rest after a full read: a child that floods its output costs us little.
const REST: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(super) struct Sinks {
    pipes: BTreeMap<u64, OwnedFd>,
    resting: Vec<(Instant, u64)>,
    last: u64,
}

impl Sinks {
    pub fn add(&mut self, pipe: OwnedFd, reactor: &Reactor) {
        if self.pipes.len() >= MAX_SINKS {
            self.pipes.pop_first();
        }
        self.last += 1;
        if reactor.add(&pipe, Subject::Sink(self.last).token(), Interest::Read).is_ok() {
            self.pipes.insert(self.last, pipe);
        }
    }

    pub fn drain(&mut self, number: u64, reactor: &Reactor, scratch: &mut [u8]) {
        let Some(pipe) = self.pipes.get(&number) else { return };
        match rustix::io::read(pipe, &mut *scratch) {
            Ok(0) => drop(self.pipes.remove(&number)),
            Ok(count) if count < scratch.len() / 4 => {}
            Ok(_) => {
                if reactor.remove(pipe).is_ok() {
                    self.resting.push((Instant::now() + REST, number));
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => drop(self.pipes.remove(&number)),
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.resting.first().map(|(until, _)| *until)
    }

    pub fn resume(&mut self, now: Instant, reactor: &Reactor) {
        while let Some((until, number)) = self.resting.first().copied()
            && until <= now
        {
            self.resting.remove(0);
            if let Some(pipe) = self.pipes.get(&number)
                && reactor.add(pipe, Subject::Sink(number).token(), Interest::Read).is_err()
            {
                self.pipes.remove(&number);
            }
        }
    }

    pub fn clear(&mut self) {
        *self = Sinks { last: self.last, ..Sinks::default() };
    }
}
