//! Links over a network: dialled, accepted, authenticated, counted.
//!
//! The source has an epoll of its own and looks like one descriptor to the main loop, which sees a connection only when
//! the provider has proved itself on it. Whoever else connects gets a first message that only the provider can read,
//! a few bytes of memory and a little time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde_bytes::Bytes;

use super::credentials::{Credential, Credentials};
use super::dialler::Dialler;
use super::half_open::{Done, HalfOpen, Origin, Progress};
use super::settings::LinkSettings;
use super::sockets::{self, Kind};
use super::{Accepted, Arrival, Loss};
use crate::connection::Connection;
use crate::error::{Code, Error, Result};
use crate::limits::{HANDSHAKE_MS, MAX_HALF_OPEN_DAEMON};
use crate::reactor::{Interest, Reactor, Ready, Token};
use crate::seal::{Handshake, Key, Opening, Use};

/// A listener that cannot accept (no descriptors, no memory) is left alone for so long.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Tokens below are listeners, the others half-open connections.
const FIRST_HALF_OPEN: Token = 8;
const BOOT_BYTES: usize = 8;

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    kind: Kind,
    paused_until: Option<Instant>,
}

/// An authenticated link, for as long as the main loop has it.
#[derive(Debug)]
struct Live {
    credential: Credential,
    dialled: bool,
    proven: bool,
}

/// See the module's text.
#[derive(Debug)]
pub struct NetworkSource {
    name: String,
    boot: [u8; BOOT_BYTES],
    provider: Key,
    credentials: Credentials,
    reactor: Reactor,
    /// What its epoll has said and nobody has looked at yet.
    ready: Vec<Ready>,
    listeners: Vec<Listener>,
    half_open: BTreeMap<Token, HalfOpen>,
    live: BTreeMap<u64, Live>,
    last_number: u64,
    dialler: Dialler,
    /// The last failure that was told, so that the same one is told once.
    told: String,
    alone_since: Instant,
    grace: Option<Duration>,
    lease_until: Option<Instant>,
}

impl NetworkSource {
    /// Listen, and dial as soon as the main loop runs. From now on grace and lease are counted.
    ///
    /// # Errors
    /// What keeps it from listening where it is told to; the abstract socket is only reported when there is another way in.
    pub fn new(settings: LinkSettings) -> Result<Self> {
        let now = Instant::now();
        let mut boot = [0; BOOT_BYTES];
        crate::seal::fill_random(&mut boot)?;
        let system = |errno| Error::system("epoll", errno);
        let reactor = Reactor::new().map_err(system)?;
        let listeners = listeners(&settings)?;
        for (token, listener) in (0..).zip(&listeners) {
            reactor.add(&listener.socket, token, Interest::Read).map_err(system)?;
        }
        Ok(NetworkSource {
            lease_until: settings.lease.map(|lease| lease_end(lease, now)).transpose()?,
            name: settings.name,
            boot,
            provider: settings.provider_key,
            credentials: Credentials::new(settings.enrol),
            reactor,
            ready: Vec::new(),
            listeners,
            half_open: BTreeMap::new(),
            live: BTreeMap::new(),
            last_number: FIRST_HALF_OPEN,
            dialler: Dialler::new(settings.dial, now),
            told: String::new(),
            alone_since: now,
            grace: settings.grace,
        })
    }

    /// The TCP port that it listens on.
    pub fn port(&self) -> Option<u16> {
        let listener = self.listeners.iter().find(|listener| listener.kind == Kind::Tcp)?;
        let address: SocketAddr = rustix::net::getsockname(&listener.socket).ok()?.try_into().ok()?;
        Some(address.port())
    }

    pub fn accept(&mut self, now: Instant) -> Accepted {
        if self.ready.is_empty()
            && let Err(errno) = self.reactor.wait(Some(Instant::now()), &mut self.ready)
        {
            eprintln!("sandlotd: epoll_wait: {errno}");
        }
        let Some(event) = self.ready.pop() else { return Accepted::Nothing };
        if event.token < FIRST_HALF_OPEN {
            self.take_in(event.token, now);
            return Accepted::Other;
        }
        self.advance(event.token, now)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let half_open = self.half_open.values().map(|one| one.deadline);
        let paused = self.listeners.iter().filter_map(|listener| listener.paused_until);
        half_open.chain(paused).chain(self.dialler.due()).chain(self.grace_end()).chain(self.lease_until).min()
    }

