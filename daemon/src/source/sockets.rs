//! The sockets of a network source: how they are made, and what can be known of who is at the other end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getpeername, getsockname, listen,
    socket_with, sockopt,
};

use super::half_open::Origin;
use crate::error::{Error, Result};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// When data has not been acknowledged for so long, a TCP link is dead.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// A TCP link with nothing to say is probed after so long, and so often.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Where connections come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Local,
}

/// Begin to connect. The socket becomes writable when that is decided.
pub fn dial(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let socket = tcp_socket(address.ip())?;
    tune(&socket)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Listen on a TCP port of all addresses, of both families where there are both.
pub fn listen_on(port: u16) -> Result<OwnedFd> {
    let failed = |errno| Error::system("listen on a TCP port", errno);
    match bind_tcp(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => bind_tcp(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
        other => other,
    }
    .map_err(failed)
}

fn bind_tcp(ip: IpAddr, port: u16) -> rustix::io::Result<OwnedFd> {
    let socket = tcp_socket(ip)?;
    if ip.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::new(ip, port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Listen on an abstract socket of this network namespace.
pub fn listen_locally(name: &[u8]) -> Result<OwnedFd> {
    let failed = |errno| Error::system("listen on an abstract socket", errno);
    let address = SocketAddrUnix::new_abstract_name(name).map_err(failed)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags(), None).map_err(failed)?;
    bind(&socket, &address).map_err(failed)?;
    listen(&socket, BACKLOG).map_err(failed)?;
    Ok(socket)
}

/// Take one connection, and say from where it seems to come.
pub fn accept(listener: &OwnedFd, kind: Kind) -> rustix::io::Result<(OwnedFd, Origin)> {
    let stream = accept_with(listener, flags())?;
    let inside = match kind {
        Kind::Tcp => {
            tune(&stream)?;
            is_own_address(&stream)
        }
        Kind::Local => !is_from_outside(&stream),
    };
    Ok((stream, if inside { Origin::Inside } else { Origin::Outside }))
}

fn flags() -> SocketFlags {
    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK
}

fn tcp_socket(ip: IpAddr) -> rustix::io::Result<OwnedFd> {
    let family = if ip.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    socket_with(family, SocketType::STREAM, flags(), None)
}

/// Small messages go at once, and a peer that has vanished is noticed.
fn tune(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT.as_millis() as u32)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
    sockopt::set_socket_keepalive(socket, true)
}

/// Whoever connects from this machine's own address shares the network namespace: a command, or a relay beside us.
fn is_own_address(stream: &OwnedFd) -> bool {
    let ip = |address: Option<SocketAddr>| address.map(|address| address.ip().to_canonical());
    let ours = ip(getsockname(stream).ok().and_then(|address| address.try_into().ok()));
    let theirs = ip(getpeername(stream).ok().flatten().and_then(|address| address.try_into().ok()));
    theirs.is_none_or(|theirs| theirs.is_loopback() || Some(theirs) == ours)
}

/// Whether the peer was put into this process namespace from outside, as an exec through the container runtime is: then
/// it has no parent here. Commands all descend from us.
fn is_from_outside(stream: &OwnedFd) -> bool {
    match peer_pid(stream) {
        // Of a process namespace that is none of ours.
        Some(0) => true,
        Some(pid) => crate::process::table::read(pid).is_some_and(|entry| entry.ppid == 0 && pid != 1),
        None => false,
    }
}

/// Not by rustix, whose pid cannot be 0.
fn peer_pid(stream: &OwnedFd) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is what `peer` has.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(peer.pid).and_then(|pid| u32::try_from(pid).ok())
}
