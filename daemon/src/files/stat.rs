//! Facts about one path, and how the kernel's numbers become the contract's.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Stat, statat};

use super::root::{Root, at, link_target};
use crate::error::{Error, Result};
use crate::message::Kind;

/// Whether a link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Yes,
    No,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub kind: Kind,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Since the epoch; a file from before it has 0.
    pub mtime_ns: u64,
    /// What a link says.
    pub target: Option<Vec<u8>>,
}

impl Facts {
    pub(super) fn new(stat: &Stat, target: Option<Vec<u8>>) -> Self {
        Facts {
            kind: kind_of(stat),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: permissions(stat),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime_ns: mtime_ns(stat),
            target,
        }
    }
}

/// What `path` is. With [`Follow::No`] a link at its end is told as the link that it is.
pub fn stat(root: &Root, path: &[u8], follow: Follow) -> Result<Facts> {
    let place = match follow {
        Follow::Yes => root.resolve(path)?,
        Follow::No => root.place(path)?,
    };
    // A trailing slash asks for what a link leads to, and for a directory.
    let place = if place.wants_dir { root.resolve(path)? } else { place };
    let found = look(place.dir.as_fd(), &place.name).map_err(at("stat", path))?;
    let kind = kind_of(&found);
    if place.wants_dir && kind != Kind::Dir {
        return Err(Error::at_path("stat", rustix::io::Errno::NOTDIR, path));
    }
    let target = match kind {
        Kind::Link => link_target(place.dir.as_fd(), &place.name).map_err(at("read the link", path))?,
        _ => None,
    };
    Ok(Facts::new(&found, target))
}

/// `fstatat` that follows nothing.
pub(super) fn look(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Stat> {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn kind_of(stat: &Stat) -> Kind {
    kind_from(FileType::from_raw_mode(stat.st_mode)).unwrap_or(Kind::File)
}

/// `None` when a directory listing does not tell.
pub(super) fn kind_from(file_type: FileType) -> Option<Kind> {
    match file_type {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Dir),
        FileType::Symlink => Some(Kind::Link),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
        FileType::CharacterDevice => Some(Kind::Char),
        FileType::BlockDevice => Some(Kind::Block),
        FileType::Unknown => None,
    }
}

pub(super) fn permissions(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

pub(super) fn mtime_ns(stat: &Stat) -> u64 {
    // The contract's times are unsigned.
    match u64::try_from(stat.st_mtime) {
        Ok(seconds) => seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec),
        Err(_) => 0,
    }
}

/// Which file this is, as long as somebody holds it open.
pub(super) fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// A word for people.
pub(super) fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "directory",
        Kind::Link => "symbolic link",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::Char => "character device",
        Kind::Block => "block device",
        Kind::Hard => "hard link",
        Kind::Whiteout => "whiteout",
        Kind::Gone => "removal",
    }
}