    pub fn expire(&mut self, now: Instant) -> Option<Loss> {
        let late = self.half_open.iter().filter(|(_, one)| one.deadline <= now).map(|(token, _)| *token);
        for token in late.collect::<Vec<_>>() {
            self.give_up(token, &Error::new(Code::Gone, "no answer in time"), now);
        }
        for (token, listener) in (0..).zip(&mut self.listeners) {
            if listener.paused_until.take_if(|until| *until <= now).is_some() {
                watch(&self.reactor, &listener.socket, token, Interest::Read);
            }
        }
        if let Some(address) = self.dialler.take(now) {
            self.dial(address, now);
        }
        if self.lease_until.is_some_and(|until| until <= now) {
            return Some(Loss::Lease);
        }
        self.grace_end().is_some_and(|end| end <= now).then_some(Loss::Links)
    }

    pub fn proven(&mut self, arrival: Arrival) {
        let Some(link) = self.live.get_mut(&arrival.0) else { return };
        link.proven = true;
        if link.dialled {
            self.dialler.proven();
        }
        self.credentials.proven(link.credential.clone());
    }

    pub fn closed(&mut self, arrival: Arrival, now: Instant) {
        let Some(link) = self.live.remove(&arrival.0) else { return };
        if link.dialled && link.proven {
            self.dialler.lost(now, chance());
        } else if link.dialled {
            self.dialler.failed(now, chance());
        }
        if self.live.is_empty() {
            self.alone_since = now;
        }
    }

    pub fn renew(&mut self, lease: Duration, now: Instant) -> Result<()> {
        if self.lease_until.is_none() {
            return Err(Error::new(Code::Unsupported, "this sandbox has no lease"));
        }
        self.lease_until = Some(lease_end(lease, now)?);
        Ok(())
    }

    fn grace_end(&self) -> Option<Instant> {
        self.grace.filter(|_| self.live.is_empty()).and_then(|grace| self.alone_since.checked_add(grace))
    }

    fn dial(&mut self, address: SocketAddr, now: Instant) {
        match sockets::dial(address) {
            Ok(stream) => self.watch_half_open(stream, Origin::Dialled, Interest::Write, now),
            Err(errno) => self.dial_failed(&Error::system("connect", errno), now),
        }
    }

    fn dial_failed(&mut self, error: &Error, now: Instant) {
        self.dialler.failed(now, chance());
        let text = error.message.to_string();
        if text != self.told {
            eprintln!("sandlotd: no link to the provider: {text}");
            self.told = text;
        }
    }

    /// Accept one connection of a listener, and begin its handshake.
    fn take_in(&mut self, token: Token, now: Instant) {
        let Some(listener) = self.listeners.get_mut(token as usize) else { return };
        match sockets::accept(&listener.socket, listener.kind) {
            Ok((stream, origin)) => {
                if self.make_room(origin) {
                    self.watch_half_open(stream, origin, Interest::Read, now);
                    self.speak(self.last_number, now);
                }
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                // It stays ready, and asking again at once would take all our time.
                listener.paused_until = Some(now + ACCEPT_PAUSE);
                watch(&self.reactor, &listener.socket, token, Interest::Neither);
            }
            // Whoever it was has gone again.
            Err(_) => {}
        }
    }

    /// Whether one more may be half open. The oldest from inside makes way, for somebody from outside then the oldest.
    fn make_room(&mut self, newcomer: Origin) -> bool {
        let accepted = |origin: Origin| origin != Origin::Dialled;
        if self.half_open.values().filter(|one| accepted(one.origin)).count() < MAX_HALF_OPEN_DAEMON {
            return true;
        }
        let oldest = |wanted: fn(Origin) -> bool| self.half_open.iter().find(|(_, one)| wanted(one.origin));
        let victim = match oldest(|origin| origin == Origin::Inside) {
            None if newcomer == Origin::Outside => oldest(|origin| origin == Origin::Outside),
            inside => inside,
        };
        let Some(token) = victim.map(|(token, _)| *token) else { return false };
        self.half_open.remove(&token);
        true
    }

    fn watch_half_open(&mut self, stream: OwnedFd, origin: Origin, interest: Interest, now: Instant) {
        self.last_number += 1;
        let one = HalfOpen::new(stream, origin, now + Duration::from_millis(HANDSHAKE_MS));
        let watched = self.reactor.add(&one, self.last_number, interest);
        self.half_open.insert(self.last_number, one);
        if let Err(errno) = watched {
            self.give_up(self.last_number, &Error::system("epoll_ctl", errno), now);
        }
    }

