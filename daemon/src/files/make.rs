//! Making directories.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::root::{Place, Root, at};
use super::stat::{kind_of, look, permissions};
use super::write::check_mode;
use crate::error::{Code, Error, Result};
use crate::message::Kind;

/// Mode of directories that nobody described.
pub(super) const DIRECTORY_MODE: u32 = 0o755;

/// How a directory is made.
#[derive(Clone, Copy, Debug)]
pub struct Mkdir {
    /// Nil: 0755.
    pub mode: Option<u32>,
    /// Make missing directories above it, with 0755.
    pub parents: bool,
    /// An existing directory is fine, and stays as it is.
    pub exist_ok: bool,
}

/// Make the directory `path`. When it fails, directories made above it are gone again.
pub fn mkdir(root: &Root, path: &[u8], options: Mkdir) -> Result<()> {
    check_mode(options.mode, path)?;
    let (place, parents) = match root.place(path) {
        Err(error) if options.parents && error.code == Code::NotFound => Parents::make(root, path, Root::place)?,
        other => (other?, Parents::none()),
    };
    let result = make_last(root, &place, path, options);
    if result.is_err() {
        parents.undo(root);
    }
    result
}

fn make_last(root: &Root, place: &Place, path: &[u8], options: Mkdir) -> Result<()> {
    match make_directory(&place.dir, &place.name, options.mode.unwrap_or(DIRECTORY_MODE)) {
        Err(Errno::EXIST) if options.exist_ok && leads_to_directory(root, path)? => Ok(()),
        other => other.map_err(at("make the directory", path)),
    }
}

fn leads_to_directory(root: &Root, path: &[u8]) -> Result<bool> {
    let place = root.resolve(path)?;
    match look(place.dir.as_fd(), &place.name) {
        Ok(found) => Ok(kind_of(&found) == Kind::Dir),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(Error::at_path("stat", errno, path)),
    }
}

/// `mkdir` with this mode whatever the umask; setgid is inherited as always.
fn make_directory(dir: &OwnedFd, name: &[u8], mode: u32) -> rustix::io::Result<()> {
    if name == b"." {
        return Err(Errno::EXIST);
    }
    mkdirat(dir, name, Mode::from_raw_mode(0o700))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(dir, name, flags, Mode::empty())?;
    let inherited = permissions(&fstat(&made)?) & 0o2000;
    fchmod(&made, Mode::from_raw_mode(mode | inherited))
}

/// Directories that were made above a path, so that they can be taken away again.
#[derive(Debug)]
pub(super) struct Parents {
    /// Absolute inside the root, topmost first.
    made: Vec<Vec<u8>>,
}

impl Parents {
    pub fn none() -> Self {
        Parents { made: Vec::new() }
    }

    /// Make what is missing above the last name of `path`, then find its place.
    pub fn make(root: &Root, path: &[u8], find: impl Fn(&Root, &[u8]) -> Result<Place>) -> Result<(Place, Self)> {
        let mut parents = Parents::none();
        match parents.make_missing(root, path).and_then(|()| find(root, path)) {
            Ok(place) => Ok((place, parents)),
            Err(error) => {
                parents.undo(root);
                Err(error)
            }
        }
    }

    fn make_missing(&mut self, root: &Root, path: &[u8]) -> Result<()> {
        let absolute = root.absolute(path)?;
        let ends = absolute.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
        for end in ends {
            let prefix = &absolute[..end];
            if prefix.ends_with(b"/") {
                continue;
            }
            let place = root.place(prefix).map_err(|error| error.with_path(path))?;
            match make_directory(&place.dir, &place.name, DIRECTORY_MODE) {
                Ok(()) => self.made.push(prefix.to_vec()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(Error::at_path("make the directory", errno, prefix)),
            }
        }
        Ok(())
    }

    /// Remove what was made and is still empty.
    pub fn undo(&self, root: &Root) {
        for prefix in self.made.iter().rev() {
            let removed = root.place(prefix).map(|Place { dir, name, .. }| unlinkat(&dir, &name, AtFlags::REMOVEDIR));
            if !matches!(removed, Ok(Ok(()))) {
                // Somebody uses it by now, so it stays.
                return;
            }
        }
    }
}
