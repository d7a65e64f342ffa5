//! File operations of calls: begun on a thread, fed, listened to, and ended with their links.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::sync::Arc;

use super::{Call, Server};
use crate::confinement::Identity;
use crate::error::{Code, Error, Result};
use crate::files::{Item, Root, act_as};
use crate::message::Ack;
use crate::transfer::{Exchange, Flow, Port, Positions, Ticket};

/// File operations of all clients together that are begun and not over.
const MAX_LIVE: usize = 4096;

/// The file operations that are running.
#[derive(Debug)]
pub(crate) struct Transfers {
    live: HashMap<Ticket, Live>,
    last: Ticket,
    pub(super) exchange: Arc<Exchange>,
    /// Links whose clients have sent more than the threads can take at once; nothing is read from them.
    pub(super) held: BTreeSet<u64>,
}

#[derive(Debug)]
struct Live {
    link: u64,
    flow: Arc<Flow>,
}

impl Transfers {
    pub fn new() -> Result<Self> {
        let exchange = Exchange::new().map_err(|errno| Error::system("eventfd", errno))?;
        Ok(Transfers { live: HashMap::new(), last: 0, exchange: Arc::new(exchange), held: BTreeSet::new() })
    }

    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

impl Server {
    /// Begin a file operation with the rights of `user`. `job` answers through the port, or fails.
    ///
    /// # Errors
    /// Those of an unknown user and of `check_call`, and `too_many`; the call is then not begun.
    pub(crate) fn begin_transfer(
        &mut self,
        (link, id): (u64, u32),
        user: Option<&str>,
        positions: Positions,
        job: impl FnOnce(&Root, &mut Port) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let identity = match user {
            Some(user) => crate::users::resolve(self.context.root.as_fd(), user, &self.context.id_maps)?.identity,
            None => self.default_user.identity.clone(),
        };
        self.begin_transfer_as((link, id), identity, positions, job)
    }

    /// As [`Server::begin_transfer`], for somebody who is known already.
    pub(crate) fn begin_transfer_as(
        &mut self,
        (link, id): (u64, u32),
        identity: Identity,
        positions: Positions,
        job: impl FnOnce(&Root, &mut Port) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(owner) = self.links.get_mut(&link) else { return Ok(()) };
        owner.check_call(id)?;
        let transfers = &mut self.transfers;
        if transfers.live.len() >= MAX_LIVE {
            return Err(Error::new(Code::TooMany, format!("{MAX_LIVE} file operations at once")));
        }
        let ticket = transfers.last + 1;
        let flow = Arc::new(Flow::new(id, ticket, Arc::clone(&transfers.exchange)));
        let dir = rustix::io::fcntl_dupfd_cloexec(&self.context.root, 0)
            .map_err(|errno| Error::system("open the root", errno))?;
        let root = Root::new(dir, &self.context.workdir, flow.stop.clone());
        let mut port = Port::new(Arc::clone(&flow), positions);
        transfers.exchange.workers.run(move || {
            if let Err(error) = act_as(&identity, || job(&root, &mut port)) {
                port.fail(&error);
            }
        });
        owner.calls.insert(id, Call::Files(ticket));
        transfers.last = ticket;
        transfers.live.insert(ticket, Live { link, flow });
        Ok(())
    }

    /// More for a running operation. What comes after its end has crossed with it.
    pub(crate) fn feed_transfer(&mut self, link: u64, id: u32, item: Item) {
        if let Some(flow) = self.find_transfer(link, id) {
            flow.push(item);
            self.hold_back(link);
        }
    }

    /// As [`Server::feed_transfer`], for data.
    ///
    /// # Errors
    /// `protocol_error` for data out of place.
    pub(crate) fn feed_data(&mut self, link: u64, id: u32, data: &crate::message::Data<'_>) -> Result<()> {
        if let Some(flow) = self.find_transfer(link, id) {
            flow.push_data(data.off, data.at, data.d)?;
            self.hold_back(link);
        }
        Ok(())
    }

    /// The client has data up to an offset.
    ///
    /// # Errors
    /// `protocol_error` for an offset that goes backwards or was never sent.
    pub(crate) fn acknowledge_transfer(&mut self, ticket: Ticket, ack: &Ack) -> Result<()> {
        let Some(live) = self.transfers.live.get(&ticket) else { return Ok(()) };
        if ack.s != 1 {
            return Err(Error::new(Code::ProtocolError, "an acknowledgement of no stream"));
        }
        live.flow.confirm(ack.off)
    }

    pub(crate) fn halt_transfer(&mut self, ticket: Ticket, why: Code) {
        if let Some(live) = self.transfers.live.get(&ticket) {
            live.flow.halt(why);
        }
    }

    /// Threads have something for their calls, or time for more.
    pub(super) fn hear_threads(&mut self) {
        let news = self.transfers.exchange.news();
        for ticket in news.tickets {
            self.deliver_transfer(ticket);
        }
        if !news.crowded {
            for link in std::mem::take(&mut self.transfers.held) {
                self.tend_link(link);
            }
        }
    }

    /// Send what can be sent of an operation to its call.
    pub(crate) fn deliver_transfer(&mut self, ticket: Ticket) {
        let Some(live) = self.transfers.live.get(&ticket) else { return };
        let (number, flow) = (live.link, Arc::clone(&live.flow));
        let Some(link) = self.links.get_mut(&number) else {
            if flow.has_ended() {
                self.transfers.live.remove(&ticket);
            }
            return;
        };
        while link.connection.has_room() {
            let Some(frames) = flow.take_frames() else { break };
            link.send_encoded(frames);
        }
        if flow.is_over() {
            link.calls.remove(&flow.id);
            self.transfers.live.remove(&ticket);
        }
        self.tend_link(number);
    }

    /// No operation runs and no thread is left when this returns; those that ran are answered as `cancelled`.
    pub(crate) fn end_transfers(&mut self) {
        for live in self.transfers.live.values() {
            live.flow.halt(Code::Cancelled);
        }
        self.transfers.exchange.workers.join();
        let tickets: BTreeSet<Ticket> = self.transfers.live.keys().copied().collect();
        for ticket in tickets {
            self.deliver_transfer(ticket);
        }
    }

    fn find_transfer(&self, link: u64, id: u32) -> Option<Arc<Flow>> {
        match self.find_call(link, id)? {
            Call::Files(ticket) => self.transfers.live.get(&ticket).map(|live| Arc::clone(&live.flow)),
            Call::Command(_) => None,
        }
    }

    fn hold_back(&mut self, link: u64) {
        if self.transfers.exchange.is_crowded() {
            self.transfers.held.insert(link);
        }
    }
}
