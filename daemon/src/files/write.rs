//! Writing one file: the name means the old file or the whole new one, never a part.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{Access, AtFlags, Gid, Mode, Stat, Uid, accessat, fchmod, fchown};
use rustix::io::Errno;

use super::make::Parents;
use super::read::refuse_others;
use super::root::{Place, Root, at};
use super::stat::{kind_of, look, permissions};
use super::temp::Temp;
use super::walk::is_kernel_file_system;
use super::{Incoming, Item};
use crate::error::{Code, Error, Result};

/// Mode of a file that was not there before.
const NEW_FILE_MODE: u32 = 0o644;

/// How a file is written.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Nil: the old file's, or 0644.
    pub mode: Option<u32>,
    /// Make missing directories.
    pub parents: bool,
}

/// Make `path` mean a file of what `source` brings; returns its size.
///
/// A link at `path` is followed, as opening it would. The new file keeps the old one's mode and, where the actor may,
/// its owner. When anything fails, also when `source` does, the old file is untouched and directories made for the
/// new one are gone again.
pub fn write(root: &Root, path: &[u8], options: Write, source: &mut impl Incoming) -> Result<u64> {
    check_mode(options.mode, path)?;
    let (place, parents) = match root.resolve(path) {
        Err(error) if options.parents && error.code == Code::NotFound => Parents::make(root, path, Root::resolve)?,
        other => (other?, Parents::none()),
    };
    let result = replace(place, path, options.mode, source);
    if result.is_err() {
        parents.undo(root);
    }
    result
}

fn replace(place: Place, path: &[u8], mode: Option<u32>, source: &mut impl Incoming) -> Result<u64> {
    if place.wants_dir || !place.is_named() {
        return Err(Error::at_path("write", Errno::ISDIR, path));
    }
    if is_kernel_file_system(place.dir.as_fd()).map_err(at("write", path))? {
        return Err(Error::new(Code::Unsupported, "a file of the kernel cannot be replaced").with_path(path));
    }
    let old = replaceable(&place, path)?;
    let dir = Rc::new(place.dir);
    let (temp, file) = Temp::file(&dir).map_err(at("create a file beside", path))?;
    let size = receive(&file, path, source)?;
    dress(&file, mode, old.as_ref()).map_err(at("set the mode of", path))?;
    temp.commit(&place.name).map_err(at("replace", path))?;
    Ok(size)
}

/// The file that will be replaced, if there is one and the actor could write to it.
fn replaceable(place: &Place, path: &[u8]) -> Result<Option<Stat>> {
    let old = match look(place.dir.as_fd(), &place.name) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(at("write", path))?,
    };
    refuse_others(kind_of(&old), false, path)?;
    let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
    accessat(&place.dir, place.name.as_slice(), Access::WRITE_OK, flags).map_err(at("write", path))?;
    Ok(Some(old))
}

fn receive(file: &OwnedFd, path: &[u8], source: &mut impl Incoming) -> Result<u64> {
    let mut size = 0;
    loop {
        match source.next()? {
            Item::Data { bytes, .. } => {
                write_all(file, &bytes, size).map_err(at("write", path))?;
                size += bytes.len() as u64;
            }
            Item::End => return Ok(size),
            Item::Entry(_) => return Err(Error::new(Code::BadRequest, "an entry inside a single file")),
        }
    }
}

fn dress(file: &OwnedFd, mode: Option<u32>, old: Option<&Stat>) -> rustix::io::Result<()> {
    let mut kept = old.map_or(NEW_FILE_MODE, permissions);
    if let Some(old) = old {
        let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        if fchown(file, Some(uid), Some(gid)).is_err() {
            // Not the actor's to give away, so neither are the rights that come with the old owner.
            kept &= 0o1777;
        }
    }
    // After the owner, whose change clears setuid and setgid.
    fchmod(file, Mode::from_raw_mode(mode.unwrap_or(kept)))
}

/// `pwrite` until everything is written.
pub(super) fn write_all(file: &OwnedFd, mut bytes: &[u8], mut position: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, position) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                bytes = &bytes[count..];
                position += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub(super) fn check_mode(mode: Option<u32>, path: &[u8]) -> Result<()> {
    match mode {
        Some(mode) if mode > 0o7777 => {
            Err(Error::new(Code::BadRequest, format!("mode {mode:#o} has more than permission bits")).with_path(path))
        }
        _ => Ok(()),
    }
}
