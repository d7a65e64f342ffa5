//! Making the record.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, MemfdFlags, SealFlags, Stat, fstat};
use rustix::io::Errno;

use super::elsewhere::{file_system, is_memory};
use super::{Content, Kept, Moment, Place, Record, below, names, open, refused};
use crate::error::{Error, Result};
use crate::files::overlay::open_file;
use crate::files::read::fill;
use crate::files::root::link_target;
use crate::files::stat::look;
use crate::files::write::write_all;
use crate::files::{Root, Stop, join};

/// What may be kept of all places together.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub names: u64,
    pub bytes: u64,
}

impl Record {
    /// Keep those of the directories `paths` that can be kept; something is mounted at each of `mounts`. Those that cannot are said on the standard error.
    ///
    /// # Errors
    /// Where there is no memory file, or no root.
    pub fn take(root: BorrowedFd<'_>, paths: &[Vec<u8>], mounts: BTreeSet<Vec<u8>>, budget: Budget) -> Result<Self> {
        let system = |errno| Error::system("keep the content of files", errno);
        let content = rustix::fs::memfd_create(c"kept", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let content = content.map_err(system)?;
        let record = Record { since: Moment::now(), places: Vec::new(), above: BTreeMap::new(), mounts, content };
        let mut taker = Taker { root, left: budget, end: 0, record };
        let own = rustix::io::fcntl_dupfd_cloexec(root, 0).map_err(system)?;
        let resolver = Root::new(own, b"/", Stop::default());
        let mut wanted = paths.iter().filter_map(|path| resolver.canonical(path).ok()).collect::<Vec<_>>();
        wanted.sort_unstable();
        for path in wanted.iter().filter(|path| *path != b"/") {
            if taker.record.places.iter().all(|place| below(&place.path, path).is_none()) {
                taker.try_place(path);
            }
        }
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&taker.record.content, seals).map_err(system)?;
        Ok(taker.record)
    }
}

struct Taker<'a> {
    root: BorrowedFd<'a>,
    left: Budget,
    /// Bytes in the memory file.
    end: u64,
    record: Record,
}

impl Taker<'_> {
    fn try_place(&mut self, path: &[u8]) {
        let before = self.left;
        match self.place(path) {
            Ok(Some(place)) => self.record.places.push(place),
            Ok(None) => return,
            Err(error) => {
                self.left = before;
                eprintln!("sandlotd: {} cannot be put back: {error}", String::from_utf8_lossy(path));
                return;
            }
        }
        for end in (0..path.len()).filter(|&end| path[end] == b'/') {
            if let Err(error) = self.keep_names(if end == 0 { b"/" } else { &path[..end] }) {
                eprintln!("sandlotd: nothing proves what is above a place: {error}");
            }
        }
    }

    /// A directory above a place.
    fn keep_names(&mut self, path: &[u8]) -> Result<()> {
        if self.record.above.contains_key(path) {
            return Ok(());
        }
        let failed = |errno| Error::at_path("keep", errno, path);
        let dir = open(self.root, path)?.ok_or_else(|| failed(Errno::NOENT))?;
        let facts = fstat(&dir).map_err(failed)?;
        if self.record.since.is_before_change_of(&facts) {
            return Err(refused("it is being changed", path));
        }
        let names = names(&dir).map_err(failed)?;
        let room = self.left.names.checked_sub(names.len() as u64);
        self.left.names = room.ok_or_else(|| refused("it holds more than is kept", path))?;
        self.record.above.insert(path.to_vec(), (Kept::new(&facts, Content::Names), names.into_iter().collect()));
        Ok(())
    }

    fn place(&mut self, path: &[u8]) -> Result<Option<Place>> {
        let failed = |errno| Error::at_path("keep", errno, path);
        let Some(top) = open(self.root, path)? else { return Ok(None) };
        let (facts, kind) = (fstat(&top).map_err(failed)?, file_system(top.as_fd()).map_err(failed)?);
        if kind.is_none() {
            return Err(refused("its file system is not one whose times are known to tell", path));
        }
        let trusts_times = !is_memory(top.as_fd()).map_err(failed)?;
        let mut place = Place {
            path: path.to_vec(),
            top: self.keep(top.as_fd(), None, &facts)?,
            directories: HashMap::new(),
            trusts_times,
        };
        let mut waiting = vec![(Vec::new(), top)];
        while let Some((inside, dir)) = waiting.pop() {
            let mut kept = BTreeMap::new();
            for name in names(&dir).map_err(failed)? {
                let found = look(dir.as_fd(), &name).map_err(failed)?;
                let entry = self.keep(dir.as_fd(), Some(&name), &found)?;
                if entry.is_directory() {
                    let within = join(&inside, &name);
                    if found.st_dev != facts.st_dev {
                        return Err(refused("something is mounted in it", &join(path, &within)));
                    }
                    let opened = open(self.root, &join(path, &within))?;
                    waiting.push((within, opened.ok_or_else(|| failed(Errno::NOENT))?));
                }
                kept.insert(name, entry);
            }
            place.directories.insert(inside, kept);
        }
        Ok(Some(place))
    }

    /// One entry of a directory, or the directory itself.
    fn keep(&mut self, dir: BorrowedFd<'_>, name: Option<&[u8]>, facts: &Stat) -> Result<Kept> {
        let named = name.unwrap_or(b".");
        if self.record.since.is_before_change_of(facts) {
            return Err(refused("it is being changed", named));
        }
        let room = self.left.names.checked_sub(1);
        self.left.names = room.ok_or_else(|| refused("it holds more than is kept", named))?;
        let content = match FileType::from_raw_mode(facts.st_mode) {
            FileType::Directory => Content::Names,
            FileType::Symlink => link_target(dir, named).ok().flatten().map_or(Content::Not, Content::Target),
            FileType::RegularFile if facts.st_nlink == 1 => self.keep_content(dir, named, facts),
            _ => Content::Not,
        };
        Ok(Kept::new(facts, content))
    }

    /// What is too large, cannot be read or has more to it than content is not kept.
    fn keep_content(&mut self, dir: BorrowedFd<'_>, name: &[u8], facts: &Stat) -> Content {
        let size = u64::try_from(facts.st_size).unwrap_or(u64::MAX);
        let Some(left) = self.left.bytes.checked_sub(size) else { return Content::Not };
        match open_file(dir, name) {
            Ok(file) if has_attributes(&file).is_ok_and(|has| !has) => {
                let at = self.end;
                if self.copy(&file, size).is_err() {
                    return Content::Not;
                }
                self.left.bytes = left;
                Content::At(at)
            }
            _ => Content::Not,
        }
    }

    fn copy(&mut self, file: &OwnedFd, size: u64) -> rustix::io::Result<()> {
        let mut buffer = vec![0; usize::try_from(size.min(64 * 1024)).unwrap_or(0)];
        let mut rest = size;
        while rest > 0 {
            let room = usize::try_from(rest).unwrap_or(usize::MAX).min(buffer.len());
            if fill(file, &mut buffer[..room])? < room {
                return Err(Errno::IO);
            }
            write_all(&self.record.content, &buffer[..room], self.end)?;
            (self.end, rest) = (self.end + room as u64, rest - room as u64);
        }
        Ok(())
    }
}

/// Of an open file or directory.
pub(super) fn has_attributes(file: &OwnedFd) -> rustix::io::Result<bool> {
    crate::files::has_attributes(|names| rustix::fs::flistxattr(file, names))
}
