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

/// Send `descriptors` in as many messages as needed. Does not wait: the link of a new init is empty.
pub fn send(link: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    for batch in descriptors.chunks(BATCH) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(batch));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&link, &[IoSlice::new(b"d")], &mut ancillary, flags)
            .map_err(|errno| Error::system("send to the sandbox's init", errno))?;
    }
    Ok(())
}

/// Wait for one message and append its descriptors.
pub fn receive(link: impl AsFd, descriptors: &mut Vec<OwnedFd>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    let message = loop {
        match rustix::net::recvmsg(&link, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
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
    Ok(())
}