    /// Say the first message.
    fn speak(&mut self, token: Token, now: Instant) {
        let Some(one) = self.half_open.get_mut(&token) else { return };
        let credential = self.credentials.next();
        let opening = Opening { name: &self.name, using: credential.using, boot: Bytes::new(&self.boot) };
        let spoken = Handshake::begin(&self.provider, &credential.secret, &opening)
            .and_then(|(handshake, message)| one.speak(handshake, &message, credential));
        match spoken {
            Ok(()) => watch(&self.reactor, &*one, token, Interest::Read),
            Err(error) => self.give_up(token, &error, now),
        }
    }

    fn advance(&mut self, token: Token, now: Instant) -> Accepted {
        // It may have made way since the event.
        let Some(one) = self.half_open.remove(&token) else { return Accepted::Other };
        let (origin, credential) = (one.origin, one.credential().cloned());
        match one.advance() {
            Ok((Some(one), progress)) => {
                self.half_open.insert(token, one);
                if matches!(progress, Progress::Connected) {
                    self.speak(token, now);
                }
                Accepted::Other
            }
            Ok((None, Progress::Done(done))) => self.admit(*done, credential, now),
            Ok((None, _)) => Accepted::Other,
            Err(error) => {
                self.refused(origin, credential, &error, now);
                Accepted::Other
            }
        }
    }

    /// A handshake is over: the link goes to the main loop.
    fn admit(&mut self, done: Done, credential: Option<Credential>, now: Instant) -> Accepted {
        let granted = self.credentials.granted(done.granted);
        if credential.is_some_and(|credential| credential.using == Use::Enrol) {
            self.restart_enrolments(now);
        }
        // The main loop watches it from now on.
        if let Err(errno) = self.reactor.remove(&done.stream) {
            eprintln!("sandlotd: epoll_ctl: {errno}");
        }
        match Connection::sealed(done.stream, done.seal) {
            Ok(connection) => {
                self.told.clear();
                self.last_number += 1;
                let dialled = done.origin == Origin::Dialled;
                self.live.insert(self.last_number, Live { credential: granted, dialled, proven: false });
                Accepted::Link(connection, Arrival(self.last_number))
            }
            Err(errno) => {
                self.refused(done.origin, None, &Error::system("a new link", errno), now);
                Accepted::Other
            }
        }
    }

    /// One enrolment is enough: others that have begun would be taken for somebody else's.
    fn restart_enrolments(&mut self, now: Instant) {
        let enrols = |one: &HalfOpen| one.credential().is_some_and(|credential| credential.using == Use::Enrol);
        let others = self.half_open.extract_if(.., |_, one| enrols(one));
        if others.filter(|(_, one)| one.origin == Origin::Dialled).count() > 0 {
            self.dialler.lost(now, chance());
        }
    }

    fn give_up(&mut self, token: Token, error: &Error, now: Instant) {
        if let Some(one) = self.half_open.remove(&token) {
            self.refused(one.origin, one.credential().cloned(), error, now);
        }
    }

    /// A connection is not to become a link.
    fn refused(&mut self, origin: Origin, credential: Option<Credential>, error: &Error, now: Instant) {
        if credential.is_some() {
            self.credentials.refused();
        }
        // Anybody may connect to us and leave: only where we have called it is worth a word.
        if origin == Origin::Dialled {
            self.dial_failed(error, now);
        }
    }
}

impl AsFd for NetworkSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

fn listeners(settings: &LinkSettings) -> Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    let mut add = |socket, kind| listeners.push(Listener { socket, kind, paused_until: None });
    if let Some(port) = settings.listen {
        add(sockets::listen_on(port)?, Kind::Tcp);
    }
    if let Some(name) = &settings.local {
        match sockets::listen_locally(name) {
            Ok(socket) => add(socket, Kind::Local),
            // Somebody else has it: a network namespace that is shared with other sandboxes.
            Err(error) if settings.listen.is_some() || !settings.dial.is_empty() => eprintln!("sandlotd: {error}"),
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

/// As [`Reactor::change`], which fails only for want of memory or through a fault of ours.
fn watch(reactor: &Reactor, fd: impl AsFd, token: Token, interest: Interest) {
    if let Err(errno) = reactor.change(fd, token, interest) {
        eprintln!("sandlotd: epoll_ctl: {errno}");
    }
}

fn lease_end(lease: Duration, now: Instant) -> Result<Instant> {
    let end = if lease.is_zero() { None } else { now.checked_add(lease) };
    end.ok_or_else(|| Error::new(Code::BadRequest, "a lease of no length, or without end"))
}

/// Any number: it only spreads what would otherwise happen at the same time.
fn chance() -> u32 {
    let mut bytes = [0; 4];
    // Without it all wait equally long.
    drop(crate::seal::fill_random(&mut bytes));
    u32::from_ne_bytes(bytes)
}
