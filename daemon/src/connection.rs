//! Bytes to frames over any stream, and frames to bytes with a bounded queue. Knows no verb and no role.
//!
//! Writing never waits: what the socket does not take is queued, `pong` before data. Whoever produces data asks
//! [`Connection::has_room`] first, and whoever reads stops while [`Connection::may_receive`] is false, so a peer that
//! does not read bounds itself.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::error::{Code, Error, Result};
use crate::frame::{self, Breach, PREFIX_BYTES};
use crate::limits::{MAX_FRAME_BYTES, MAX_HELLO_BYTES};
use crate::message::Reply;

/// Queued bytes at which data waits for the peer to read.
const ROOM_BYTES: usize = 512 * 1024;
/// Queued bytes at which nothing more is read from the peer. Answers to what was read before still fit above it.
const BACKLOG_BYTES: usize = 2 * MAX_FRAME_BYTES;
/// What one `recv` asks for; longer frames grow the buffer to their own length, and it shrinks again afterwards.
const READ_BYTES: usize = 16 * 1024;

/// What a look at the socket brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes came; there may be more.
    Some,
    /// Nothing there now.
    Nothing,
    /// The peer has closed, or the link is broken.
    Closed,
}

/// Received bytes, cut into frames.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// Start of what is not yet taken.
    taken: usize,
    frame_limit: usize,
}

impl Inbox {
    /// See [`Connection::opened`].
    pub fn opened(&mut self) {
        self.frame_limit = MAX_FRAME_BYTES;
    }

    /// See [`Connection::next_frame`].
    pub fn next_frame(&mut self) -> std::result::Result<Option<&[u8]>, Breach> {
        let Some(length) = self.announced()? else { return Ok(None) };
        let start = self.taken + PREFIX_BYTES;
        if self.bytes.len() < start + length {
            return Ok(None);
        }
        self.taken = start + length;
        Ok(Some(&self.bytes[start..start + length]))
    }

    fn receive(&mut self, stream: &OwnedFd) -> Received {
        self.compact();
        let filled = self.bytes.len();
        let wanted = self.wanted_bytes().max(READ_BYTES);
        self.bytes.resize(filled + wanted, 0);
        let result = rustix::net::recv(stream, &mut self.bytes[filled..], RecvFlags::DONTWAIT);
        let count = result.as_ref().map_or(0, |(count, _)| *count);
        self.bytes.truncate(filled + count);
        match result {
            Ok((0, _)) => Received::Closed,
            Ok(_) => Received::Some,
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::Closed,
        }
    }

    fn announced(&self) -> std::result::Result<Option<usize>, Breach> {
        match self.bytes[self.taken..].first_chunk::<PREFIX_BYTES>() {
            Some(prefix) => frame::payload_length(*prefix, self.frame_limit).map(Some),
            None => Ok(None),
        }
    }

    /// Bytes still missing from the frame that has begun.
    fn wanted_bytes(&self) -> usize {
        let have = self.bytes.len() - self.taken;
        match self.announced() {
            Ok(Some(length)) => (length + PREFIX_BYTES).saturating_sub(have),
            _ => 0,
        }
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > 2 * READ_BYTES {
            self.bytes = Vec::new();
        }
    }
}

#[derive(Debug)]
pub struct Connection {
    stream: OwnedFd,
    inbox: Inbox,
    queue: VecDeque<Vec<u8>>,
    /// Bytes of the queue's first frame that are already sent.
    sent: usize,
    queued_bytes: usize,
    scratch: Vec<u8>,
}

impl Connection {
    /// Take over a connected stream; it becomes non-blocking.
    pub fn new(stream: OwnedFd) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        Ok(Connection {
            stream,
            inbox: Inbox { frame_limit: MAX_HELLO_BYTES, ..Inbox::default() },
            queue: VecDeque::new(),
            sent: 0,
            queued_bytes: 0,
            scratch: Vec::new(),
        })
    }

    /// The peer has said hello: frames may have their full length from now on.
    pub fn opened(&mut self) {
        self.inbox.opened();
    }

    /// Read what is there, once. Call [`Connection::next_frame`] until `None` after each `Some`.
    pub fn receive(&mut self) -> Received {
        self.inbox.receive(&self.stream)
    }

    /// The next whole payload, or `None` when more bytes are needed.
    pub fn next_frame(&mut self) -> std::result::Result<Option<&[u8]>, Breach> {
        self.inbox.next_frame()
    }

    /// The received bytes, for a reader that answers through this connection while it still holds a frame: taken
    /// out before, put back after.
    pub fn inbox_mut(&mut self) -> &mut Inbox {
        &mut self.inbox
    }

    /// Send `reply`, or queue what the socket does not take.
    ///
    /// # Errors
    /// `gone` when the link is broken; the caller drops the connection.
    pub fn send(&mut self, reply: &Reply<'_>) -> Result<()> {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        reply.encode(&mut frame)?;
        if self.queue.is_empty() {
            let count = self.write(&frame)?;
            if count == frame.len() {
                self.keep_scratch(frame);
                return Ok(());
            }
            self.sent = count;
        }
        self.queued_bytes += frame.len();
        if matches!(reply, Reply::Pong { .. } | Reply::Ping { .. }) {
            // Behind the frame that is half on the wire, before everything that has not begun.
            let place = usize::from(self.sent > 0).min(self.queue.len());
            self.queue.insert(place, frame);
        } else {
            self.queue.push_back(frame);
        }
        Ok(())
    }

    /// Send whole frames that were encoded elsewhere, or queue what the socket does not take.
    ///
    /// # Errors
    /// `gone` when the link is broken.
    pub fn send_encoded(&mut self, frames: Vec<u8>) -> Result<()> {
        if self.queue.is_empty() {
            let count = self.write(&frames)?;
            if count == frames.len() {
                return Ok(());
            }
            self.sent = count;
        }
        self.queued_bytes += frames.len();
        self.queue.push_back(frames);
        Ok(())
    }

    /// Send what is queued as far as the socket takes it.
    ///
    /// # Errors
    /// `gone` when the link is broken.
    pub fn flush(&mut self) -> Result<()> {
        while let Some(frame) = self.queue.pop_front() {
            let count = self.write(&frame[self.sent..])?;
            self.sent += count;
            if self.sent < frame.len() {
                self.queue.push_front(frame);
                return Ok(());
            }
            self.sent = 0;
            self.queued_bytes -= frame.len();
        }
        Ok(())
    }

    /// Whether queued bytes wait for the socket to become writable.
    pub fn is_blocked(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether a producer of data may send one more chunk.
    pub fn has_room(&self) -> bool {
        self.queued_bytes < ROOM_BYTES
    }

    /// Whether the peer has read enough of its answers to be listened to.
    pub fn may_receive(&self) -> bool {
        self.queued_bytes < BACKLOG_BYTES
    }

    /// Give the stream away, with what was received and not taken. Everything queued must have been flushed.
    pub fn into_parts(self) -> (OwnedFd, Vec<u8>) {
        let rest = self.inbox.bytes[self.inbox.taken..].to_vec();
        (self.stream, rest)
    }

    fn keep_scratch(&mut self, frame: Vec<u8>) {
        if frame.capacity() <= READ_BYTES {
            self.scratch = frame;
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<usize> {
        match rustix::net::send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(Error { code: Code::Gone, ..Error::system("send", errno) }),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
