//! Where a sandbox's connections come from: a host hands them over, or a network brings them.
//!
//! [`host`]: a private socketpair, each message of which carries one socket. [`network`]: links that are sealed and
//! authenticated before anybody else sees them; it dials, listens, or both, and knows how long nobody has been there.

mod credentials;
mod dialler;
mod half_open;
pub mod host;
pub mod network;
pub mod settings;
mod sockets;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::error::{Code, Error, Result};

pub use host::HostSource;
pub use network::NetworkSource;
pub use settings::{LOCAL_NAME, LinkSettings, parse_addresses};

/// A connection's name at its source. Those that a host hands over need none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival(u64);

#[derive(Debug)]
pub enum Accepted {
    /// A client's connection; sealed if it came over a network.
    Link(Connection, Arrival),
    /// Something else was done; there may be more.
    Other,
    /// Nothing there now.
    Nothing,
    /// The host is gone, and so is the reason to live.
    Closed,
}

/// Why a source says that there is no reason to live any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No authenticated link for the whole grace.
    Links,
    /// The lease was not renewed.
    Lease,
}

#[derive(Debug)]
pub enum Source {
    Host(HostSource),
    Network(Box<NetworkSource>),
}

impl Source {
    /// Take one connection if there is one. Never waits.
    pub fn accept(&mut self, now: Instant) -> Accepted {
        match self {
            Source::Host(source) => source.accept(),
            Source::Network(source) => source.accept(now),
        }
    }

    /// When [`Source::expire`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self {
            Source::Host(_) => None,
            Source::Network(source) => source.next_deadline(),
        }
    }

    pub fn expire(&mut self, now: Instant) -> Option<Loss> {
        match self {
            Source::Host(_) => None,
            Source::Network(source) => source.expire(now),
        }
    }

    /// The other side has shown that it has our first message.
    pub fn proven(&mut self, arrival: Arrival) {
        if let Source::Network(source) = self {
            source.proven(arrival);
        }
    }

    /// A connection is no more.
    pub fn closed(&mut self, arrival: Arrival, now: Instant) {
        if let Source::Network(source) = self {
            source.closed(arrival, now);
        }
    }

    /// Live for so long from now.
    ///
    /// # Errors
    /// `unsupported` where there is no lease, `bad_request` for none at all or one without end.
    pub fn renew(&mut self, lease: Duration, now: Instant) -> Result<()> {
        match self {
            Source::Host(_) => Err(Error::new(Code::Unsupported, "the host keeps this sandbox's lease")),
            Source::Network(source) => source.renew(lease, now),
        }
    }

    /// Whether its connections come from afar: an old one may linger long after its client has left it.
    pub fn is_network(&self) -> bool {
        matches!(self, Source::Network(_))
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Source::Host(source) => source.as_fd(),
            Source::Network(source) => source.as_fd(),
        }
    }
}
