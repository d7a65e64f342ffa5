//! What is owed to the call that follows a command: output within the window, then the exit.

use serde_bytes::Bytes;

use super::{Call, Server};
use crate::commands::{Command, Number, Outcome, State, Watcher};
use crate::error::{Code, Error, Result};
use crate::limits::{INLINE_BYTES, MAX_CHUNK_BYTES, WINDOW_BYTES};
use crate::message::{Ack, Exit, Mode, Reply, StreamEnd};
use crate::output::Store;
use crate::process::input::Input;
use crate::process::reaper::Ending;

use super::links::Link;

impl Server {
    /// Send what can be sent of a command to the call that follows it.
    pub(crate) fn deliver(&mut self, number: Number) {
        let Some(command) = self.commands.get_mut(number) else { return };
        let Some(mut watcher) = command.watcher else { return };
        let Some(link) = self.links.get_mut(&watcher.link) else { return };
        let complete = (0..2).all(|stream| send_output(link, command, &mut watcher, stream));
        command.watcher = Some(watcher);
        if let (true, State::Ended(outcome)) = (complete, &command.state) {
            send_end(link, command, &watcher, outcome, &self.context.unenforced);
            link.calls.remove(&watcher.id);
            command.watcher = None;
            self.commands.drop_if_done(number);
        }
        self.tend_link(watcher.link);
    }

    /// Let a call follow a known command from the watcher's offsets on. The former call ends as `moved`.
    ///
    /// # Errors
    /// `bad_request` for offsets beyond what there is; those of `begin_call`.
    pub(crate) fn follow(&mut self, number: Number, watcher: Watcher) -> Result<()> {
        let Some(command) = self.commands.get_mut(number) else { return Ok(()) };
        if (0..2).any(|stream| watcher.sent[stream] > command.outputs[stream].store.end()) {
            return Err(Error::new(Code::BadRequest, "an offset beyond the output"));
        }
        let Some(link) = self.links.get_mut(&watcher.link) else { return Ok(()) };
        link.begin_call(watcher.id, Call::Command(number))?;
        for (output, from) in command.outputs.iter_mut().zip(watcher.acknowledged) {
            output.store.acknowledge(from);
        }
        let former = command.watcher.replace(watcher);
        if let Some(offset) = command.input.as_mut().map_or(Some(0), Input::resume) {
            link.send(&Reply::Ack { id: watcher.id, s: 0, off: offset });
        }
        if let Some(former) = former
            && let Some(link) = self.links.get_mut(&former.link)
        {
            link.calls.remove(&former.id);
            link.send(&Reply::error(former.id, &Error::new(Code::Moved, "another call follows this command now")));
        }
        for stream in 0..2 {
            self.watch_output(number, stream);
        }
        self.deliver(number);
        Ok(())
    }

    /// Let the call that made a command follow it; [`Link::check_call`] was asked before the command was made.
    pub(crate) fn follow_new(&mut self, number: Number, link: u64, id: u32) {
        if let (Some(command), Some(owner)) = (self.commands.get_mut(number), self.links.get_mut(&link)) {
            owner.calls.insert(id, Call::Command(number));
            command.watcher = Some(Watcher::from_start(link, id));
        }
    }

    /// The client has output up to an offset.
    ///
    /// # Errors
    /// `protocol_error` for an offset that goes backwards or was never sent.
    pub(crate) fn acknowledge_output(&mut self, number: Number, ack: &Ack) -> Result<()> {
        let Some(command) = self.commands.get_mut(number) else { return Ok(()) };
        let Some(watcher) = &mut command.watcher else { return Ok(()) };
        let stream = match ack.s {
            1 => 0,
            2 => 1,
            _ => return Err(Error::new(Code::ProtocolError, "an acknowledgement of no stream")),
        };
        if ack.off < watcher.acknowledged[stream] || ack.off > watcher.sent[stream] {
            return Err(Error::new(Code::ProtocolError, "an acknowledgement backwards or beyond what was sent"));
        }
        watcher.acknowledged[stream] = ack.off;
        command.outputs[stream].store.acknowledge(ack.off);
        self.watch_output(number, stream);
        self.deliver(number);
        Ok(())
    }

