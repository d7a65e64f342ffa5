//! Removing files and trees. Never follows a link, needs no memory for breadth or depth, and gives up with an error
//! when somebody keeps refilling the tree.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::Stop;
use super::root::{Root, at};
use super::stat::{kind_of, look};
use super::walk::Walk;
use crate::error::{Code, Error, Result};
use crate::message::Kind;

/// How often a directory may turn out to be filled again, or moved, before this is an error.
const MAX_REFILLS: usize = 64;
/// Names between two looks at whether to stop.
const STOP_EVERY: usize = 256;

#[derive(Clone, Copy, Debug)]
pub struct Remove {
    /// Directories with everything below them; else only empty ones.
    pub recursive: bool,
    /// Nothing there is fine.
    pub missing_ok: bool,
}

/// Remove what `path` names; a link is removed itself.
pub fn remove(root: &Root, path: &[u8], options: Remove) -> Result<()> {
    match remove_named(root, path, options) {
        Err(error) if options.missing_ok && error.code == Code::NotFound => Ok(()),
        other => other,
    }
}

fn remove_named(root: &Root, path: &[u8], options: Remove) -> Result<()> {
    let place = root.place(path)?;
    if !place.is_named() {
        return Err(Error::new(Code::BadRequest, "a path to remove ends in a name").with_path(path));
    }
    let found = look(place.dir.as_fd(), &place.name).map_err(at("remove", path))?;
    match kind_of(&found) {
        Kind::Dir if options.recursive => remove_tree(place.dir.as_fd(), &place.name, &root.stop).map_err(|error| {
            let inner = error.path.clone().unwrap_or_default();
            if inner.is_empty() { error.with_path(path) } else { error.with_path(&super::join(path, &inner)) }
        }),
        Kind::Dir => unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR).map_err(at("remove", path)),
        _ if place.wants_dir => Err(Error::at_path("remove", Errno::NOTDIR, path)),
        _ => unlinkat(&place.dir, &place.name, AtFlags::empty()).map_err(at("remove", path)),
    }
}

/// Remove `name` in `dir`, whatever it is, with everything below. Missing is fine.
///
/// # Errors
/// Their paths are relative to `name`.
pub(super) fn remove_tree(dir: BorrowedFd<'_>, name: &[u8], stop: &Stop) -> Result<()> {
    for _ in 0..MAX_REFILLS {
        match unlink_any(dir, name) {
            Ok(()) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(Error::at_path("remove", errno, b"")),
        }
        match open_walk(dir, name) {
            Ok(Some(walk)) => match empty(walk, stop) {
                // Moved away while it was being emptied; look at what is there now.
                Err(error) if error.code == Code::Busy && error.errno.is_none() => {}
                other => other?,
            },
            Ok(None) => {}
            Err(errno) => return Err(Error::at_path("remove", errno, b"")),
        }
    }
    Err(Error::at_path("remove", Errno::NOTEMPTY, b""))
}

/// Remove everything below `dir`.
///
/// # Errors
/// Their paths are relative to `dir`.
pub(super) fn remove_contents(dir: BorrowedFd<'_>, stop: &Stop) -> Result<()> {
    empty(Walk::new(dir).map_err(at("open", b""))?, stop)
}

fn empty(mut walk: Walk, stop: &Stop) -> Result<()> {
    let mut refills = 0;
    let mut names = 0_usize;
    loop {
        names += 1;
        if names.is_multiple_of(STOP_EVERY) {
            stop.check()?;
        }
        let failed = |walk: &Walk, errno| Error::at_path("remove", errno, walk.path());
        match walk.next().map_err(|errno| failed(&walk, errno))? {
            Some(found) if found.kind == Some(Kind::Dir) => descend(&mut walk, &found.name)?,
            Some(found) => match unlinkat(walk.dir(), found.name.as_slice(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => descend(&mut walk, &found.name)?,
                Err(errno) => return Err(Error::at_path("remove", errno, &walk.path_of(&found.name))),
            },
            None => {
                let Some(name) = walk.leave()? else { return Ok(()) };
                match unlink_any(walk.dir(), &name) {
                    Ok(()) => {}
                    Err(Errno::NOTEMPTY | Errno::EXIST) if refills < MAX_REFILLS => {
                        refills += 1;
                        descend(&mut walk, &name)?;
                    }
                    Err(errno) => return Err(Error::at_path("remove", errno, &walk.path_of(&name))),
                }
            }
        }
    }
}

/// Go into `name` if it still is a directory, else remove what took its place.
fn descend(walk: &mut Walk, name: &[u8]) -> Result<()> {
    match walk.enter(name) {
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => match unlinkat(walk.dir(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::at_path("remove", errno, &walk.path_of(name))),
        },
        // A directory nobody may read can still be removed when it is empty.
        Err(Errno::ACCESS) => match unlinkat(walk.dir(), name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(_) => Err(Error::at_path("open", Errno::ACCESS, &walk.path_of(name))),
        },
        Err(errno) => Err(Error::at_path("remove", errno, &walk.path_of(name))),
    }
}

/// `rmdir` or `unlink`, as it needs. Missing is fine.
fn unlink_any(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    let result = match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTDIR) => unlinkat(dir, name, AtFlags::empty()),
        other => other,
    };
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn open_walk(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Option<Walk>> {
    use rustix::fs::{Mode, OFlags, openat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(dir, name, flags, Mode::empty()) {
        Ok(opened) => Walk::new(opened.as_fd()).map(Some),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}
