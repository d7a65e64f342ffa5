//! Connections that a host hands over: a private socketpair to the host, each message of which carries one socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{Accepted, Arrival};
use crate::connection::Connection;
use crate::descriptors;

/// The init's end of a `SOCK_SEQPACKET` socketpair. The host sends one-byte messages, each with one client socket.
#[derive(Debug)]
pub struct HostSource {
    link: OwnedFd,
}

impl HostSource {
    pub fn new(link: OwnedFd) -> Self {
        HostSource { link }
    }

    /// Take one message if there is one. Never waits.
    pub fn accept(&self) -> Accepted {
        let (mut byte, mut sockets) = ([0_u8; 16], Vec::new());
        match descriptors::receive(&self.link, &mut byte, &mut sockets, RecvFlags::DONTWAIT) {
            Ok(0) => Accepted::Closed,
            Ok(_) => sockets.into_iter().next().map_or(Accepted::Other, connection),
            Err(Errno::AGAIN) => Accepted::Nothing,
            Err(_) => Accepted::Closed,
        }
    }
}

impl AsFd for HostSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

fn connection(stream: OwnedFd) -> Accepted {
    match Connection::new(stream) {
        Ok(connection) => Accepted::Link(connection, Arrival::default()),
        Err(errno) => {
            eprintln!("sandlotd: a client's socket: {errno}");
            Accepted::Other
        }
    }
}
