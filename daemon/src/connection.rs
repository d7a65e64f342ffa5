//! Bytes to frames over any stream, and frames to bytes with a bounded queue. Knows no verb and no role.
//!
//! A stream that crosses a network is sealed: then what is read is opened first and what is written is sealed last, here
//! and in place, so that nothing else knows the difference.
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
use crate::seal::{self, LENGTH_BYTES, Seal};

/// Queued bytes at which data waits for the peer to read.
const ROOM_BYTES: usize = 512 * 1024;
/// Queued bytes at which nothing more is read from the peer. Answers to what was read before still fit above it.
const BACKLOG_BYTES: usize = 2 * MAX_FRAME_BYTES;
/// What one `recv` asks for; longer frames grow the buffer to their own length, and it shrinks again afterwards.
const READ_BYTES: usize = 16 * 1024;
/// What one `recv` of a sealed stream asks for at most.
const SEALED_READ_BYTES: usize = 256 * 1024;
/// Sealed bytes that are made ready in one go: what a socket usually takes.
const SEALED_WRITE_BYTES: usize = 256 * 1024;

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

    /// Read sealed bytes and open the messages that are whole.
    fn receive_sealed(&mut self, stream: &OwnedFd, sealed: &mut Sealed) -> Received {
        self.compact();
        let wanted = self.wanted_bytes().max(sealed.missing_bytes()).clamp(READ_BYTES, SEALED_READ_BYTES);
        sealed.bytes.reserve(wanted);
        let space = rustix::buffer::spare_capacity(&mut sealed.bytes);
        match rustix::net::recv(stream, space, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Received::Closed,
            Ok(_) if sealed.open_into(&mut self.bytes).is_ok() => Received::Some,
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Ok(_) | Err(_) => Received::Closed,
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

/// What a sealed stream has beside a plain one.
#[derive(Debug)]
struct Sealed {
    seal: Seal,
    /// Received and not yet opened: less than one message between two reads.
    bytes: Vec<u8>,
}

impl Sealed {
    /// Bytes still missing from the message that has begun.
    fn missing_bytes(&self) -> usize {
        seal::message_length(&self.bytes).map_or(0, |length| (LENGTH_BYTES + length).saturating_sub(self.bytes.len()))
    }

    fn open_into(&mut self, plain: &mut Vec<u8>) -> Result<()> {
        let mut opened = 0;
        while let Some(length) = seal::message_length(&self.bytes[opened..]) {
            let start = opened + LENGTH_BYTES;
            let Some(message) = self.bytes.get(start..start + length) else { break };
            self.seal.open(message, plain)?;
            opened = start + length;
        }
        self.bytes.drain(..opened);
        if self.bytes.is_empty() && self.bytes.capacity() > 2 * READ_BYTES {
            self.bytes = Vec::new();
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Connection {
    stream: OwnedFd,
    sealed: Option<Box<Sealed>>,
    inbox: Inbox,
    /// Whole frames, not sealed: the place of a `pong` is found among them.
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    /// What is being written, as it goes over the wire.
    wire: Vec<u8>,
    /// Bytes of `wire` that are already sent.
    sent: usize,
    scratch: Vec<u8>,
}

impl Connection {
    /// Take over a connected stream; it becomes non-blocking.
    pub fn new(stream: OwnedFd) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        Ok(Connection {
            stream,
            sealed: None,
            inbox: Inbox { frame_limit: MAX_HELLO_BYTES, ..Inbox::default() },
            queue: VecDeque::new(),
            queued_bytes: 0,
            wire: Vec::new(),
            sent: 0,
            scratch: Vec::new(),
        })
    }

    /// As [`Connection::new`], for a stream on which a handshake has just ended.
    pub fn sealed(stream: OwnedFd, seal: Seal) -> rustix::io::Result<Self> {
        let connection = Self::new(stream)?;
        Ok(Connection { sealed: Some(Box::new(Sealed { seal, bytes: Vec::new() })), ..connection })
    }

    /// The peer has said hello: frames may have their full length from now on.
    pub fn opened(&mut self) {
        self.inbox.opened();
    }

    /// Read what is there, once. Call [`Connection::next_frame`] until `None` after each `Some`.
    pub fn receive(&mut self) -> Received {
        match &mut self.sealed {
            None => self.inbox.receive(&self.stream),
            Some(sealed) => self.inbox.receive_sealed(&self.stream, sealed),
        }
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
        if self.is_blocked() && matches!(reply, Reply::Pong { .. } | Reply::Ping { .. }) {
            // Behind what is already on the wire, before everything that has not begun.
            self.queued_bytes += frame.len();
            self.queue.push_front(frame);
            return Ok(());
        }
        self.send_encoded(frame)
    }

    /// Send whole frames that were encoded elsewhere, or queue what the socket does not take.
    ///
    /// # Errors
    /// `gone` when the link is broken.
    pub fn send_encoded(&mut self, frames: Vec<u8>) -> Result<()> {
        if self.is_blocked() {
            self.queued_bytes += frames.len();
            self.queue.push_back(frames);
            return Ok(());
        }
        self.put_on_wire(frames)?;
        self.write()
    }

    /// Send what is queued as far as the socket takes it.
    ///
    /// # Errors
    /// `gone` when the link is broken.
    pub fn flush(&mut self) -> Result<()> {
        self.write()?;
        while !self.is_on_wire() && !self.queue.is_empty() {
            // A plain frame goes as it is, sealed ones several at once.
            while let Some(frame) = self.queue.pop_front() {
                self.queued_bytes -= frame.len();
                self.put_on_wire(frame)?;
                if self.sealed.is_none() || self.wire.len() >= SEALED_WRITE_BYTES {
                    break;
                }
            }
            self.write()?;
        }
        Ok(())
    }

    /// Whether bytes wait for the socket to become writable.
    pub fn is_blocked(&self) -> bool {
        self.is_on_wire() || !self.queue.is_empty()
    }

    /// Whether a producer of data may send one more chunk.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes() < ROOM_BYTES
    }

    /// Whether the peer has read enough of its answers to be listened to.
    pub fn may_receive(&self) -> bool {
        self.waiting_bytes() < BACKLOG_BYTES
    }

    /// Give a plain stream away, with what was received and not taken. Everything queued must have been flushed.
    pub fn into_parts(self) -> (OwnedFd, Vec<u8>) {
        let rest = self.inbox.bytes[self.inbox.taken..].to_vec();
        (self.stream, rest)
    }

    fn is_on_wire(&self) -> bool {
        self.sent < self.wire.len()
    }

    fn waiting_bytes(&self) -> usize {
        self.queued_bytes + self.wire.len() - self.sent
    }

    /// Add frames to what is written next. A plain wire is empty before.
    fn put_on_wire(&mut self, frames: Vec<u8>) -> Result<()> {
        match &mut self.sealed {
            None => {
                let former = std::mem::replace(&mut self.wire, frames);
                self.keep_scratch(former);
                Ok(())
            }
            Some(sealed) => {
                sealed.seal.seal(&frames, &mut self.wire)?;
                self.keep_scratch(frames);
                Ok(())
            }
        }
    }

    fn keep_scratch(&mut self, frame: Vec<u8>) {
        if frame.capacity() <= READ_BYTES {
            self.scratch = frame;
        }
    }

    /// Write what is on the wire as far as the socket takes it.
    fn write(&mut self) -> Result<()> {
        if !self.is_on_wire() {
            return Ok(());
        }
        match rustix::net::send(&self.stream, &self.wire[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => self.sent += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(Error { code: Code::Gone, ..Error::system("send", errno) }),
        }
        if !self.is_on_wire() {
            self.sent = 0;
            self.wire.clear();
            if self.wire.capacity() > 2 * READ_BYTES {
                self.wire = Vec::new();
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
