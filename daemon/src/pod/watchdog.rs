//! Acts before a container's memory is used up, where the kernel would kill everything in it at once.
//!
//! On cgroup version 2 a kubelet sets `memory.oom.group`: one process out of memory, and the whole container dies, the
//! daemon with it. Nothing in a container may be written to be told in time (`memory.high`, pressure triggers), so the
//! use is looked at, as often as memory could run out: seldom while there is much, each millisecond near the end, and
//! not at all while no command lives. At the end the command that holds most is killed, as the kernel would have done.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;

use super::container::{Memory, Version};
use crate::cgroup::{read_number, read_text};
use crate::process::table::{self, Entry};
use crate::process::tree;

/// Faster than a command can fill memory, in bytes a second: a core clears pages at a few GB/s.
const FASTEST: u64 = 4 << 30;
/// Left to the kernel and the daemon, as part of the limit: a sixteenth, but no more and no less than these.
const RESERVE_SHARE: u64 = 16;
const LEAST_RESERVE: u64 = 4 << 20;
const MOST_RESERVE: u64 = 128 << 20;
/// Looks are never closer together, nor further apart, than this.
const SOONEST: Duration = Duration::from_millis(1);
const LATEST: Duration = Duration::from_millis(100);
/// How long a killed command may take to give its memory back before another one has to go.
const DYING: Duration = Duration::from_millis(500);
/// What the kernel takes back by itself when memory is wanted.
const RECLAIMABLE: [&str; 3] = ["active_file", "inactive_file", "slab_reclaimable"];

/// Looks after one container.
#[derive(Debug)]
pub struct Watchdog {
    group: OwnedFd,
    limit: u64,
    next: Instant,
    kills: u64,
    /// Killed lately, and when.
    dying: Option<(Vec<u32>, Instant)>,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait(Duration),
    Kill,
}

impl Watchdog {
    /// One for this memory, where one is needed.
    pub fn start(memory: &Memory) -> rustix::io::Result<Option<Self>> {
        let limit = match memory.version {
            Version::Two if read_number(&memory.group, "memory.oom.group") == Some(1) => {
                read_number(&memory.group, "memory.max")
            }
            _ => None,
        };
        let watchdog = |limit| {
            let group = rustix::io::fcntl_dupfd_cloexec(&memory.group, 0)?;
            Ok(Watchdog { group, limit, next: Instant::now(), kills: 0, dying: None })
        };
        limit.map(watchdog).transpose()
    }

    /// Commands that it has killed.
    pub fn kills(&self) -> u64 {
        self.kills
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// Look, and act if it is time to.
    pub fn look(&mut self, now: Instant) {
        if now < self.next {
            return;
        }
        let wait = match self.verdict(now) {
            Verdict::Wait(wait) => wait,
            Verdict::Kill => {
                self.kill(now);
                SOONEST
            }
        };
        self.next = now + wait;
    }

    fn verdict(&mut self, now: Instant) -> Verdict {
        let Some(current) = read_number(&self.group, "memory.current") else { return Verdict::Wait(LATEST) };
        let verdict =
            decide(self.limit, current, || reclaimable(&read_text(&self.group, "memory.stat").unwrap_or_default()));
        let is_dying = |pid: &u32| table::read(*pid).is_some_and(|entry| entry.state != 'Z');
        self.dying.take_if(|(pids, _)| !pids.iter().any(is_dying));
        match &self.dying {
            Some((_, since)) if now < *since + DYING => Verdict::Wait(SOONEST),
            _ => verdict,
        }
    }

    fn kill(&mut self, now: Instant) {
        let entries = table::scan();
        let Some(victims) = largest(&entries, std::process::id(), memory_of) else { return };
        if !self.dying.as_ref().is_some_and(|(dying, _)| are_same(dying, &victims)) {
            self.kills += 1;
        }
        for pid in victims.iter().filter_map(|pid| tree::pid_of(*pid)) {
            match tree::kill(pid, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => eprintln!("sandlotd: kill for memory: {errno}"),
            }
        }
        self.dying = Some((victims, now));
    }
}

/// Whether these are the ones that are dying already: they may take long, and one death is one kill.
fn are_same(dying: &[u32], victims: &[u32]) -> bool {
    victims.iter().all(|pid| dying.contains(pid))
}

/// Memory that the kernel can take back does not count as used; it is asked for only when that matters.
fn decide(limit: u64, current: u64, reclaimable: impl FnOnce() -> u64) -> Verdict {
    let reserve = (limit / RESERVE_SHARE).clamp(LEAST_RESERVE, MOST_RESERVE);
    let room = |used: u64| limit.saturating_sub(used).saturating_sub(reserve);
    let mut left = room(current);
    if left == 0 {
        left = room(current.saturating_sub(reclaimable()));
    }
    match left {
        0 => Verdict::Kill,
        left => Verdict::Wait(Duration::from_micros(left / (FASTEST / 1_000_000)).clamp(SOONEST, LATEST)),
    }
}

fn reclaimable(stat: &str) -> u64 {
    let value = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        RECLAIMABLE.contains(&key).then(|| value.trim().parse::<u64>().ok()).flatten()
    };
    stat.lines().filter_map(value).sum()
}

