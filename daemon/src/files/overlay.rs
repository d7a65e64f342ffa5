//! What an overlay's lower directories show, worked out from the directories themselves.
//!
//! The rules are those of the kernel's overlayfs with `userxattr`: a whiteout hides what is below it, directories of
//! the same name are merged down to the first opaque one, anything else hides what is below. Lower directories are
//! never written to, so nothing here races.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, OFlags, ResolveFlags, Stat, fgetxattr, statat};
use rustix::io::Errno;

use super::root::open_below;
use super::split;
use super::stat::{kind_of, look};
use crate::error::{Code, Error, Result};
use crate::message::Kind;

/// Marks a directory that hides those below it.
pub(super) const OPAQUE: &str = "user.overlay.opaque";
/// A value of [`OPAQUE`] that only layers for nested overlays have: some of its files are whiteouts by attribute.
const HAS_ATTRIBUTE_WHITEOUTS: u8 = b'x';
/// Attributes with which a file's content or children are found elsewhere; not used with `userxattr`.
const ELSEWHERE: [&str; 2] = ["user.overlay.redirect", "user.overlay.metacopy"];

/// One overlay of the sandbox.
#[derive(Debug)]
pub struct Layer {
    /// Where it is mounted, absolute inside the sandbox.
    pub target: Vec<u8>,
    /// What was changed.
    pub upper: OwnedFd,
    /// The image, topmost first.
    pub lowers: Vec<OwnedFd>,
}

/// What the image has at one path of an overlay.
#[derive(Debug)]
pub(super) enum Image {
    Nothing,
    /// A directory: its attributes, and which lowers are merged in it, topmost first.
    Dir(Box<Stat>, Vec<usize>),
    /// Something else, in this lower.
    Other(Box<Stat>, usize),
}

/// What the upper has at one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Nothing,
    Removed,
    Upper,
}

impl Layer {
    /// The image's root directory here.
    pub(super) fn image_root(&self) -> Result<Image> {
        let every: Vec<usize> = (0..self.lowers.len()).collect();
        self.merge(&every, b".")
    }

    /// What the image has at `path`, whose directory is merged from `parents`.
    pub(super) fn image_at(&self, parents: &[usize], path: &[u8]) -> Result<Image> {
        self.merge(parents, path)
    }

    /// What image and upper have at `path`, which is relative to the overlay's root.
    pub(super) fn descend(&self, path: &[u8]) -> Result<(Image, Changed)> {
        let mut image = self.image_root()?;
        let mut changed = Changed::Upper;
        let mut end = 0;
        while end < path.len() {
            end = path[end + 1..].iter().position(|&byte| byte == b'/').map_or(path.len(), |next| end + 1 + next);
            let here = &path[..end];
            let failed = |errno| Error::at_path("compare with the image", errno, here);
            image = match &image {
                Image::Dir(_, lowers) => self.image_at(lowers, here)?,
                _ => Image::Nothing,
            };
            if changed != Changed::Upper {
                continue;
            }
            let (parent, name) = split(here);
            let Some(dir) = open_directory(self.upper.as_fd(), parent).map_err(failed)? else {
                changed = Changed::Removed;
                continue;
            };
            changed = match look(dir.as_fd(), name) {
                Ok(found) if is_whiteout(&found) => Changed::Removed,
                Ok(found) if kind_of(&found) == Kind::Dir && end < path.len() => {
                    if let Some(dir) = open_directory(dir.as_fd(), name).map_err(failed)? {
                        hide(&mut image, is_opaque(dir.as_fd(), here)?);
                    }
                    Changed::Upper
                }
                Ok(_) if end < path.len() => Changed::Removed,
                Ok(_) => Changed::Upper,
                Err(Errno::NOENT) => Changed::Nothing,
                Err(errno) => return Err(failed(errno)),
            };
        }
        Ok((image, changed))
    }

    fn merge(&self, candidates: &[usize], path: &[u8]) -> Result<Image> {
        let mut top: Option<Box<Stat>> = None;
        let mut merged = Vec::new();
        for &index in candidates {
            let lower = self.lowers[index].as_fd();
            let found = match statat(lower, path, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                other => other.map_err(|errno| Error::at_path("look into the image", errno, path))?,
            };
            if is_whiteout(&found) {
                break;
            }
            if kind_of(&found) != Kind::Dir {
                if top.is_none() {
                    return Ok(Image::Other(Box::new(found), index));
                }
                break;
            }
            top.get_or_insert_with(|| Box::new(found));
            merged.push(index);
            if is_opaque_at(lower, path)? {
                break;
            }
        }
        Ok(top.map_or(Image::Nothing, |facts| Image::Dir(facts, merged)))
    }
}

/// An opaque directory hides what the image has below it.
fn hide(image: &mut Image, opaque: bool) {
    match image {
        Image::Dir(_, lowers) if opaque => lowers.clear(),
        _ => {}
    }
}

pub(super) fn is_whiteout(facts: &Stat) -> bool {
    FileType::from_raw_mode(facts.st_mode) == FileType::CharacterDevice && facts.st_rdev == 0
}

/// Whether a directory hides what is below it.
///
/// # Errors
/// `unsupported` for layers that cannot be read without the kernel's help.
pub(super) fn is_opaque(dir: BorrowedFd<'_>, path: &[u8]) -> Result<bool> {
    for name in ELSEWHERE {
        if attribute(dir, name, path)?.is_some() {
            let message = format!("a directory with {name} cannot be told apart from the image");
            return Err(Error::new(Code::Unsupported, message).with_path(path));
        }
    }
    match attribute(dir, OPAQUE, path)? {
        Some(HAS_ATTRIBUTE_WHITEOUTS) => {
            Err(Error::new(Code::Unsupported, "a layer with whiteouts by attribute").with_path(path))
        }
        value => Ok(value == Some(b'y')),
    }
}

fn is_opaque_at(lower: BorrowedFd<'_>, path: &[u8]) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let dir = open_below(lower, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
        .map_err(|errno| Error::at_path("look into the image", errno, path))?;
    is_opaque(dir.as_fd(), path)
}

/// First byte of an extended attribute.
fn attribute(dir: BorrowedFd<'_>, name: &str, path: &[u8]) -> Result<Option<u8>> {
    let mut value = [0_u8; 256];
    match fgetxattr(dir, name, &mut value) {
        Ok(count) => Ok(Some(if count > 0 { value[0] } else { 0 })),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        // Longer than any value we know.
        Err(Errno::RANGE) => Ok(Some(0)),
        Err(errno) => Err(Error::at_path("read an attribute", errno, path)),
    }
}

/// Open a regular file below one directory, following nothing.
pub(super) fn open_file(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    open_below(root, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// The directory `path` below `root`, or `None` where there is none.
pub(super) fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let path = if path.is_empty() { b"." } else { path };
    match open_below(root, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}
