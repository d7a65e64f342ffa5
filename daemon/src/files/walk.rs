//! Walking a tree without recursion, however deep and wide it is and whatever happens to it meanwhile.
//!
//! Only a bounded number of directories is open. One whose children are deeper than that is closed, with its reading
//! position kept, and opened again through `..` of the child; that it is still the same directory is checked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatxFlags, fstat, openat, statx};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::stat::{identity, kind_from};
use super::{join, split};
use crate::error::{Code, Error, Result};
use crate::message::Kind;

/// Directories open at once.
const MAX_OPEN: usize = 64;
/// Names after which each is asked whether it is younger than the walk, and how many of those there may be: a directory
/// that is filled as fast as it is read has no end.
const SUSPICIOUS_NAMES: usize = 65_536;
const MAX_YOUNGER: usize = 1024;
/// Levels below the beginning. What is deeper than paths can say can still be removed, but not without end.
const MAX_LEVELS: usize = 32_768;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A name found in the current directory.
#[derive(Debug)]
pub(super) struct Found {
    pub name: Vec<u8>,
    /// `None` when the directory does not tell.
    pub kind: Option<Kind>,
}

#[derive(Debug)]
struct Level {
    /// `None` while it is closed.
    dir: Option<Dir>,
    file: (u64, u64),
    device: u64,
    /// Where reading goes on.
    position: i64,
}

#[derive(Debug)]
pub(super) struct Walk {
    levels: Vec<Level>,
    /// Of the current directory, relative to where the walk began.
    path: Vec<u8>,
    /// Levels below this index are closed.
    first_open: usize,
    began: Timespec,
    names: usize,
    /// Names met that were made since.
    younger: usize,
}

impl Walk {
    /// Start at `dir`, which may be opened with `O_PATH`.
    pub fn new(dir: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let began = clock_gettime(ClockId::RealtimeCoarse);
        let mut walk = Walk { levels: Vec::new(), path: Vec::new(), first_open: 0, began, names: 0, younger: 0 };
        walk.push(openat(dir, ".", DIRECTORY, Mode::empty())?)?;
        Ok(walk)
    }

    /// The current directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        let dir = self.levels.last().and_then(|level| level.dir.as_ref());
        match dir.map(Dir::fd) {
            Some(Ok(fd)) => fd,
            // `push` and `leave` keep the last level open as long as there is one.
            _ => unreachable!("the current directory of a walk is open"),
        }
    }

    /// Of the current directory, relative to where the walk began.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        join(&self.path, name)
    }

    /// The next name of the current directory, or `None` at its end.
    ///
    /// # Errors
    /// `EBUSY` when somebody makes names as fast as they are read, besides those of reading.
    pub fn next(&mut self) -> rustix::io::Result<Option<Found>> {
        let Some(found) = self.read()? else { return Ok(None) };
        self.names += 1;
        if self.names > SUSPICIOUS_NAMES && is_younger(self.dir(), &found.name, self.began) {
            self.younger += 1;
            if self.younger > MAX_YOUNGER {
                return Err(Errno::BUSY);
            }
        }
        Ok(Some(found))
    }

    fn read(&mut self) -> rustix::io::Result<Option<Found>> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        let Some(dir) = level.dir.as_mut() else { return Ok(None) };
        for entry in dir.by_ref() {
            let entry = entry?;
            level.position = entry.offset();
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                return Ok(Some(Found { name: name.to_vec(), kind: kind_from(entry.file_type()) }));
            }
        }
        Ok(None)
    }

    /// Go down into `name`, which must be a directory and no link. Says whether it lies on another file system.
    pub fn enter(&mut self, name: &[u8]) -> rustix::io::Result<Crossing> {
        if self.levels.len() >= MAX_LEVELS {
            return Err(Errno::NAMETOOLONG);
        }
        let here = self.levels.last().map_or(0, |level| level.device);
        self.push(openat(self.dir(), name, DIRECTORY, Mode::empty())?)?;
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        let there = self.levels.last().map_or(0, |level| level.device);
        Ok(if here == there { Crossing::Same } else { Crossing::Other })
    }

    /// Go back up. Returns the name of the directory that was left, or `None` at the top.
    ///
    /// # Errors
    /// `busy` when the directory was moved to another place meanwhile.
    pub fn leave(&mut self) -> Result<Option<Vec<u8>>> {
        if self.levels.len() <= 1 {
            return Ok(None);
        }
        let Some(child) = self.levels.pop() else { return Ok(None) };
        self.reopen(&child)?;
        let (parent, name) = split(&self.path);
        let (end, name) = (parent.len(), name.to_vec());
        self.path.truncate(end);
        Ok(Some(name))
    }

    fn push(&mut self, dir: OwnedFd) -> rustix::io::Result<()> {
        let facts = fstat(&dir)?;
        let dir = Some(Dir::new(dir)?);
        self.levels.push(Level { dir, file: identity(&facts), device: facts.st_dev, position: 0 });
        if self.levels.len() - self.first_open > MAX_OPEN {
            self.levels[self.first_open].dir = None;
            self.first_open += 1;
        }
        Ok(())
    }

    /// Open the last level through its child, if it was closed.
    fn reopen(&mut self, child: &Level) -> Result<()> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        if level.dir.is_some() {
            return Ok(());
        }
        let moved = || Error::new(Code::Busy, "a directory was moved while it was being read").with_path(&self.path);
        let failed = |errno| Error::at_path("go back up", errno, &self.path);
        let fd = child.dir.as_ref().ok_or_else(moved)?.fd().map_err(failed)?;
        let parent = openat(fd, "..", DIRECTORY, Mode::empty()).map_err(failed)?;
        if identity(&fstat(&parent).map_err(failed)?) != level.file {
            return Err(moved());
        }
        let mut dir = Dir::new(parent).map_err(failed)?;
        dir.seek(level.position).map_err(failed)?;
        level.dir = Some(dir);
        self.first_open = self.levels.len() - 1;
        Ok(())
    }
}

/// Whether `name` was made after `began`. Where the file system does not say, it was not.
fn is_younger(dir: BorrowedFd<'_>, name: &[u8], began: Timespec) -> bool {
    statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).is_ok_and(|facts| {
        let knows = StatxFlags::from_bits_retain(facts.stx_mask).contains(StatxFlags::BTIME);
        let born = (facts.stx_btime.tv_sec, i64::from(facts.stx_btime.tv_nsec));
        knows && born > (began.tv_sec, began.tv_nsec)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossing {
    Same,
    Other,
}

/// Whether a directory belongs to a file system that shows the kernel's state and holds no files.
pub(super) fn is_kernel_file_system(dir: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    // Magic numbers of linux/magic.h.
    const KERNEL: [i64; 15] = [
        0x0000_9fa0, // proc
        0x6265_6572, // sysfs
        0x0027_e0eb, // cgroup
        0x6367_7270, // cgroup2
        0x0000_1cd1, // devpts
        0x1980_0202, // mqueue
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0x7363_6673, // securityfs
        0xcafe_4a11, // bpf
        0x4249_4e4d, // binfmt_misc
        0x6265_6570, // configfs
        0x6573_5543, // fusectl
        0x6165_676c, // pstore
        0xde5e_81e4, // efivarfs
    ];
    let magic = rustix::fs::fstatfs(dir.as_fd())?.f_type;
    Ok(KERNEL.contains(&magic))
}
