//! The thread's end of a [`Flow`]: makes frames of what is sent, and gives what has come.

use std::sync::Arc;

use serde_bytes::Bytes;

use super::Flow;
use crate::error::{Code, Error, Result};
use crate::files::{Entry, Incoming, Item, Listing, Outgoing};
use crate::message::{DataReply, Entries, EntryReply, ListEntry, Reply};

/// Frames handed over together: small files cost one wake-up for many.
const BATCH_BYTES: usize = 64 * 1024;

/// Whether data says where in its file it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Positions {
    Told,
    /// There is one file, sent from its beginning to its end.
    Implied,
}

#[derive(Debug)]
pub(crate) struct Port {
    flow: Arc<Flow>,
    positions: Positions,
    /// Frames not yet handed over.
    pending: Vec<u8>,
    /// Data bytes of the item given last.
    given: u64,
    ended: bool,
}

impl Port {
    pub fn new(flow: Arc<Flow>, positions: Positions) -> Self {
        Port { flow, positions, pending: Vec::new(), given: 0, ended: false }
    }

    pub fn id(&self) -> u32 {
        self.flow.id
    }

    /// The operation's answer.
    pub fn finish(&mut self, reply: &Reply<'_>) -> Result<()> {
        reply.encode(&mut self.pending)?;
        self.ended = true;
        self.flow.end(std::mem::take(&mut self.pending));
        Ok(())
    }

    /// The operation's answer when it failed.
    pub fn fail(&mut self, error: &Error) {
        if !self.ended {
            let id = self.flow.id;
            // An error encodes: its text is short and its path was read from a frame.
            let _ = Reply::error(id, error).encode(&mut self.pending);
            self.ended = true;
            self.flow.end(std::mem::take(&mut self.pending));
        }
    }

    fn put(&mut self, reply: &Reply<'_>) -> Result<()> {
        reply.encode(&mut self.pending)?;
        if self.pending.len() >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() { Ok(()) } else { self.flow.put_frames(std::mem::take(&mut self.pending)) }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.fail(&Error::new(Code::Internal, "the operation ended without an answer"));
    }
}

impl Outgoing for Port {
    fn entry(&mut self, entry: &Entry) -> Result<()> {
        let reply = Reply::Entry(EntryReply {
            id: self.flow.id,
            path: Bytes::new(&entry.path),
            kind: entry.kind,
            mode: entry.mode,
            mtime_ns: entry.mtime_ns,
            size: entry.size,
            target: entry.target.as_deref().map(Bytes::new),
            uid: entry.uid,
            gid: entry.gid,
            opaque: entry.opaque,
        });
        self.put(&reply)
    }

    fn data(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let count = bytes.len() as u64;
        if !self.flow.has_window(count) {
            // What would make the client acknowledge must be on its way.
            self.flush()?;
        }
        let off = self.flow.reserve(count)?;
        let at = (self.positions == Positions::Told).then_some(at);
        self.put(&Reply::Data(DataReply { id: self.flow.id, s: 1, off, d: Bytes::new(bytes), at }))
    }
}

impl Listing for Port {
    fn entries(&mut self, entries: &[ListEntry]) -> Result<()> {
        self.put(&Reply::Entries(Entries { id: self.flow.id, entries }))
    }
}

impl Incoming for Port {
    fn next(&mut self) -> Result<Item> {
        loop {
            let (item, acknowledge) = self.flow.next_item(std::mem::take(&mut self.given))?;
            if let Some(off) = acknowledge {
                Reply::Ack { id: self.flow.id, s: 0, off }.encode(&mut self.pending)?;
                self.flush()?;
            }
            match &item {
                Item::Data { bytes, .. } if bytes.is_empty() => {}
                Item::Data { bytes, .. } => {
                    self.given = bytes.len() as u64;
                    return Ok(item);
                }
                _ => return Ok(item),
            }
        }
    }
}
