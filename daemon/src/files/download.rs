//! Reading a tree as a stream of entries and data.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SeekFrom, Stat, fstat, openat, seek};
use rustix::io::Errno;

use super::read::fill;
use super::root::{Root, at, link_target};
use super::stat::{identity, kind_of, look, mtime_ns, name_of, permissions};
use super::walk::{Crossing, Walk, is_kernel_file_system};
use super::{Entry, Outgoing, Summary, join};
use crate::error::{Code, Error, Result};
use crate::limits::{MAX_CHUNK_BYTES, MAX_PATH_BYTES};
use crate::message::Kind;

/// Bytes kept for files with several names that have not all been met yet.
const MAX_LINKED_BYTES: usize = 32 * 1024 * 1024;
/// How often a name may change its kind while it is being opened.
const MAX_CHANGES: usize = 8;
/// `st_blocks` counts in these, on every file system.
const BLOCK_BYTES: u64 = 512;

/// Send the tree at `path`, or the one file that is there.
///
/// Parents come before children, links as what they say, later names of a file as `hard`, and holes as nothing. What
/// vanishes meanwhile is left out; a file that is cut short while it is sent is an error.
pub fn download(root: &Root, path: &[u8], out: &mut impl Outgoing) -> Result<Summary> {
    let place = root.resolve(path)?;
    let found = look(place.dir.as_fd(), &place.name).map_err(at("open", path))?;
    let mut sender = Sender::new(root, path, out);
    match kind_of(&found) {
        Kind::Dir => {
            let dir = root.directory(path)?;
            if is_kernel_file_system(dir.as_fd()).map_err(at("stat", path))? {
                let message = "a file system of the kernel has no files that could be copied";
                return Err(Error::new(Code::Unsupported, message).with_path(path));
            }
            sender.tree(dir.as_fd())?;
        }
        _ if place.wants_dir => return Err(Error::at_path("open", Errno::NOTDIR, path)),
        Kind::File => sender.file(place.dir.as_fd(), &place.name, b"")?,
        kind => {
            let message = format!("a {} is not transferred", name_of(kind));
            return Err(Error::new(Code::Unsupported, message).with_path(path));
        }
    }
    Ok(sender.summary)
}

/// Turns files into entries and data. Used for whole trees and for what changed in one.
pub(super) struct Sender<'a, O> {
    root: &'a Root,
    /// Where the transfer begins, for error messages.
    origin: &'a [u8],
    out: &'a mut O,
    buffer: Vec<u8>,
    linked: Linked,
    /// Whether this kernel says where a file has holes, once it was asked. gVisor's does not, nor how much is stored.
    tells_holes: Option<bool>,
    pub summary: Summary,
}

impl<'a, O: Outgoing> Sender<'a, O> {
    pub fn new(root: &'a Root, origin: &'a [u8], out: &'a mut O) -> Self {
        let (buffer, linked, summary) = (Vec::new(), Linked::default(), Summary::default());
        Sender { root, origin, out, buffer, linked, tells_holes: None, summary }
    }

