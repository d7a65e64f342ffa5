//! Every process that a command has started, `setsid` and double forks included.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::table::{self, Entry};
use crate::cgroup::Leaf;
use crate::error::last_errno;

/// What knows the members of a tree.
#[derive(Debug)]
pub enum Tree {
    /// A cgroup of its own.
    Leaf(Leaf),
    /// A keeper process, to which orphans of the tree come. There may be a leaf that only enforces limits.
    Kept { charge: Arc<Charge>, leaf: Option<Leaf> },
    /// It has no members, or none that could be told from others.
    Nobody { leaf: Option<Leaf> },
}

impl Tree {
    pub fn leaf(&self) -> Option<&Leaf> {
        match self {
            Tree::Leaf(leaf) => Some(leaf),
            Tree::Kept { leaf, .. } | Tree::Nobody { leaf } => leaf.as_ref(),
        }
    }

    pub fn into_leaf(self) -> Option<Leaf> {
        match self {
            Tree::Leaf(leaf) => Some(leaf),
            Tree::Kept { leaf, .. } | Tree::Nobody { leaf } => leaf,
        }
    }

    pub fn pids(&self) -> Vec<u32> {
        match self {
            Tree::Leaf(leaf) => leaf.pids(),
            Tree::Kept { charge, .. } => kept_by(charge),
            Tree::Nobody { .. } => Vec::new(),
        }
    }

    pub fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        self.pids().into_iter().filter_map(pid_of).try_for_each(|pid| kill(pid, signal))
    }

    pub fn kills_at_once(&self) -> bool {
        matches!(self, Tree::Leaf(_))
    }

    /// A cgroup dies at once; what a keeper keeps is killed as it is seen, so this may have to be repeated.
    pub fn kill(&self, company: Company) -> rustix::io::Result<()> {
        match self {
            Tree::Leaf(leaf) => leaf.kill(),
            Tree::Kept { charge, .. } => kill_kept(charge, company),
            Tree::Nobody { .. } => Ok(()),
        }
    }

    pub fn is_populated(&self) -> bool {
        match self {
            Tree::Leaf(leaf) => leaf.is_populated(),
            Tree::Kept { charge, .. } => is_kept(charge),
            Tree::Nobody { .. } => false,
        }
    }
}

/// What one keeper keeps of one command. Keepers go on to others; what they kept then is no longer this.
#[derive(Debug)]
pub struct Charge {
    pub keeper: u32,
    over: AtomicBool,
}

impl Charge {
    pub fn new(keeper: u32) -> Arc<Self> {
        Arc::new(Charge { keeper, over: AtomicBool::new(false) })
    }

    /// Nobody is left: whatever the keeper has from now on is somebody else's.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Kill what a keeper keeps, as far as it is seen: see [`Tree::kill`].
///
/// # Errors
/// The first failure.
pub fn kill_kept(charge: &Charge, company: Company) -> rustix::io::Result<()> {
    match company {
        _ if charge.is_over() => Ok(()),
        Company::Few => kept_by(charge).into_iter().filter_map(pid_of).try_for_each(|pid| kill(pid, Signal::KILL)),
        Company::Crowd => kill_in_a_crowd(charge.keeper),
    }
}

/// Whether anybody of it is left.
pub fn is_kept(charge: &Charge) -> bool {
    !charge.is_over() && table::read(charge.keeper).is_some_and(|entry| entry.state != 'Z')
}

fn kept_by(charge: &Charge) -> Vec<u32> {
    if charge.is_over() {
        return Vec::new();
    }
    table::descendants(&table::scan(), charge.keeper).into_iter().map(|entry| entry.pid).collect()
}

/// How many share the sandbox with a tree that is to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    Few,
    /// Perhaps a tree that grows faster than it can be looked at. Only the first process of a sandbox may say so.
    Crowd,
}

/// Kill what a keeper keeps while everybody stands still. Among thousands who all want to run and all want memory there would
/// be no time to look for them, and each would have had children meanwhile; stopping them takes one call, and no memory. The
/// others go on at once, also whoever was stopped before.
fn kill_in_a_crowd(keeper: u32) -> rustix::io::Result<()> {
    kill_while_all_stand_still(|entries| table::descendants(entries, keeper))
}

/// Stop everybody, kill those of this process namespace who are `chosen`, and let everybody go on. Only for its first process.
///
/// A child that was being made just then comes to be after the look, stopped (the kernel hands it the signal that its parent
/// got meanwhile), and goes on with the others. So whoever wants all of a kind dead repeats this until there are none.
///
/// # Errors
/// The first failure; all have been tried then.
pub fn kill_while_all_stand_still(
    chosen: impl for<'e> FnOnce(&'e [Entry]) -> Vec<&'e Entry>,
) -> rustix::io::Result<()> {
    signal_everybody(Signal::STOP)?;
    let entries = table::scan();
    let mut killed = Ok(());
    for pid in chosen(&entries).into_iter().filter_map(|entry| pid_of(entry.pid)) {
        killed = killed.and(kill(pid, Signal::KILL));
    }
    signal_everybody(Signal::CONT).and(killed)
}

/// Signal every process of the sandbox but this one, which is its PID 1. Nobody is no error.
///
/// # Errors
/// Nobody may be signalled.
pub fn signal_everybody(signal: Signal) -> rustix::io::Result<()> {
    // SAFETY: no memory is involved; to PID 1, -1 means everybody else in the sandbox.
    match unsafe { libc::kill(-1, signal.as_raw()) } {
        0 => Ok(()),
        _ => ignore_nobody(Err(last_errno())),
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
