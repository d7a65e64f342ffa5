//! Descriptors: copied, opened, and sent over a local socket with the bytes of a message.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::error::{Error, Result};

/// Descriptors in one message; the kernel's own limit is 253.
pub const BATCH: usize = 128;

/// A copy of a descriptor, closed on exec.
pub fn duplicate(fd: impl AsFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|errno| Error::system("copy a descriptor", errno))
}

/// The root that this thread has now.
pub fn open_root() -> Result<OwnedFd> {
    rustix::fs::open(c"/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::at_path("open", errno, b"/"))
}

/// Send `bytes` with at most [`BATCH`] descriptors, without waiting. Returns how many bytes went; all descriptors go with
/// the first.
///
/// # Errors
/// As `sendmsg(2)`.
pub fn send(socket: impl AsFd, bytes: &[u8], batch: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !batch.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(batch));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

/// Take bytes, and append the descriptors that come with them. Waits, unless `flags` say not to. No bytes: the peer has closed.
///
/// # Errors
/// As `recvmsg(2)`.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut parts, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)
    })?;
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            descriptors.extend(received);
        }
    }
    Ok(message.bytes)
}
