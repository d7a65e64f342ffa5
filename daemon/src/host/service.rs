//! The host's main loop: readiness and deadlines in, calls answered, sandboxes made and ended. One thread; nothing in it
//! waits for a sandbox or a client.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::Uid;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};

use super::birth::Binary;
use super::clients::{Client, Role};
use super::ids::Ids;
use super::plan::Machine;
use super::runtime::Runtime;
use super::sandbox::Sandbox;
use super::userns::Realm;
use super::warden::Warden;
use crate::connection::{Connection, Received};
use crate::error::{Code, Error, Result};
use crate::frame;
use crate::message::{Reply, Why};
use crate::reactor::{Interest, Reactor, Ready, Token};

/// Whom the kernel shows for an id that has no name in a user namespace.
const OVERFLOW_ID: u32 = 65_534;
/// Pause of the listener after running out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Watched {
    Listener,
    Control,
    ClientProcess,
    Signals,
    Warden,
    Client,
    /// The private link of a sandbox that boots.
    Link(String),
    /// The init of a sandbox.
    Init(String),
    /// The thread that removes a sandbox's directory.
    Remover(String),
}

/// What the host was started with.
#[derive(Debug)]
pub struct Station {
    pub listener: OwnedFd,
    pub control: OwnedFd,
    /// The client's process.
    pub client: OwnedFd,
    /// SIGTERM.
    pub signals: OwnedFd,
    pub runtime: Runtime,
    pub binary: Binary,
    pub ids: Ids,
    pub machine: Machine,
    pub warden: Warden,
}

#[derive(Debug)]
pub struct Service {
    pub(super) station: Station,
    pub(super) reactor: Reactor,
    pub(super) watched: HashMap<Token, Watched>,
    pub(super) clients: HashMap<Token, Client>,
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    /// Number of the next sandbox.
    pub(super) serial: u64,
    /// The client is gone: attached sandboxes end, no new ones are made.
    pub(super) closing: bool,
    /// The latest ends of sandboxes, to say why to those who come back.
    pub(super) gone: VecDeque<(String, Why)>,
    next_token: Token,
    listener_paused: Option<Instant>,
}

impl Service {
    pub fn new(station: Station) -> Result<Self> {
        let failed = |errno| Error::system("watch", errno);
        let reactor = Reactor::new().map_err(failed)?;
        let mut service = Service {
            station,
            reactor,
            watched: HashMap::new(),
            clients: HashMap::new(),
            sandboxes: BTreeMap::new(),
            serial: 0,
            closing: false,
            gone: VecDeque::new(),
            next_token: 0,
            listener_paused: None,
        };
        for watched in [Watched::Listener, Watched::Control, Watched::ClientProcess, Watched::Signals, Watched::Warden]
        {
            let token = service.name(watched.clone());
            let fd = match watched {
                Watched::Listener => service.station.listener.as_fd(),
                Watched::Control => service.station.control.as_fd(),
                Watched::ClientProcess => service.station.client.as_fd(),
                Watched::Signals => service.station.signals.as_fd(),
                _ => service.station.warden.pidfd.as_fd(),
            };
            service.reactor.add(fd, token, Interest::Read).map_err(failed)?;
        }
        Ok(service)
    }

    /// Serve until the client is gone and no sandbox is left.
    pub fn run(&mut self) -> Result<()> {
        let mut ready = Vec::new();
        while !(self.closing && self.sandboxes.is_empty()) {
            ready.clear();
            self.reactor.wait(self.deadline(), &mut ready).map_err(|errno| Error::system("wait", errno))?;
            for event in &ready {
                self.handle(*event);
            }
            self.keep_time(Instant::now());
        }
        Ok(())
    }

    /// A new token for `watched`.
    pub(super) fn name(&mut self, watched: Watched) -> Token {
        self.next_token += 1;
        self.watched.insert(self.next_token, watched);
        self.next_token
    }

