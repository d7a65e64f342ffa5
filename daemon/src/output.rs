//! What is held of one output stream of a command, always within a bound, and addressed by offset.
//!
//! Three policies: a *collected* stream keeps what its cap keeps (offsets count kept bytes), a *streamed* one keeps what
//! the client has not acknowledged, a *job's* ring keeps the last bytes (offsets count written bytes).

use std::collections::VecDeque;

use crate::limits::WINDOW_BYTES;
use crate::message::{Keep, Mode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Collect,
    Stream,
    Ring,
}

/// One output stream.
#[derive(Debug)]
pub struct Store {
    policy: Policy,
    /// Bytes that `head` may hold (collect).
    head_cap: usize,
    /// Bytes that `tail` may hold (collect, ring).
    tail_cap: usize,
    total: u64,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Offset of the first byte of `tail` (stream, ring).
    base: u64,
}

/// What is held from an offset on.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Where `bytes` really starts: later than asked when the asked bytes are gone.
    pub offset: u64,
    pub bytes: &'a [u8],
}

impl Store {
    /// `cap` bounds what is kept; a streamed one is bounded by the window instead.
    pub fn new(mode: Mode, keep: Keep, cap: usize) -> Self {
        let (policy, head_cap, tail_cap) = match (mode, keep) {
            (Mode::Stream, _) => (Policy::Stream, 0, usize::MAX),
            (Mode::Job, _) => (Policy::Ring, 0, cap),
            (Mode::Collect, Keep::Head) => (Policy::Collect, cap, 0),
            (Mode::Collect, Keep::Tail) => (Policy::Collect, 0, cap),
            (Mode::Collect, Keep::Both) => (Policy::Collect, cap / 2, cap - cap / 2),
        };
        Store { policy, head_cap, tail_cap, total: 0, head: Vec::new(), tail: VecDeque::new(), base: 0 }
    }

    /// How much the command may write now: a streamed one waits for its reader, the others never do.
    pub fn room(&self) -> usize {
        match self.policy {
            Policy::Stream => usize::try_from(WINDOW_BYTES).unwrap_or(usize::MAX).saturating_sub(self.tail.len()),
            Policy::Collect | Policy::Ring => usize::MAX,
        }
    }

