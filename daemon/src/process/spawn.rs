//! From a [`Launch`] to a running process.
//!
//! The child shares our memory until it executes and runs beside us (`CLONE_VM` without `CLONE_VFORK`), so we pay for
//! neither a copy of page tables nor its way to `execve`. What it reads lives in its `Launch`, which is kept until the
//! kernel clears `busy` (`CLONE_CHILD_CLEARTID`: at execve or death).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::keeper::{self, Keeper};
use super::program::Program;
use super::raw::{self, CloneArgs};
use super::score::Score;
use crate::cgroup::Leaf;
use crate::error::last_errno;
use crate::init::{Confinement, Identity};

/// Stack of a child until it executes. Only touched pages cost memory.
const STACK_BYTES: usize = 64 * 1024;
const GUARD_BYTES: usize = 4096;
/// Stacks kept for the next children.
const SPARE_STACKS: usize = 4;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Where a shell finds a script that is no argument: `/proc/self/fd/3`.
pub const SCRIPT_FD: c_int = 3;

/// Everything about a process to be.
#[derive(Debug)]
pub struct Launch<'a> {
    pub program: Program,
    pub stdio: [BorrowedFd<'a>; 3],
    /// More descriptors, each with the number it gets.
    pub extra: &'a [(BorrowedFd<'a>, c_int)],
    pub cwd: BorrowedFd<'a>,
    /// `stdio[0]` is a terminal and becomes the controlling one.
    pub terminal: bool,
    pub identity: Identity,
    pub leaf: Option<&'a Leaf>,
}

/// What a child could not do before it executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Setup,
    Directory,
    Execute,
}

/// Written by a child that fails before it executes, read after its death.
#[derive(Debug, Default)]
pub struct Report {
    stage: AtomicU32,
    errno: AtomicI32,
}

impl Report {
    /// As numbers, for a keeper that tells another process.
    pub fn raw(&self) -> (u32, i32) {
        (self.stage.load(Ordering::Acquire), self.errno.load(Ordering::Relaxed))
    }

    pub fn set_raw(&self, stage: u32, errno: i32) {
        self.errno.store(errno, Ordering::Relaxed);
        self.stage.store(stage, Ordering::Release);
    }

    pub fn failure(&self) -> Option<(Stage, Errno)> {
        let stage = match self.stage.load(Ordering::Acquire) {
            0 => return None,
            1 => Stage::Setup,
            2 => Stage::Directory,
            _ => Stage::Execute,
        };
        Some((stage, Errno::from_raw_os_error(self.errno.load(Ordering::Relaxed))))
    }
}

/// A process that was just made.
#[derive(Debug)]
pub struct Spawned {
    pub pid: u32,
    pub report: Arc<Report>,
    /// Stands between it and us where no leaf holds its tree.
    pub keeper: Option<Keeper>,
}

/// Makes processes, and keeps what they read until they no longer do.
#[derive(Debug)]
pub struct Spawner {
    confinement: Arc<Confinement>,
    /// Soft limit of open files that commands get; ours is higher.
    open_files: libc::rlimit,
    /// For whoever has no leaf.
    score: Option<Score>,
    /// From `Box::into_raw`: children read them while we run.
    in_flight: Vec<*mut Block>,
    spare: Vec<Stack>,
}

impl Spawner {
    pub fn new(confinement: Confinement, open_files: libc::rlimit, score: Option<Score>) -> Self {
        let confinement = Arc::new(confinement);
        Spawner { confinement, open_files, score, in_flight: Vec::new(), spare: Vec::new() }
    }

