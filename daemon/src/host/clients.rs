//! The connections to a host's socket.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use crate::connection::Connection;
use crate::error::Result;
use crate::message::Reply;
use crate::reactor::{Interest, Reactor, Token};

/// What a connection is to become, once everything queued on it is sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Role {
    /// It speaks with the host.
    Host,
    /// It waits for a sandbox that is being made: nothing more is read from it.
    Waiting,
    /// The link of this sandbox: handed to its init as soon as nothing is queued.
    Link(String),
}

#[derive(Debug)]
pub struct Client {
    pub connection: Connection,
    pub role: Role,
    /// It has said hello.
    pub opened: bool,
    /// Calls to `watch`.
    pub watches: BTreeSet<u32>,
    interest: Interest,
}

impl Client {
    /// Watch a new connection.
    pub fn new(connection: Connection, token: Token, reactor: &Reactor) -> rustix::io::Result<Self> {
        reactor.add(connection.as_fd(), token, Interest::Read)?;
        Ok(Client { connection, role: Role::Host, opened: false, watches: BTreeSet::new(), interest: Interest::Read })
    }

    /// Send, or queue what the socket does not take.
    ///
    /// # Errors
    /// `gone`: the caller drops the client.
    pub fn send(&mut self, reply: &Reply<'_>) -> Result<()> {
        self.connection.send(reply)
    }

    /// Whether it may be read from.
    pub fn listens(&self) -> bool {
        self.role == Role::Host && self.connection.may_receive()
    }

    /// Tell the reactor what to wait for, if that has changed.
    pub fn update(&mut self, token: Token, reactor: &Reactor) -> rustix::io::Result<()> {
        let wanted = Interest::new(self.listens(), self.connection.is_blocked());
        if wanted != self.interest {
            reactor.change(self.connection.as_fd(), token, wanted)?;
            self.interest = wanted;
        }
        Ok(())
    }
}
