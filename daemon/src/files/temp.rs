//! A file that is being made beside its final name, so that the name always means a whole file.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags, linkat, mknodat, openat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Names are drawn again if one is taken; that happens by chance never, so a few attempts are plenty.
const MAX_ATTEMPTS: usize = 4;

/// A name in `dir` that goes away unless it is committed.
#[derive(Debug)]
pub(super) struct Temp {
    dir: Rc<OwnedFd>,
    name: String,
    live: bool,
}

impl Temp {
    /// An empty file that only its owner may open.
    pub fn file(dir: &Rc<OwnedFd>) -> rustix::io::Result<(Self, OwnedFd)> {
        Temp::make(dir, |dir, name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
        })
    }

    /// A symbolic link, and a descriptor of the link itself.
    pub fn link(dir: &Rc<OwnedFd>, target: &[u8]) -> rustix::io::Result<(Self, OwnedFd)> {
        let (temp, ()) = Temp::make(dir, |dir, name| symlinkat(target, dir, name))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(dir.as_fd(), temp.name.as_str(), flags, Mode::empty())?;
        Ok((temp, file))
    }

    /// Another name of `name` in `from`.
    pub fn hard(dir: &Rc<OwnedFd>, from: &OwnedFd, name: &[u8]) -> rustix::io::Result<Self> {
        let (temp, ()) = Temp::make(dir, |dir, temp| linkat(from, name, dir, temp, AtFlags::empty()))?;
        Ok(temp)
    }

    /// An overlay whiteout.
    pub fn whiteout(dir: &Rc<OwnedFd>) -> rustix::io::Result<Self> {
        let (temp, ()) =
            Temp::make(dir, |dir, name| mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), Dev::default()))?;
        Ok(temp)
    }

    /// The name it has until it is committed.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Give it its final name in the same directory; a file or link of that name is replaced.
    pub fn commit(mut self, name: &[u8]) -> rustix::io::Result<()> {
        renameat(self.dir.as_fd(), self.name.as_str(), self.dir.as_fd(), name)?;
        self.live = false;
        Ok(())
    }

    /// As [`Temp::commit`], when the final name may already mean the same file: the kernel then renames nothing.
    pub fn commit_hard(self, name: &[u8]) -> rustix::io::Result<()> {
        renameat(self.dir.as_fd(), self.name.as_str(), self.dir.as_fd(), name)
        // Dropping unlinks the temporary name if it is still there.
    }

    fn make<T>(
        dir: &Rc<OwnedFd>,
        create: impl Fn(&OwnedFd, &str) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<(Self, T)> {
        let mut attempt = 0;
        loop {
            let name = random_name()?;
            match create(dir, &name) {
                Err(Errno::EXIST) if attempt < MAX_ATTEMPTS => attempt += 1,
                Err(errno) => return Err(errno),
                Ok(made) => return Ok((Temp { dir: Rc::clone(dir), name, live: true }, made)),
            }
        }
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if self.live {
            // Nothing is left to do if it is gone already or its directory is.
            let _ = unlinkat(self.dir.as_fd(), self.name.as_str(), AtFlags::empty());
        }
    }
}

/// Not to be guessed, so that nobody can put something else in its place beforehand.
fn random_name() -> rustix::io::Result<String> {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(format!(".sandlot-{:032x}", u128::from_ne_bytes(bytes)))
}
