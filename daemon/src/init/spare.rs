//! The next episode, built beside the living one, so that a reset only has to enter it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use super::blueprint::Blueprint;
use super::episode::{self, Episode};
use super::outer::Outer;
use crate::descriptors;
use crate::error::{Code, Error, Result};
use crate::namespaces;

/// What the thread's calls need of stack.
const STACK_BYTES: usize = 256 << 10;

/// An episode that is being built, or is ready.
#[derive(Debug)]
pub struct Spare {
    thread: JoinHandle<Result<Episode>>,
}

impl Spare {
    /// Start to build the episode `serial`.
    pub fn start(blueprint: &Arc<Blueprint>, outer: &Outer, serial: u64) -> Result<Self> {
        let blueprint = Arc::clone(blueprint);
        let (namespace, proc) = (descriptors::duplicate(&outer.namespace)?, descriptors::duplicate(&outer.proc)?);
        let thread = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || build(&blueprint, &namespace, &proc, serial))
            .map_err(|error| Error::system("start a thread", Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Ok(Spare { thread })
    }

    /// Wait until it is ready. From then on the process has one thread less.
    pub fn finish(self) -> Result<Episode> {
        self.thread.join().unwrap_or_else(|_| Err(Error::new(Code::Internal, "the thread of the next episode failed")))
    }
}

/// In the thread, which has a root and a directory of its own.
fn build(blueprint: &Blueprint, outer: &OwnedFd, proc: &OwnedFd, serial: u64) -> Result<Episode> {
    namespaces::unshare(UnshareFlags::FS)?;
    namespaces::enter_mounts(outer.as_fd())?;
    episode::build(blueprint, proc.as_fd(), serial)
}
