//! Paths to descriptors, below one root.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2, readlinkat, statat};
use rustix::io::Errno;

use super::{Stop, procfs};
use crate::error::{Code, Error, Result};
use crate::limits::MAX_PATH_BYTES;

/// As many links as the kernel itself follows in one path.
const MAX_LINKS: usize = 40;
/// Attempts at a path whose directories are being renamed; the kernel gives up an attempt with EAGAIN.
const MAX_ATTEMPTS: usize = 128;

/// The root of one operation: the episode's root directory, where relative paths start, and the wish to stop.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    workdir: Vec<u8>,
    pub(super) stop: Stop,
}

/// A name in a directory; the name itself is not resolved any further.
#[derive(Debug)]
pub(super) struct Place {
    pub dir: OwnedFd,
    /// One component. "." stands for the directory itself (paths that end in `..`, `.` or at the root).
    pub name: Vec<u8>,
    /// The path ended in a slash.
    pub wants_dir: bool,
}

impl Root {
    /// `workdir` is absolute, inside the root.
    pub fn new(dir: OwnedFd, workdir: &[u8], stop: Stop) -> Self {
        Root { dir, workdir: workdir.to_vec(), stop }
    }

    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The directory that `path` leads to, links followed, opened with `O_PATH`.
    pub(super) fn directory(&self, path: &[u8]) -> Result<OwnedFd> {
        let absolute = self.absolute(path)?;
        let dir = self.open(&absolute, OFlags::PATH | OFlags::DIRECTORY).map_err(at("open", path))?;
        procfs::forbid_own(dir.as_fd(), path)?;
        Ok(dir)
    }

    /// Where the last name of `path` lies. A link there is not followed.
    pub(super) fn place(&self, path: &[u8]) -> Result<Place> {
        let absolute = self.absolute(path)?;
        self.place_of(&absolute, path)
    }

    /// Where `path` leads in the end: links at its last name are followed, also to a file that does not exist yet.
    pub(super) fn resolve(&self, path: &[u8]) -> Result<Place> {
        let mut absolute = self.absolute(path)?;
        let mut wants_dir = false;
        for _ in 0..MAX_LINKS {
            let mut place = self.place_of(&absolute, path)?;
            wants_dir |= place.wants_dir;
            place.wants_dir = wants_dir;
            let Some(target) = link_target(place.dir.as_fd(), &place.name).map_err(at("resolve", path))? else {
                return Ok(place);
            };
            absolute = redirected(&absolute, &target);
        }
        Err(Error::at_path("resolve", Errno::LOOP, path))
    }

    /// `path` with every link in it resolved, as a path from the root on. Its end may be missing.
    pub(super) fn canonical(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut rest = self.absolute(path)?;
        let mut done = Vec::new();
        let mut links = 0;
        while !rest.is_empty() {
            let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
            let name = rest[..end].to_vec();
            rest.drain(..(end + 1).min(rest.len()));
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => done.truncate(done.iter().rposition(|&byte| byte == b'/').unwrap_or(0)),
                name => match self.link_at(&done, name).map_err(at("resolve", path))? {
                    Some(_) if links == MAX_LINKS => return Err(Error::at_path("resolve", Errno::LOOP, path)),
                    Some(target) => {
                        links += 1;
                        if target.starts_with(b"/") {
                            done.clear();
                        }
                        rest = [target.as_slice(), b"/", &rest].concat();
                    }
                    None => done.extend([b"/", name].concat()),
                },
            }
        }
        Ok(if done.is_empty() { b"/".to_vec() } else { done })
    }

    /// What the link `name` says, in the directory at `dir` in which there are no links.
    fn link_at(&self, dir: &[u8], name: &[u8]) -> rustix::io::Result<Option<Vec<u8>>> {
        let dir = if dir.is_empty() { b"/" } else { dir };
        match self.open(dir, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(dir) => link_target(dir.as_fd(), name),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// `path` from the root on. Also the check that it is a path at all.
    pub(super) fn absolute(&self, path: &[u8]) -> Result<Vec<u8>> {
        if path.contains(&0) {
            return Err(Error::new(Code::BadRequest, "a path has no NUL byte").with_path(path));
        }
        if path.len() > MAX_PATH_BYTES {
            // The path itself would only make the answer long.
            return Err(Error::system("resolve", Errno::NAMETOOLONG));
        }
        match path {
            [] => Err(Error::at_path("resolve", Errno::NOENT, path)),
            [b'/', ..] => Ok(path.to_vec()),
            _ => Ok([self.workdir.as_slice(), b"/", path].concat()),
        }
    }

    /// `openat2` below the root. `path` starts with a slash.
    pub(super) fn open(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        open_below(self.dir.as_fd(), path, flags, ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }

    fn place_of(&self, absolute: &[u8], path: &[u8]) -> Result<Place> {
        let trimmed = trim_slashes(absolute);
        let wants_dir = trimmed.len() < absolute.len();
        let (parent, name) = split_absolute(trimmed);
        let (parent, name) = if matches!(name, b"" | b"." | b"..") { (absolute, &b"."[..]) } else { (parent, name) };
        let dir = self.open(parent, OFlags::PATH | OFlags::DIRECTORY).map_err(at("open", path))?;
        procfs::forbid_own(dir.as_fd(), path)?;
        Ok(Place { dir, name: name.to_vec(), wants_dir })
    }
}

impl Place {
    /// Whether there is a name that can be made or removed.
    pub fn is_named(&self) -> bool {
        self.name != b"."
    }
}

/// `openat2`, again while the tree is being renamed under it.
pub(super) fn open_below(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let mut attempt = 0;
    loop {
        match openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if attempt < MAX_ATTEMPTS => attempt += 1,
            Err(Errno::AGAIN) => return Err(Errno::BUSY),
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Turn a system call's failure into an error about `path`.
pub(super) fn at(doing: &'static str, path: &[u8]) -> impl Fn(Errno) -> Error {
    move |errno| Error::at_path(doing, errno, path)
}

/// What the link `name` says, or `None` when it is no link (any more) or does not exist.
pub(super) fn link_target(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Option<Vec<u8>>> {
    if name == b"." {
        return Ok(None);
    }
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    match readlinkat(dir, name, Vec::new()) {
        Ok(target) => Ok(Some(target.into_bytes())),
        Err(Errno::INVAL | Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The path that a link at `absolute` with this target leads to.
pub(super) fn redirected(absolute: &[u8], target: &[u8]) -> Vec<u8> {
    if target.starts_with(b"/") {
        return target.to_vec();
    }
    let (parent, _) = split_absolute(trim_slashes(absolute));
    [parent, b"/", target].concat()
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// Directory part, never empty, and last name of a path that starts with a slash.
fn split_absolute(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) | None => (b"/", path.get(1..).unwrap_or_default()),
        Some(slash) => (&path[..slash], &path[slash + 1..]),
    }
}
