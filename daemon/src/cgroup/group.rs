//! The group of one sandbox in every hierarchy, made and removed by the host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::hierarchy::{Base, Hierarchies};
use super::{ENTER, GroupLayout, read_key, write_text};
use crate::error::{Error, Result};
use crate::message::Limits;

/// Scheduling period of processor limits, as container engines have it.
const CPU_PERIOD_US: u64 = 100_000;

/// Where the init itself lives in the unified hierarchy: beside the limited group, not in it.
const DAEMON: &str = "daemon";
/// The limited group, whose leaves are the commands.
const TASKS: &str = "tasks";

/// Files of a group that belong to the sandbox's init, where a hierarchy has them. Those of the limits stay ours.
const GIVEN: [&str; 5] = ["cgroup.procs", ENTER, "cgroup.subtree_control", "cgroup.freeze", "cgroup.kill"];
/// How long killed processes may take to be gone.
const DYING: Duration = Duration::from_secs(5);

/// A sandbox's cgroups.
#[derive(Debug)]
pub struct Group {
    layout: GroupLayout,
    /// Given to the init, in the order of the layout.
    directories: Vec<OwnedFd>,
    /// For the birth of the init.
    daemon: Option<OwnedFd>,
    /// Removed from the last to the first.
    paths: Vec<PathBuf>,
}

impl Group {
    /// Make the group `name` with `limits`, owned inside by the ids that root of the sandbox has outside.
    pub fn make(hierarchies: &Hierarchies, name: &str, limits: &Limits, root: (u32, u32)) -> Result<Self> {
        let mut group =
            Group { layout: GroupLayout::default(), directories: Vec::new(), daemon: None, paths: Vec::new() };
        let made = group.fill(hierarchies, name, limits, root);
        match made {
            Ok(()) => Ok(group),
            Err(errno) => {
                group.remove()?;
                Err(Error::system("make the cgroups", errno))
            }
        }
    }

    fn fill(&mut self, from: &Hierarchies, name: &str, limits: &Limits, root: (u32, u32)) -> rustix::io::Result<()> {
        if let Some(base) = &from.unified {
            let (outer, tasks) = self.fill_unified(base, name, root)?;
            if from.unified_controllers {
                for controller in super::hierarchy::CONTROLLERS {
                    write_text(&outer, "cgroup.subtree_control", &format!("+{controller}"))?;
                }
                // Leaves count their memory; their limits are the group's.
                write_text(&tasks, "cgroup.subtree_control", "+memory")?;
                limit_version_2(&tasks, limits)?;
                self.layout.unified_controllers = true;
            }
            self.layout.unified = true;
            self.directories.push(tasks);
        }
        if let Some(base) = &from.memory {
            let directory = self.make_directory(&base.path.join(name), root)?;
            if let Some(bytes) = limits.memory_bytes {
                write_text(&directory, "memory.limit_in_bytes", &bytes.to_string())?;
                limit_swap(&directory, bytes)?;
            }
            self.layout.memory = true;
            self.directories.push(directory);
        }
        if let (Some(base), Some(pids)) = (&from.pids, limits.pids) {
            let directory = self.make_directory(&base.path.join(name), root)?;
            write_text(&directory, "pids.max", &pids.to_string())?;
            self.layout.pids = true;
            self.directories.push(directory);
        }
        if let (Some(base), Some(millis)) = (&from.cpu, limits.cpu_millis) {
            let directory = self.make_directory(&base.path.join(name), root)?;
            write_text(&directory, "cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
            write_text(&directory, "cpu.cfs_quota_us", &quota_us(millis).to_string())?;
            self.layout.cpu = true;
            self.directories.push(directory);
        }
        Ok(())
    }

    /// The directory above both groups, and the limited one.
    fn fill_unified(&mut self, base: &Base, name: &str, root: (u32, u32)) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
        let top = base.path.join(name);
        // Moving a process needs the right to write this file in the directory above both groups.
        let outer = self.make_directory(&top, root)?;
        self.daemon = Some(self.make_directory(&top.join(DAEMON), root)?);
        let tasks = self.make_directory(&top.join(TASKS), root)?;
        Ok((outer, tasks))
    }

