//! Descriptors over the private link between a host and an init.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::error::{Code, Error, Result};

/// Descriptors in one message; the kernel's own limit is 253.
const BATCH: usize = 128;

/// Bytes of one message's text, at most.
pub const TEXT_BYTES: usize = 32;

/// Send `descriptors` in as many messages as needed. Does not wait: the link of a new init is empty.
pub fn send(link: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    descriptors.chunks(BATCH).try_for_each(|batch| {
        send_text(&link, b"d", batch).map_err(|errno| Error::system("send to the sandbox's init", errno))
    })
}

/// Send one message of at most [`TEXT_BYTES`] with a batch of descriptors. Does not wait.
pub fn send_text(link: impl AsFd, text: &[u8], batch: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(batch));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(&link, &[IoSlice::new(text)], &mut ancillary, flags).map(drop)
}

/// Wait for one message, append its descriptors and give its text.
pub fn receive(link: impl AsFd, descriptors: &mut Vec<OwnedFd>) -> Result<Vec<u8>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0_u8; TEXT_BYTES];
    let message = loop {
        match rustix::net::recvmsg(&link, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other.map_err(|errno| Error::system("receive from the host", errno))?,
        }
    };
    if message.bytes == 0 {
        return Err(Error::new(Code::Gone, "the host has closed the link"));
    }
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            descriptors.extend(received);
        }
    }
    Ok(text[..message.bytes.min(TEXT_BYTES)].to_vec())
}
