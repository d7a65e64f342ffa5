//! Connections of clients: opening, keepalive, calls, and the one place where a request finds its verb's file.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Ended, Server, Subject};
use crate::commands::Number;
use crate::connection::{Connection, Received};
use crate::error::{Code, Error, Result};
use crate::frame::{self, Envelope};
use crate::limits::{KEEPALIVE_MS, LINK_DEAD_MS, MAX_CALLS};
use crate::message::{HelloReply, Reply, Request, Role};
use crate::reactor::{Interest, Ready};
use crate::source::{Accepted, Arrival};
use crate::transfer::Ticket;

/// Clients that may be connected at the same time.
const MAX_LINKS: usize = 64;
/// Steps of the source at one go: somebody who connects again and again does not keep the loop from its work.
const MAX_ACCEPTS: usize = 32;
/// What this daemon can do beyond version 1's minimum.
const FEATURES: [&str; 2] = ["pty", "shells"];
const WIRE_VERSION: u64 = 1;

/// What a live call stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Follows a command.
    Command(Number),
    /// Waits for a file operation.
    Files(Ticket),
}

/// One client's connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub connection: Connection,
    pub calls: HashMap<u32, Call>,
    /// Its name at its source.
    arrival: Arrival,
    opened: bool,
    /// Something has come after hello: the client has heard us.
    proven: bool,
    interest: Interest,
    last_heard: Instant,
    pinged: bool,
    /// Close it as soon as its verb has returned.
    broken: bool,
}

impl Link {
    /// Send, and note a broken link for whoever owns it.
    pub fn send(&mut self, reply: &Reply<'_>) {
        if let Err(error) = self.connection.send(reply) {
            if error.code != Code::Gone {
                eprintln!("sandlotd: {error}");
            }
            self.broken = true;
        }
    }

    /// As [`Link::send`], for whole frames.
    pub fn send_encoded(&mut self, frames: Vec<u8>) {
        self.broken |= self.connection.send_encoded(frames).is_err();
    }

    /// Claim a call id.
    ///
    /// # Errors
    /// Those of [`Link::check_call`].
    pub fn begin_call(&mut self, id: u32, call: Call) -> Result<()> {
        self.check_call(id)?;
        self.calls.insert(id, call);
        Ok(())
    }

    /// Whether a call id may be claimed.
    ///
    /// # Errors
    /// `protocol_error` for an id in use, `too_many` when `max_calls` live.
    pub fn check_call(&self, id: u32) -> Result<()> {
        if self.calls.contains_key(&id) {
            return Err(Error::new(Code::ProtocolError, format!("call {id} is still alive")));
        }
        if self.calls.len() >= MAX_CALLS {
            return Err(Error::new(Code::TooMany, format!("{MAX_CALLS} calls live on this connection")));
        }
        Ok(())
    }
}

impl Server {
    pub(super) fn accept_links(&mut self) -> Option<Ended> {
        for _ in 0..MAX_ACCEPTS {
            match self.source.accept(Instant::now()) {
                Accepted::Link(connection, arrival) => {
                    if let Err(error) = self.add_link(connection, arrival) {
                        eprintln!("sandlotd: a new client: {error}");
                        self.source.closed(arrival, Instant::now());
                    }
                }
                Accepted::Other => {}
                Accepted::Nothing => return None,
                Accepted::Closed => return Some(Ended::SourceClosed),
            }
        }
        None
    }

    fn add_link(&mut self, connection: Connection, arrival: Arrival) -> Result<()> {
        if self.links.len() >= MAX_LINKS && !self.drop_quietest_link() {
            return Err(Error::new(Code::TooMany, "too many clients"));
        }
        self.last_link += 1;
        self.reactor
            .add(&connection, Subject::Link(self.last_link).token(), Interest::Read)
            .map_err(|errno| Error::system("epoll_ctl", errno))?;
        let link = Link {
            connection,
            calls: HashMap::new(),
            arrival,
            opened: false,
            proven: false,
            interest: Interest::Read,
            last_heard: Instant::now(),
            pinged: false,
            broken: false,
        };
        self.links.insert(self.last_link, link);
        Ok(())
    }

    /// Of links over a network the dead linger: the one heard of longest ago makes way for a new one.
    fn drop_quietest_link(&mut self) -> bool {
        if !self.source.is_network() {
            return false;
        }
        let quietest = self.links.iter().min_by_key(|(_, link)| link.last_heard).map(|(number, _)| *number);
        quietest.inspect(|number| self.close_link(*number)).is_some()
    }

    pub(super) fn link_ready(&mut self, number: u64, ready: Ready) {
        if ready.writable {
            self.link_writable(number);
        }
        if ready.readable {
            self.link_readable(number);
        }
        self.tend_link(number);
    }

    fn link_writable(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        link.broken |= link.connection.flush().is_err();
        let calls: Vec<Call> = link.calls.values().copied().collect();
        for call in calls {
            match call {
                Call::Command(command) => self.deliver(command),
                Call::Files(ticket) => self.deliver_transfer(ticket),
            }
        }
    }

    fn link_readable(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if !link.connection.may_receive() || self.transfers.held.contains(&number) {
            return;
        }
        let received = link.connection.receive();
        if received == Received::Nothing {
            return;
        }
        link.last_heard = Instant::now();
        link.pinged = false;
        self.last_used = link.last_heard;
        let mut inbox = std::mem::take(link.connection.inbox_mut());
        let result = self.handle_frames(number, &mut inbox);
        let Some(link) = self.links.get_mut(&number) else { return };
        *link.connection.inbox_mut() = inbox;
        link.broken |= received == Received::Closed;
        if let Err(breach) = result {
            link.send(&Reply::error(0, &breach));
            link.broken = true;
        }
    }