    /// Start a process. What fails on its way to `execve` is told by its `report` and its exit code.
    ///
    /// # Errors
    /// No memory, no process, or a cgroup that refuses it.
    pub fn spawn(&mut self, launch: Launch<'_>) -> rustix::io::Result<Spawned> {
        self.sweep();
        let stack = match self.spare.pop() {
            Some(stack) => stack,
            None => Stack::new()?,
        };
        let into_cgroup = launch.leaf.and_then(Leaf::clone_into_fd).map(|directory| directory.as_raw_fd());
        let launch_is_kept = !launch.leaf.is_some_and(Leaf::holds_tree);
        let report = Arc::new(Report::default());
        let block = Box::into_raw(Box::new(Block {
            files: Files::of(&launch),
            program: launch.program,
            terminal: launch.terminal,
            identity: launch.identity,
            confinement: Arc::clone(&self.confinement),
            open_files: self.open_files,
            report: Arc::clone(&report),
            busy: AtomicU32::new(1),
            stack,
        }));
        if launch_is_kept {
            let fork = || keeper::fork(&report, || start(block, into_cgroup));
            let kept = self.score.as_ref().map_or_else(fork, |score| score.above(fork));
            // SAFETY: from `into_raw` above; the child that uses it has the keeper's copy of it.
            drop(unsafe { Box::from_raw(block) });
            return kept.map(|(keeper, pid)| Spawned { pid, report, keeper: Some(keeper) });
        }
        match start(block, into_cgroup) {
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

    /// Take back what children no longer read.
    pub fn sweep(&mut self) {
        let mut index = 0;
        while index < self.in_flight.len() {
            let block = self.in_flight[index];
            // SAFETY: from `into_raw`, not freed while it is in this list; the kernel writes `busy` as one word.
            if unsafe { (*block).busy.load(Ordering::Acquire) } != 0 {
                index += 1;
                continue;
            }
            self.in_flight.swap_remove(index);
            // SAFETY: its child has left our memory, and it is in no list any more.
            let block = unsafe { Box::from_raw(block) };
            if self.spare.len() < SPARE_STACKS {
                self.spare.push(block.stack);
            }
        }
    }
}

#[derive(Debug)]
struct Stack {
    base: *mut c_void,
}

impl Stack {
    fn new() -> rustix::io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::STACK | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping of our own; nothing else knows of it.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), STACK_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let stack = Stack { base };
        // SAFETY: the lowest page of that mapping, which nobody uses yet.
        unsafe { rustix::mm::mprotect(base, GUARD_BYTES, MprotectFlags::empty())? };
        Ok(stack)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; the child that used it is gone or has executed.
        if let Err(errno) = unsafe { rustix::mm::munmap(self.base, STACK_BYTES) } {
            eprintln!("sandlotd: munmap of a stack: {errno}");
        }
    }
}

/// What a child reads.
#[derive(Debug)]
struct Block {
    program: Program,
    files: Files,
    terminal: bool,
    identity: Identity,
    confinement: Arc<Confinement>,
    open_files: libc::rlimit,
    report: Arc<Report>,
    /// Cleared by the kernel when the child has left our memory.
    busy: AtomicU32,
    stack: Stack,
}

fn start(block: *mut Block, into_cgroup: Option<c_int>) -> rustix::io::Result<u32> {
    // SAFETY: just made by `spawn`, and nobody else knows of it yet.
    let (busy, stack) = unsafe { ((*block).busy.as_ptr(), (*block).stack.base) };
    let mut args = CloneArgs {
        flags: (libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID) as u64,
        child_tid: busy as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack as u64,
        stack_size: STACK_BYTES as u64,
        ..CloneArgs::default()
    };
    if let Some(directory) = into_cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = directory as u64;
    }
    // SAFETY: the block and its stack are kept by the spawner until `busy` is cleared; `child` never returns and keeps
    // to raw system calls on what the block owns.
    let result = unsafe { raw::clone3(&args, child, block.cast()) };
    match u32::try_from(result) {
        Ok(pid) => Ok(pid),
        // Kernels and filters that refuse `clone3` have the older call.
        Err(_) if result == -(libc::ENOSYS as isize) && into_cgroup.is_none() => {
            let flags = libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
            // SAFETY: as above; the stack grows down from its end.
            let pid = unsafe {
                let (top, none) = (stack.byte_add(STACK_BYTES), std::ptr::null_mut::<c_void>());
                libc::clone(child, top, flags, block.cast(), none, none, busy)
            };
            u32::try_from(pid).map_err(|_| last_errno())
        }
        Err(_) => Err(Errno::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EIO))),
    }
}

/// A raw call whose failure is an errno.
fn system(number: i64, arguments: [usize; 4]) -> Result<usize, c_int> {
    // SAFETY: called only below, with numbers and pointers into the block.
    let result = unsafe { raw::call(number, arguments) };
    usize::try_from(result).map_err(|_| c_int::try_from(-result).unwrap_or(libc::EIO))
}

extern "C" fn child(block: *mut c_void) -> c_int {
    // SAFETY: `start` passed a block that outlives this use of it.
    let block = unsafe { &*block.cast::<Block>() };
    let code = match prepare(block) {
        Ok(()) => execute(block),
        Err((stage, errno)) => {
            block.report.set_raw(stage, errno);
            126
        }
    };
    loop {
        let _ = system(libc::SYS_exit_group, [code, 0, 0, 0]);
    }
}

