//! One file of a tree on its way, and what an entry from outside must be before anything is done with it.

use std::os::fd::OwnedFd;

use rustix::fs::{Gid, Timespec, Uid, fchown};
use rustix::io::Errno;

use super::write::check_mode;
use crate::error::{Code, Error, Result};
use crate::limits::MAX_PATH_BYTES;
use crate::message::Kind;

/// One file of a tree on its way, in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the root of the transfer; empty is that root itself.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// Permission bits, setuid, setgid and sticky.
    pub mode: Option<u32>,
    pub mtime_ns: Option<u64>,
    /// Bytes of a file, holes included.
    pub size: Option<u64>,
    /// What a link says, or the earlier path that a hard link names.
    pub target: Option<Vec<u8>>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Nothing of what was at this path before shows through.
    pub opaque: bool,
}

impl Entry {
    pub fn new(path: &[u8], kind: Kind) -> Self {
        Entry {
            path: path.to_vec(),
            kind,
            mode: None,
            mtime_ns: None,
            size: None,
            target: None,
            uid: None,
            gid: None,
            opaque: false,
        }
    }
}

/// Whether a file belongs to whom its entry named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owned {
    AsAsked,
    ByTheActor,
}

impl Owned {
    /// A file that stays the actor's does not get the right to run as its owner.
    pub fn allowed(self, mode: u32) -> u32 {
        match self {
            Owned::AsAsked => mode,
            Owned::ByTheActor => mode & 0o1777,
        }
    }
}

pub(super) fn own(file: &OwnedFd, entry: &Entry) -> rustix::io::Result<Owned> {
    if entry.uid.is_none() && entry.gid.is_none() {
        return Ok(Owned::AsAsked);
    }
    let (uid, gid) = ids(entry);
    not_allowed(fchown(file, uid, gid))
}

/// An owner that the actor may not give, or that does not exist in this id mode, is not given.
pub(super) fn not_allowed(result: rustix::io::Result<()>) -> rustix::io::Result<Owned> {
    match result {
        Ok(()) => Ok(Owned::AsAsked),
        Err(Errno::PERM | Errno::INVAL) => Ok(Owned::ByTheActor),
        Err(errno) => Err(errno),
    }
}

pub(super) fn ids(entry: &Entry) -> (Option<Uid>, Option<Gid>) {
    let valid = |id: &u32| *id != u32::MAX;
    (entry.uid.filter(valid).map(Uid::from_raw), entry.gid.filter(valid).map(Gid::from_raw))
}

pub(super) fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ }
}

/// Refuse an entry that could mean something outside of the transfer, or nothing at all.
pub(super) fn check(entry: &Entry) -> Result<()> {
    check_path(&entry.path)?;
    check_mode(entry.mode, &entry.path)?;
    let target = entry.target.as_deref();
    match entry.kind {
        Kind::Link | Kind::Hard if target.is_none_or(|target| target.is_empty() || target.contains(&0)) => {
            Err(Error::new(Code::BadRequest, "a link without a target"))
        }
        Kind::Link | Kind::Hard if target.is_some_and(|target| target.len() > MAX_PATH_BYTES) => {
            Err(Error::system("make a link", Errno::NAMETOOLONG))
        }
        Kind::Whiteout | Kind::Hard if entry.path.is_empty() => {
            Err(Error::new(Code::BadRequest, "the root of a transfer cannot be that"))
        }
        Kind::File if entry.size.is_some_and(|size| i64::try_from(size).is_err()) => {
            Err(Error::new(Code::BadRequest, "a size beyond any file"))
        }
        _ => Ok(()),
    }
}

/// A path below the root of the transfer: no `..`, no `.`, no empty name, no slash at either end, no NUL.
pub(super) fn check_path(path: &[u8]) -> Result<()> {
    if path.len() > MAX_PATH_BYTES {
        return Err(Error::system("resolve", Errno::NAMETOOLONG));
    }
    let bad = path.contains(&0) || path.split(|&byte| byte == b'/').any(|name| matches!(name, b"" | b"." | b".."));
    if bad && !path.is_empty() {
        return Err(Error::new(Code::BadRequest, "not a path below the root of the transfer"));
    }
    Ok(())
}
