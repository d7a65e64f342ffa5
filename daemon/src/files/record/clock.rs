//! What a change time proves: whoever cannot set the clock cannot change a file without a trace.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::Stat;
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

/// A time that no timer reaches, and no kernel finds too large: in the year 2255.
const NEVER_S: i64 = 9_000_000_000;
/// Ticks are 1 to 10 ms apart.
const NAP: Duration = Duration::from_millis(1);

/// A moment: whatever changed before it has an earlier change time, and whatever changes after it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    seconds: i64,
    nanoseconds: i64,
}

impl Moment {
    /// Now. Waits until the clock that changes are stamped by, which goes in ticks and lags behind, has come to where the
    /// exact one was: some kernels stamp by that one where two changes would look like one.
    pub fn now() -> Self {
        let exact = Self::by(ClockId::Realtime);
        loop {
            let stamps = Self::by(ClockId::RealtimeCoarse);
            if stamps > exact {
                return stamps;
            }
            std::thread::sleep(NAP);
        }
    }

    fn by(clock: ClockId) -> Self {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
        Moment { seconds: tv_sec, nanoseconds: tv_nsec }
    }

    /// Whether a file has been changed since. A file system that keeps whole seconds says so of what was in that second.
    pub fn is_before_change_of(self, facts: &Stat) -> bool {
        let changed = Moment { seconds: facts.st_ctime, nanoseconds: i64::try_from(facts.st_ctime_nsec).unwrap_or(0) };
        changed >= self || (changed.nanoseconds == 0 && changed.seconds >= self.seconds)
    }
}

/// Tells whether somebody has set the machine's clock since this was made: change times prove nothing then.
#[derive(Debug)]
pub struct ClockWatch {
    timer: OwnedFd,
    was_set: Cell<bool>,
}

impl ClockWatch {
    /// # Errors
    /// Of the kernel, where it has no such timers.
    pub fn start() -> rustix::io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let never = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: NEVER_S, tv_nsec: 0 },
        };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &never)?;
        Ok(ClockWatch { timer, was_set: Cell::new(false) })
    }

    /// Whether it was ever set.
    pub fn was_set(&self) -> bool {
        // The kernel says so once.
        let is_news = !matches!(rustix::io::read(&self.timer, &mut [0_u8; 8]), Err(Errno::AGAIN));
        self.was_set.set(self.was_set.get() || is_news);
        self.was_set.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::Scratch;

    /// What was there before is older than a moment, and what comes after is not, however soon.
    #[test]
    fn a_moment_parts_what_was_from_what_comes() {
        let scratch = Scratch::new();
        scratch.write("old", "");
        let moment = Moment::now();
        scratch.write("new", "");
        let is_changed = |name: &str| moment.is_before_change_of(&rustix::fs::stat(scratch.at(name)).unwrap());
        assert_eq!((is_changed("old"), is_changed("new")), (false, true));
        std::fs::hard_link(scratch.at("old"), scratch.at("second")).unwrap();
        assert!(is_changed("old"));
    }

    /// Whole seconds are in doubt for as long as they last.
    #[test]
    fn whole_seconds_are_in_doubt() {
        let mut facts = rustix::fs::stat("/").unwrap();
        let moment = Moment { seconds: 100, nanoseconds: 500 };
        for (seconds, nanoseconds, changed) in [(99, 0, false), (100, 0, true), (100, 499, false), (100, 500, true)] {
            (facts.st_ctime, facts.st_ctime_nsec) = (seconds, nanoseconds);
            assert_eq!(moment.is_before_change_of(&facts), changed);
        }
    }

    /// Nobody has set the clock while this ran.
    #[test]
    fn an_untouched_clock_is_not_reported() {
        let watch = ClockWatch::start().unwrap();
        assert!(!watch.was_set() && !watch.was_set());
    }
}
