//! A place put back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chmodat, chownat, mkdirat, openat, statat, symlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::comparing::{Purpose, What};
use super::taking::has_attributes;
use super::{Content, Kept, Place, Record, is_directory, mtime, open, refused};
use crate::error::{Error, Result};
use crate::files::remove::remove_tree;
use crate::files::write::write_all;
use crate::files::{Stop, join, split};

const COPY_BYTES: usize = 64 * 1024;
const UTIME_OMIT: i64 = 0x3fff_fffe;

impl Record {
    /// Put every place back as it was, and look whether it is. Nobody may run who could change something meanwhile.
    ///
    /// # Errors
    /// `unsupported` with what cannot be put back, and those of the file system. Some of it is undone then.
    pub fn restore(&self, root: BorrowedFd<'_>) -> Result<bool> {
        let stop = Stop::default();
        let mut is_as_it_was = true;
        for place in &self.places {
            let work = Restoration { record: self, place, root };
            work.run(&stop)?;
            is_as_it_was &= self.compare((root, &stop), (place, b""), Purpose::Tell)?.is_empty();
        }
        Ok(is_as_it_was)
    }
}

struct Restoration<'a> {
    record: &'a Record,
    place: &'a Place,
    root: BorrowedFd<'a>,
}

impl Restoration<'_> {
    fn run(&self, stop: &Stop) -> Result<()> {
        self.finish_top()?;
        let differences = self.record.compare((self.root, stop), (self.place, b""), Purpose::Restore)?;
        for difference in differences.iter().filter(|difference| !difference.path.is_empty()) {
            let (above, name) = split(&difference.path);
            // Below something that had to go as a whole, all has gone with it.
            let Some(dir) = self.open(above)? else { continue };
            let kept = self.place.directories.get(above).and_then(|kept| kept.get(name));
            let is_directory = kept.is_some_and(Kept::is_directory);
            if !(is_directory && difference.what == What::Changed) {
                remove_tree(dir.as_fd(), name, stop)
                    .map_err(|error| error.with_path(&self.place.full(&difference.path)))?;
                if let Some(kept) = kept {
                    self.put(&dir, &difference.path, kept)?;
                }
            }
        }
        self.finish_directories()
    }

    /// Make again what is not there, with all below it.
    fn put(&self, dir: &OwnedFd, path: &[u8], kept: &Kept) -> Result<()> {
        let (_, name) = split(path);
        let failed = |errno| self.failed(errno, path);
        match &kept.content {
            Content::Names => {
                mkdirat(dir, name, Mode::RWXU).map_err(failed)?;
                let made = self.open(path)?.ok_or_else(|| failed(Errno::NOENT))?;
                for (inner, kept) in self.place.directories.get(path).into_iter().flatten() {
                    self.put(&made, &join(path, inner), kept)?;
                }
                // Its own rights and time are set at the end.
                return Ok(());
            }
            Content::Target(target) => symlinkat(target.as_slice(), dir, name).map_err(failed)?,
            Content::At(at) => self.put_content(dir, name, kept, *at).map_err(failed)?,
            Content::Not => return Err(refused("it was changed, and its content is not kept", &self.place.full(path))),
        }
        finish(dir, name, kept).map_err(failed)
    }

    fn put_content(&self, dir: &OwnedFd, name: &[u8], kept: &Kept, at: u64) -> rustix::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut done = 0;
        while done < kept.size {
            let count = usize::try_from(kept.size - done).unwrap_or(usize::MAX).min(COPY_BYTES);
            self.record.read_kept(&mut buffer[..count], at + done)?;
            write_all(&file, &buffer[..count], done)?;
            done += count as u64;
        }
        Ok(())
    }

    /// Rights, owners and times of all directories, which what was done in them has changed.
    fn finish_directories(&self) -> Result<()> {
        for (inside, kept) in &self.place.directories {
            let dir = self.open(inside)?.ok_or_else(|| self.failed(Errno::NOENT, inside))?;
            for (name, kept) in kept.iter().filter(|(_, kept)| kept.is_directory()) {
                self.finish_directory(&dir, &join(inside, name), kept)?;
            }
        }
        self.finish_top()
    }

    fn finish_directory(&self, above: &OwnedFd, path: &[u8], kept: &Kept) -> Result<()> {
        let (_, name) = split(path);
        let failed = |errno| self.failed(errno, path);
        let now = statat(above, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if self.record.since.is_before_change_of(&now) {
            let dir = self.open(path)?.ok_or_else(|| failed(Errno::NOENT))?;
            if has_attributes(&dir).map_err(failed)? {
                return Err(refused("a directory with attributes that are not kept", &self.place.full(path)));
            }
        }
        if !is_directory(&now) || (kept.has_rights_of(&now) && kept.mtime == mtime(&now)) {
            return Ok(());
        }
        finish(above, name, kept).map_err(failed)
    }

    /// The place itself: its time tells only when it was last used, and is not always ours to set.
    fn finish_top(&self) -> Result<()> {
        let failed = |errno| self.failed(errno, b"");
        let top = self.open(b"")?.ok_or_else(|| failed(Errno::NOENT))?;
        let now = rustix::fs::fstat(&top).map_err(failed)?;
        if self.record.since.is_before_change_of(&now) && has_attributes(&top).map_err(failed)? {
            return Err(refused("a directory with attributes that are not kept", &self.place.path));
        }
        if !self.place.top.has_rights_of(&now) {
            rustix::fs::fchown(&top, Some(uid(&self.place.top)), Some(gid(&self.place.top))).map_err(failed)?;
            rustix::fs::fchmod(&top, Mode::from_raw_mode(self.place.top.mode & 0o7777)).map_err(failed)?;
        }
        if self.place.top.mtime == mtime(&now) {
            return Ok(());
        }
        match rustix::fs::futimens(&top, &times(&self.place.top)) {
            Err(Errno::PERM) => Ok(()),
            other => other.map_err(failed),
        }
    }

    fn open(&self, inside: &[u8]) -> Result<Option<OwnedFd>> {
        open(self.root, &self.place.full(inside))
    }

    fn failed(&self, errno: Errno, inside: &[u8]) -> Error {
        Error::at_path("put back", errno, &self.place.full(inside))
    }
}

/// Owner, rights and time of what has just been made or is as it was but for these.
fn finish(dir: &OwnedFd, name: &[u8], kept: &Kept) -> rustix::io::Result<()> {
    let now = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if kept.owner != (now.st_uid, now.st_gid) {
        chownat(dir, name, Some(uid(kept)), Some(gid(kept)), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if !matches!(kept.content, Content::Target(_)) {
        chmodat(dir, name, Mode::from_raw_mode(kept.mode & 0o7777), AtFlags::empty())?;
    }
    utimensat(dir, name, &times(kept), AtFlags::SYMLINK_NOFOLLOW)
}

fn times(kept: &Kept) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: kept.mtime.0, tv_nsec: kept.mtime.1 as _ },
    }
}

fn uid(kept: &Kept) -> Uid {
    Uid::from_raw(kept.owner.0)
}

fn gid(kept: &Kept) -> Gid {
    Gid::from_raw(kept.owner.1)
}
