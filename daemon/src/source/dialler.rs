//! When to dial whom: pure, no socket.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Keeps one link to whichever of several addresses answers.
#[derive(Debug)]
pub struct Dialler {
    targets: Vec<SocketAddr>,
    /// Index of the address that is tried now.
    target: usize,
    failures: u32,
    /// `None` while a link is there or in the making.
    due: Option<Instant>,
}

impl Dialler {
    /// Due at once.
    pub fn new(targets: Vec<SocketAddr>, now: Instant) -> Self {
        let due = (!targets.is_empty()).then_some(now);
        Dialler { targets, target: 0, failures: 0, due }
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The address to dial, if it is time. Its outcome is to be told.
    pub fn take(&mut self, now: Instant) -> Option<SocketAddr> {
        if self.due? > now {
            return None;
        }
        self.due = None;
        self.targets.get(self.target).copied()
    }

    /// No link came of it, or it broke before it was proven. `chance` is any number: it spreads those who fail together.
    pub fn failed(&mut self, now: Instant, chance: u32) {
        if self.targets.is_empty() {
            return;
        }
        self.target = (self.target + 1) % self.targets.len();
        self.pause(now, chance);
        self.failures = self.failures.saturating_add(1);
    }

    /// A link is proven: the next failure is a first one.
    pub fn proven(&mut self) {
        self.failures = 0;
    }

    /// A proven link is no more: the same address again.
    pub fn lost(&mut self, now: Instant, chance: u32) {
        self.pause(now, chance);
    }

    fn pause(&mut self, now: Instant, chance: u32) {
        let longest = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        let part = f64::from(chance) / f64::from(u32::MAX);
        self.due = Some(now + longest.mul_f64(1.0 - part / 2.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> Vec<SocketAddr> {
        vec!["10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()]
    }

    /// Each failure doubles the pause up to the longest, less at most half of it, and goes on to the next address.
    #[test]
    fn failures_double_the_pause_and_go_round() {
        let now = Instant::now();
        let mut dialler = Dialler::new(targets(), now);
        let mut seen = Vec::new();
        for expected_ms in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            seen.push(dialler.take(dialler.due().unwrap_or(now)).unwrap().port());
            let mut lucky = Dialler { targets: targets(), ..dialler };
            lucky.failed(now, u32::MAX);
            dialler.failed(now, 0);
            let pauses = [&dialler, &lucky].map(|one| (one.due().unwrap() - now).as_millis());
            assert_eq!(pauses, [expected_ms, expected_ms / 2]);
        }
        assert_eq!(seen, [1, 2, 1, 2, 1, 2, 1, 2, 1]);
    }

    /// Nothing is due while a link is there; a proven one that is lost is dialled again soon, at the same address.
    #[test]
    fn a_lost_link_is_dialled_again_at_the_same_address() {
        let now = Instant::now();
        let mut dialler = Dialler::new(targets(), now);
        dialler.take(now);
        dialler.failed(now, 0);
        let at = dialler.due().unwrap();
        assert_eq!(dialler.take(now), None);
        let address = dialler.take(at).unwrap();
        assert_eq!((dialler.due(), dialler.take(at)), (None, None));
        dialler.proven();
        dialler.lost(at, 0);
        assert_eq!(dialler.due(), Some(at + FIRST_PAUSE));
        assert_eq!(dialler.take(at + FIRST_PAUSE), Some(address));
    }

    /// Without addresses nothing is ever due.
    #[test]
    fn without_addresses_nothing_is_due() {
        let now = Instant::now();
        let mut dialler = Dialler::new(Vec::new(), now);
        dialler.failed(now, 0);
        assert_eq!(dialler.due(), None);
    }
}
