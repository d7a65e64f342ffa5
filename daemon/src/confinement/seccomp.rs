//! The system calls that no command of a sandbox may make: a deny-list as container engines have it, as classic BPF.
//!
//! The kernel proves from the program which calls are always allowed and skips it for those, so only the calls that are
//! denied, or whose arguments matter, pay for it.

use libc::sock_filter;

/// Denied with `EPERM`, whatever the arguments: what changes the machine, the mounts, the namespaces or other processes'
/// memory, and large attack surfaces that no program in a sandbox needs.
const DENIED: &[libc::c_long] = &[
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Keys are not in any namespace.
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_vhangup,
    // Clocks.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    // Other processes.
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

/// What sends a signal to the process in its first argument. Process 1 gets none of them from inside, and nobody is told:
/// so Linux does it with those that would end it, and gVisor does not.
const SIGNALLING: [libc::c_long; 5] =
    [libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo];

/// `open_tree_attr`, which the C library's list does not have yet; the same number everywhere.
const SYS_OPEN_TREE_ATTR: u32 = 467;

/// All flags of `clone` and `unshare` that make namespaces.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned()
    | 0x80; // CLONE_NEWTIME

/// Address families that a sandbox has. The others are not in any namespace (vsock), or nothing but attack surface.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Personalities: Linux, 32-bit addresses, the same with old `uname`, no randomisation (debuggers), and "tell me".
const PERSONALITIES: [u32; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Calls of the x32 interface have this bit in their number.
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;

// Offsets in `struct seccomp_data`, little-endian.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// The filter of every command.
pub fn program() -> Vec<sock_filter> {
    let mut code = Assembler::default();
    code.load(ARCH);
    code.unless_equal_return(AUDIT_ARCH, errno(libc::ENOSYS));
    code.load(NUMBER);
    #[cfg(target_arch = "x86_64")]
    code.if_any_bit_return(X32_BIT, errno(libc::ENOSYS));
    // Its flags are behind a pointer, where no filter can look: programs fall back to `clone`.
    code.if_equal_return(call(libc::SYS_clone3), errno(libc::ENOSYS));
    for denied in DENIED {
        code.if_equal_return(call(*denied), errno(libc::EPERM));
    }
    code.if_equal_return(SYS_OPEN_TREE_ATTR, errno(libc::EPERM));
    for number in [libc::SYS_clone, libc::SYS_unshare] {
        code.for_call(call(number), |code| {
            code.load(argument(0));
            code.if_any_bit_return(NEW_NAMESPACES, errno(libc::EPERM));
        });
    }
    for number in [libc::SYS_socket, libc::SYS_socketpair] {
        code.for_call(call(number), |code| {
            code.load(argument(0));
            code.unless_one_of_return(&FAMILIES.map(i32::cast_unsigned), errno(libc::EAFNOSUPPORT));
        });
    }
    for number in SIGNALLING {
        code.for_call(call(number), |code| {
            code.load(argument(0));
            code.if_equal_return(1, errno(0));
        });
    }
    code.for_call(call(libc::SYS_personality), |code| {
        code.load(argument(0));
        code.unless_one_of_return(&PERSONALITIES, errno(libc::EPERM));
    });
    code.for_call(call(libc::SYS_ioctl), |code| {
        code.load(argument(1));
        // Typing into somebody else's terminal.
        code.if_equal_return(0x5412, errno(libc::EPERM)); // TIOCSTI
        code.if_equal_return(0x541c, errno(libc::EPERM)); // TIOCLINUX
    });
    code.push(BPF_RET_K, RET_ALLOW);
    code.instructions
}

fn call(number: libc::c_long) -> u32 {
    // System call numbers are small and positive.
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn errno(number: i32) -> u32 {
    RET_ERRNO | number.cast_unsigned()
}

const BPF_LD_W_ABS: u16 = 0x20;
const BPF_JEQ_K: u16 = 0x15;
const BPF_JSET_K: u16 = 0x45;
const BPF_RET_K: u16 = 0x06;

#[derive(Default)]
struct Assembler {
    instructions: Vec<sock_filter>,
}

impl Assembler {
    fn push(&mut self, code: u16, k: u32) {
        self.instructions.push(sock_filter { code, jt: 0, jf: 0, k });
    }

    fn jump(&mut self, code: u16, k: u32, jt: u8, jf: u8) {
        self.instructions.push(sock_filter { code, jt, jf, k });
    }

    fn load(&mut self, offset: u32) {
        self.push(BPF_LD_W_ABS, offset);
    }

    fn if_equal_return(&mut self, value: u32, action: u32) {
        self.jump(BPF_JEQ_K, value, 0, 1);
        self.push(BPF_RET_K, action);
    }

    fn unless_equal_return(&mut self, value: u32, action: u32) {
        self.jump(BPF_JEQ_K, value, 1, 0);
        self.push(BPF_RET_K, action);
    }

    fn if_any_bit_return(&mut self, bits: u32, action: u32) {
        self.jump(BPF_JSET_K, bits, 0, 1);
        self.push(BPF_RET_K, action);
    }

    fn unless_one_of_return(&mut self, values: &[u32], action: u32) {
        let mut left = u8::try_from(values.len()).unwrap_or(u8::MAX);
        for value in values {
            self.jump(BPF_JEQ_K, *value, left, 0);
            left -= 1;
        }
        self.push(BPF_RET_K, action);
    }

    /// Run `body` for this call only; what it lets through is allowed. The number must be loaded.
    fn for_call(&mut self, number: u32, body: impl FnOnce(&mut Assembler)) {
        let mut inner = Assembler::default();
        body(&mut inner);
        inner.push(BPF_RET_K, RET_ALLOW);
        let skip = u8::try_from(inner.instructions.len()).unwrap_or(u8::MAX);
        self.jump(BPF_JEQ_K, number, 0, skip);
        self.instructions.append(&mut inner.instructions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A very small machine for the instructions that the assembler emits.
    fn run(program: &[sock_filter], arch: u32, number: u32, arguments: [u32; 2]) -> u32 {
        let (mut at, mut accumulator) = (0_usize, 0_u32);
        loop {
            let step = &program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
            match step.code {
                BPF_LD_W_ABS => {
                    accumulator = match step.k {
                        NUMBER => number,
                        ARCH => arch,
                        16 => arguments[0],
                        24 => arguments[1],
                        other => panic!("load of {other}"),
                    }
                }
                BPF_JEQ_K => at += jump(accumulator == step.k),
                BPF_JSET_K => at += jump(accumulator & step.k != 0),
                BPF_RET_K => return step.k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn decide(number: libc::c_long, arguments: [u32; 2]) -> u32 {
        run(&program(), AUDIT_ARCH, call(number), arguments)
    }

    /// Ordinary calls pass.
    #[test]
    fn ordinary_calls_are_allowed() {
        for number in [libc::SYS_read, libc::SYS_execve, libc::SYS_setuid, libc::SYS_chroot, libc::SYS_ptrace] {
            assert_eq!(decide(number, [0, 0]), RET_ALLOW);
        }
        assert_eq!(decide(libc::SYS_clone, [libc::CLONE_VM.cast_unsigned(), 0]), RET_ALLOW);
        assert_eq!(decide(libc::SYS_unshare, [libc::CLONE_FILES.cast_unsigned(), 0]), RET_ALLOW);
        assert_eq!(decide(libc::SYS_ioctl, [0, 0x5401]), RET_ALLOW);
    }

    /// Every denied call is refused, whatever its arguments.
    #[test]
    fn denied_calls_are_refused() {
        for number in DENIED {
            assert_eq!(decide(*number, [0, 0]), errno(libc::EPERM), "call {number}");
        }
    }

    /// Each flag that makes a namespace is refused in `clone` and `unshare`, alone and among others.
    #[test]
    fn new_namespaces_are_refused() {
        for bit in (0..32).map(|shift| 1_u32 << shift).filter(|bit| bit & NEW_NAMESPACES != 0) {
            for number in [libc::SYS_clone, libc::SYS_unshare] {
                assert_eq!(decide(number, [bit | libc::SIGCHLD.cast_unsigned() & !0x80, 0]), errno(libc::EPERM));
            }
        }
        assert_eq!(decide(libc::SYS_clone3, [0, 0]), errno(libc::ENOSYS));
    }

    /// Sockets of the four allowed families pass; vsock, packet and the crypto interface do not.
    #[test]
    fn only_known_address_families_pass() {
        for family in FAMILIES {
            assert_eq!(decide(libc::SYS_socket, [family.cast_unsigned(), 0]), RET_ALLOW);
        }
        for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET, libc::AF_TIPC] {
            assert_eq!(decide(libc::SYS_socket, [family.cast_unsigned(), 0]), errno(libc::EAFNOSUPPORT));
        }
    }

    /// Calls of other instruction sets, and of x32, do not exist.
    #[test]
    fn foreign_interfaces_are_refused() {
        assert_eq!(run(&program(), 0x4000_0003, 1, [0, 0]), errno(libc::ENOSYS));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(run(&program(), AUDIT_ARCH, X32_BIT | 1, [0, 0]), errno(libc::ENOSYS));
    }

    /// Everybody may be signalled but process 1, for whom nothing is done and no error told.
    #[test]
    fn process_1_gets_no_signals() {
        for number in SIGNALLING {
            assert_eq!(decide(number, [1, 9]), RET_ERRNO);
            for other in [0, 2, u32::MAX] {
                assert_eq!(decide(number, [other, 9]), RET_ALLOW);
            }
        }
    }

    /// Terminals may be used, but not typed into.
    #[test]
    fn typing_into_a_terminal_is_refused() {
        assert_eq!(decide(libc::SYS_ioctl, [0, 0x5412]), errno(libc::EPERM));
    }
}
