//! Files below a root directory: synchronous functions that never resolve a path outside of it.
//!
//! Every function takes a [`Root`] and acts with the rights of the calling thread; [`act_as`] lends it a user's.
//! Paths are walked by the kernel (`openat2`) from the root's descriptor, so neither the working directory nor the
//! mount namespace of the thread matters. Whole trees go through [`Outgoing`] and [`Incoming`], whose calls wait for
//! the other side: memory does not grow with the tree. What cannot be told exactly is an error, not an omission.

mod actor;
mod attributes;
mod changes;
mod dirs;
mod download;
mod entry;
mod inodes;
mod list;
mod make;
mod overlay;
mod procfs;
mod read;
pub mod record;
mod remove;
mod root;
mod stat;
mod temp;
mod upload;
mod walk;
mod write;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Code, Error, Result};
use crate::message::ListEntry;

pub use actor::act_as;
pub use attributes::has_attributes;
pub use changes::{Layout, changes};
pub use download::download;
pub use entry::Entry;
pub use list::{Extent, list};
pub use make::{Mkdir, mkdir};
pub use overlay::Layer;
pub use read::{Range, read};
pub use remove::{Remove, remove};
pub use root::Root;
pub use stat::{Facts, Follow, stat};
pub use upload::{Destination, upload};
pub use write::{Write, write};

/// Where files go that are read here. Each call waits until the receiver has room.
pub trait Outgoing {
    /// Announce a file; the data that follows is its.
    ///
    /// # Errors
    /// `cancelled` or `gone` when nobody wants it any more.
    fn entry(&mut self, entry: &Entry) -> Result<()>;

    /// At most `max_chunk_bytes` bytes that lie at `at` in the file announced last.
    ///
    /// # Errors
    /// `cancelled` or `gone` when nobody wants it any more.
    fn data(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
}

/// Where the entries of a listing go. Each call waits until the receiver has room.
pub trait Listing {
    /// # Errors
    /// `cancelled` or `gone` when nobody wants it any more.
    fn entries(&mut self, entries: &[ListEntry]) -> Result<()>;
}

/// What an [`Incoming`] brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Entry(Entry),
    /// Bytes of the entry before; `at` is nil for "right after the chunk before".
    Data {
        at: Option<u64>,
        bytes: Vec<u8>,
    },
    /// Everything has come.
    End,
}

/// Where files come from that are made here.
pub trait Incoming {
    /// Wait for the next item; asking for it says that the one before is dealt with.
    ///
    /// # Errors
    /// `cancelled` or `gone` when no more will come: what is half made is then undone.
    fn next(&mut self) -> Result<Item>;
}

/// What a transfer has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub files: u64,
    pub dirs: u64,
    /// Symbolic and hard links.
    pub links: u64,
    /// Data bytes, without holes.
    pub bytes: u64,
    /// Sockets, fifos, devices, and file systems of the kernel; relative to the root of the transfer.
    pub skipped: Vec<Vec<u8>>,
    skipped_bytes: usize,
}

/// All names in `skipped` together; they travel in one frame.
const MAX_SKIPPED_BYTES: usize = 1024 * 1024;

impl Summary {
    fn skip(&mut self, path: &[u8]) -> Result<()> {
        // A name costs up to five bytes of framing beside its own.
        self.skipped_bytes += path.len() + 5;
        if self.skipped_bytes > MAX_SKIPPED_BYTES {
            let message = "more sockets, fifos and devices than one answer can name";
            return Err(Error::new(Code::TooMany, message).with_path(path));
        }
        self.skipped.push(path.to_vec());
        Ok(())
    }
}

/// Set by whoever wants a running operation to end early; cheap to copy and to look at.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// `cancelled` once it is set.
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::new(Code::Cancelled, "cancelled")) } else { Ok(()) }
    }
}

/// `dir/name`, or `name` where `dir` is the root of the transfer.
fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    if !dir.is_empty() {
        path.extend_from_slice(dir);
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The directory part and the last name of a relative path; the directory part of a bare name is empty.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}
