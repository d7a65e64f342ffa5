//! A child from its making to `execve`.
//!
//! It shares its maker's memory until it executes and runs beside it (`CLONE_VM` without `CLONE_VFORK`), so the maker pays
//! for neither a copy of page tables nor its way to `execve`. What it reads lives in its [`Block`], which is kept until
//! the kernel clears `busy` (`CLONE_CHILD_CLEARTID`: at execve or death).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::program::Program;
use super::raw::{self, CloneArgs};
use crate::confinement::{Confinement, Identity};
use crate::error::last_errno;

/// Stack of a child until it executes. Only touched pages cost memory.
const STACK_BYTES: usize = 64 * 1024;
const GUARD_BYTES: usize = 4096;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

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

/// Of a child, until it executes.
#[derive(Debug)]
pub struct Stack {
    base: *mut c_void,
}

impl Stack {
    /// # Errors
    /// No memory.
    pub fn new() -> rustix::io::Result<Self> {
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

/// What a child is to be, but for the descriptors that it gets.
#[derive(Debug)]
pub struct Plan {
    pub program: Program,
    /// The first standard stream is a terminal and becomes the controlling one.
    pub terminal: bool,
    pub identity: Identity,
}

/// What all children of one maker have in common.
#[derive(Clone, Debug)]
pub struct Rules {
    pub confinement: Arc<Confinement>,
    /// Soft limit of open files that commands get; their maker's is higher.
    pub open_files: libc::rlimit,
}

/// What a child reads.
#[derive(Debug)]
pub struct Block {
    plan: Plan,
    files: Files,
    rules: Rules,
    report: Arc<Report>,
    /// Cleared by the kernel when the child has left our memory.
    busy: AtomicU32,
    stack: Stack,
}

impl Block {
    pub fn new(plan: Plan, files: Files, rules: Rules, report: Arc<Report>, stack: Stack) -> Self {
        Block { plan, files, rules, report, busy: AtomicU32::new(1), stack }
    }

    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) != 0
    }

    pub fn into_stack(self) -> Stack {
        self.stack
    }
}

/// Where the kernel writes the pid of a child before it runs: [`std::ptr::null_mut`] if nobody wants to know.
pub type Birth = *mut u32;

/// Make a child of `block`.
///
/// # Safety
/// `block` comes from `Box::into_raw`, and is freed only when it is no longer busy or the child is dead. `birth` is null or
/// may be written to for as long.
///
/// # Errors
/// No memory, no process, or a cgroup that refuses it: then no child was made that could know the block.
pub unsafe fn start(block: *mut Block, birth: Birth) -> rustix::io::Result<u32> {
    // SAFETY: the caller's promise; there is no child yet.
    let (busy, stack, into_cgroup) =
        unsafe { ((*block).busy.as_ptr(), (*block).stack.base, (*block).files.into_cgroup) };
    let told = if birth.is_null() { 0 } else { libc::CLONE_PARENT_SETTID };
    let mut args = CloneArgs {
        flags: (libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID | told) as u64,
        child_tid: busy as u64,
        parent_tid: birth as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack as u64,
        stack_size: STACK_BYTES as u64,
        ..CloneArgs::default()
    };
    if let Some(directory) = into_cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = directory as u64;
    }
    // SAFETY: the block and its stack are kept until `busy` is cleared; `child` never returns and keeps to raw system
    // calls on what the block owns.
    match raw::outcome(unsafe { raw::clone3(&args, child, block.cast()) }) {
        // Kernels and filters that refuse `clone3` have the older call.
        Err(Errno::NOSYS) if into_cgroup.is_none() => {
            let flags = libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD | told;
            // SAFETY: as above; the stack grows down from its end.
            let pid = unsafe {
                let (top, none) = (stack.byte_add(STACK_BYTES), std::ptr::null_mut::<c_void>());
                libc::clone(child, top, flags, block.cast(), birth, none, busy)
            };
            u32::try_from(pid).map_err(|_| last_errno())
        }
        made => made.and_then(|pid| u32::try_from(pid).map_err(|_| Errno::IO)),
    }
}

/// A raw call whose failure is an errno.
fn system(number: i64, arguments: [usize; 4]) -> Result<usize, c_int> {
    // SAFETY: called only below, with numbers and pointers into the block.
    raw::outcome(unsafe { raw::call(number, arguments) }).map_err(Errno::raw_os_error)
}

extern "C" fn child(block: *mut c_void) -> c_int {
    // SAFETY: [`start`] passed a block that outlives this use of it.
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
    if block.plan.terminal {
        system(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0]).map_err(setup)?;
    }
    let limit = std::ptr::from_ref(&block.rules.open_files) as usize;
    system(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, limit, 0]).map_err(setup)?;
    block.rules.confinement.apply_in_child(&block.plan.identity).map_err(|errno| setup(errno.raw_os_error()))?;
    system(libc::SYS_fchdir, [block.files.cwd(), 0, 0, 0]).map_err(|errno| (2, errno))?;
    let none = 0_u64;
    let mask = std::ptr::from_ref(&none) as usize;
    system(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, mask, 0, size_of::<u64>()]).map_err(setup)?;
    Ok(())
}

/// The descriptors that a child needs, in this order: the program's own, the working directory, cgroups to enter.
#[derive(Debug)]
pub struct Files {
    sources: Vec<c_int>,
    /// Numbers of the program's own, which are the first.
    targets: Vec<c_int>,
    /// Above every source: here they are out of the way of each other.
    away: usize,
    /// The directory of the cgroup to be born in.
    into_cgroup: Option<c_int>,
}

impl Files {
    /// They stay open until the child is made, which then has copies.
    pub fn new(sources: &[BorrowedFd<'_>], targets: &[c_int], into_cgroup: Option<BorrowedFd<'_>>) -> Self {
        let sources: Vec<c_int> = sources.iter().map(AsRawFd::as_raw_fd).collect();
        let highest = sources.iter().chain(targets).copied().max().unwrap_or(0);
        let into_cgroup = into_cgroup.map(|directory| directory.as_raw_fd());
        Files { away: highest as usize + 1, sources, targets: targets.to_vec(), into_cgroup }
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
    let (argv, env) = (block.plan.program.argv.as_ptr() as usize, block.plan.program.env.as_ptr() as usize);
    let mut found = libc::ENOENT;
    for path in block.plan.program.candidates.pointers() {
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
    for part in [block.plan.program.complaint.as_slice(), text] {
        let _ = system(libc::SYS_write, [2, part.as_ptr() as usize, part.len(), 0]);
    }
    code
}
