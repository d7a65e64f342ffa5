//! Leaf cgroups of commands, made and reused by the init.
//!
//! A leaf counts and kills what runs in it. Where no cgroup can be had, [`Leaves::take`] gives `None` and a keeper
//! process stands in for it.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::{ENTER, GroupLayout, read_key, read_number, read_text, write_text};
use crate::error::{Error, Result};

/// Looks at a leaf's processes before they count as too many to kill one by one.
const KILL_ROUNDS: usize = 1000;
/// Leaves that are kept for reuse. More than that at once are removed when they are given back.
const KEPT: usize = 32;

/// The sandbox's supply of leaves: reused after they are empty, since making one costs more than a short command.
#[derive(Debug, Default)]
pub struct Leaves {
    group: Option<Directories>,
    idle: Vec<Leaf>,
    /// Given back while something still ran in them.
    populated: Vec<Leaf>,
    made: u64,
}

/// The sandbox's own directories in each hierarchy.
#[derive(Debug)]
struct Directories {
    layout: GroupLayout,
    unified: Option<OwnedFd>,
    memory: Option<OwnedFd>,
    /// `ENTER` of the hierarchies of version 1 that have no leaves.
    shared: Vec<OwnedFd>,
}

impl Leaves {
    /// No cgroup can be had here.
    pub fn unavailable() -> Self {
        Leaves::default()
    }

    /// Leaves below the directories that the host gave, in the order of `layout`.
    pub fn new(layout: GroupLayout, directories: Vec<OwnedFd>) -> Result<Self> {
        if layout.descriptors() == 0 {
            return Ok(Leaves::unavailable());
        }
        let group = Directories::new(layout, directories).map_err(|errno| Error::system("open the cgroups", errno))?;
        Ok(Leaves { group: Some(group), ..Leaves::default() })
    }

    /// An empty leaf with its counters at zero, or `None` where there are no cgroups.
    ///
    /// Where one cannot be made, what is given only enters the sandbox's group: the limits hold, but nothing is counted
    /// and the caller must kill by other means.
    pub fn take(&mut self) -> Option<Leaf> {
        self.sort();
        let mut leaf = match self.idle.pop() {
            Some(leaf) => leaf,
            None => self.make()?,
        };
        leaf.rewind();
        Some(leaf)
    }

    /// Give a leaf back. A populated one is set aside until it is empty.
    pub fn recycle(&mut self, leaf: Leaf) {
        self.populated.push(leaf);
        self.sort();
    }

    fn sort(&mut self) {
        let mut index = 0;
        while index < self.populated.len() {
            if self.populated[index].is_populated() {
                index += 1;
            } else {
                let leaf = self.populated.swap_remove(index);
                if leaf.name.is_empty() {
                    continue;
                }
                if self.idle.len() < KEPT && !leaf.spent.get() {
                    self.idle.push(leaf);
                } else if let Some(group) = &self.group {
                    group.remove(&leaf);
                }
            }
        }
    }

    fn make(&mut self) -> Option<Leaf> {
        let group = self.group.as_ref()?;
        self.made += 1;
        match group.make_leaf(&format!("c{}", self.made)) {
            Ok(leaf) => Some(leaf),
            Err(errno) => {
                eprintln!("sandlotd: make a leaf: {errno}");
                group.as_leaf().ok()
            }
        }
    }
}

impl Directories {
    fn new(layout: GroupLayout, directories: Vec<OwnedFd>) -> rustix::io::Result<Self> {
        let mut rest = directories.into_iter();
        let mut next = |there: bool| if there { rest.next() } else { None };
        let (unified, memory) = (next(layout.unified), next(layout.memory));
        let (pids, cpu) = (next(layout.pids), next(layout.cpu));
        let mut shared = Vec::new();
        for directory in [&pids, &cpu].into_iter().flatten() {
            shared.push(open_entrance(directory)?);
        }
        Ok(Directories { layout, unified, memory, shared })
    }

    fn make_leaf(&self, name: &str) -> rustix::io::Result<Leaf> {
        let unified = self.unified.as_ref().map(|group| make_directory(group, name)).transpose()?;
        let memory = self.memory.as_ref().map(|group| make_directory(group, name)).transpose()?;
        let enter = self.entries(memory.as_ref())?;
        let counter = if self.layout.unified_controllers { Counter::Two } else { Counter::One };
        Ok(Leaf {
            name: name.to_owned(),
            unified,
            memory,
            enter,
            counter,
            base: Base::default(),
            spent: Cell::new(false),
        })
    }

    /// A leaf that is the group itself.
    fn as_leaf(&self) -> rustix::io::Result<Leaf> {
        let enter = self.entries(self.memory.as_ref())?;
        let counter = Counter::One;
        Ok(Leaf {
            name: String::new(),
            unified: None,
            memory: None,
            enter,
            counter,
            base: Base::default(),
            spent: Cell::new(false),
        })
    }

    /// What a process writes itself into: the memory group, and the hierarchies that have no leaves.
    fn entries(&self, memory: Option<&OwnedFd>) -> rustix::io::Result<Vec<OwnedFd>> {
        let mut entries = Vec::with_capacity(1 + self.shared.len());
        if let Some(memory) = memory {
            entries.push(open_entrance(memory)?);
        }
        for procs in &self.shared {
            entries.push(rustix::io::fcntl_dupfd_cloexec(procs, 0)?);
        }
        Ok(entries)
    }

    /// Remove an empty leaf. One that has become populated again stays; the host removes it with the sandbox.
    fn remove(&self, leaf: &Leaf) {
        for group in [&self.unified, &self.memory].into_iter().flatten() {
            match rustix::fs::unlinkat(group, leaf.name.as_str(), rustix::fs::AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::BUSY | Errno::NOENT) => {}
                Err(errno) => eprintln!("sandlotd: remove a leaf: {errno}"),
            }
        }
    }
}