    /// The link is gone: the command goes on with nobody following it.
    pub(super) fn detach(&mut self, number: Number, link: u64) {
        if let Some(command) = self.commands.get_mut(number)
            && command.watcher.is_some_and(|watcher| watcher.link == link)
        {
            command.watcher = None;
        }
        self.commands.drop_if_done(number);
    }
}

/// Send chunks of one stream. True when nothing more stands between this stream and the exit.
fn send_output(link: &mut Link, command: &Command, watcher: &mut Watcher, stream: usize) -> bool {
    let store = &command.outputs[stream].store;
    let Some(target) = target(command, watcher, store) else { return true };
    let (sent, acknowledged) = (&mut watcher.sent[stream], watcher.acknowledged[stream]);
    let s = stream as u8 + 1;
    while *sent < target && link.connection.has_room() {
        let window = (acknowledged + WINDOW_BYTES).saturating_sub(*sent);
        let limit = (target - *sent).min(window).min(MAX_CHUNK_BYTES as u64) as usize;
        let piece = store.piece(*sent, limit);
        if piece.offset > *sent {
            link.send(&Reply::Gap { id: watcher.id, s, from: *sent, to: piece.offset });
            // Acknowledged like data: what the client had of the bytes before may still be on its way.
            *sent = piece.offset;
            continue;
        }
        if piece.bytes.is_empty() {
            break;
        }
        link.send(&Reply::Out { id: watcher.id, s, off: *sent, d: Bytes::new(piece.bytes) });
        *sent += piece.bytes.len() as u64;
    }
    *sent >= target
}

/// The offset up to which output goes in chunks of its own; `None` when none does.
fn target(command: &Command, watcher: &Watcher, store: &Store) -> Option<u64> {
    match (command.mode, command.is_over()) {
        _ if !watcher.output => None,
        (Mode::Collect, false) => None,
        // The exit carries the rest.
        (Mode::Collect, true) => Some(store.end().saturating_sub(INLINE_BYTES as u64)),
        (Mode::Stream | Mode::Job, _) => Some(store.end()),
    }
}

fn send_end(link: &mut Link, command: &Command, watcher: &Watcher, outcome: &Outcome, unenforced: &[String]) {
    let ending = match &outcome.ending {
        Ok(ending) => *ending,
        Err(error) => return link.send(&Reply::error(watcher.id, error)),
    };
    let (code, signal) = match ending {
        Ending::Code(code) => (Some(code), None),
        Ending::Signal(signal) => (None, Some(signal)),
    };
    let rest = [0, 1].map(|stream| rest(command, watcher, stream));
    let end = |stream: usize| {
        let store = &command.outputs[stream].store;
        StreamEnd { total: store.total(), kept: store.kept(), head: store.head(), d: Bytes::new(&rest[stream]) }
    };
    link.send(&Reply::Exit(Exit {
        id: watcher.id,
        code,
        signal,
        timed_out: outcome.timed_out,
        oom: outcome.oom,
        out: end(0),
        err: end(1),
        wall_us: outcome.wall_us,
        user_us: outcome.user_us,
        sys_us: outcome.system_us,
        peak_bytes: outcome.peak_bytes,
        spawn_us: command.spawn_us,
        unenforced,
        cwd: outcome.shell.as_ref().map(|(cwd, _)| Bytes::new(cwd)),
        alive: outcome.shell.as_ref().map(|(_, alive)| *alive),
    }));
}

/// The kept bytes that go with the exit.
fn rest<'a>(command: &'a Command, watcher: &Watcher, stream: usize) -> std::borrow::Cow<'a, [u8]> {
    let store = &command.outputs[stream].store;
    if command.mode != Mode::Collect || !watcher.output {
        return (&[]).into();
    }
    let first = store.piece(watcher.sent[stream], INLINE_BYTES);
    let end = first.offset + first.bytes.len() as u64;
    if end >= store.end() {
        return first.bytes.into();
    }
    let mut bytes = first.bytes.to_vec();
    while let piece = store.piece(watcher.sent[stream] + bytes.len() as u64, INLINE_BYTES)
        && !piece.bytes.is_empty()
    {
        bytes.extend_from_slice(piece.bytes);
    }
    bytes.into()
}
