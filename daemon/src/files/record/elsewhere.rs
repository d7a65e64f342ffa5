//! Everything that is not kept: proved to be as it was by its change times.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Access, AtFlags, FileType, Stat, StatVfsMountFlags, accessat, fstat, fstatfs, fstatvfs};
use rustix::io::Errno;

use super::taking::has_attributes;
use super::{Record, below, is_directory, mtime, names, open, refused};
use crate::error::{Error, Result};
use crate::files::join;
use crate::files::stat::look;
use crate::files::walk::is_kernel_file_system;

/// File systems of this machine that stamp every change with its own clock. Magic numbers of linux/magic.h.
const KNOWN: [i64; 6] = [
    0x794c_7630, // overlay
    0x0000_ef53, // ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    MEMORY,
];
const MEMORY: i64 = 0x0102_1994;
/// Names that are looked at, at most: beyond them a new pod costs less.
const MOST_NAMES: u64 = 500_000;

/// The magic number of a file system whose change times can be relied on.
pub(super) fn file_system(dir: BorrowedFd<'_>) -> rustix::io::Result<Option<i64>> {
    let magic = fstatfs(dir)?.f_type;
    Ok(KNOWN.contains(&magic).then_some(magic))
}

/// A file that lies in memory takes writes through a mapping without a new change time.
pub(super) fn is_memory(dir: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(file_system(dir)? == Some(MEMORY))
}

impl Record {
    /// Make sure that nothing outside of the places at or below `top` was changed. The caller may see as much as whoever
    /// might have changed something: what it cannot enter, they could not.
    ///
    /// # Errors
    /// `unsupported` with what was, or what cannot be known.
    pub fn check_elsewhere(&self, root: BorrowedFd<'_>, top: &[u8]) -> Result<()> {
        let mut check = Check { record: self, root, left: MOST_NAMES };
        check.mount(top)?;
        let is_inside = |mount: &&Vec<u8>| below(top, mount).is_some_and(|inside| !inside.is_empty());
        for mount in self.mounts.iter().filter(is_inside).filter(|mount| self.place_of(mount).is_none()) {
            check.mount(mount)?;
        }
        Ok(())
    }

    /// Whether a directory above a place is as it was, although its change time is new. Whatever it holds is looked at
    /// itself, and what was made or moved has a new time of its own.
    fn is_as_above(&self, path: &[u8], dir: &OwnedFd, facts: &Stat, names: &[Vec<u8>]) -> rustix::io::Result<bool> {
        let Some((kept, before)) = self.above.get(path) else { return Ok(false) };
        let is_same = kept.has_rights_of(facts) && kept.mtime == mtime(facts);
        let has_names = names.len() == before.len() && names.iter().all(|name| before.contains(name));
        Ok(is_same && has_names && !has_attributes(dir)?)
    }
}

struct Check<'a> {
    record: &'a Record,
    root: BorrowedFd<'a>,
    /// Names that may still be looked at.
    left: u64,
}

impl Check<'_> {
    /// A mount, or the directory that all begins with, without the mounts in it.
    fn mount(&mut self, top: &[u8]) -> Result<()> {
        let failed = |errno| Error::at_path("look at", errno, top);
        let Some(dir) = self.open(top)? else { return self.file(top) };
        if is_kernel_file_system(dir.as_fd()).map_err(failed)? || is_read_only(dir.as_fd()).map_err(failed)? {
            return Ok(());
        }
        let Some(kind) = file_system(dir.as_fd()).map_err(failed)? else {
            return Err(refused("a file system whose times are not known to tell", top));
        };
        let mut waiting = vec![top.to_vec()];
        while let Some(path) = waiting.pop() {
            if let Some(dir) = self.open(&path)? {
                self.directory(&dir, &path, kind == MEMORY, &mut waiting)?;
            }
        }
        Ok(())
    }

    fn directory(&mut self, dir: &OwnedFd, path: &[u8], in_memory: bool, waiting: &mut Vec<Vec<u8>>) -> Result<()> {
        let failed = |errno| Error::at_path("look at", errno, path);
        let (facts, names) = (fstat(dir).map_err(failed)?, names(dir).map_err(failed)?);
        let is_changed = self.record.since.is_before_change_of(&facts);
        if is_changed && !self.record.is_as_above(path, dir, &facts, &names).map_err(failed)? {
            return Err(changed(path));
        }
        for name in names {
            let inner = if path == b"/" { [b"/", name.as_slice()].concat() } else { join(path, &name) };
            self.left = self.left.checked_sub(1).ok_or_else(|| refused("more files than can be looked at", &inner))?;
            if self.record.place_of(&inner).is_some() || self.record.mounts.contains(&inner) {
                continue;
            }
            let found = look(dir.as_fd(), &name).map_err(failed)?;
            if is_directory(&found) {
                waiting.push(inner);
                continue;
            }
            self.not_directory(&found, in_memory, &inner)?;
        }
        Ok(())
    }

    /// A file that is mounted by itself.
    fn file(&self, path: &[u8]) -> Result<()> {
        let relative = path.strip_prefix(b"/").unwrap_or(path);
        match look(self.root, relative) {
            Ok(found) if !is_directory(&found) => self.not_directory(&found, false, path),
            // A mount that others hide, or a directory that is closed.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(()),
            Err(errno) => Err(Error::at_path("look at", errno, path)),
        }
    }

    fn not_directory(&self, found: &Stat, in_memory: bool, path: &[u8]) -> Result<()> {
        if self.record.since.is_before_change_of(found) {
            return Err(changed(path));
        }
        let is_content = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_size > 0;
        if in_memory && is_content {
            return Err(refused("a file in memory, whose times do not tell of every change", path));
        }
        Ok(())
    }

    /// A directory, if it is one and open to us. One that is closed has to have been so.
    fn open(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        let error = match open(self.root, path) {
            Err(error) if error.errno == Some(libc::EACCES) => error,
            other => return other,
        };
        let relative = path.strip_prefix(b"/").unwrap_or(path);
        match look(self.root, relative) {
            // What lies above it is closed.
            Err(Errno::ACCESS) => return Ok(None),
            Ok(facts) if self.record.since.is_before_change_of(&facts) => return Err(changed(path)),
            Ok(_) => {}
            Err(_) => return Err(error),
        }
        // Names that somebody knows can be reached in one that may only be passed through.
        if accessat(self.root, relative, Access::EXEC_OK, AtFlags::EACCESS).is_ok() {
            return Err(refused("what is in it cannot be seen", path));
        }
        Ok(None)
    }
}

fn changed(path: &[u8]) -> Error {
    refused("it was changed, and is not kept", path)
}

fn is_read_only(dir: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(fstatvfs(dir)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}
