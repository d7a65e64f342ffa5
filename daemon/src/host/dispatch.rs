//! One function per message of a client (contract, section 7).

use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::clients::Role;
use super::creation::{Made, Workshop};
use super::plan::{self, Terms};
use super::probe;
use super::sandbox::{Call, Life, Sandbox, State};
use super::service::{Service, Watched};
use super::skeleton;
use crate::error::{Code, Error, Result};
use crate::frame::Envelope;
use crate::init::handover;
use crate::message::{
    Create, Created, Destroy, Destroyed, Hello, HelloReply, Named, Probed, Renew, Reply, Request, Role as Reader,
    Sandboxes, parse,
};
use crate::reactor::{Interest, Token};

const FEATURES: [&str; 1] = ["watch"];
/// Version of the contract that we speak.
const VERSION: u32 = 1;

impl Service {
    pub(super) fn dispatch(&mut self, token: Token, envelope: &Envelope<'_>, payload: &[u8]) {
        let id = envelope.id;
        let opened = self.clients.get(&token).is_some_and(|client| client.opened);
        let request = match parse(Reader::Host, envelope, payload) {
            Ok(Some(request)) => request,
            Ok(None) => {
                let error = Error::new(Code::UnknownMessage, format!("a host does not know `{}`", envelope.kind));
                return self.reply(token, &Reply::error(id, &error));
            }
            Err(error) => return self.refuse_client(token, &error.message),
        };
        match request {
            Request::Hello(hello) => return self.hello(token, &hello),
            _ if !opened => return self.refuse_client(token, "the first message is hello"),
            Request::Ping => return self.reply(token, &Reply::Pong { id }),
            Request::Pong => return,
            Request::Bye => return self.drop_client(token),
            _ if id == 0 => return self.refuse_client(token, "a call needs an id"),
            _ => {}
        }
        if let Err(error) = self.call(Call { client: token, id }, &request) {
            self.reply(token, &Reply::error(id, &error));
        }
    }

    fn call(&mut self, call: Call, request: &Request<'_>) -> Result<()> {
        match request {
            Request::Create(create) => self.create(call, create),
            Request::Enter(named) => self.enter(call, named),
            Request::Destroy(destroy) => self.destroy(call, destroy),
            Request::HostList => self.list(call),
            Request::Renew(renew) => self.renew(call, renew),
            Request::Watch => self.watch(call),
            Request::Cancel => self.cancel(call),
            Request::Probe => self.probe(call),
            _ => Err(Error::new(Code::UnknownMessage, "this message is not for a host")),
        }
    }

    fn hello(&mut self, token: Token, hello: &Hello<'_>) {
        if !hello.versions.contains(&u64::from(VERSION)) {
            let error = Error::new(Code::Version, format!("this daemon speaks version {VERSION}"));
            self.reply(token, &Reply::error(0, &error));
            return self.drop_client(token);
        }
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.opened = true;
        client.connection.opened();
        let (mode, name) = (self.station.machine.mode.name(), self.station.runtime.id.clone());
        let reply = HelloReply {
            version: VERSION,
            role: "host",
            daemon: crate::NAME,
            name: &name,
            features: &FEATURES,
            mode,
            unenforced: &[],
        };
        self.reply(token, &Reply::Hello(reply));
    }

    fn create(&mut self, call: Call, create: &Create<'_>) -> Result<()> {
        if self.closing {
            return Err(Error::new(Code::Gone, "this host is closing").with_why("host_closing"));
        }
        if self.sandboxes.contains_key(create.name) {
            return Err(Error::new(Code::Exists, format!("there is a sandbox `{}`", create.name)));
        }
        let plan = plan::plan(create, &self.station.machine)?;
        if create.image.kind == crate::message::ImageKind::Host {
            skeleton::ensure(&self.station.machine.skeleton, self.station.ids.shared_root())?;
        }
        let (terms, labels, image) = (plan.terms, plan.labels.clone(), plan.image.clone());
        let unenforced = plan.blueprint.unenforced.clone();
        self.serial += 1;
        let station = &mut self.station;
        let mut workshop = Workshop {
            binary: &station.binary,
            ids: &mut station.ids,
            realm: station.machine.realm,
            hierarchies: &station.machine.hierarchies,
            disks: &station.machine.disks,
            warden: station.warden.drops(),
        };
        let made = workshop.make(plan, self.serial)?;
        let sandbox = new_sandbox(create.name, made, call, terms);
        self.adopt(Sandbox { labels, image, unenforced, ..sandbox })?;
        if let Some(client) = self.clients.get_mut(&call.client) {
            client.role = Role::Waiting;
        }
        Ok(())
    }

    /// Watch a sandbox that has just been made.
    fn adopt(&mut self, sandbox: Sandbox) -> Result<()> {
        let name = sandbox.name.clone();
        let (link, init) = (self.name(Watched::Link(name.clone())), self.name(Watched::Init(name.clone())));
        let added = self.reactor.add(sandbox.link.as_fd(), link, Interest::Read);
        let added = added.and_then(|()| self.reactor.add(sandbox.pidfd.as_fd(), init, Interest::Read));
        self.sandboxes.insert(name.clone(), sandbox);
        added.map_err(|errno| {
            self.end(&name, crate::message::Why::Killed);
            Error::system("watch the sandbox", errno)
        })
    }

