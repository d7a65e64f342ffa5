//! The limited group as a whole, as the init sees it: usage, and freezing everything at once.

use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType};

use super::{GroupLayout, read_key, read_number, write_text};

/// The sandbox's own directories in each hierarchy.
#[derive(Debug, Default)]
pub struct Whole {
    layout: GroupLayout,
    unified: Option<OwnedFd>,
    memory: Option<OwnedFd>,
    pids: Option<OwnedFd>,
}

/// What the group as a whole has used; nothing where no cgroup counts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupUsage {
    pub cpu_us: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub pids: Option<u64>,
    pub pids_limit: Option<u64>,
    pub oom_kills: Option<u64>,
}

/// Wanted state of a group's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freezer {
    Frozen,
    Running,
}

/// Limits of version 1 from here on mean "none".
const UNLIMITED_BYTES: u64 = 1 << 60;

impl Whole {
    /// The group of these directories, in the order of `layout`.
    pub fn new(layout: GroupLayout, directories: &[OwnedFd]) -> rustix::io::Result<Self> {
        let mut rest = directories.iter();
        let mut next = |there: bool| {
            let directory = if there { rest.next() } else { None };
            directory.map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0)).transpose()
        };
        Ok(Whole { layout, unified: next(layout.unified)?, memory: next(layout.memory)?, pids: next(layout.pids)? })
    }

    /// Freeze or thaw everything in the group. False where the kernel offers no way.
    pub fn freeze(&self, state: Freezer) -> rustix::io::Result<bool> {
        let Some(unified) = &self.unified else { return Ok(false) };
        write_text(unified, "cgroup.freeze", if state == Freezer::Frozen { "1" } else { "0" })?;
        Ok(true)
    }

    pub fn usage(&self) -> GroupUsage {
        match &self.unified {
            Some(unified) if self.layout.unified_controllers => usage_of_version_2(unified),
            _ => self.usage_of_version_1(),
        }
    }

    fn usage_of_version_1(&self) -> GroupUsage {
        let memory = |name| self.memory.as_ref().and_then(|group| read_number(group, name));
        let pids = |name| self.pids.as_ref().and_then(|group| read_number(group, name));
        GroupUsage {
            cpu_us: None,
            memory_bytes: memory("memory.usage_in_bytes"),
            memory_peak_bytes: memory("memory.max_usage_in_bytes"),
            memory_limit_bytes: memory("memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED_BYTES),
            pids: pids("pids.current"),
            pids_limit: pids("pids.max"),
            oom_kills: self.memory.as_ref().and_then(sum_of_kills),
        }
    }
}

fn usage_of_version_2(group: &OwnedFd) -> GroupUsage {
    GroupUsage {
        cpu_us: read_key(group, "cpu.stat", "usage_usec"),
        memory_bytes: read_number(group, "memory.current"),
        memory_peak_bytes: read_number(group, "memory.peak"),
        memory_limit_bytes: read_number(group, "memory.max"),
        pids: read_number(group, "pids.current"),
        pids_limit: read_number(group, "pids.max"),
        oom_kills: read_key(group, "memory.events", "oom_kill"),
    }
}

/// Version 1 counts a kill in the group of the victim alone: the sum over the leaves.
fn sum_of_kills(group: &OwnedFd) -> Option<u64> {
    let mut kills = read_key(group, "memory.oom_control", "oom_kill")?;
    for entry in Dir::read_from(group).ok()?.flatten() {
        if entry.file_type() == FileType::Directory && !entry.file_name().to_bytes().starts_with(b".") {
            let name = entry.file_name().to_str().ok()?;
            kills += read_key(group, &format!("{name}/memory.oom_control"), "oom_kill").unwrap_or(0);
        }
    }
    Some(kills)
}