fn prepare(block: &Block) -> Result<(), (u32, c_int)> {
    let setup = |errno| (1, errno);
    // First of all: as long as we hold copies of our parent's descriptors, its other children see no end of their input.
    block.files.keep_only().map_err(setup)?;
    for procs in block.files.enter() {
        system(libc::SYS_write, [procs, c"0".as_ptr() as usize, 1, 0]).map_err(setup)?;
    }
    system(libc::SYS_setsid, [0; 4]).map_err(setup)?;
    if block.terminal {
        system(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0]).map_err(setup)?;
    }
    let limit = std::ptr::from_ref(&block.open_files) as usize;
    system(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, limit, 0]).map_err(setup)?;
    block.confinement.apply_in_child(&block.identity).map_err(|errno| setup(errno.raw_os_error()))?;
    system(libc::SYS_fchdir, [block.files.cwd(), 0, 0, 0]).map_err(|errno| (2, errno))?;
    let none = 0_u64;
    let mask = std::ptr::from_ref(&none) as usize;
    system(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, mask, 0, size_of::<u64>()]).map_err(setup)?;
    Ok(())
}

/// The descriptors that a child needs, in this order: the program's own, the working directory, cgroups to enter.
#[derive(Debug)]
struct Files {
    sources: Vec<c_int>,
    /// Numbers of the program's own, which are the first.
    targets: Vec<c_int>,
    /// Above every source: here they are out of the way of each other.
    away: usize,
}

impl Files {
    fn of(launch: &Launch<'_>) -> Self {
        let extra = launch.extra.iter().map(|(fd, number)| (fd.as_raw_fd(), *number));
        let stdio = launch.stdio.iter().map(AsRawFd::as_raw_fd).zip(0..);
        let (mut sources, targets): (Vec<c_int>, Vec<c_int>) = stdio.chain(extra).unzip();
        sources.push(launch.cwd.as_raw_fd());
        sources.extend(launch.leaf.map_or(&[][..], Leaf::enter_fds).iter().map(AsRawFd::as_raw_fd));
        let highest = sources.iter().chain(&targets).copied().max().unwrap_or(0);
        Files { away: highest as usize + 1, sources, targets }
    }

    fn cwd(&self) -> usize {
        self.away + self.targets.len()
    }

    fn enter(&self) -> std::ops::Range<usize> {
        self.cwd() + 1..self.away + self.sources.len()
    }

    /// Close everything else; what the program is not to see closes when it executes.
    fn keep_only(&self) -> Result<(), c_int> {
        for (index, source) in self.sources.iter().enumerate() {
            system(libc::SYS_dup3, [*source as usize, self.away + index, libc::O_CLOEXEC as usize, 0])?;
        }
        system(libc::SYS_close_range, [0, self.away - 1, 0, 0])?;
        system(libc::SYS_close_range, [self.away + self.sources.len(), u32::MAX as usize, 0, 0])?;
        for (index, target) in self.targets.iter().enumerate() {
            system(libc::SYS_dup3, [self.away + index, *target as usize, 0, 0])?;
        }
        Ok(())
    }
}

/// Try the candidates as a shell would. Returns the exit code when none can be executed.
fn execute(block: &Block) -> usize {
    let (argv, env) = (block.program.argv.as_ptr() as usize, block.program.env.as_ptr() as usize);
    let mut found = libc::ENOENT;
    for path in block.program.candidates.pointers() {
        match system(libc::SYS_execve, [*path as usize, argv, env, 0]) {
            Err(libc::ENOENT | libc::ENOTDIR) | Ok(_) => {}
            Err(libc::EACCES) => found = libc::EACCES,
            Err(errno) => {
                found = errno;
                break;
            }
        }
    }
    let (code, text): (usize, &[u8]) = match found {
        libc::ENOENT => (127, b"not found\n"),
        libc::EACCES => (126, b"permission denied\n"),
        libc::ENOEXEC => (126, b"not an executable of this machine\n"),
        errno => {
            block.report.set_raw(3, errno);
            (126, b"cannot be executed\n")
        }
    };
    for part in [block.program.complaint.as_slice(), text] {
        let _ = system(libc::SYS_write, [2, part.as_ptr() as usize, part.len(), 0]);
    }
    code
}

/// A pipe whose ends are close-on-exec.
pub fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
}
