//! From a [`Launch`] to a running process: a child of ours, or of a keeper where no leaf can hold its tree.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::child::{self, Block, Files, Report, Rules, Stack};
use super::keeper::Keeper;
use super::keeper::order::Order;
use super::launch::Launch;
use super::score::Score;
use crate::cgroup::Leaf;
use crate::confinement::Confinement;

/// Stacks kept for the next children.
const SPARE_STACKS: usize = 4;
/// Keepers that wait for the next command. More are needed only while more commands run at once.
const IDLE_KEEPERS: usize = 4;

/// A process that was just made.
#[derive(Debug)]
pub struct Spawned {
    pub pid: u32,
    pub report: Arc<Report>,
    /// Its parent, where no leaf holds its tree.
    pub keeper: Option<Keeper>,
}

/// Makes processes, and keeps what they read until they no longer do.
#[derive(Debug)]
pub struct Spawner {
    rules: Rules,
    /// For whoever has no leaf.
    score: Option<Score>,
    /// From `Box::into_raw`: children read them while we run.
    in_flight: Vec<*mut Block>,
    spare: Vec<Stack>,
    idle: Vec<Keeper>,
}

impl Spawner {
    pub fn new(confinement: Confinement, open_files: libc::rlimit, score: Option<Score>) -> Self {
        let rules = Rules { confinement: Arc::new(confinement), open_files };
        Spawner { rules, score, in_flight: Vec::new(), spare: Vec::new(), idle: Vec::new() }
    }

    /// Start a process. What fails on its way to `execve` is told by its `report` and its exit code.
    ///
    /// # Errors
    /// No memory, no process, or a cgroup that refuses it.
    pub fn spawn(&mut self, launch: Launch<'_>) -> rustix::io::Result<Spawned> {
        if launch.leaf.is_some_and(Leaf::holds_tree) { self.spawn_child(launch) } else { self.spawn_kept(&launch) }
    }

    fn spawn_child(&mut self, launch: Launch<'_>) -> rustix::io::Result<Spawned> {
        self.sweep();
        let stack = self.spare.pop().map_or_else(Stack::new, Ok)?;
        let report = Arc::new(Report::default());
        let (sources, targets) = launch.descriptors();
        let files = Files::new(&sources, &targets, launch.into_cgroup());
        let block = Block::new(launch.plan, files, self.rules.clone(), Arc::clone(&report), stack);
        let block = Box::into_raw(Box::new(block));
        // SAFETY: from `into_raw`; `sweep` frees it when it is not busy any more. Nobody is told of a birth.
        match unsafe { child::start(block, std::ptr::null_mut()) } {
            Ok(pid) => {
                self.in_flight.push(block);
                Ok(Spawned { pid, report, keeper: None })
            }
            Err(errno) => {
                // SAFETY: from `into_raw` above, and no child was made that could know it.
                drop(unsafe { Box::from_raw(block) });
                Err(errno)
            }
        }
    }

    fn spawn_kept(&mut self, launch: &Launch<'_>) -> rustix::io::Result<Spawned> {
        let order = Order::new(launch)?;
        let report = Arc::new(Report::default());
        while let Some(mut keeper) = self.idle.pop() {
            // One that was killed while it waited has taken nothing with it.
            if let Some(pid) = keeper.start(&order)? {
                return Ok(Spawned { pid, report, keeper: Some(keeper) });
            }
        }
        let fork = || Keeper::fork(&self.rules);
        let mut keeper = self.score.as_ref().map_or_else(fork, |score| score.above(fork))?;
        match keeper.start(&order)? {
            Some(pid) => Ok(Spawned { pid, report, keeper: Some(keeper) }),
            // Somebody kills whatever comes to be: it has died in place of the command.
            None => Ok(Spawned { pid: keeper.pid, report, keeper: None }),
        }
    }

    /// A keeper has nobody left to keep. One too many ends.
    pub fn rest(&mut self, keeper: Keeper) {
        if self.idle.len() < IDLE_KEEPERS {
            self.idle.push(keeper);
        }
    }

    /// Whether this is a keeper that waits.
    pub fn has_idle(&self, pid: u32) -> bool {
        self.idle.iter().any(|keeper| keeper.pid == pid)
    }

    /// A keeper that waited is dead.
    pub fn forget_idle(&mut self, pid: u32) {
        self.idle.retain(|keeper| keeper.pid != pid);
    }

    /// Let every keeper end that waits: it is as we were when it was made.
    pub fn dismiss_idle(&mut self) {
        self.idle.clear();
    }

    /// Take back what children no longer read.
    pub fn sweep(&mut self) {
        let mut index = 0;
        while index < self.in_flight.len() {
            let block = self.in_flight[index];
            // SAFETY: from `into_raw`, not freed while it is in this list.
            if unsafe { (*block).is_busy() } {
                index += 1;
                continue;
            }
            self.in_flight.swap_remove(index);
            // SAFETY: its child has left our memory, and it is in no list any more.
            let block = unsafe { Box::from_raw(block) };
            if self.spare.len() < SPARE_STACKS {
                self.spare.push(block.into_stack());
            }
        }
    }
}

/// A pipe whose ends are close-on-exec.
pub fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
}
