//! Descriptors over the private link between a host and an init.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::RecvFlags;

use crate::descriptors::{self, BATCH};
use crate::error::{Code, Error, Result};

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
    descriptors::send(link, text, batch).map(drop)
}

/// Wait for one message, append its descriptors and give its text.
pub fn receive(link: impl AsFd, descriptors: &mut Vec<OwnedFd>) -> Result<Vec<u8>> {
    let mut text = [0_u8; TEXT_BYTES];
    let count = descriptors::receive(link, &mut text, descriptors, RecvFlags::empty())
        .map_err(|errno| Error::system("receive from the host", errno))?;
    if count == 0 {
        return Err(Error::new(Code::Gone, "the host has closed the link"));
    }
    Ok(text[..count.min(TEXT_BYTES)].to_vec())
}
