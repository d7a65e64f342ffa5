//! One connection of one pod: handshake, then frames in sealed messages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sandlotd::error::{Code, Error, Result};
use sandlotd::frame::{self, PREFIX_BYTES};
use sandlotd::limits::MAX_FRAME_BYTES;
use sandlotd::message::{self, Role};
use sandlotd::reactor::{Interest, Ready};
use sandlotd::seal::{Handshake, LENGTH_BYTES, Opening, Seal, message_length};
use serde_bytes::Bytes;

use crate::answers::{self, Next};
use crate::pods::Pod;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    Alive,
    Over,
}

pub struct Link {
    stream: OwnedFd,
    pub pod: String,
    pub interest: Interest,
    stage: Option<Stage>,
    sealed: Vec<u8>,
    plain: Vec<u8>,
    unsent: Vec<u8>,
}

enum Stage {
    New,
    Waiting(Box<Handshake>),
    Open { seal: Seal, greeted: bool },
}

impl Link {
    pub fn new(stream: OwnedFd, pod: String) -> Self {
        let (sealed, plain, unsent) = (Vec::new(), Vec::new(), Vec::new());
        Link { stream, pod, interest: Interest::Neither, stage: Some(Stage::New), sealed, plain, unsent }
    }

    pub fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub fn advance(&mut self, ready: Ready, pod: &mut Pod) -> State {
        match self.step(ready, pod) {
            Ok(state) => state,
            Err(error) => {
                if error.code != Code::Gone {
                    eprintln!("fleet: {}: {error}", self.pod);
                }
                State::Over
            }
        }
    }

    fn step(&mut self, ready: Ready, pod: &mut Pod) -> Result<State> {
        if ready.writable {
            if matches!(self.stage, Some(Stage::New)) {
                self.greet(pod)?;
            }
            self.flush()?;
        }
        if !ready.readable {
            return Ok(State::Alive);
        }
        let open = self.receive()?;
        while let Some(message) = self.next_message() {
            if self.take(&message, pod)? == State::Over {
                return Ok(State::Over);
            }
        }
        self.flush()?;
        Ok(if open { State::Alive } else { State::Over })
    }

    /// Say the first message.
    fn greet(&mut self, pod: &Pod) -> Result<()> {
        rustix::net::sockopt::socket_error(&self.stream).and_then(|pending| pending).map_err(gone)?;
        rustix::net::sockopt::set_tcp_nodelay(&self.stream, true).map_err(gone)?;
        let (using, secret) = pod.secret();
        let opening = Opening { name: &pod.name, using: *using, boot: Bytes::new(&pod.boot) };
        let (handshake, first) = Handshake::begin(&pod.key, secret, &opening)?;
        self.unsent.extend_from_slice(&first);
        self.stage = Some(Stage::Waiting(Box::new(handshake)));
        Ok(())
    }

    /// False when the other side has closed.
    fn receive(&mut self) -> Result<bool> {
        let mut bytes = [0; 16 * 1024];
        match rustix::net::recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                self.sealed.extend_from_slice(&bytes[..count]);
                Ok(count > 0)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(errno) => Err(gone(errno)),
        }
    }

    fn next_message(&mut self) -> Option<Vec<u8>> {
        let end = LENGTH_BYTES + message_length(&self.sealed)?;
        if self.sealed.len() < end {
            return None;
        }
        let message = self.sealed[LENGTH_BYTES..end].to_vec();
        self.sealed.drain(..end);
        Some(message)
    }

    fn take(&mut self, message: &[u8], pod: &mut Pod) -> Result<State> {
        match self.stage.take() {
            Some(Stage::Waiting(handshake)) => {
                let (seal, granted) = handshake.finish(message)?;
                pod.granted(granted);
                self.stage = Some(Stage::Open { seal, greeted: false });
                Ok(State::Alive)
            }
            Some(Stage::Open { mut seal, mut greeted }) => {
                seal.open(message, &mut self.plain)?;
                let mut answer = Vec::new();
                let mut state = State::Alive;
                while state == State::Alive
                    && let Some(payload) = next_frame(&mut self.plain)?
                {
                    if greeted {
                        pod.proven();
                    }
                    let envelope = frame::inspect(&payload).map_err(breach)?;
                    let request = message::parse(Role::Init, &envelope, &payload)?;
                    match answers::answer(envelope.id, request.as_ref(), &pod.name, &mut answer)? {
                        Next::GoOn => greeted = true,
                        Next::Close => state = State::Over,
                    }
                }
                if !answer.is_empty() {
                    seal.seal(&answer, &mut self.unsent)?;
                }
                self.stage = Some(Stage::Open { seal, greeted });
                Ok(state)
            }
            Some(Stage::New) | None => Err(Error::new(Code::ProtocolError, "spoken to before the first message")),
        }
    }

    fn flush(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match rustix::net::send(&self.stream, &self.unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(gone(errno)),
            }
        }
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn next_frame(plain: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
    let Some(prefix) = plain.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let end = PREFIX_BYTES + frame::payload_length(*prefix, MAX_FRAME_BYTES).map_err(breach)?;
    if plain.len() < end {
        return Ok(None);
    }
    let payload = plain[PREFIX_BYTES..end].to_vec();
    plain.drain(..end);
    Ok(Some(payload))
}

fn breach(breach: frame::Breach) -> Error {
    Error::new(Code::ProtocolError, breach.to_string())
}

fn gone(errno: Errno) -> Error {
    Error { code: Code::Gone, ..Error::system("socket", errno) }
}
