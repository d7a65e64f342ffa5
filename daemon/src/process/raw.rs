//! The two things that only assembly can do: a child on a stack of its own, and system calls that touch no memory but
//! what they are given (libc's would write the parent's `errno`, which a child with shared memory must not).

use std::ffi::{c_int, c_void};

use rustix::io::Errno;

/// `struct clone_args` of `clone3(2)`, as of Linux 5.7.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CloneArgs {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_size: u64,
    pub tls: u64,
    pub set_tid: u64,
    pub set_tid_size: u64,
    pub cgroup: u64,
}

/// A child's first and only function.
pub type Entry = extern "C" fn(*mut c_void) -> c_int;

/// `clone3`, with the child in `entry(argument)` on the stack that `args` names. Returns the pid or `-errno`.
///
/// # Safety
/// The stack and everything that `argument` leads to must live until the child has called `execve` or is dead, and
/// `entry` must never return and must do only what a child that shares its parent's memory may do.
pub unsafe fn clone3(args: &CloneArgs, entry: Entry, argument: *mut c_void) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel reads `args`; in the parent nothing but the clobbered registers changes, and the child never
    // leaves the call, whose stack is the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") args, in("rsi") size_of::<CloneArgs>(),
            in("r12") argument, in("r13") entry,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x9",
            "blr x10",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone3,
            inout("x0") args as *const CloneArgs as isize => result, in("x1") size_of::<CloneArgs>(),
            in("x9") argument, in("x10") entry,
            lateout("x30") _,
        );
    }
    result
}

/// A system call with up to four arguments. Returns its value or `-errno`.
///
/// # Safety
/// As the system call itself.
pub unsafe fn call(number: i64, arguments: [usize; 4]) -> isize {
    let result: isize;
    let [first, second, third, fourth] = arguments;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inout("rax") number as isize => result,
            in("rdi") first, in("rsi") second, in("rdx") third, in("r10") fourth,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's promise.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inout("x0") first as isize => result, in("x1") second, in("x2") third, in("x3") fourth,
            options(nostack),
        );
    }
    result
}

/// What a raw call has returned. Not libc's `errno`: the parent, whose memory this is, may be using that.
pub fn outcome(result: isize) -> rustix::io::Result<usize> {
    let errno = || Errno::from_raw_os_error(i32::try_from(result.unsigned_abs()).unwrap_or(libc::EIO));
    usize::try_from(result).map_err(|_| errno())
}
