//! Leaf cgroups of commands.
//!
//! A leaf counts and kills what runs in it. Where no cgroup can be had, [`Leaves::take`] gives `None` and a keeper
//! process stands in for it.

use std::os::fd::{BorrowedFd, OwnedFd};

/// The sandbox's supply of leaves: reused after they are empty, since making one costs more than a short command.
#[derive(Debug, Default)]
pub struct Leaves {}

impl Leaves {
    /// No cgroup can be had here.
    pub fn unavailable() -> Self {
        Leaves::default()
    }

    /// An empty leaf with its counters at zero, or `None` where there are no cgroups.
    pub fn take(&mut self) -> Option<Leaf> {
        None
    }

    /// Give a leaf back. A populated one is set aside until it is empty.
    pub fn recycle(&mut self, leaf: Leaf) {
        drop(leaf);
    }
}

/// One command's cgroup.
#[derive(Debug)]
pub struct Leaf {
    unified: Option<OwnedFd>,
}

impl Leaf {
    /// For `clone3(CLONE_INTO_CGROUP)`: the directory of the leaf in the unified hierarchy.
    pub fn clone_into_fd(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(std::os::fd::AsFd::as_fd)
    }

    /// `cgroup.procs` (or `tasks`) files into which the child writes `0` before exec, for hierarchies that
    /// `clone_into_fd` does not cover. Async-signal-safe to use after fork.
    pub fn enter_fds(&self) -> &[OwnedFd] {
        &[]
    }

    /// Kill everything in it at once.
    pub fn kill(&self) -> rustix::io::Result<()> {
        Ok(())
    }

    /// Highest memory use since it was taken.
    pub fn peak_bytes(&self) -> Option<u64> {
        None
    }

    /// Processes of it killed for memory since it was taken.
    pub fn oom_kills(&self) -> u64 {
        0
    }

    /// Who lives in it.
    pub fn pids(&self) -> Vec<u32> {
        Vec::new()
    }

    pub fn is_populated(&self) -> bool {
        false
    }
}
