//! The directories that an upload is in: opened once for many files, and given their times when they are left.
//!
//! Everything is opened below the transfer's own root, one name at a time, without following links. A directory that
//! came with the transfer gets its mode and time last, since making its children needs the one and changes the other.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat, futimens, mkdirat, openat};
use rustix::io::Errno;

use super::inodes::Inodes;
use super::make::DIRECTORY_MODE;
use super::stat::{identity, permissions};
use crate::error::{Error, Result};

/// What the owner needs to work in a directory.
const OWNER_ALL: u32 = 0o700;

/// What is done with a directory that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Make,
    Report,
}

/// How a directory is left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Finish {
    pub mode: Option<u32>,
    pub mtime: Option<Timespec>,
}

impl Finish {
    fn apply(self, dir: &OwnedFd) -> rustix::io::Result<()> {
        if let Some(mtime) = self.mtime {
            futimens(dir, &modified_at(mtime))?;
        }
        if let Some(mode) = self.mode {
            fchmod(dir, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }
}

/// Set the modification time, leave the access time alone.
pub(super) fn modified_at(mtime: Timespec) -> Timestamps {
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: mtime }
}

#[derive(Debug)]
struct Open {
    dir: Rc<OwnedFd>,
    /// End of this directory's path in `Dirs::path`.
    end: usize,
    finish: Finish,
}

/// The chain of open directories from the transfer's root to where it is now.
#[derive(Debug)]
pub(super) struct Dirs {
    /// Never empty; the first is the transfer's root.
    chain: Vec<Open>,
    path: Vec<u8>,
    /// Directories that came with the transfer, so that their time is kept when it returns to them.
    ours: Inodes,
}

impl Dirs {
    pub fn new(root: OwnedFd) -> Self {
        let root = Open { dir: Rc::new(root), end: 0, finish: Finish::default() };
        Dirs { chain: vec![root], path: Vec::new(), ours: Inodes::default() }
    }

    /// The directory at `path`, which is relative, with links nowhere in it.
    pub fn go(&mut self, path: &[u8], missing: Missing) -> Result<Rc<OwnedFd>> {
        self.leave_until(path)?;
        let mut rest = &path[self.path.len()..];
        while !rest.is_empty() {
            rest = rest.strip_prefix(b"/").unwrap_or(rest);
            let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
            let dir = self.here();
            let opened = match (open(&dir, &rest[..end]), missing) {
                (Err(Errno::NOENT), Missing::Make) => make(&dir, &rest[..end], DIRECTORY_MODE),
                (other, _) => other,
            };
            let opened = opened.map_err(|errno| Error::at_path("open the directory", errno, path))?;
            self.push(opened, &rest[..end]).map_err(|errno| Error::at_path("open the directory", errno, path))?;
            rest = &rest[end..];
        }
        Ok(self.here())
    }

    /// The current directory came with the transfer: it is left as `finish` says.
    pub fn adopt(&mut self, facts: &Stat, finish: Finish) {
        self.ours.insert(identity(facts));
        if let Some(last) = self.chain.last_mut() {
            last.finish = finish;
        }
    }

    pub fn here(&self) -> Rc<OwnedFd> {
        // The root is never popped.
        Rc::clone(&self.chain[self.chain.len() - 1].dir)
    }

    /// Leave every directory.
    pub fn finish(mut self) -> Result<()> {
        self.leave_until(b"")?;
        let root = &mut self.chain[0];
        std::mem::take(&mut root.finish)
            .apply(&root.dir)
            .map_err(|errno| Error::at_path("set the time of the directory", errno, b""))
    }

    fn push(&mut self, dir: OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
        let facts = fstat(&dir)?;
        let mut finish = Finish::default();
        if self.ours.contains(identity(&facts)) {
            finish.mtime = Some(Timespec { tv_sec: facts.st_mtime, tv_nsec: facts.st_mtime_nsec as _ });
            let mode = permissions(&facts);
            if mode & OWNER_ALL != OWNER_ALL {
                fchmod(&dir, Mode::from_raw_mode(mode | OWNER_ALL))?;
                finish.mode = Some(mode);
            }
        }
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        self.chain.push(Open { dir: Rc::new(dir), end: self.path.len(), finish });
        Ok(())
    }

    /// Leave directories until the current one is `path` or above it.
    fn leave_until(&mut self, path: &[u8]) -> Result<()> {
        while !is_at_or_above(&self.path, path) {
            let Some(left) = self.chain.pop() else { break };
            let end = self.chain.last().map_or(0, |parent| parent.end);
            let result = left.finish.apply(&left.dir);
            result.map_err(|errno| Error::at_path("set the time of the directory", errno, &self.path))?;
            self.path.truncate(end);
        }
        Ok(())
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        // After an error; directories must at least not keep the rights they were lent.
        for open in self.chain.iter().rev() {
            let _ = open.finish.apply(&open.dir);
        }
    }
}

fn is_at_or_above(above: &[u8], path: &[u8]) -> bool {
    above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Open an existing directory; a link is none.
pub(super) fn open(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

/// Make a directory with this mode and open it.
pub(super) fn make(dir: &OwnedFd, name: &[u8], mode: u32) -> rustix::io::Result<OwnedFd> {
    mkdirat(dir, name, Mode::from_raw_mode(OWNER_ALL))?;
    let made = open(dir, name)?;
    let inherited = permissions(&fstat(&made)?) & 0o2000;
    fchmod(&made, Mode::from_raw_mode(mode | inherited))?;
    Ok(made)
}