    fn handle(&mut self, event: Ready) {
        // What an earlier event of the same batch has ended is no longer there.
        let Some(watched) = self.watched.get(&event.token).cloned() else { return };
        match watched {
            Watched::Listener => self.accept(),
            Watched::Control => self.hear_control(event.token),
            Watched::ClientProcess => self.lose_client(event.token),
            Watched::Signals => self.hear_signal(),
            Watched::Warden => self.replace_warden(event.token),
            Watched::Client => self.hear_client(event),
            Watched::Link(name) => self.hear_init(event.token, &name),
            Watched::Init(name) => self.collect(event.token, &name),
            Watched::Remover(name) => self.finish_remover(event.token, &name),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.sandboxes.values().filter_map(Sandbox::deadline).chain(self.listener_paused).min()
    }

    fn keep_time(&mut self, now: Instant) {
        if self.listener_paused.is_some_and(|until| until <= now) {
            self.listener_paused = None;
            self.set_listener(Interest::Read);
        }
        let due: Vec<String> = self
            .sandboxes
            .values()
            .filter(|sandbox| sandbox.deadline().is_some_and(|at| at <= now))
            .map(|sandbox| sandbox.name.clone())
            .collect();
        for name in due {
            self.act_on_time(&name, now);
        }
    }

    // --- the client that started us --------------------------------------------------------------------------------

    fn hear_control(&mut self, token: Token) {
        let mut ignored = [0_u8; 256];
        match rustix::net::recv(&self.station.control, &mut ignored, RecvFlags::DONTWAIT) {
            Ok((count, _)) if count > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => self.lose_client(token),
        }
    }

    fn lose_client(&mut self, token: Token) {
        let fd = match self.watched.remove(&token) {
            Some(Watched::Control) => self.station.control.as_fd(),
            _ => self.station.client.as_fd(),
        };
        if let Err(errno) = self.reactor.remove(fd) {
            eprintln!("sandlotd host: {errno}");
        }
        self.close();
    }

    fn hear_signal(&mut self) {
        let mut record = [0_u8; size_of::<libc::signalfd_siginfo>()];
        if rustix::io::read(&self.station.signals, &mut record).is_ok() {
            self.close();
        }
    }

    /// End every attached sandbox, and ourselves with the last one.
    fn close(&mut self) {
        self.closing = true;
        let attached: Vec<String> = self
            .sandboxes
            .values()
            .filter(|sandbox| sandbox.life.owner == crate::message::Owner::Attached)
            .map(|sandbox| sandbox.name.clone())
            .collect();
        for name in attached {
            self.end(&name, Why::HostClosing);
        }
    }

    fn replace_warden(&mut self, token: Token) {
        self.watched.remove(&token);
        if let Err(errno) = self.reactor.remove(&self.station.warden.pidfd) {
            eprintln!("sandlotd host: {errno}");
        }
        let renewed = self.station.warden.replace(&self.station.runtime).and_then(|()| {
            let token = self.name(Watched::Warden);
            let pidfd = self.station.warden.pidfd.as_fd();
            self.reactor.add(pidfd, token, Interest::Read).map_err(|errno| Error::system("watch the warden", errno))
        });
        if let Err(error) = renewed {
            eprintln!("sandlotd host: no warden: {error}");
        }
    }

    // --- connections -----------------------------------------------------------------------------------------------

    fn accept(&mut self) {
        loop {
            match rustix::net::accept_with(&self.station.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(stream) => self.admit(stream),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    eprintln!("sandlotd host: accept: {errno}");
                    self.listener_paused = Some(Instant::now() + ACCEPT_PAUSE);
                    self.set_listener(Interest::Neither);
                    return;
                }
            }
        }
    }

    fn set_listener(&mut self, interest: Interest) {
        let token = self.watched.iter().find(|(_, watched)| **watched == Watched::Listener).map(|(token, _)| *token);
        if let Some(token) = token
            && let Err(errno) = self.reactor.change(&self.station.listener, token, interest)
        {
            eprintln!("sandlotd host: {errno}");
        }
    }