    fn tree(&mut self, dir: BorrowedFd<'_>) -> Result<()> {
        let mut walk = Walk::new(dir).map_err(|errno| self.failed("open", errno, b""))?;
        let facts = fstat(walk.dir()).map_err(|errno| self.failed("stat", errno, b""))?;
        self.directory(&facts, b"", false)?;
        loop {
            self.root.stop.check()?;
            match walk.next().map_err(|errno| self.failed("read the directory", errno, walk.path()))? {
                Some(found) => self.visit(&mut walk, &found.name, found.kind)?,
                None => {
                    if walk.leave()?.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Send what `name` is, and go into it when it is a directory.
    fn visit(&mut self, walk: &mut Walk, name: &[u8], kind: Option<Kind>) -> Result<()> {
        let path = walk.path_of(name);
        let mut kind = kind;
        for _ in 0..MAX_CHANGES {
            let tried = match kind {
                Some(Kind::File) => self.try_file(walk.dir(), name, &path)?,
                Some(Kind::Link) => self.link(walk.dir(), name, &path)?,
                Some(Kind::Dir) => self.enter(walk, name, &path)?,
                Some(_) => return self.summary.skip(&path),
                None => Tried::Changed,
            };
            if tried == Tried::Sent {
                return Ok(());
            }
            kind = match look(walk.dir(), name) {
                Ok(found) => Some(kind_of(&found)),
                Err(Errno::NOENT) => return Ok(()),
                Err(errno) => return Err(self.failed("stat", errno, &path)),
            };
        }
        Err(self.changing(&path))
    }

    /// Announce a directory and go into it, unless it belongs to the kernel.
    fn enter(&mut self, walk: &mut Walk, name: &[u8], path: &[u8]) -> Result<Tried> {
        let crossing = match walk.enter(name) {
            Ok(crossing) => crossing,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Tried::Changed),
            Err(errno) => return Err(self.failed("open", errno, path)),
        };
        let failed = |this: &Self, errno| this.failed("stat", errno, path);
        if crossing == Crossing::Other && is_kernel_file_system(walk.dir()).map_err(|errno| failed(self, errno))? {
            self.summary.skip(path)?;
            walk.leave()?;
            return Ok(Tried::Sent);
        }
        let facts = fstat(walk.dir()).map_err(|errno| failed(self, errno))?;
        self.directory(&facts, path, false)?;
        Ok(Tried::Sent)
    }

    pub fn directory(&mut self, facts: &Stat, path: &[u8], opaque: bool) -> Result<()> {
        self.summary.dirs += 1;
        let entry = Entry { opaque, size: None, ..self.described(facts, path, Kind::Dir)? };
        self.out.entry(&entry)
    }

    /// Send the regular file `name`.
    pub fn file(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<()> {
        match self.try_file(dir, name, path)? {
            Tried::Sent => Ok(()),
            Tried::Changed => Err(self.changing(path)),
        }
    }

    fn try_file(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Tried> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(Tried::Changed),
            Err(errno) => return Err(self.failed("open", errno, path)),
        };
        let facts = fstat(&file).map_err(|errno| self.failed("stat", errno, path))?;
        if kind_of(&facts) != Kind::File {
            return Ok(Tried::Changed);
        }
        if let Some(first) = self.linked.earlier(&facts, path)? {
            self.summary.links += 1;
            self.out.entry(&Entry { target: Some(first), ..self.described(&facts, path, Kind::Hard)? })?;
            return Ok(Tried::Sent);
        }
        self.summary.files += 1;
        let entry = self.described(&facts, path, Kind::File)?;
        self.content(&file, &facts, entry)?;
        Ok(Tried::Sent)
    }

    pub fn link(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Tried> {
        let facts = match look(dir, name) {
            Err(Errno::NOENT) => return Ok(Tried::Changed),
            other => other.map_err(|errno| self.failed("stat", errno, path))?,
        };
        let target = link_target(dir, name).map_err(|errno| self.failed("read the link", errno, path))?;
        let (Kind::Link, Some(target)) = (kind_of(&facts), target) else { return Ok(Tried::Changed) };
        self.summary.links += 1;
        self.out.entry(&Entry { target: Some(target), size: None, ..self.described(&facts, path, Kind::Link)? })?;
        Ok(Tried::Sent)
    }

    pub fn gone(&mut self, path: &[u8]) -> Result<()> {
        self.out.entry(&Entry::new(path, Kind::Gone))
    }

    fn described(&self, facts: &Stat, path: &[u8], kind: Kind) -> Result<Entry> {
        if path.len() > MAX_PATH_BYTES {
            // Naming it would break the very limit.
            return Err(Error::system("name a file", Errno::NAMETOOLONG).with_path(self.origin));
        }
        Ok(Entry {
            path: path.to_vec(),
            kind,
            mode: Some(permissions(facts)),
            mtime_ns: Some(mtime_ns(facts)),
            size: u64::try_from(facts.st_size).ok().filter(|_| kind == Kind::File),
            target: None,
            uid: Some(facts.st_uid),
            gid: Some(facts.st_gid),
            opaque: false,
        })
    }

    fn content(&mut self, file: &OwnedFd, facts: &Stat, entry: Entry) -> Result<()> {
        let size = entry.size.unwrap_or(0);
        let stored = u64::try_from(facts.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
        if self.buffer.is_empty() {
            self.buffer = vec![0; MAX_CHUNK_BYTES];
        }
        if (stored < size || size > MAX_CHUNK_BYTES as u64) && !self.tells_holes(file, &entry.path)? {
            self.out.entry(&entry)?;
            self.extent(file, 0, size, &entry.path)
        } else if stored < size {
            self.out.entry(&entry)?;
            self.sparse(file, size, &entry.path)
        } else if size <= MAX_CHUNK_BYTES as u64 {
            self.small(file, size, entry)
        } else {
            self.out.entry(&entry)?;
            self.extent(file, 0, size, &entry.path)
        }
    }

    /// A file of one chunk is read before it is announced, so its size is what was read.
    fn small(&mut self, file: &OwnedFd, size: u64, entry: Entry) -> Result<()> {
        let room = usize::try_from(size).unwrap_or(MAX_CHUNK_BYTES);
        let count = fill(file, &mut self.buffer[..room]).map_err(|errno| self.failed("read", errno, &entry.path))?;
        self.out.entry(&Entry { size: Some(count as u64), ..entry })?;
        if count > 0 {
            self.summary.bytes += count as u64;
            self.out.data(0, &self.buffer[..count])?;
        }
        Ok(())
    }

    fn tells_holes(&mut self, file: &OwnedFd, path: &[u8]) -> Result<bool> {
        if let Some(known) = self.tells_holes {
            return Ok(known);
        }
        let failed = |this: &Self, errno| this.failed("look for holes in", errno, path);
        let told = match seek(file, SeekFrom::Hole(0)) {
            Ok(_) | Err(Errno::NXIO) => true,
            Err(Errno::INVAL) => false,
            Err(errno) => return Err(failed(self, errno)),
        };
        seek(file, SeekFrom::Start(0)).map_err(|errno| failed(self, errno))?;
        self.tells_holes = Some(told);
        Ok(told)
    }

    fn sparse(&mut self, file: &OwnedFd, size: u64, path: &[u8]) -> Result<()> {
        let failed = |this: &Self, errno| this.failed("look for holes in", errno, path);
        let mut position = 0;
        while position < size {
            let start = match seek(file, SeekFrom::Data(position)) {
                Ok(start) => start,
                // A hole up to the end.
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(failed(self, errno)),
            };
            let end = seek(file, SeekFrom::Hole(start)).map_err(|errno| failed(self, errno))?.min(size);
            if start < end {
                seek(file, SeekFrom::Start(start)).map_err(|errno| failed(self, errno))?;
                self.extent(file, start, end, path)?;
            }
            position = end.max(start);
        }
        let facts = fstat(file).map_err(|errno| self.failed("stat", errno, path))?;
        if u64::try_from(facts.st_size).unwrap_or(0) < size { Err(self.shrunk(path)) } else { Ok(()) }
    }

    /// Send the bytes from `start`, where the file is positioned, to `end`. Where nobody tells of holes, what is all zeros
    /// is taken for one.
    fn extent(&mut self, file: &OwnedFd, start: u64, end: u64, path: &[u8]) -> Result<()> {
        let mut position = start;
        while position < end {
            let room = usize::try_from(end - position).unwrap_or(usize::MAX).min(self.buffer.len());
            let count = fill(file, &mut self.buffer[..room]).map_err(|errno| self.failed("read", errno, path))?;
            if count < room {
                return Err(self.shrunk(path));
            }
            let data = &self.buffer[..count];
            if self.tells_holes != Some(false) || data.iter().any(|byte| *byte != 0) {
                self.out.data(position, data)?;
                self.summary.bytes += count as u64;
            }
            position += count as u64;
        }
        Ok(())
    }

    pub fn failed(&self, doing: &'static str, errno: Errno, path: &[u8]) -> Error {
        Error::at_path(doing, errno, &self.full(path))
    }

    fn shrunk(&self, path: &[u8]) -> Error {
        Error::new(Code::Busy, "the file was cut short while it was being read").with_path(&self.full(path))
    }

    fn changing(&self, path: &[u8]) -> Error {
        Error::new(Code::Busy, "the file is being replaced again and again").with_path(&self.full(path))
    }

    fn full(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.origin.to_vec() } else { join(self.origin, path) }
    }
}

/// Whether a name was still what it had been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    Sent,
    Changed,
}

/// Files with several names of which not all have been met.
#[derive(Debug, Default)]
struct Linked {
    first: HashMap<(u64, u64), First>,
    bytes: usize,
}

#[derive(Debug)]
struct First {
    path: Vec<u8>,
    /// Names still to come.
    left: u64,
    /// Size and time tell the file from another one that got its inode number after it.
    stamp: (i64, u64),
}

impl Linked {
    /// The path at which this file was met before.
    fn earlier(&mut self, facts: &Stat, path: &[u8]) -> Result<Option<Vec<u8>>> {
        if facts.st_nlink < 2 {
            return Ok(None);
        }
        let (file, stamp) = (identity(facts), (facts.st_size, mtime_ns(facts)));
        match self.first.get_mut(&file) {
            Some(first) if first.stamp == stamp && first.left > 1 => {
                first.left -= 1;
                return Ok(Some(first.path.clone()));
            }
            Some(_) => {
                let first = self.first.remove(&file).filter(|first| first.stamp == stamp);
                if let Some(first) = first {
                    self.bytes -= cost(&first.path);
                    return Ok(Some(first.path));
                }
            }
            None => {}
        }
        self.bytes += cost(path);
        if self.bytes > MAX_LINKED_BYTES {
            return Err(Error::new(Code::TooMany, "too many files with several names").with_path(path));
        }
        self.first.insert(file, First { path: path.to_vec(), left: facts.st_nlink - 1, stamp });
        Ok(None)
    }
}

/// About what the table spends on one path.
fn cost(path: &[u8]) -> usize {
    path.len() + 64
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Collected, Scratch};
    use super::*;

    /// As under gVisor: what is all zeros is not sent, and everything else is, at its place.
    #[test]
    fn where_no_kernel_tells_of_holes_zeros_are_taken_for_some() {
        let scratch = Scratch::new();
        let mut content = vec![0; 3 * MAX_CHUNK_BYTES + 10];
        content[MAX_CHUNK_BYTES] = 1;
        content[3 * MAX_CHUNK_BYTES + 9] = 2;
        scratch.write("full", &content);
        let (root, mut out) = (scratch.root(), Collected::default());
        let mut sender = Sender::new(&root, b"/full", &mut out);
        sender.tells_holes = Some(false);
        let place = root.resolve(b"/full").unwrap();
        sender.file(place.dir.as_fd(), &place.name, b"").unwrap();
        assert_eq!(sender.summary.bytes, MAX_CHUNK_BYTES as u64 + 10);
        let to = Scratch::new();
        let destination = super::super::Destination::Files;
        super::super::upload(&to.root(), b"/copy", destination, &mut out.into_items()).unwrap();
        assert_eq!(std::fs::read(to.at("copy")).unwrap(), content);
    }
}
