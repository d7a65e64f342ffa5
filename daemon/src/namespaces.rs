//! Namespaces of the calling process, as descriptors.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::error::{Error, Result, last_errno};

/// The calling thread's present namespace of a kind: `mnt`, `net`, `ipc`, `uts`. `proc` is a /proc that knows the thread.
pub fn current(proc: BorrowedFd<'_>, kind: &str) -> Result<OwnedFd> {
    rustix::fs::openat(proc, format!("thread-self/ns/{kind}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::system(&format!("open the {kind} namespace"), errno))
}

/// Make and enter new namespaces. They are the calling thread's alone.
pub fn unshare(flags: UnshareFlags) -> Result<()> {
    // SAFETY: CLONE_FILES, the one flag that breaks Rust's rules on descriptors, is never given here.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|errno| Error::system("make namespaces", errno))
}

/// Enter a mount namespace, whose root becomes the caller's. No other thread may share the caller's root and directory.
pub fn enter_mounts(namespace: BorrowedFd<'_>) -> Result<()> {
    enter(namespace, LinkNameSpaceType::Mount)
}

/// Enter an existing namespace.
pub fn enter(namespace: BorrowedFd<'_>, kind: LinkNameSpaceType) -> Result<()> {
    rustix::thread::move_into_link_name_space(namespace, Some(kind))
        .map_err(|errno| Error::system("enter a namespace", errno))
}

/// Bring up the loopback interface of a new network namespace.
pub fn raise_loopback() -> Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    use std::os::fd::AsRawFd;

    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::system("open a socket", errno))?;
    // SAFETY: all zeroes is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let flags = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).unwrap_or_default();
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 { Ok(()) } else { Err(Error::system("bring up the loopback", last_errno())) }
}
