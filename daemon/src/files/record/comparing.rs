//! A place held against what it held.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, Stat, chmodat, fstat, readlinkat};
use rustix::io::Errno;

use super::{Content, Kept, Place, Record, is_directory, mtime, names, open, refused};
use crate::error::{Error, Result};
use crate::files::overlay::open_file;
use crate::files::read::fill;
use crate::files::stat::look;
use crate::files::{Stop, join};

/// Read at once of each of two contents that are compared.
const COMPARE_BYTES: usize = 64 * 1024;
/// Differences of one place.
const MOST_DIFFERENCES: usize = 200_000;
const OWNER_ALL: u32 = 0o700;

/// One thing that is not as it was, by its path in the place. Parents come before children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub path: Vec<u8>,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    New,
    Changed,
    /// Something of another kind.
    Replaced,
    /// With all that was below it.
    Gone,
}

/// What the differences are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Everything that differs, and what lies in new directories.
    Tell,
    /// What has to be made again: also what somebody has touched. New directories are opened up, and not looked into.
    Restore,
}

/// One comparison.
struct Comparison<'a> {
    record: &'a Record,
    place: &'a Place,
    purpose: Purpose,
    found: Vec<Difference>,
}

impl Record {
    /// What differs in a place, at or below the directory `top`, which is relative to it.
    ///
    /// # Errors
    /// `unsupported` where a change cannot be told from none, `too_many`, and those of the file system.
    pub(super) fn compare(
        &self,
        (root, stop): (BorrowedFd<'_>, &Stop),
        (place, top): (&Place, &[u8]),
        purpose: Purpose,
    ) -> Result<Vec<Difference>> {
        let mut comparison = Comparison { record: self, place, purpose, found: Vec::new() };
        let mut waiting = vec![top.to_vec()];
        while let Some(inside) = waiting.pop() {
            stop.check()?;
            let full = place.full(&inside);
            match open(root, &full)? {
                Some(dir) => comparison.directory(&dir, &inside, &mut waiting)?,
                None if inside.is_empty() => return Err(refused("it is not there any more", &full)),
                // It vanished meanwhile.
                None => {}
            }
        }
        Ok(comparison.found)
    }

    /// Whether a file is as long as what was kept of it, and the same.
    fn has_content(&self, file: &OwnedFd, kept: &Kept, at: u64) -> rustix::io::Result<bool> {
        let mut now = vec![0; COMPARE_BYTES];
        let mut before = vec![0; COMPARE_BYTES];
        let mut done = 0;
        loop {
            let count = fill(file, &mut now)? as u64;
            if count == 0 || done + count > kept.size {
                return Ok(done + count == kept.size);
            }
            let length = usize::try_from(count).unwrap_or(0);
            self.read_kept(&mut before[..length], at + done)?;
            if before[..length] != now[..length] {
                return Ok(false);
            }
            done += count;
        }
    }

    /// Part of what was kept of a file.
    pub(super) fn read_kept(&self, buffer: &mut [u8], at: u64) -> rustix::io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::io::pread(&self.content, &mut buffer[filled..], at + filled as u64)? {
                0 => return Err(Errno::IO),
                count => filled += count,
            }
        }
        Ok(())
    }
}

impl Comparison<'_> {
    fn directory(&mut self, dir: &OwnedFd, inside: &[u8], waiting: &mut Vec<Vec<u8>>) -> Result<()> {
        let failed = |errno| Error::at_path("compare", errno, &join(&self.place.path, inside));
        if inside.is_empty() && !self.place.top.has_rights_of(&fstat(dir).map_err(failed)?) {
            self.add(Vec::new(), What::Changed)?;
        }
        let kept = self.place.directories.get(inside);
        let mut seen = BTreeSet::new();
        for name in names(dir).map_err(failed)? {
            let path = join(inside, &name);
            let found = match look(dir.as_fd(), &name) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(failed)?,
            };
            let before = kept.and_then(|kept| kept.get(&name));
            let what = match before {
                None => Some(What::New),
                Some(before) if before.mode & libc::S_IFMT != found.st_mode & libc::S_IFMT => Some(What::Replaced),
                Some(before) => {
                    let same = self.is_same(before, &found, (dir.as_fd(), &name)).map_err(failed)?;
                    (!same).then_some(What::Changed)
                }
            };
            if is_directory(&found) {
                if self.purpose == Purpose::Restore {
                    self.open_up(dir, &name, &found).map_err(failed)?;
                }
                waiting.push(path.clone());
            }
            let is_inside_new = kept.is_none() && self.purpose == Purpose::Restore;
            if let Some(what) = what.filter(|_| !is_inside_new) {
                self.add(path, what)?;
            }
            if before.is_some() {
                seen.insert(name);
            }
        }
        for name in kept.iter().flat_map(|kept| kept.keys()).filter(|name| !seen.contains(*name)) {
            self.add(join(inside, name), What::Gone)?;
        }
        Ok(())
    }

    /// Whether one of the same kind is as it was.
    fn is_same(&self, kept: &Kept, now: &Stat, (dir, name): (BorrowedFd<'_>, &[u8])) -> rustix::io::Result<bool> {
        if is_directory(now) {
            // Its time is set at the end in any case.
            let is_current = self.purpose == Purpose::Restore || kept.mtime == mtime(now);
            return Ok(kept.has_rights_of(now) && is_current);
        }
        let is_changed = self.record.since.is_before_change_of(now);
        if !kept.has_rights_of(now) || kept.mtime != mtime(now) || (is_changed && self.purpose == Purpose::Restore) {
            return Ok(false);
        }
        match &kept.content {
            Content::Target(target) => Ok(readlinkat(dir, name, Vec::new())?.as_bytes() == target.as_slice()),
            Content::At(at) => {
                let size = u64::try_from(now.st_size).unwrap_or(u64::MAX);
                Ok(size == kept.size && self.record.has_content(&open_file(dir, name)?, kept, *at)?)
            }
            Content::Names | Content::Not => Ok(!is_changed && self.place.trusts_times),
        }
    }

    /// Give its owner the rights to what is in a directory, which may be we.
    fn open_up(&self, dir: &OwnedFd, name: &[u8], now: &Stat) -> rustix::io::Result<()> {
        if now.st_mode & OWNER_ALL == OWNER_ALL {
            return Ok(());
        }
        match chmodat(dir, name, Mode::from_raw_mode((now.st_mode & 0o7777) | OWNER_ALL), AtFlags::empty()) {
            // Somebody else's: what has to be done in it will show whether it can be.
            Err(Errno::PERM) => Ok(()),
            other => other,
        }
    }

    fn add(&mut self, path: Vec<u8>, what: What) -> Result<()> {
        if self.found.len() >= MOST_DIFFERENCES {
            return Err(refused("more changes than can be told", &self.place.path));
        }
        self.found.push(Difference { path, what });
        Ok(())
    }
}
