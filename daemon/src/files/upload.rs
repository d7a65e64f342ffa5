//! Making a tree from a stream of entries and data.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, Mode, XattrFlags, chownat, fchmod, fsetxattr, fstat, ftruncate, unlinkat, utimensat};
use rustix::io::Errno;

use super::dirs::{self, Dirs, Finish, Missing, modified_at};
use super::entry::{Entry, check, check_path, ids, not_allowed, own, timespec};
use super::inodes::Inodes;
use super::make::Parents;
use super::overlay::OPAQUE;
use super::remove::{remove_contents, remove_tree};
use super::root::{Root, at};
use super::stat::{identity, kind_of, look};
use super::temp::Temp;
use super::write::write_all;
use super::{Incoming, Item, Summary, join, split};
use crate::error::{Code, Error, Result};
use crate::message::Kind;

/// Entries of one transfer. What is remembered of each, an inode number at most, is then bounded.
const MAX_ENTRIES: u64 = 4 * 1024 * 1024;
/// Mode of files that came without one.
const FILE_MODE: u32 = 0o644;

/// What kind of tree the files become part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Files of a sandbox: what is opaque or gone is removed.
    Files,
    /// A layer that is being unpacked: what is opaque or whited out is marked so.
    Layer,
}

/// Make what `source` brings below `path`, which is made if it is missing.
///
/// A file or link is made beside its name and renamed over it; a directory keeps what else is in it. Nothing is ever
/// written through a link. When it fails, files made so far stay, and the one being made does not.
pub fn upload(root: &Root, path: &[u8], destination: Destination, source: &mut impl Incoming) -> Result<Summary> {
    let mut upload = Upload::new(root, path, destination);
    loop {
        match source.next()? {
            Item::Entry(entry) => upload.entry(entry)?,
            Item::Data { at, bytes } => upload.data(at, &bytes)?,
            Item::End => return upload.end(),
        }
    }
}

/// Where the entries go: known when the first has come.
#[derive(Debug)]
enum Base {
    Unknown,
    /// The root of the transfer is a directory.
    Tree(Dirs),
    /// The transfer is one file; this is its directory.
    Single(Rc<OwnedFd>, Vec<u8>),
}

struct Upload<'a> {
    root: &'a Root,
    /// The path of the root of the transfer.
    origin: &'a [u8],
    destination: Destination,
    base: Base,
    file: Option<Growing>,
    /// Regular files made by this transfer: hard links go to no others.
    made: Inodes,
    entries: u64,
    summary: Summary,
}

/// A file whose data is coming.
#[derive(Debug)]
struct Growing {
    temp: Temp,
    file: OwnedFd,
    name: Vec<u8>,
    entry: Entry,
    /// Where the next chunk goes if it does not say.
    next: u64,
    /// End of the data so far.
    end: u64,
}

impl<'a> Upload<'a> {
    fn new(root: &'a Root, origin: &'a [u8], destination: Destination) -> Self {
        Upload {
            root,
            origin,
            destination,
            base: Base::Unknown,
            file: None,
            made: Inodes::default(),
            entries: 0,
            summary: Summary::default(),
        }
    }

