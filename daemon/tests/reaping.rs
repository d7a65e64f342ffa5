//! Waiting for children, in a process that has no others.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandlotd::process::reaper::{Ending, Passing, Reaper};

const STEP: Duration = Duration::from_millis(20);

/// A child that stands still and is not killed keeps nobody waiting without end.
#[test]
#[expect(clippy::zombie_processes, reason = "the reaper waits for it")]
fn a_stopped_child_is_not_waited_for_without_end() {
    let child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    assert_eq!(Reaper::death_within(STEP), Passing::NotYet);
    kill_process(pid, Signal::KILL).unwrap();
    let mut passing = Passing::NotYet;
    while passing == Passing::NotYet {
        passing = Reaper::death_within(STEP);
    }
    let Passing::Died(death) = passing else { panic!("{passing:?}") };
    assert_eq!((death.pid, death.ending), (child.id(), Ending::Signal(9)));
    assert_eq!(Reaper::death_within(STEP), Passing::Childless);
}