/// The members of the tree that holds most memory. Each child of the daemon is the root of a tree, and only keeps it.
fn largest(entries: &[Entry], daemon: u32, memory: impl Fn(u32) -> u64) -> Option<Vec<u32>> {
    let roots = entries.iter().filter(|entry| entry.ppid == daemon);
    let trees = roots.map(|root| table::descendants(entries, root.pid).iter().map(|entry| entry.pid).collect());
    trees.filter(|tree: &Vec<u32>| !tree.is_empty()).max_by_key(|tree| tree.iter().map(|pid| memory(*pid)).sum::<u64>())
}

/// Bytes that would come back with this process, shared ones counted for each who has them.
fn memory_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = |line: &str| {
        let (key, value) = line.split_once(':')?;
        let counts = ["RssAnon", "RssShmem"].contains(&key);
        counts.then(|| value.trim().trim_end_matches(" kB").parse::<u64>().ok()).flatten()
    };
    status.lines().filter_map(kib).sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn wait(limit: u64, current: u64) -> Duration {
        match decide(limit, current, || 0) {
            Verdict::Wait(wait) => wait,
            Verdict::Kill => panic!("killed at {current}"),
        }
    }

    /// The less there is left, the sooner it is looked at again; at the end somebody has to go.
    #[test]
    fn looks_come_closer_as_memory_runs_out() {
        let limit = 1024 * MIB;
        assert_eq!(wait(limit, 0), LATEST);
        let half = wait(limit, 900 * MIB);
        assert!(SOONEST < half && half < LATEST, "{half:?}");
        assert_eq!(wait(limit, 959 * MIB), SOONEST);
        assert_eq!(decide(limit, 960 * MIB, || 0), Verdict::Kill);
        assert_eq!(decide(limit, 2 * limit, || 0), Verdict::Kill);
    }

    /// Until the next look nothing can have used up what was left.
    #[test]
    fn no_look_comes_too_late() {
        let limit = 512 * MIB;
        for current in (0..480 * MIB).step_by(MIB as usize) {
            let filled = FASTEST * wait(limit, current).as_micros() as u64 / 1_000_000;
            assert!(current + filled <= limit, "at {current}");
        }
    }

    /// Cached files are no reason to kill.
    #[test]
    fn what_can_be_taken_back_does_not_count() {
        let stat = "anon 100\nfile 900\nactive_file 300\ninactive_file 500\nslab_reclaimable 50\nslab 80\n";
        assert_eq!(reclaimable(stat), 850);
        assert!(matches!(decide(512 * MIB, 512 * MIB, || 300 * MIB), Verdict::Wait(_)));
    }

    /// Whoever dies slowly is killed again, and counted once; a process of another tree is another kill.
    #[test]
    fn a_slow_death_is_one_kill() {
        assert!(are_same(&[3, 4], &[4]));
        assert!(are_same(&[3, 4], &[4, 3]));
        assert!(!are_same(&[3, 4], &[6]));
        assert!(!are_same(&[3, 4], &[4, 6]));
    }

    /// The tree is chosen as a whole, and whoever keeps it is spared.
    #[test]
    fn the_largest_tree_is_chosen() {
        let entry =
            |pid, ppid| Entry { pid, ppid, session: 0, state: 'S', name: Vec::new(), ticks: (0, 0), started: 0 };
        let entries = [entry(1, 0), entry(2, 1), entry(3, 2), entry(4, 3), entry(5, 1), entry(6, 5), entry(7, 0)];
        let memory = |pid| [0, 9, 9, 2, 3, 9, 4, 99][pid as usize];
        assert_eq!(largest(&entries, 1, memory), Some(vec![3, 4]));
        assert_eq!(largest(&entries[..2], 1, memory), None);
    }
}