    fn entry(&mut self, entry: Entry) -> Result<()> {
        self.finish_file()?;
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(Error::new(Code::TooMany, format!("more than {MAX_ENTRIES} entries in one transfer")));
        }
        check(&entry).map_err(|error| error.with_path(&entry.path))?;
        let path = entry.path.clone();
        self.make(entry).map_err(|error| self.about(error, &path))
    }

    fn make(&mut self, entry: Entry) -> Result<()> {
        if matches!(self.base, Base::Unknown) {
            self.base = self.find_base(&entry)?;
        }
        match entry.kind {
            Kind::Dir => self.directory(&entry),
            Kind::File => self.begin_file(entry),
            Kind::Link => self.link(&entry),
            Kind::Hard => self.hard(&entry),
            Kind::Whiteout => self.whiteout(&entry),
            Kind::Gone => self.gone(&entry),
            Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => self.summary.skip(&entry.path),
        }
    }

    fn find_base(&self, first: &Entry) -> Result<Base> {
        if first.path.is_empty() && matches!(first.kind, Kind::File | Kind::Link | Kind::Gone) {
            let place = match self.root.place(self.origin) {
                Err(error) if error.code == Code::NotFound => Parents::make(self.root, self.origin, Root::place)?.0,
                other => other?,
            };
            if !place.is_named() || place.wants_dir {
                return Err(Error::at_path("make a file", Errno::ISDIR, self.origin));
            }
            return Ok(Base::Single(Rc::new(place.dir), place.name));
        }
        match self.root.directory(self.origin) {
            Err(error) if error.code == Code::NotFound => {}
            other => return other.and_then(|dir| self.readable(&dir)).map(|dir| Base::Tree(Dirs::new(dir))),
        }
        let (place, _) = Parents::make(self.root, self.origin, Root::resolve)?;
        match dirs::make(&place.dir, &place.name, super::make::DIRECTORY_MODE) {
            Ok(dir) => Ok(Base::Tree(Dirs::new(dir))),
            Err(errno) => Err(Error::at_path("make the directory", errno, self.origin)),
        }
    }

    /// The same directory, opened for more than its path.
    fn readable(&self, dir: &OwnedFd) -> Result<OwnedFd> {
        dirs::open(dir, b".").map_err(at("open the directory", self.origin))
    }

    /// The open directory that `path` is in, and its name there.
    fn place<'p>(&mut self, path: &'p [u8], missing: Missing) -> Result<(Rc<OwnedFd>, &'p [u8])> {
        let (parent, name) = split(path);
        match &mut self.base {
            Base::Tree(_) if path.is_empty() => Err(Error::at_path("replace", Errno::ISDIR, path)),
            Base::Tree(dirs) => Ok((dirs.go(parent, missing)?, name)),
            _ => Err(Error::new(Code::BadRequest, "the root of the transfer is a file")),
        }
    }

    fn directory(&mut self, entry: &Entry) -> Result<()> {
        let failed = at("make the directory", &entry.path);
        let dir = if entry.path.is_empty() {
            let Base::Tree(dirs) = &mut self.base else {
                return Err(Error::new(Code::BadRequest, "the root of the transfer is a file"));
            };
            dirs.go(b"", Missing::Report)?
        } else {
            let (parent, name) = self.place(&entry.path, Missing::Make)?;
            ensure_directory(&parent, name, entry).map_err(&failed)?;
            let Base::Tree(dirs) = &mut self.base else { return Ok(()) };
            dirs.go(&entry.path, Missing::Report)?
        };
        if entry.opaque {
            match self.destination {
                Destination::Files => remove_contents(dir.as_fd(), &self.root.stop)?,
                Destination::Layer => fsetxattr(&*dir, OPAQUE, b"y", XattrFlags::empty()).map_err(&failed)?,
            }
        }
        let owned = own(&dir, entry).map_err(&failed)?;
        let facts = fstat(&*dir).map_err(&failed)?;
        let mut finish = Finish { mode: None, mtime: entry.mtime_ns.map(timespec) };
        if let Some(mode) = entry.mode {
            let mode = owned.allowed(mode);
            fchmod(&*dir, Mode::from_raw_mode(mode | 0o700)).map_err(&failed)?;
            finish.mode = (mode & 0o700 != 0o700).then_some(mode);
        }
        if let Base::Tree(dirs) = &mut self.base {
            dirs.adopt(&facts, finish);
        }
        self.summary.dirs += 1;
        Ok(())
    }

    fn begin_file(&mut self, entry: Entry) -> Result<()> {
        let (dir, name) = self.target(&entry)?;
        let (temp, file) = Temp::file(&dir).map_err(at("create a file beside", &entry.path))?;
        self.summary.files += 1;
        self.file = Some(Growing { temp, file, name, entry, next: 0, end: 0 });
        Ok(())
    }

    /// Directory and name of what will be made, with nothing there that cannot be replaced.
    fn target(&mut self, entry: &Entry) -> Result<(Rc<OwnedFd>, Vec<u8>)> {
        let (dir, name) = match &self.base {
            Base::Single(dir, name) if entry.path.is_empty() => (Rc::clone(dir), name.clone()),
            _ => {
                let (dir, name) = self.place(&entry.path, Missing::Make)?;
                (dir, name.to_vec())
            }
        };
        if entry.opaque && look(dir.as_fd(), &name).is_ok_and(|found| kind_of(&found) == Kind::Dir) {
            remove_tree(dir.as_fd(), &name, &self.root.stop)?;
        }
        Ok((dir, name))
    }

    fn data(&mut self, at: Option<u64>, bytes: &[u8]) -> Result<()> {
        let Some(growing) = self.file.as_mut() else {
            return Err(Error::new(Code::BadRequest, "data without a file before it"));
        };
        let start = at.unwrap_or(growing.next);
        let end = start.saturating_add(bytes.len() as u64);
        let result = if end > growing.entry.size.unwrap_or(i64::MAX as u64) {
            Err(Error::new(Code::BadRequest, "data beyond the size of its file"))
        } else {
            write_all(&growing.file, bytes, start).map_err(|errno| Error::system("write", errno))
        };
        growing.next = end;
        growing.end = growing.end.max(end);
        self.summary.bytes += bytes.len() as u64;
        let path = growing.entry.path.clone();
        result.map_err(|error| self.about(error.with_path(&path), &path))
    }

    fn finish_file(&mut self) -> Result<()> {
        let Some(growing) = self.file.take() else { return Ok(()) };
        let path = growing.entry.path.clone();
        match growing.finish() {
            Ok(file) => {
                self.made.insert(file);
                Ok(())
            }
            Err(errno) => Err(self.about(Error::at_path("make the file", errno, &path), &path)),
        }
    }

    fn link(&mut self, entry: &Entry) -> Result<()> {
        let failed = at("make the link", &entry.path);
        let (dir, name) = self.target(entry)?;
        let target = entry.target.as_deref().unwrap_or_default();
        let (temp, link) = Temp::link(&dir, target).map_err(&failed)?;
        if entry.uid.is_some() || entry.gid.is_some() {
            let (uid, gid) = ids(entry);
            not_allowed(chownat(&link, "", uid, gid, AtFlags::EMPTY_PATH)).map_err(&failed)?;
        }
        if let Some(mtime) = entry.mtime_ns {
            utimensat(&link, "", &modified_at(timespec(mtime)), AtFlags::EMPTY_PATH).map_err(&failed)?;
        }
        temp.commit(&name).map_err(&failed)?;
        self.summary.links += 1;
        Ok(())
    }

    fn hard(&mut self, entry: &Entry) -> Result<()> {
        let failed = at("make the hard link", &entry.path);
        let foreign = || Error::new(Code::BadRequest, "a hard link to no file of this transfer").with_path(&entry.path);
        let earlier = entry.target.as_deref().unwrap_or_default();
        check_path(earlier)?;
        let (from, from_name) = self.place(earlier, Missing::Report)?;
        let from_name = from_name.to_vec();
        let (dir, name) = self.target(entry)?;
        let temp = match Temp::hard(&dir, &from, &from_name) {
            Err(Errno::NOENT) => return Err(foreign()),
            other => other.map_err(&failed)?,
        };
        // Looked at under the name nobody can have guessed, so it is what was linked.
        let facts = look(temp.dir().as_fd(), temp.name().as_bytes()).map_err(&failed)?;
        if kind_of(&facts) != Kind::File || !self.made.contains(identity(&facts)) {
            return Err(foreign());
        }
        temp.commit_hard(&name).map_err(&failed)?;
        self.summary.links += 1;
        Ok(())
    }

    fn whiteout(&mut self, entry: &Entry) -> Result<()> {
        if self.destination != Destination::Layer {
            return Err(Error::new(Code::BadRequest, "a whiteout outside of a layer").with_path(&entry.path));
        }
        let (dir, name) = self.target(&Entry { opaque: true, ..entry.clone() })?;
        let temp = Temp::whiteout(&dir).map_err(at("make the whiteout", &entry.path))?;
        temp.commit(&name).map_err(at("make the whiteout", &entry.path))
    }

    fn gone(&mut self, entry: &Entry) -> Result<()> {
        if let (Base::Single(dir, name), b"") = (&self.base, entry.path.as_slice()) {
            return remove_tree(dir.as_fd(), name, &self.root.stop);
        }
        match self.place(&entry.path, Missing::Report) {
            Ok((dir, name)) => remove_tree(dir.as_fd(), name, &self.root.stop),
            // What is not there, or is below something that is no directory, is gone.
            Err(error) if matches!(error.code, Code::NotFound | Code::NotADirectory | Code::Loop) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn end(mut self) -> Result<Summary> {
        self.finish_file()?;
        if let Base::Tree(dirs) = self.base {
            dirs.finish()?;
        }
        Ok(self.summary)
    }

    /// The error with the whole path of what it is about.
    fn about(&self, error: Error, path: &[u8]) -> Error {
        let full = if path.is_empty() { self.origin.to_vec() } else { join(self.origin, path) };
        error.with_path(&full)
    }
}

impl Growing {
    /// Give it its size, owner, mode, time and name. Returns which file it is.
    fn finish(self) -> rustix::io::Result<(u64, u64)> {
        if let Some(size) = self.entry.size.filter(|&size| size > self.end) {
            ftruncate(&self.file, size)?;
        }
        let owned = own(&self.file, &self.entry)?;
        let mode = owned.allowed(self.entry.mode.unwrap_or(FILE_MODE));
        fchmod(&self.file, Mode::from_raw_mode(mode))?;
        if let Some(mtime) = self.entry.mtime_ns {
            rustix::fs::futimens(&self.file, &modified_at(timespec(mtime)))?;
        }
        let file = identity(&fstat(&self.file)?);
        self.temp.commit(&self.name)?;
        Ok(file)
    }
}

/// Make `name` a directory; a file or link of that name makes way.
fn ensure_directory(parent: &OwnedFd, name: &[u8], entry: &Entry) -> rustix::io::Result<()> {
    const ATTEMPTS: usize = 8;
    for _ in 0..ATTEMPTS {
        match look(parent.as_fd(), name) {
            Ok(found) if kind_of(&found) == Kind::Dir => return Ok(()),
            Ok(_) => match unlinkat(parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
                Err(errno) => return Err(errno),
            },
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        match dirs::make(parent, name, entry.mode.unwrap_or(super::make::DIRECTORY_MODE) | 0o700) {
            Err(Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            other => return other.map(drop),
        }
    }
    Err(Errno::BUSY)
}
