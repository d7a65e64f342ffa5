//! What is between a thread that works on files and the call that it works for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::{Exchange, Ticket, lock};
use crate::error::{Code, Error, Result};
use crate::files::{Item, Stop};
use crate::limits::{MAX_CHUNK_BYTES, WINDOW_BYTES};

/// Bytes of finished frames that wait for the connection before the thread waits too.
const OUTBOX_BYTES: usize = 512 * 1024;
/// About what an item costs beside its bytes.
const ITEM_BYTES: usize = 160;
/// Consumed bytes that are acknowledged together; the contract wants half a window at most.
const ACKNOWLEDGE_BYTES: u64 = WINDOW_BYTES / 4;

/// One operation's two directions. Shared by its thread and the main loop.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The call's id on its connection.
    pub id: u32,
    ticket: Ticket,
    exchange: Arc<Exchange>,
    state: Mutex<State>,
    /// Something that the thread may be waiting for.
    changed: Condvar,
    /// Looked at between steps of long work.
    pub stop: Stop,
}

#[derive(Debug, Default)]
struct State {
    /// From the client, not yet taken.
    items: VecDeque<Item>,
    item_bytes: usize,
    /// Data bytes that have come, that are dealt with, and that were acknowledged.
    received: u64,
    consumed: u64,
    acknowledged: u64,
    /// To the client: whole frames.
    frames: VecDeque<Vec<u8>>,
    frame_bytes: usize,
    /// Data bytes that the thread has put into frames, and that the client has.
    sent: u64,
    confirmed: u64,
    /// The thread has put its last frame.
    ended: bool,
    /// Why the thread shall stop.
    stopped: Option<Code>,
}

impl Flow {
    pub fn new(id: u32, ticket: Ticket, exchange: Arc<Exchange>) -> Self {
        Flow { id, ticket, exchange, state: Mutex::default(), changed: Condvar::new(), stop: Stop::default() }
    }

    // --- the main loop's side: nothing here waits ---

    /// An item from the client.
    pub fn push(&self, item: Item) {
        let mut state = lock(&self.state);
        if state.ended {
            // Nobody will take it; it has crossed with the answer.
            return;
        }
        state.item_bytes += cost(&item);
        self.exchange.wait_for(cost(&item));
        state.items.push_back(item);
        self.changed.notify_one();
    }

    /// Data from the client, which must continue what came before and keep to the window.
    ///
    /// # Errors
    /// `protocol_error` when it does not.
    pub fn push_data(&self, offset: u64, at: Option<u64>, bytes: &[u8]) -> Result<()> {
        {
            let mut state = lock(&self.state);
            if bytes.len() > MAX_CHUNK_BYTES {
                return Err(Error::new(Code::ProtocolError, "a chunk longer than max_chunk_bytes"));
            }
            if offset != state.received {
                return Err(Error::new(Code::ProtocolError, "data does not go on where it ended"));
            }
            state.received += bytes.len() as u64;
            if state.received > state.acknowledged + WINDOW_BYTES {
                return Err(Error::new(Code::ProtocolError, "data beyond the window"));
            }
        }
        self.push(Item::Data { at, bytes: bytes.to_vec() });
        Ok(())
    }

    /// The client has data up to an offset.
    ///
    /// # Errors
    /// `protocol_error` for an offset that goes backwards or was never sent.
    pub fn confirm(&self, offset: u64) -> Result<()> {
        let mut state = lock(&self.state);
        if offset < state.confirmed || offset > state.sent {
            let message = "an acknowledgement backwards or beyond what was sent";
            return Err(Error::new(Code::ProtocolError, message));
        }
        state.confirmed = offset;
        self.changed.notify_one();
        Ok(())
    }

    /// The next frames for the client.
    pub fn take_frames(&self) -> Option<Vec<u8>> {
        let mut state = lock(&self.state);
        let frames = state.frames.pop_front()?;
        state.frame_bytes -= frames.len();
        self.changed.notify_one();
        Some(frames)
    }

    /// Everything was said and taken.
    pub fn is_over(&self) -> bool {
        let state = lock(&self.state);
        state.ended && state.frames.is_empty()
    }

    pub fn has_ended(&self) -> bool {
        lock(&self.state).ended
    }

    /// Let the thread stop: `cancelled`, or `gone` when there is nobody to answer to.
    pub fn halt(&self, why: Code) {
        self.stop.set();
        lock(&self.state).stopped.get_or_insert(why);
        self.changed.notify_one();
    }

    // --- the thread's side: these wait ---

    /// The next item; the one before, with `done` bytes of data, is dealt with. Gives the offset to acknowledge, too.
    pub(super) fn next_item(&self, done: u64) -> Result<(Item, Option<u64>)> {
        let mut state = lock(&self.state);
        state.consumed += done;
        let due = state.consumed - state.acknowledged >= ACKNOWLEDGE_BYTES;
        if due {
            state.acknowledged = state.consumed;
        }
        let acknowledge = due.then_some(state.consumed);
        if due && state.items.is_empty() {
            // The client may be waiting for just this.
            return Ok((Item::Data { at: None, bytes: Vec::new() }, acknowledge));
        }
        loop {
            self.check(&state)?;
            if let Some(item) = state.items.pop_front() {
                state.item_bytes -= cost(&item);
                self.exchange.relieve(cost(&item));
                return Ok((item, acknowledge));
            }
            state = self.wait(state);
        }
    }

    /// Wait until the window has room for `count` bytes of data, and take it. Gives their offset.
    pub(super) fn reserve(&self, count: u64) -> Result<u64> {
        let mut state = lock(&self.state);
        while state.sent + count > state.confirmed + WINDOW_BYTES {
            self.check(&state)?;
            state = self.wait(state);
        }
        self.check(&state)?;
        let offset = state.sent;
        state.sent += count;
        Ok(offset)
    }

    /// Whether [`Flow::reserve`] would return at once.
    pub(super) fn has_window(&self, count: u64) -> bool {
        let state = lock(&self.state);
        state.sent + count <= state.confirmed + WINDOW_BYTES
    }

    /// Hand over whole frames, after waiting for room.
    pub(super) fn put_frames(&self, frames: Vec<u8>) -> Result<()> {
        let mut state = lock(&self.state);
        while state.frame_bytes > OUTBOX_BYTES {
            self.check(&state)?;
            state = self.wait(state);
        }
        self.check(&state)?;
        self.queue(&mut state, frames);
        Ok(())
    }

    /// Hand over the last frames, whatever has happened.
    pub(super) fn end(&self, frames: Vec<u8>) {
        let mut state = lock(&self.state);
        state.ended = true;
        state.items.clear();
        self.exchange.relieve(std::mem::take(&mut state.item_bytes));
        self.queue(&mut state, frames);
    }

    fn queue(&self, state: &mut State, frames: Vec<u8>) {
        state.frame_bytes += frames.len();
        state.frames.push_back(frames);
        self.exchange.ring(self.ticket);
    }

    fn check(&self, state: &State) -> Result<()> {
        match state.stopped {
            Some(Code::Gone) => Err(Error::new(Code::Gone, "the link is lost")),
            Some(code) => Err(Error::new(code, "cancelled")),
            None => Ok(()),
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.exchange.workers.wait_aside(&self.changed, state)
    }
}

fn cost(item: &Item) -> usize {
    ITEM_BYTES
        + match item {
            Item::Entry(entry) => entry.path.len() + entry.target.as_ref().map_or(0, Vec::len),
            Item::Data { bytes, .. } => bytes.len(),
            Item::End => 0,
        }
}
