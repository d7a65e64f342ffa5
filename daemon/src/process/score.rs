//! Whom the kernel kills for memory first: a command, and not the daemon.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};

/// How much sooner a command is killed than the daemon, in thousandths of the memory there is.
const DISTANCE: i16 = 100;
/// The kernel's own limit.
const MOST: i16 = 1000;

/// The daemon's own score, which children inherit.
#[derive(Debug)]
pub struct Score {
    /// Opened while that is still allowed: the files of a process that is not dumpable are root's.
    file: OwnedFd,
    own: i16,
}

impl Score {
    /// That of this process, which is still dumpable.
    ///
    /// # Errors
    /// There is no `/proc`, or it may not be written.
    pub fn open() -> Result<Self> {
        let failed = |errno| Error::system("open the score of this process", errno);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()).map_err(failed)?;
        let mut text = [0_u8; 16];
        let count = rustix::io::pread(&file, &mut text, 0).map_err(failed)?;
        let own = std::str::from_utf8(&text[..count]).ok().and_then(|text| text.trim().parse().ok());
        Ok(Score { file, own: own.unwrap_or(0) })
    }

    /// Run `start` such that what it makes is killed before we are.
    pub fn above<T>(&self, start: impl FnOnce() -> T) -> T {
        self.set(self.own.saturating_add(DISTANCE).min(MOST));
        let made = start();
        self.set(self.own);
        made
    }

    fn set(&self, score: i16) {
        if let Err(errno) = rustix::io::pwrite(&self.file, score.to_string().as_bytes(), 0) {
            // Serving goes on: it only makes the kernel's choice a worse one.
            eprintln!("sandlotd: set the score of this process: {errno}");
        }
    }
}