    fn handle_frames(&mut self, number: u64, inbox: &mut crate::connection::Inbox) -> Result<()> {
        loop {
            match inbox.next_frame() {
                Ok(Some(payload)) => self.handle_payload(number, payload)?,
                Ok(None) => return Ok(()),
                Err(breach) => return Err(breach_error(breach)),
            }
            if let Some(link) = self.links.get(&number)
                && link.opened
            {
                inbox.opened();
            }
        }
    }

    /// An `Err` ends the connection.
    fn handle_payload(&mut self, number: u64, payload: &[u8]) -> Result<()> {
        let envelope = frame::inspect(payload).map_err(breach_error)?;
        let request = crate::message::parse(Role::Init, &envelope, payload)?;
        let opened = self.links.get(&number).is_some_and(|link| link.opened);
        match request {
            Some(Request::Hello(hello)) if !opened => self.open_link(number, &hello),
            Some(Request::Hello(_)) => Err(Error::new(Code::ProtocolError, "hello again")),
            _ if !opened => Err(Error::new(Code::ProtocolError, "the first message is not hello")),
            Some(request) => self.handle_request(number, &envelope, &request),
            None => {
                let error = Error::new(Code::UnknownMessage, format!("{:.64?} is not known here", envelope.kind));
                self.reply(number, &Reply::error(envelope.id, &error));
                Ok(())
            }
        }
    }

    fn open_link(&mut self, number: u64, hello: &crate::message::Hello<'_>) -> Result<()> {
        let Some(link) = self.links.get_mut(&number) else { return Ok(()) };
        if !hello.versions.contains(&WIRE_VERSION) {
            return Err(Error::new(Code::Version, "this daemon speaks version 1"));
        }
        link.opened = true;
        link.send(&Reply::Hello(HelloReply {
            version: 1,
            role: "init",
            daemon: crate::NAME,
            name: &self.context.name,
            features: &[&FEATURES[..], self.context.features].concat(),
            mode: &self.context.mode,
            unenforced: &self.context.unenforced,
        }));
        Ok(())
    }

    fn handle_request(&mut self, link: u64, envelope: &Envelope<'_>, request: &Request<'_>) -> Result<()> {
        let id = envelope.id;
        self.note_proof(link);
        match request {
            Request::Ping => {
                self.reply(link, &Reply::Pong { id });
                return Ok(());
            }
            Request::Pong => return Ok(()),
            Request::Forget(forget) => {
                forget.keys.iter().for_each(|key| self.commands.forget(key));
                return Ok(());
            }
            Request::Bye => {
                self.close_link(link);
                return Ok(());
            }
            _ if id == 0 => return Err(Error::new(Code::ProtocolError, "id 0 is no call")),
            _ => {}
        }
        match self.call(link, id, request) {
            Err(error) if error.code == Code::ProtocolError => Err(error),
            Err(error) => {
                self.reply(link, &Reply::error(id, &error));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn note_proof(&mut self, number: u64) {
        if let Some(link) = self.links.get_mut(&number)
            && !link.proven
        {
            link.proven = true;
            self.source.proven(link.arrival);
        }
    }

    pub(crate) fn reply(&mut self, link: u64, reply: &Reply<'_>) {
        if let Some(link) = self.links.get_mut(&link) {
            link.send(reply);
        }
    }

    /// Close a link that is broken, and watch the others for what they now wait for.
    pub(crate) fn tend_link(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if link.broken {
            return self.close_link(number);
        }
        let may_receive = link.connection.may_receive() && !self.transfers.held.contains(&number);
        let interest = Interest::new(may_receive, link.connection.is_blocked());
        if interest != link.interest {
            link.interest = interest;
            if let Err(errno) = self.reactor.change(&link.connection, Subject::Link(number).token(), interest) {
                eprintln!("sandlotd: epoll_ctl: {errno}");
                self.close_link(number);
            }
        }
    }

    /// A link is gone; its commands go on without it, its file operations leave nothing.
    fn close_link(&mut self, number: u64) {
        let Some(link) = self.links.remove(&number) else { return };
        self.transfers.held.remove(&number);
        self.source.closed(link.arrival, Instant::now());
        for call in link.calls.into_values() {
            match call {
                Call::Command(command) => self.detach(command, number),
                Call::Files(ticket) => self.halt_transfer(ticket, Code::Gone),
            }
        }
    }

    pub(super) fn next_link_deadline(&self) -> Option<Instant> {
        let due = |link: &Link| link.last_heard + if link.pinged { dead_after() } else { keepalive() };
        self.links.values().map(due).min()
    }

    pub(super) fn check_links(&mut self, now: Instant) {
        let quiet = |link: &Link| now.duration_since(link.last_heard);
        let due: Vec<u64> =
            self.links.iter().filter(|(_, link)| quiet(link) >= keepalive()).map(|(number, _)| *number).collect();
        for number in due {
            let Some(link) = self.links.get_mut(&number) else { continue };
            if quiet(link) >= dead_after() {
                link.broken = true;
            } else if !link.pinged {
                link.pinged = true;
                link.send(&Reply::Ping { id: 0 });
            }
            self.tend_link(number);
        }
    }
}

fn keepalive() -> Duration {
    Duration::from_millis(KEEPALIVE_MS)
}

fn dead_after() -> Duration {
    Duration::from_millis(LINK_DEAD_MS)
}

fn breach_error(breach: frame::Breach) -> Error {
    Error::new(Code::ProtocolError, breach.to_string())
}
