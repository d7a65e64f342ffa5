//! What is to be started, and what it gets.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};

use super::child::Plan;
use crate::cgroup::Leaf;

/// Where a shell finds a script that is no argument: `/proc/self/fd/3`.
pub const SCRIPT_FD: c_int = 3;

/// Everything about a process to be.
#[derive(Debug)]
pub struct Launch<'a> {
    pub plan: Plan,
    pub stdio: [BorrowedFd<'a>; 3],
    /// More descriptors, each with the number it gets.
    pub extra: &'a [(BorrowedFd<'a>, c_int)],
    pub cwd: BorrowedFd<'a>,
    pub leaf: Option<&'a Leaf>,
}

impl<'a> Launch<'a> {
    /// As [`Files::new`] wants them: sources, and the numbers that the first of them get.
    pub fn descriptors(&self) -> (Vec<BorrowedFd<'a>>, Vec<c_int>) {
        let stdio = self.stdio.iter().copied().zip(0..);
        let (mut sources, targets): (Vec<_>, Vec<_>) = stdio.chain(self.extra.iter().copied()).unzip();
        sources.push(self.cwd);
        sources.extend(self.leaf.map_or(&[][..], Leaf::enter_fds).iter().map(AsFd::as_fd));
        (sources, targets)
    }

    pub fn into_cgroup(&self) -> Option<BorrowedFd<'a>> {
        self.leaf.and_then(Leaf::clone_into_fd)
    }
}