    /// A directory that root of the sandbox may make leaves in and put processes into; its limits stay ours.
    fn make_directory(&mut self, path: &Path, root: (u32, u32)) -> rustix::io::Result<OwnedFd> {
        rustix::fs::mkdir(path, Mode::from_raw_mode(0o755))?;
        self.paths.push(path.to_owned());
        let directory = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let (uid, gid) = (Some(Uid::from_raw(root.0)), Some(Gid::from_raw(root.1)));
        rustix::fs::fchown(&directory, uid, gid)?;
        for file in GIVEN {
            match rustix::fs::chownat(&directory, file, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(directory)
    }

    pub fn layout(&self) -> GroupLayout {
        self.layout
    }

    /// What the init is given, in the order of the layout.
    pub fn directories(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.directories.iter().map(AsFd::as_fd)
    }

    /// Where the init is born.
    pub fn daemon(&self) -> Option<BorrowedFd<'_>> {
        self.daemon.as_ref().map(AsFd::as_fd)
    }

    /// Whether the init was killed for memory, as far as version 2 tells. Nothing else lives in its group.
    pub fn init_oom_kills(&self) -> u64 {
        self.daemon.as_ref().and_then(|group| read_key(group, "memory.events", "oom_kill")).unwrap_or(0)
    }

    /// Remove every directory of the group, leaves included. Nothing runs in it any more.
    ///
    /// # Errors
    /// The first directory that could not be removed; the others are removed all the same.
    pub fn remove(&self) -> Result<()> {
        let mut result = Ok(());
        for path in self.paths.iter().rev() {
            if let Err(error) = remove_tree(path) {
                result = Err(error);
            }
        }
        result
    }
}

/// Remove a cgroup directory with all below it.
///
/// # Errors
/// The first directory that could not be removed.
pub fn remove_tree(path: &Path) -> Result<()> {
    match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::BUSY | Errno::NOTEMPTY) => {}
        Err(errno) => return Err(Error::at_path("remove a cgroup", errno, path.as_os_str().as_encoded_bytes())),
    }
    let failed = |errno| Error::at_path("remove a cgroup", errno, path.as_os_str().as_encoded_bytes());
    let entries = std::fs::read_dir(path).map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    rustix::fs::rmdir(path).map_err(failed)
}

/// Kill everything in a cgroup directory and below it, and remove it: what a dead host has left.
///
/// # Errors
/// What could not be removed within [`DYING`].
pub fn kill_and_remove(path: &Path) -> Result<()> {
    let until = Instant::now() + DYING;
    loop {
        kill_below(path);
        match remove_tree(path) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
}

fn kill_below(path: &Path) {
    if std::fs::write(path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let list = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    for pid in list.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        match rustix::process::kill_process(pid, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => eprintln!("sandlotd: kill a process that a dead host left: {errno}"),
        }
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            kill_below(&entry.path());
        }
    }
}

fn quota_us(cpu_millis: u64) -> u64 {
    // The kernel takes no quota below a millisecond.
    (cpu_millis * CPU_PERIOD_US / 1000).max(1000)
}

/// Where swap is counted, let none be used beyond the memory limit.
fn limit_swap(directory: &OwnedFd, bytes: u64) -> rustix::io::Result<()> {
    match write_text(directory, "memory.memsw.limit_in_bytes", &bytes.to_string()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn limit_version_2(directory: &OwnedFd, limits: &Limits) -> rustix::io::Result<()> {
    if let Some(bytes) = limits.memory_bytes {
        write_text(directory, "memory.max", &bytes.to_string())?;
        match write_text(directory, "memory.swap.max", "0") {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    if let Some(pids) = limits.pids {
        write_text(directory, "pids.max", &pids.to_string())?;
    }
    if let Some(millis) = limits.cpu_millis {
        write_text(directory, "cpu.max", &format!("{} {CPU_PERIOD_US}", quota_us(millis)))?;
    }
    Ok(())
}