    /// Only this user and root may connect.
    ///
    /// In a user namespace of our own, root of the machine is one of the many who have no id here: then it is the
    /// directory of the socket, which nobody else may enter, that keeps those others out.
    fn admit(&mut self, stream: OwnedFd) {
        let in_own_namespace = self.station.machine.realm == Realm::UserNamespace;
        let may_come = |uid: Uid| {
            uid == rustix::process::geteuid() || uid.is_root() || (in_own_namespace && uid.as_raw() == OVERFLOW_ID)
        };
        if !rustix::net::sockopt::socket_peercred(&stream).is_ok_and(|peer| may_come(peer.uid)) {
            return;
        }
        let token = self.name(Watched::Client);
        let client = Connection::new(stream).and_then(|connection| Client::new(connection, token, &self.reactor));
        match client {
            Ok(client) => drop(self.clients.insert(token, client)),
            Err(errno) => {
                eprintln!("sandlotd host: admit: {errno}");
                self.watched.remove(&token);
            }
        }
    }

    pub(super) fn drop_client(&mut self, token: Token) {
        self.watched.remove(&token);
        self.clients.remove(&token);
    }

    fn hear_client(&mut self, event: Ready) {
        let Some(client) = self.clients.get_mut(&event.token) else { return };
        if event.writable && client.connection.flush().is_err() {
            return self.drop_client(event.token);
        }
        if event.readable && client.role == Role::Waiting {
            // It has hung up: nobody listens to the answer. Its sandbox is made all the same, for `enter` or `destroy`.
            return self.drop_client(event.token);
        }
        if event.readable && client.listens() {
            match client.connection.receive() {
                Received::Some => self.take_frames(event.token),
                Received::Nothing => {}
                Received::Closed => return self.drop_client(event.token),
            }
        }
        self.settle_client(event.token);
    }

    /// Act on what came, as long as the client speaks with us and not with a sandbox.
    fn take_frames(&mut self, token: Token) {
        while let Some(client) = self.clients.get_mut(&token) {
            if !client.listens() {
                return;
            }
            match client.connection.next_frame().map(|frame| frame.map(<[u8]>::to_vec)) {
                Ok(None) => return,
                Ok(Some(payload)) => self.take_payload(token, &payload),
                Err(breach) => return self.refuse_client(token, &breach.to_string()),
            }
        }
    }

    fn take_payload(&mut self, token: Token, payload: &[u8]) {
        match frame::inspect(payload) {
            Ok(envelope) => self.dispatch(token, &envelope, payload),
            Err(breach) => self.refuse_client(token, &breach.to_string()),
        }
    }

    /// A breach of the contract: told, and the end of the connection.
    pub(super) fn refuse_client(&mut self, token: Token, why: &str) {
        let error = Error::new(Code::ProtocolError, why.to_owned());
        self.reply(token, &Reply::error(0, &error));
        self.drop_client(token);
    }

    /// Send to a client, if it is still there.
    pub(super) fn reply(&mut self, token: Token, reply: &Reply<'_>) {
        if let Some(client) = self.clients.get_mut(&token)
            && client.send(reply).is_err()
        {
            self.drop_client(token);
        }
    }

    /// Hand over a connection that has become a link, and wait for the right things on all others.
    pub(super) fn settle_client(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        match &client.role {
            Role::Link(name) if !client.connection.is_blocked() => {
                let name = name.clone();
                self.hand_over(token, &name);
            }
            _ => {
                if client.update(token, &self.reactor).is_err() {
                    self.drop_client(token);
                }
            }
        }
    }
}

impl Service {
    /// Leave nothing: the last thing a host does.
    pub fn leave(&mut self) -> Result<()> {
        self.station.runtime.remove()
    }
}
