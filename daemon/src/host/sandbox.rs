//! One sandbox as its host knows it, and when it must end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ids::Hold;
use super::plan::Terms;
use super::runtime::errno_of;
use crate::cgroup::group::Group;
use crate::error::{Error, Result};
use crate::message::{Owner, SandboxEntry, Why};
use crate::reactor::Token;
use crate::removal;

/// A call of a client that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub client: Token,
    pub id: u32,
}

#[derive(Debug)]
pub struct Sandbox {
    pub name: String,
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub link: OwnedFd,
    pub state: State,
    pub group: Option<Group>,
    pub hold: Hold,
    /// Its directory on disk, where its upper is there.
    pub disk: Option<PathBuf>,
    pub life: Life,
    pub labels: BTreeMap<String, String>,
    pub image: String,
    pub unenforced: Vec<String>,
    /// Microseconds by step of its creation.
    pub spans: BTreeMap<&'static str, u64>,
    /// Set when it ended before its creator was told that it is there.
    pub failed_creation: Option<FailedCreation>,
    /// How its init ended, for people.
    pub detail: String,
}

/// A creation that did not succeed: who waits for the answer, and what the init said, if it did.
#[derive(Debug)]
pub struct FailedCreation {
    pub creator: Call,
    pub error: Option<Error>,
}

#[derive(Debug)]
pub enum State {
    /// The init builds it; the creator waits.
    Booting {
        creator: Call,
        since: Instant,
    },
    Alive,
    /// It has been asked to end; the rest of its grace.
    Terminating {
        until: Instant,
        look: Instant,
    },
    /// Killed, and not yet collected.
    Dying,
    /// Dead: what it leaves is being removed.
    Removing(Removing),
}

/// What is left of a dead sandbox to be removed.
#[derive(Debug)]
pub struct Removing {
    /// When to try again what could not be removed, and when to give up.
    pub retry: Option<Instant>,
    pub give_up: Instant,
    /// Removes its directory on disk, beside the loop.
    pub remover: Option<Remover>,
}

/// A thread that removes a tree; its pipe hangs up when it is done.
#[derive(Debug)]
pub struct Remover {
    pub thread: JoinHandle<Result<()>>,
    pub done: OwnedFd,
}

impl Remover {
    /// Start removing `name` in `parent`.
    pub fn start(parent: PathBuf, name: OsString) -> Result<Self> {
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let (done, open) = pipe.map_err(|errno| Error::system("make a pipe", errno))?;
        let work = move || {
            let result = removal::remove_tree(&parent, &name);
            drop(open);
            result
        };
        let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(work);
        let thread = thread.map_err(|error| Error::system("start a thread", errno_of(&error)))?;
        Ok(Remover { thread, done })
    }
}

/// The times of a sandbox's life, and who waits for its end.
#[derive(Debug)]
pub struct Life {
    pub owner: Owner,
    pub created_ms: u64,
    lease_until: Option<Instant>,
    lifetime_until: Option<Instant>,
    /// Why it ends, once it is known.
    pub why: Option<Why>,
    /// Calls that destroy it.
    pub waiters: Vec<Call>,
}

impl Life {
    pub fn new(terms: Terms, now: Instant, created_ms: u64) -> Self {
        let after = |ms: Option<u64>| ms.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
        Life {
            owner: terms.owner,
            created_ms,
            lease_until: after(terms.lease_ms),
            lifetime_until: after(terms.max_lifetime_ms),
            why: None,
            waiters: Vec::new(),
        }
    }

    /// The lease ends `lease_ms` from now. False for an attached sandbox, which has none.
    pub fn renew(&mut self, now: Instant, lease_ms: u64) -> bool {
        if self.owner == Owner::Attached {
            return false;
        }
        self.lease_until = now.checked_add(Duration::from_millis(lease_ms));
        true
    }

    /// Why the sandbox must end by now, if it must.
    pub fn due(&self, now: Instant) -> Option<Why> {
        let past = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        match (past(self.lease_until), past(self.lifetime_until)) {
            (_, true) => Some(Why::Lifetime),
            (true, false) => Some(Why::LeaseExpired),
            (false, false) => None,
        }
    }

    /// When [`Life::due`] may next say something else.
    pub fn deadline(&self) -> Option<Instant> {
        [self.lease_until, self.lifetime_until].into_iter().flatten().min()
    }

    pub fn lease_left_ms(&self, now: Instant) -> Option<u64> {
        let left = self.lease_until?.saturating_duration_since(now);
        Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Sandbox {
    pub fn entry(&self, mode: &str, now: Instant) -> SandboxEntry {
        SandboxEntry {
            name: self.name.clone(),
            owner: self.life.owner,
            pid: self.pid,
            mode: mode.to_owned(),
            created_ms: self.life.created_ms,
            lease_left_ms: self.life.lease_left_ms(now),
            labels: self.labels.clone(),
            image: self.image.clone(),
        }
    }

    /// Whether it may be entered.
    pub fn is_alive(&self) -> bool {
        matches!(self.state, State::Alive)
    }

    /// It ends, whatever it was: note whom that disappoints.
    pub fn begin_to_die(&mut self, next: State) {
        if let State::Booting { creator, .. } = std::mem::replace(&mut self.state, next) {
            self.failed_creation.get_or_insert(FailedCreation { creator, error: None });
        }
    }

    /// When something must be done about it, whatever else happens.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Terminating { until, look } => Some(*until.min(look)),
            State::Booting { .. } | State::Alive => self.life.deadline(),
            State::Dying => None,
            State::Removing(removing) => removing.retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(owner: Owner, lease_ms: Option<u64>, max_lifetime_ms: Option<u64>, now: Instant) -> Life {
        Life::new(Terms { owner, lease_ms, max_lifetime_ms }, now, 0)
    }

    /// A lease ends at its time, not before; renewing counts from the renewal.
    #[test]
    fn a_lease_ends_at_its_time() {
        let start = Instant::now();
        let mut life = life(Owner::Leased, Some(1000), None, start);
        assert_eq!(life.due(start + Duration::from_millis(999)), None);
        assert_eq!(life.due(start + Duration::from_millis(1000)), Some(Why::LeaseExpired));
        assert!(life.renew(start + Duration::from_millis(900), 1000));
        assert_eq!(life.due(start + Duration::from_millis(1899)), None);
        assert_eq!(life.lease_left_ms(start + Duration::from_millis(1400)), Some(500));
        assert_eq!(life.deadline(), Some(start + Duration::from_millis(1900)));
    }

    /// No lease makes a sandbox live longer than its life time.
    #[test]
    fn a_life_time_is_not_renewed() {
        let start = Instant::now();
        let mut life = life(Owner::Leased, Some(100), Some(500), start);
        life.renew(start, 60_000);
        assert_eq!(life.due(start + Duration::from_millis(500)), Some(Why::Lifetime));
    }

    /// An attached sandbox has no lease to renew and no time at which it ends by itself.
    #[test]
    fn an_attached_sandbox_has_no_lease() {
        let start = Instant::now();
        let mut life = life(Owner::Attached, None, None, start);
        assert!(!life.renew(start, 1000));
        assert_eq!((life.due(start + Duration::from_secs(1 << 20)), life.deadline()), (None, None));
    }

    /// Times beyond what a clock can hold are no limit instead of an overflow.
    #[test]
    fn absurd_times_are_no_limit() {
        let start = Instant::now();
        assert_eq!(life(Owner::Leased, Some(u64::MAX), Some(u64::MAX), start).due(start), None);
    }
}