    pub fn append(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(self.head_cap - self.head.len()));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.tail_cap)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_cap);
        self.tail.drain(..excess);
        self.tail.extend(rest);
        if self.policy == Policy::Ring {
            self.base = self.total - self.tail.len() as u64;
        }
    }

    /// The client has everything before `offset`.
    pub fn acknowledge(&mut self, offset: u64) {
        if self.policy == Policy::Stream && offset > self.base {
            let count = usize::try_from(offset - self.base).unwrap_or(usize::MAX).min(self.tail.len());
            self.tail.drain(..count);
            self.base += count as u64;
            if self.tail.is_empty() {
                self.tail = VecDeque::new();
            }
        }
    }

    /// At most `limit` held bytes from `offset` on, as far as they lie side by side.
    pub fn piece(&self, offset: u64, limit: usize) -> Piece<'_> {
        let start = offset.max(self.base);
        let index = usize::try_from(start - self.base).unwrap_or(usize::MAX);
        let (older, newer) = self.tail.as_slices();
        let (mut offset_in, mut bytes) = (index, self.head.as_slice());
        for slice in [older, newer] {
            if offset_in < bytes.len() {
                break;
            }
            offset_in -= bytes.len();
            bytes = slice;
        }
        let bytes = bytes.get(offset_in..).unwrap_or_default();
        Piece { offset: start, bytes: &bytes[..bytes.len().min(limit)] }
    }

    /// Offset after the last held byte: kept bytes (collect) or written bytes (stream, ring).
    pub fn end(&self) -> u64 {
        self.base + self.held() as u64
    }

    /// Offset of the first held byte.
    pub fn start(&self) -> u64 {
        self.base
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes kept for good: all of them but for a capped collection.
    pub fn kept(&self) -> u64 {
        match self.policy {
            Policy::Collect => self.held() as u64,
            Policy::Stream | Policy::Ring => self.total,
        }
    }

    /// How many of the kept bytes come before the gap, if there is one.
    pub fn head(&self) -> u64 {
        if self.policy == Policy::Collect && self.total > self.kept() { self.head.len() as u64 } else { self.kept() }
    }

    /// Bytes in memory.
    pub fn held(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Everything held, which is held no longer.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.head);
        bytes.extend(std::mem::take(&mut self.tail));
        self.base += bytes.len() as u64;
        bytes
    }

    /// Nothing more comes: give back what growing has left over.
    pub fn finish(&mut self) {
        self.head.shrink_to_fit();
        self.tail.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(store: &Store) -> Vec<u8> {
        let (mut bytes, mut offset) = (Vec::new(), store.start());
        while offset < store.end() {
            let piece = store.piece(offset, 3);
            bytes.extend_from_slice(piece.bytes);
            offset = piece.offset + piece.bytes.len() as u64;
        }
        bytes
    }

    fn collected(keep: Keep, cap: usize, chunks: &[&[u8]]) -> (Vec<u8>, u64, u64) {
        let mut store = Store::new(Mode::Collect, keep, cap);
        chunks.iter().for_each(|chunk| store.append(chunk));
        (all(&store), store.total(), store.head())
    }

    /// A cap keeps the first bytes, the last ones, or half of each, whatever the chunks were.
    #[test]
    fn a_cap_keeps_head_tail_or_both() {
        for chunks in [&[b"0123456789".as_slice()][..], &[b"01", b"2345", b"", b"6789"], &[b"0", b"123456789"]] {
            assert_eq!(collected(Keep::Head, 4, chunks), (b"0123".to_vec(), 10, 4));
            assert_eq!(collected(Keep::Tail, 4, chunks), (b"6789".to_vec(), 10, 0));
            assert_eq!(collected(Keep::Both, 5, chunks), (b"01789".to_vec(), 10, 2));
            assert_eq!(collected(Keep::Both, 10, chunks), (b"0123456789".to_vec(), 10, 10));
            assert_eq!(collected(Keep::Both, 0, chunks), (Vec::new(), 10, 0));
            assert_eq!(collected(Keep::Both, 1, chunks), (b"9".to_vec(), 10, 0));
        }
    }

    /// A streamed command is given room only as its reader acknowledges.
    #[test]
    fn a_stream_is_bounded_by_the_window() {
        let mut store = Store::new(Mode::Stream, Keep::Both, 0);
        let window = WINDOW_BYTES as usize;
        store.append(&vec![1; window]);
        assert_eq!(store.room(), 0);
        store.acknowledge(10);
        assert_eq!(store.room(), 10);
        store.append(&[2; 10]);
        assert_eq!((store.start(), store.end(), store.room()), (10, WINDOW_BYTES + 10, 0));
        store.acknowledge(u64::MAX);
        assert_eq!((store.start(), store.end(), store.held()), (WINDOW_BYTES + 10, WINDOW_BYTES + 10, 0));
    }

    /// A ring holds the last bytes and says where they start; what is gone is skipped, not invented.
    #[test]
    fn a_ring_keeps_the_last_bytes() {
        let mut store = Store::new(Mode::Job, Keep::Both, 4);
        store.append(b"012345");
        store.append(b"67");
        assert_eq!(store.piece(1, 100).offset, 4);
        assert_eq!(all(&store), b"4567");
        assert_eq!((store.start(), store.end(), store.total(), store.kept()), (4, 8, 8, 8));
    }

    /// Offsets beyond the end give nothing.
    #[test]
    fn beyond_the_end_is_nothing() {
        let mut store = Store::new(Mode::Collect, Keep::Both, 8);
        store.append(b"0123");
        assert_eq!(store.piece(4, 10).bytes, b"");
        assert_eq!(store.piece(u64::MAX, 10).bytes, b"");
    }
}
