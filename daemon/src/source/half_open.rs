//! One connection before it is a link: connect, say the first message, hear the second.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::credentials::Credential;
use crate::error::{Code, Error, Result};
use crate::limits::MAX_HANDSHAKE_BYTES;
use crate::seal::{self, Handshake, LENGTH_BYTES, Seal, Secret};

/// How a connection came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// We have dialled.
    Dialled,
    /// Accepted from somebody outside of this sandbox, as far as can be seen.
    Outside,
    /// Accepted from this sandbox itself, or from who cannot be told from it.
    Inside,
}

#[derive(Debug)]
pub struct HalfOpen {
    stream: OwnedFd,
    pub origin: Origin,
    /// When it is given up.
    pub deadline: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Of dialled ones: becomes writable when there is a connection.
    Connecting,
    /// The first message is said.
    Waiting {
        handshake: Box<Handshake>,
        credential: Credential,
        /// The second message as far as it has come, length included.
        heard: Vec<u8>,
    },
}

/// What became of a look at it.
#[derive(Debug)]
pub enum Progress {
    /// Still waiting for the other side.
    Pending,
    /// There is a connection: [`HalfOpen::speak`].
    Connected,
    /// Authenticated.
    Done(Box<Done>),
}

/// An authenticated link and the secret that it has brought.
#[derive(Debug)]
pub struct Done {
    pub stream: OwnedFd,
    pub seal: Seal,
    pub granted: Secret,
    pub origin: Origin,
}

impl HalfOpen {
    pub fn new(stream: OwnedFd, origin: Origin, deadline: Instant) -> Self {
        HalfOpen { stream, origin, deadline, stage: Stage::Connecting }
    }

    /// What it has said that it is, once it has.
    pub fn credential(&self) -> Option<&Credential> {
        match &self.stage {
            Stage::Connecting => None,
            Stage::Waiting { credential, .. } => Some(credential),
        }
    }

    /// Say the first message.
    ///
    /// # Errors
    /// `gone` when it cannot be said.
    pub fn speak(&mut self, handshake: Handshake, message: &[u8], credential: Credential) -> Result<()> {
        match rustix::net::send(&self.stream, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) if count == message.len() => {}
            // A new socket has room for so little, if it works at all.
            Ok(_) => return Err(gone("the first message does not fit")),
            Err(errno) => return Err(Error { code: Code::Gone, ..Error::system("send", errno) }),
        }
        self.stage = Stage::Waiting { handshake: Box::new(handshake), credential, heard: Vec::new() };
        Ok(())
    }

    /// Go on as far as the socket lets us.
    ///
    /// # Errors
    /// `gone` when the other side has closed or cannot be reached, `protocol_error` when it is not the provider.
    pub fn advance(mut self) -> Result<(Option<Self>, Progress)> {
        match self.stage {
            Stage::Connecting => match rustix::net::sockopt::socket_error(&self.stream) {
                Ok(Ok(())) => Ok((Some(self), Progress::Connected)),
                Ok(Err(errno)) | Err(errno) => Err(Error { code: Code::Gone, ..Error::system("connect", errno) }),
            },
            Stage::Waiting { handshake, credential, mut heard } => {
                if hear(&self.stream, &mut heard)? {
                    let (seal, granted) = handshake.finish(&heard[LENGTH_BYTES..])?;
                    let done = Done { stream: self.stream, seal, granted, origin: self.origin };
                    return Ok((None, Progress::Done(Box::new(done))));
                }
                self.stage = Stage::Waiting { handshake, credential, heard };
                Ok((Some(self), Progress::Pending))
            }
        }
    }
}

impl AsFd for HalfOpen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Read towards one whole message, and not one byte beyond it: what follows is the link's. True when it is there.
fn hear(stream: &OwnedFd, heard: &mut Vec<u8>) -> Result<bool> {
    loop {
        let wanted = match seal::message_length(heard) {
            Some(length) if LENGTH_BYTES + length > MAX_HANDSHAKE_BYTES => {
                return Err(Error::new(Code::ProtocolError, "a second message that is too long"));
            }
            Some(length) => LENGTH_BYTES + length,
            None => LENGTH_BYTES,
        };
        let have = heard.len();
        if have == wanted {
            return Ok(true);
        }
        heard.resize(wanted, 0);
        let result = rustix::net::recv(stream, &mut heard[have..], RecvFlags::DONTWAIT);
        heard.truncate(have + result.as_ref().map_or(0, |(count, _)| *count));
        match result {
            Ok((0, _)) => return Err(gone("closed by the other side")),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(errno) => return Err(Error { code: Code::Gone, ..Error::system("receive", errno) }),
        }
    }
}

fn gone(text: &'static str) -> Error {
    Error::new(Code::Gone, text)
}
