//! The daemon's own entries of `/proc`, which its own threads may always open: its memory must not leave it that way.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat};

use crate::error::{Code, Error, Result};

/// `/proc/PID/task/TID/...` has no more levels than this below the root of procfs.
const MAX_LEVELS: usize = 16;
/// Inode number of the root of every procfs.
const PROC_ROOT_INODE: u64 = 1;
/// Enough of `/proc/PID/status` to hold its `Tgid` line: the lines before it are short.
const STATUS_BYTES: usize = 512;

/// Refuse a directory that belongs to this process, however the path came to it.
///
/// # Errors
/// `permission`, as any other process of the sandbox would get it.
pub(super) fn forbid_own(dir: BorrowedFd<'_>, path: &[u8]) -> Result<()> {
    if !is_procfs(dir) {
        return Ok(());
    }
    let own = std::process::id();
    let mut level: Option<OwnedFd> = None;
    for _ in 0..MAX_LEVELS {
        let here = level.as_ref().map_or(dir, std::os::fd::AsFd::as_fd);
        let inode = fstat(here).map_err(|errno| Error::at_path("stat", errno, path))?.st_ino;
        if inode == PROC_ROOT_INODE || !is_procfs(here) {
            return Ok(());
        }
        if thread_group(here) == Some(own) {
            return Err(Error::new(Code::Permission, "an entry of the daemon's own process").with_path(path));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = openat(here, "..", flags, Mode::empty()).map_err(|errno| Error::at_path("open", errno, path))?;
        level = Some(above);
    }
    Ok(())
}

pub(super) fn is_procfs(dir: BorrowedFd<'_>) -> bool {
    fstatfs(dir).is_ok_and(|facts| facts.f_type == PROC_SUPER_MAGIC)
}

/// The process that a directory of procfs is about, if it is about one.
fn thread_group(dir: BorrowedFd<'_>) -> Option<u32> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let status = openat(dir, "status", flags, Mode::empty()).ok()?;
    let mut text = [0; STATUS_BYTES];
    let count = rustix::io::read(&status, &mut text).ok()?;
    let text = String::from_utf8_lossy(&text[..count]);
    text.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}
