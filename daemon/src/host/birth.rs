//! The birth of an init: new namespaces, this very program in a form that nobody can change, and a link to us.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use super::ids::IdMap;
use crate::error::{Error, Result, last_errno};

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// When the machine runs out of memory, whatever runs in a sandbox dies before anything else, and in it the largest
/// first: the init is small.
const OOM_SCORE: &str = "500";
/// Descriptor of the link in the init.
const LINK: c_int = 3;

/// This program, in a sealed memory file: what runs in a sandbox can neither change it nor find its path.
#[derive(Debug)]
pub struct Binary {
    file: OwnedFd,
}

impl Binary {
    pub fn seal() -> Result<Self> {
        let copy = || {
            let own = rustix::fs::open("/proc/self/exe", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let file = executable_memory()?;
            let mut buffer = vec![0_u8; 1 << 20];
            loop {
                let count = rustix::io::read(&own, &mut buffer)?;
                if count == 0 {
                    break;
                }
                let mut rest = &buffer[..count];
                while !rest.is_empty() {
                    let written = rustix::io::write(&file, rest)?;
                    rest = rest.get(written..).ok_or(Errno::IO)?;
                }
            }
            // Not to be read, only executed: the kernel then lets nobody inside the sandbox, its root included, look
            // into the init or write to its files in /proc, since those belong to our user namespace and not to its.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o111))?;
            rustix::fs::fcntl_add_seals(
                &file,
                SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
            )?;
            Ok(Binary { file })
        };
        copy().map_err(|errno| Error::system("copy the daemon", errno))
    }
}

fn executable_memory() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(c"sandlotd", flags | MemfdFlags::EXEC) {
        // Before Linux 6.3 every memory file may be executed.
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"sandlotd", flags),
        other => other,
    }
}

/// A new init that waits for its blueprint.
#[derive(Debug)]
pub struct Newborn {
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub link: OwnedFd,
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Start an init in new user, mount and PID namespaces, with the ids of `map`, in `cgroup` where there is one.
///
/// # Errors
/// `capacity` when there is no memory or process left; what the kernel says otherwise. Nothing is left behind.
pub fn give_birth(binary: &Binary, map: IdMap, cgroup: Option<BorrowedFd<'_>>) -> Result<Newborn> {
    let (ours, theirs) = make_link()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::system("open /dev/null", errno))?;
    let (pid, pidfd) = clone(cgroup, || become_init(&theirs, &null, &binary.file))
        .map_err(|errno| Error::system("make the sandbox's namespaces", errno))?;
    drop(theirs);
    let newborn = Newborn { pid, pidfd, link: ours };
    match name_child(pid, map, &newborn.link) {
        Ok(()) => Ok(newborn),
        Err(errno) => {
            drop(newborn.link);
            reap(&newborn.pidfd);
            Err(Error::system("give the sandbox its ids", errno))
        }
    }
}

/// A private link: ours and the child's end.
pub(super) fn make_link() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::system("make the link", errno))
}

/// Give a child its ids, and tell it.
pub(super) fn name_child(pid: u32, map: IdMap, link: &OwnedFd) -> rustix::io::Result<()> {
    write_maps(pid, map)?;
    rustix::net::send(link, b"g", SendFlags::NOSIGNAL).map(drop)
}

/// Kill and collect a child that shall not be.
pub fn reap(pidfd: &OwnedFd) {
    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

    match pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => eprintln!("sandlotd: kill a newborn init: {errno}"),
    }
    while let Err(Errno::INTR) = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {}
}

/// `clone3` with new namespaces. `child` runs in a copy of our memory: it may call the system and nothing else, and
/// does not return.
pub(super) fn clone(
    cgroup: Option<BorrowedFd<'_>>,
    child: impl FnOnce() -> Errno,
) -> rustix::io::Result<(u32, OwnedFd)> {
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_PIDFD;
    let mut args = CloneArgs {
        flags: u64::try_from(flags).map_err(|_| Errno::INVAL)?,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(directory) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(directory.as_raw_fd()).map_err(|_| Errno::BADF)?;
    }
    // SAFETY: without CLONE_VM this is fork: the child has its own copy of everything. This process has one thread that
    // allocates, and the child keeps to system calls until it executes or exits.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match result {
        0 => {
            let errno = child();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(errno.raw_os_error() & 0x7f) }
        }
        pid if pid > 0 => {
            // SAFETY: the kernel has just put a new descriptor there, which nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok((u32::try_from(pid).map_err(|_| Errno::OVERFLOW)?, pidfd))
        }
        _ => Err(last_errno()),
    }
}

/// In the child: wait for our ids, take them, and execute the init. Returns only what went wrong.
fn become_init(link: &OwnedFd, null: &OwnedFd, binary: &OwnedFd) -> Errno {
    match wait_for_ids(link).and_then(|()| enter_init(link, null, binary)) {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

/// In the child: wait until our ids exist, and take those of root.
pub(super) fn wait_for_ids(link: &OwnedFd) -> rustix::io::Result<()> {
    use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};

    let mut byte = [0_u8; 1];
    loop {
        match rustix::net::recv(link, &mut byte, rustix::net::RecvFlags::empty()) {
            Ok((1, _)) => break,
            Ok(_) => return Err(Errno::PIPE),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    match rustix::thread::set_thread_groups(&[]) {
        // With one id only, groups may not be set.
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

fn enter_init(link: &OwnedFd, null: &OwnedFd, binary: &OwnedFd) -> rustix::io::Result<std::convert::Infallible> {
    for target in 0..LINK {
        move_to(null, target)?;
    }
    move_to(link, LINK)?;
    let arguments = [c"sandlotd".as_ptr(), c"init".as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: both arrays end with a null pointer and hold C strings that live until the call returns, if it does.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            binary.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(last_errno())
}

/// Make `from` descriptor `target`, kept on exec.
fn move_to(from: &OwnedFd, target: c_int) -> rustix::io::Result<()> {
    let result = if from.as_raw_fd() == target {
        // SAFETY: a plain system call on a number.
        unsafe { libc::fcntl(target, libc::F_SETFD, 0) }
    } else {
        // SAFETY: likewise. Whatever `target` was in this copy of our table, nobody uses it any more.
        unsafe { libc::dup2(from.as_raw_fd(), target) }
    };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

fn write_maps(pid: u32, map: IdMap) -> rustix::io::Result<()> {
    let line = map.line();
    for (file, text) in [("uid_map", line.as_str()), ("gid_map", line.as_str()), ("oom_score_adj", OOM_SCORE)] {
        let path = format!("/proc/{pid}/{file}");
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, text.as_bytes())?;
    }
    Ok(())
}

/// The user namespace of an init.
pub fn user_namespace(pid: u32) -> Result<OwnedFd> {
    rustix::fs::open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::system("open the user namespace", errno))
}
