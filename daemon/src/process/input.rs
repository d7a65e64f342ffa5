//! Standard input on its way to a command: within one window, written as the command reads.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::error::{Code, Error, Result};
use crate::limits::WINDOW_BYTES;

/// Consumed bytes after which the client is told without being asked for.
const TELL_BYTES: u64 = WINDOW_BYTES / 4;
/// End of transmission: what a terminal takes as end of file at the start of a line.
const END_OF_TRANSMISSION: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// The client has said that no more comes.
    Announced,
}

/// The writing end of a command's standard input.
#[derive(Debug)]
pub struct Input {
    /// `None` when the command reads no more, or all is written.
    fd: Option<OwnedFd>,
    terminal: bool,
    queue: VecDeque<u8>,
    /// Offset after the last byte received.
    received: u64,
    /// Offset after the last byte consumed, as last told to the client.
    told: u64,
    end: End,
    /// A client that came back waits to hear where to go on.
    owed: bool,
    pub watched: bool,
}

impl Input {
    /// `fd` is non-blocking. A terminal is told of the end by a character, a pipe by being closed.
    pub fn new(fd: OwnedFd, terminal: bool) -> Self {
        Input {
            fd: Some(fd),
            terminal,
            queue: VecDeque::new(),
            received: 0,
            told: 0,
            end: End::Open,
            owed: false,
            watched: false,
        }
    }

    /// Data that came with the request itself; offsets count it.
    pub fn preload(&mut self, data: &[u8]) {
        self.received += data.len() as u64;
        self.told = self.received;
        self.queue.extend(data);
    }

    /// No more comes than what is there.
    pub fn announce_end(&mut self) {
        self.end = End::Announced;
        if self.terminal {
            self.queue.push_back(END_OF_TRANSMISSION);
        }
    }

    /// Take `data` that starts at `offset`; what was received before is skipped.
    ///
    /// # Errors
    /// `protocol_error` for a hole or for more than the window allows.
    pub fn push(&mut self, offset: u64, data: &[u8], last: bool) -> Result<()> {
        let repeated = self.received.checked_sub(offset).and_then(|count| usize::try_from(count).ok());
        let Some(repeated) = repeated else {
            return Err(Error::new(Code::ProtocolError, "standard input with a hole in it"));
        };
        let fresh = data.get(repeated..).unwrap_or_default();
        if self.received + fresh.len() as u64 > self.told + WINDOW_BYTES {
            return Err(Error::new(Code::ProtocolError, "standard input beyond the window"));
        }
        if !fresh.is_empty() && self.end == End::Announced {
            return Err(Error::new(Code::ProtocolError, "standard input after its end"));
        }
        self.received += fresh.len() as u64;
        if self.fd.is_some() {
            self.queue.extend(fresh);
        }
        if last && self.end == End::Open {
            self.announce_end();
        }
        Ok(())
    }

    /// Write what the command takes now.
    pub fn pump(&mut self) {
        while let (Some(fd), false) = (&self.fd, self.queue.is_empty()) {
            let (first, _) = self.queue.as_slices();
            match rustix::io::write(fd, first) {
                Ok(count) => drop(self.queue.drain(..count)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // Nobody reads any more: what is left and what still comes is dropped.
                Err(_) => self.close(),
            }
        }
        if self.queue.is_empty() && self.end == End::Announced && !self.terminal {
            self.close();
        }
    }

    pub fn close(&mut self) {
        self.fd = None;
        self.queue = VecDeque::new();
        self.watched = false;
    }

    /// Bytes wait for the command to read.
    pub fn is_blocked(&self) -> bool {
        self.fd.is_some() && !self.queue.is_empty()
    }

    /// The offset to tell the client, when it is time: much was consumed, or all that came.
    pub fn acknowledgement(&mut self) -> Option<u64> {
        let consumed = self.consumed();
        let due = if self.owed {
            consumed == self.received
        } else {
            consumed > self.told && (consumed - self.told >= TELL_BYTES || consumed == self.received)
        };
        due.then(|| {
            (self.owed, self.told) = (false, consumed);
            consumed
        })
    }

    /// A client comes back: where it goes on. `None` when that is said by a later acknowledgement, because what was
    /// received before must first be consumed.
    pub fn resume(&mut self) -> Option<u64> {
        self.owed = self.queued_data() as u64 > WINDOW_BYTES / 2;
        if self.owed {
            return None;
        }
        self.told = self.received;
        Some(self.received)
    }

    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    fn queued_data(&self) -> usize {
        let mark = usize::from(self.terminal && self.end == End::Announced && !self.queue.is_empty());
        self.queue.len() - mark
    }

    fn consumed(&self) -> u64 {
        self.received - self.queued_data() as u64
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(OwnedFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> (Input, OwnedFd) {
        let (read, write) = crate::process::spawn::pipe().unwrap();
        rustix::io::ioctl_fionbio(&write, true).unwrap();
        (Input::new(write, false), read)
    }

    fn read(fd: &OwnedFd) -> Vec<u8> {
        let mut bytes = [0; 100];
        let count = rustix::io::read(fd, &mut bytes).unwrap();
        bytes[..count].to_vec()
    }

    /// Repeated bytes are skipped, so that a client which lost its connection may send again.
    #[test]
    fn repetitions_are_skipped_and_holes_refused() {
        let (mut input, reader) = input();
        input.push(0, b"abc", false).unwrap();
        input.push(1, b"bcd", false).unwrap();
        input.push(0, b"a", false).unwrap();
        input.pump();
        assert_eq!(read(&reader), b"abcd");
        assert_eq!(input.acknowledgement(), Some(4));
        assert_eq!(input.acknowledgement(), None);
        assert_eq!(input.push(5, b"x", false).unwrap_err().code, Code::ProtocolError);
        input.push(4, b"e", true).unwrap();
        input.pump();
        assert_eq!((read(&reader), read(&reader)), (b"e".to_vec(), Vec::new()));
        assert_eq!(input.push(5, b"f", false).unwrap_err().code, Code::ProtocolError);
    }

    /// More than a window that nobody has consumed is a breach, so memory stays bounded.
    #[test]
    fn the_window_bounds_memory() {
        let (mut input, _reader) = input();
        let window = vec![0; WINDOW_BYTES as usize];
        input.push(0, &window, false).unwrap();
        input.pump();
        assert_eq!(input.push(WINDOW_BYTES, b"x", false).unwrap_err().code, Code::ProtocolError);
        assert!(input.is_blocked());
        assert_eq!(input.resume(), None);
        assert_eq!(input.acknowledgement(), None);
        input.close();
        assert_eq!(input.acknowledgement(), Some(WINDOW_BYTES));
        assert_eq!(input.resume(), Some(WINDOW_BYTES));
    }

    /// A command that reads no more makes nobody wait: its input is taken and dropped.
    #[test]
    fn input_that_nobody_reads_is_dropped() {
        let (mut input, reader) = input();
        drop(reader);
        input.push(0, b"abc", false).unwrap();
        input.pump();
        assert!(!input.is_blocked());
        assert_eq!(input.acknowledgement(), Some(3));
        input.push(3, b"def", true).unwrap();
        assert_eq!(input.acknowledgement(), Some(6));
    }
}
