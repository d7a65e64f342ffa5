//! Every process that a command has started, `setsid` and double forks included.

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::table;
use crate::cgroup::Leaf;

/// What knows the members of a tree.
#[derive(Debug)]
pub enum Tree {
    /// A cgroup of its own.
    Leaf(Leaf),
    /// A keeper process, to which orphans of the tree come. There may be a leaf that only enforces limits.
    Kept { keeper: u32, leaf: Option<Leaf> },
}

impl Tree {
    pub fn leaf(&self) -> Option<&Leaf> {
        match self {
            Tree::Leaf(leaf) => Some(leaf),
            Tree::Kept { leaf, .. } => leaf.as_ref(),
        }
    }

    pub fn into_leaf(self) -> Option<Leaf> {
        match self {
            Tree::Leaf(leaf) => Some(leaf),
            Tree::Kept { leaf, .. } => leaf,
        }
    }

    pub fn pids(&self) -> Vec<u32> {
        match self {
            Tree::Leaf(leaf) => leaf.pids(),
            Tree::Kept { keeper, .. } => {
                table::descendants(&table::scan(), *keeper).into_iter().map(|entry| entry.pid).collect()
            }
        }
    }

    pub fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        self.pids().into_iter().filter_map(pid_of).try_for_each(|pid| kill(pid, signal))
    }

    /// A cgroup dies at once; what a keeper keeps is killed as it is seen, so this may have to be repeated.
    pub fn kill(&self) -> rustix::io::Result<()> {
        match self {
            Tree::Leaf(leaf) => leaf.kill(),
            Tree::Kept { .. } => self.signal(Signal::KILL),
        }
    }

    pub fn is_populated(&self) -> bool {
        match self {
            Tree::Leaf(leaf) => leaf.is_populated(),
            // It ends when it has nobody left to keep.
            Tree::Kept { keeper, .. } => table::read(*keeper).is_some_and(|entry| entry.state != 'Z'),
        }
    }
}

/// The kernel's view of a pid.
pub fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// Signal a process; that it is gone already is no error.
pub fn kill(pid: Pid, signal: Signal) -> rustix::io::Result<()> {
    ignore_nobody(rustix::process::kill_process(pid, signal))
}

/// Signal a process group, likewise.
pub fn kill_group(leader: Pid, signal: Signal) -> rustix::io::Result<()> {
    ignore_nobody(rustix::process::kill_process_group(leader, signal))
}

fn ignore_nobody(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::SRCH) => Ok(()),
        other => other,
    }
}