fn make_directory(group: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    match mkdirat(group, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    openat(group, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn open_entrance(directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    openat(directory, ENTER, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// All of `cgroup.procs`, which may be long.
fn read_pids(directory: &OwnedFd) -> rustix::io::Result<Vec<u32>> {
    use std::io::Read;

    let file = openat(directory, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text).map_err(|_| Errno::IO)?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Which version of cgroups counts a leaf's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    One,
    Two,
}

/// One command's cgroup.
#[derive(Debug)]
pub struct Leaf {
    name: String,
    unified: Option<OwnedFd>,
    memory: Option<OwnedFd>,
    enter: Vec<OwnedFd>,
    counter: Counter,
    base: Base,
    /// The kernel was asked to kill everything in it. Linux 6.12 and later then also kills what is born into it
    /// afterwards from a group that was not killed as often, so it is not used again.
    spent: Cell<bool>,
}

/// Where the counters of a leaf stood when it was taken.
#[derive(Debug, Default)]
struct Base {
    /// Files that an earlier command wrote stay charged to the leaf.
    bytes: u64,
    kills: u64,
    /// Version 2: the peak since this descriptor was written to (Linux 6.12).
    peak: Option<OwnedFd>,
}

impl Leaf {
    /// For `clone3(CLONE_INTO_CGROUP)`: the directory of the leaf in the unified hierarchy.
    pub fn clone_into_fd(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(AsFd::as_fd)
    }

    /// `ENTER` files into which the child writes `0` before exec, for hierarchies that
    /// `clone_into_fd` does not cover. Async-signal-safe to use after fork.
    pub fn enter_fds(&self) -> &[OwnedFd] {
        &self.enter
    }

    /// Whether it can tell who belongs to one command: the group itself cannot.
    pub fn holds_tree(&self) -> bool {
        !self.name.is_empty()
    }

    /// Kill everything in it, at once where the kernel offers that (Linux 5.14, unified hierarchy).
    ///
    /// # Errors
    /// `NOSYS` for a leaf that is the group itself; `AGAIN` when processes came faster than they could be killed.
    pub fn kill(&self) -> rustix::io::Result<()> {
        self.spent.set(true);
        match self.unified.as_ref().map(|unified| write_text(unified, "cgroup.kill", "1")) {
            Some(Err(Errno::NOENT)) => self.kill_one_by_one(),
            None if self.memory.is_some() => self.kill_one_by_one(),
            None => Err(Errno::NOSYS),
            Some(result) => result,
        }
    }

    fn kill_one_by_one(&self) -> rustix::io::Result<()> {
        for _ in 0..KILL_ROUNDS {
            let pids = self.pids();
            if pids.is_empty() {
                return Ok(());
            }
            for pid in pids.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
                match rustix::process::kill_process(pid, Signal::KILL) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Err(Errno::AGAIN)
    }

    /// Highest memory use since it was taken.
    pub fn peak_bytes(&self) -> Option<u64> {
        let peak = match (self.counter, &self.base.peak) {
            (Counter::One, _) => read_number(self.memory.as_ref()?, "memory.max_usage_in_bytes"),
            (Counter::Two, Some(peak)) => super::read_open(peak)?.trim().parse().ok(),
            (Counter::Two, None) => read_number(self.unified.as_ref()?, "memory.peak"),
        };
        peak.map(|bytes| bytes.saturating_sub(self.base.bytes))
    }

    /// Processes of it killed for memory since it was taken.
    pub fn oom_kills(&self) -> u64 {
        self.all_oom_kills().saturating_sub(self.base.kills)
    }

    /// Who lives in it.
    pub fn pids(&self) -> Vec<u32> {
        let directory = self.unified.as_ref().or(self.memory.as_ref());
        directory.map_or_else(Vec::new, |directory| read_pids(directory).unwrap_or_default())
    }

    /// Whether anything runs in it, zombies aside.
    pub fn is_populated(&self) -> bool {
        if let Some(unified) = &self.unified {
            return read_key(unified, "cgroup.events", "populated") != Some(0);
        }
        self.memory.as_ref().and_then(|memory| read_text(memory, "cgroup.procs")).is_some_and(|list| !list.is_empty())
    }

    fn all_oom_kills(&self) -> u64 {
        let kills = match self.counter {
            Counter::One => self.memory.as_ref().and_then(|group| read_key(group, "memory.oom_control", "oom_kill")),
            Counter::Two => self.unified.as_ref().and_then(|group| read_key(group, "memory.events", "oom_kill")),
        };
        kills.unwrap_or(0)
    }

    /// Start counting anew.
    fn rewind(&mut self) {
        self.base = Base { kills: self.all_oom_kills(), ..Base::default() };
        match (self.counter, &self.memory, &self.unified) {
            (Counter::One, Some(memory), _) => {
                // The peak becomes what is charged now.
                if let Err(errno) = write_text(memory, "memory.max_usage_in_bytes", "0") {
                    eprintln!("sandlotd: reset a leaf's peak: {errno}");
                }
                self.base.bytes = read_number(memory, "memory.usage_in_bytes").unwrap_or(0);
            }
            (Counter::Two, _, Some(unified)) => {
                self.base.bytes = read_number(unified, "memory.current").unwrap_or(0);
                self.base.peak = fresh_peak(unified);
            }
            _ => {}
        }
    }
}

/// A descriptor of `memory.peak` that counts from now on. Before Linux 6.12 the file cannot be written.
fn fresh_peak(unified: &OwnedFd) -> Option<OwnedFd> {
    let file = openat(unified, "memory.peak", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    rustix::io::write(&file, b"reset").ok().map(|_| file)
}
