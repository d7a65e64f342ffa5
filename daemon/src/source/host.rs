//! Connections that a host hands over: a private socketpair to the host, each message of which carries one socket.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{Accepted, Arrival};
use crate::connection::Connection;

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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0_u8; 16];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(&self.link, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Ok(message) if message.bytes == 0 => Accepted::Closed,
            Ok(_) => {
                let mut sockets = ancillary.drain().filter_map(|item| match item {
                    RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
                    _ => None,
                });
                sockets.next().and_then(|mut sockets| sockets.next()).map_or(Accepted::Other, connection)
            }
            Err(Errno::AGAIN | Errno::INTR) => Accepted::Nothing,
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