    fn enter(&mut self, call: Call, named: &Named<'_>) -> Result<()> {
        match self.sandboxes.get(named.name) {
            Some(sandbox) if sandbox.is_alive() => {}
            Some(sandbox) if matches!(sandbox.state, State::Booting { .. }) => {
                return Err(Error::new(Code::Busy, "the sandbox is being made"));
            }
            _ => {
                let error = Error::new(Code::Gone, format!("there is no sandbox `{}`", named.name));
                let ended = self.gone.iter().rev().find(|(name, _)| name == named.name);
                return Err(match ended {
                    Some((_, why)) => error.with_why(why_text(*why)),
                    None => error,
                });
            }
        }
        self.reply(call.client, &Reply::Ok { id: call.id });
        self.become_link(call.client, named.name);
        Ok(())
    }

    /// From here on the connection belongs to the sandbox.
    pub(super) fn become_link(&mut self, token: Token, name: &str) {
        if let Some(client) = self.clients.get_mut(&token) {
            client.role = Role::Link(name.to_owned());
            self.settle_client(token);
        }
    }

    /// Give the connection to the sandbox's init. Everything of ours has been sent on it.
    pub(super) fn hand_over(&mut self, token: Token, name: &str) {
        let Some(client) = self.clients.remove(&token) else { return };
        self.watched.remove(&token);
        // Others hold copies of the socket from now on, so closing ours would not end the watching.
        if let Err(errno) = self.reactor.remove(client.connection.as_fd()) {
            eprintln!("sandlotd host: {errno}");
        }
        let (stream, rest) = client.connection.into_parts();
        if !rest.is_empty() {
            // It spoke to the sandbox before it was told that it may. Dropping the connection tells it.
            return;
        }
        if let Some(sandbox) = self.sandboxes.get(name)
            && let Err(error) = handover::send(&sandbox.link, &[stream.as_fd()])
        {
            eprintln!("sandlotd host: hand over a connection to `{name}`: {error}");
        }
    }

    fn destroy(&mut self, call: Call, destroy: &Destroy<'_>) -> Result<()> {
        let Some(sandbox) = self.sandboxes.get_mut(destroy.name) else {
            self.reply(call.client, &Reply::OkDestroy(Destroyed { id: call.id, existed: false }));
            return Ok(());
        };
        sandbox.life.waiters.push(call);
        self.terminate(destroy.name, Duration::from_millis(destroy.grace_ms))
    }

    fn list(&mut self, call: Call) -> Result<()> {
        let (mode, now) = (self.station.machine.mode.name(), Instant::now());
        let entries: Vec<_> = self.sandboxes.values().map(|sandbox| sandbox.entry(mode, now)).collect();
        self.reply(call.client, &Reply::OkSandboxes(Sandboxes { id: call.id, sandboxes: &entries }));
        Ok(())
    }

    fn renew(&mut self, call: Call, renew: &Renew<'_>) -> Result<()> {
        let Some(sandbox) = self.sandboxes.get_mut(renew.name) else {
            return Err(Error::new(Code::Gone, format!("there is no sandbox `{}`", renew.name)));
        };
        if !sandbox.life.renew(Instant::now(), renew.lease_ms) {
            return Err(Error::new(Code::BadRequest, "an attached sandbox has no lease"));
        }
        self.reply(call.client, &Reply::Ok { id: call.id });
        Ok(())
    }

    fn watch(&mut self, call: Call) -> Result<()> {
        if let Some(client) = self.clients.get_mut(&call.client) {
            client.watches.insert(call.id);
        }
        Ok(())
    }

    fn cancel(&mut self, call: Call) -> Result<()> {
        let watched = self.clients.get_mut(&call.client).is_some_and(|client| client.watches.remove(&call.id));
        if watched { Err(Error::new(Code::Cancelled, "no longer watched")) } else { Ok(()) }
    }

    fn probe(&mut self, call: Call) -> Result<()> {
        let (facts, missing) = probe::probe(&self.station.machine, &self.station.runtime);
        let mode = self.station.machine.mode.name();
        self.reply(call.client, &Reply::OkProbe(Probed { id: call.id, mode, facts: &facts, missing: &missing }));
        Ok(())
    }

    /// Tell the creator of a sandbox that it is there, and give it the link.
    pub(super) fn announce(&mut self, name: &str, creator: Call) {
        let Some(sandbox) = self.sandboxes.get(name) else { return };
        let (spans, unenforced) = (sandbox.spans.clone(), sandbox.unenforced.clone());
        self.reply(
            creator.client,
            &Reply::OkCreate(Created { id: creator.id, unenforced: &unenforced, spans: &spans }),
        );
        self.become_link(creator.client, name);
    }
}

fn new_sandbox(name: &str, made: Made, creator: Call, terms: Terms) -> Sandbox {
    let now = Instant::now();
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let created_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
    Sandbox {
        name: name.to_owned(),
        pid: made.newborn.pid,
        pidfd: made.newborn.pidfd,
        link: made.newborn.link,
        state: State::Booting { creator, since: now },
        group: made.group,
        hold: made.hold,
        disk: made.disk,
        life: Life::new(terms, now, created_ms),
        labels: std::collections::BTreeMap::new(),
        image: String::new(),
        unenforced: Vec::new(),
        spans: made.spans,
        failed_creation: None,
        detail: String::new(),
    }
}

/// `why` as the wire has it.
pub(super) fn why_text(why: crate::message::Why) -> &'static str {
    use crate::message::Why;
    match why {
        Why::Oom => "oom",
        Why::Killed => "killed",
        Why::Exited => "exited",
        Why::LeaseExpired => "lease_expired",
        Why::Idle => "idle",
        Why::Lifetime => "lifetime",
        Why::HostClosing => "host_closing",
    }
}
