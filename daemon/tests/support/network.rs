//! A sandbox whose clients come over a network, and a provider to it: the responder of its handshakes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rmpv::Value;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use sandlotd::sandbox::SandboxContext;
use sandlotd::seal::{Key, PATTERN, PROLOGUE, Secret};
use sandlotd::source::{LinkSettings, NetworkSource, Source};

use super::{Client, Message, PATIENCE, context, enter_namespace, keep_only, map};

pub const ENROL: [u8; 32] = [7; 32];
const PROVIDER_PRIVATE: [u8; 32] = [9; 32];

/// A name for an abstract socket that nobody else has.
pub fn local_name() -> Vec<u8> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("sandlotd-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)).into_bytes()
}

/// Settings of a daemon that nobody can reach yet.
pub fn settings() -> LinkSettings {
    LinkSettings {
        name: "pod".to_owned(),
        enrol: Secret::new(ENROL),
        provider_key: Key(public_key()),
        dial: Vec::new(),
        listen: None,
        local: None,
        grace: None,
        lease: None,
    }
}

fn public_key() -> [u8; 32] {
    let mut dh = sandlotd::seal::resolver().resolve_dh(&snow::params::DHChoice::Curve25519).unwrap();
    dh.set(&PROVIDER_PRIVATE);
    dh.pubkey().try_into().unwrap()
}

/// A running main loop with a network source.
#[derive(Debug)]
pub struct Pod {
    waiter: libc::pid_t,
    /// Where it listens, if it does.
    pub port: u16,
    over: bool,
}

impl Pod {
    pub fn start(settings: LinkSettings) -> Self {
        Self::start_with(settings, |_| {})
    }

    pub fn start_with(settings: LinkSettings, change: impl FnOnce(&mut SandboxContext)) -> Self {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // SAFETY: the child keeps to this thread, and leaves by _exit.
        let waiter = unsafe { libc::fork() };
        if waiter == 0 {
            drop(ours);
            let theirs = keep_only(theirs);
            // SAFETY: the child of a fork; nothing of the parent runs in it.
            let code = unsafe { enter_namespace(|| serve(&theirs, settings, change)) };
            // SAFETY: always.
            unsafe { libc::_exit(code) };
        }
        drop(theirs);
        let mut port = [0; 2];
        let (count, _) = rustix::net::recv(&ours, &mut port, RecvFlags::empty()).unwrap();
        assert_eq!(count, 2, "the daemon did not start");
        Pod { waiter, port: u16::from_ne_bytes(port), over: false }
    }

    /// Wait until it ends by itself; its exit code.
    pub fn wait(mut self) -> i32 {
        self.over = true;
        let mut status = 0;
        // SAFETY: our own child, waited for once.
        unsafe { libc::waitpid(self.waiter, &raw mut status, 0) };
        libc::WEXITSTATUS(status)
    }

    /// Pid of the main loop as this test sees it.
    pub fn init_pid(&self) -> i32 {
        let path = format!("/proc/{0}/task/{0}/children", self.waiter);
        std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut status = 0;
        // SAFETY: the only child of our own child, which is not yet waited for.
        unsafe {
            libc::kill(self.init_pid(), libc::SIGKILL);
            libc::waitpid(self.waiter, &raw mut status, 0);
        }
        if !std::thread::panicking() {
            assert_eq!(libc::WEXITSTATUS(status), 128 + libc::SIGKILL, "the main loop ended by itself");
        }
    }
}

fn serve(ready: &OwnedFd, settings: LinkSettings, change: impl FnOnce(&mut SandboxContext)) -> i32 {
    let mut context = context();
    change(&mut context);
    let ended = NetworkSource::new(settings).and_then(|source| {
        let port = source.port().unwrap_or(0).to_ne_bytes();
        rustix::net::send(ready, &port, SendFlags::NOSIGNAL).unwrap();
        sandlotd::serve::serve(Source::Network(Box::new(source)), context)
    });
    match ended {
        Ok(ended) => i32::from(ended.exit_code()),
        Err(error) => {
            eprintln!("{error}");
            93
        }
    }
}

/// What a provider knows of one name.
#[derive(Debug)]
pub struct Provider {
    pub enrol: Option<[u8; 32]>,
    pub resume: Option<[u8; 32]>,
    fresh: u8,
}

/// What a daemon has said in its first message.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    pub name: String,
    pub using: String,
    pub boot: Vec<u8>,
}

/// A stream that keeps what was written.
#[derive(Debug)]
pub struct Recording<S> {
    pub stream: S,
    pub written: Vec<u8>,
}

impl<S> Recording<S> {
    pub fn of(stream: S) -> Self {
        Recording { stream, written: Vec::new() }
    }
}

impl<S: Read> Read for Recording<S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl<S: Write> Write for Recording<S> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let count = self.stream.write(buffer)?;
        self.written.extend_from_slice(&buffer[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// A stream that writes no two bytes at once.
#[derive(Debug)]
pub struct Trickle<S>(pub S);

impl<S: Read> Read for Trickle<S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<S: Write> Write for Trickle<S> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        self.0.write(&buffer[..buffer.len().min(1)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// A handshake up to where the provider has heard the first message.
#[derive(Debug)]
pub struct Heard<S> {
    pub stream: S,
    pub opened: Opened,
    state: snow::HandshakeState,
}

/// The provider's end of a sealed link, as a plain stream.
#[derive(Debug)]
pub struct Sealed<S> {
    pub stream: S,
    /// The secret that the daemon was given.
    pub resume: [u8; 32],
    state: snow::TransportState,
    opened: Vec<u8>,
    taken: usize,
}

impl<S: Read> Read for Sealed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.taken == self.opened.len() {
            let Some(message) = read_message(&mut self.stream) else { return Ok(0) };
            self.opened.resize(message.len(), 0);
            let length = self.state.read_message(&message, &mut self.opened).expect("not the daemon's");
            self.opened.truncate(length);
            self.taken = 0;
        }
        let count = buffer.len().min(self.opened.len() - self.taken);
        buffer[..count].copy_from_slice(&self.opened[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

impl<S: Write> Write for Sealed<S> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(65_519);
        let message = self.seal(&buffer[..count]);
        write_message(&mut self.stream, &message)?;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

impl<S> Sealed<S> {
    /// One message, without its length.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut message = vec![0; plain.len() + 16];
        self.state.write_message(plain, &mut message).unwrap();
        message
    }
}

impl Provider {
    pub fn new() -> Self {
        Provider { enrol: Some(ENROL), resume: None, fresh: 100 }
    }

    /// Hear the first message. `None` when the daemon has closed.
    pub fn hear<S: Read>(&self, mut stream: S) -> Option<Heard<S>> {
        let message = read_message(&mut stream)?;
        // What it says is known before the secret is: so read it with any, then again with the right one.
        let opened = opened(&read_first(&[0; 32], &message).0);
        let secret = if opened.using == "enrol" { self.enrol } else { self.resume };
        let (_, state) = read_first(&secret.unwrap_or([1; 32]), &message);
        Some(Heard { stream, opened, state })
    }

    /// Say the second message: to an enrolment with a secret that was never given before.
    pub fn answer<S: Write>(&mut self, mut heard: Heard<S>) -> Sealed<S> {
        self.fresh += 1;
        let resume = if heard.opened.using == "enrol" { [self.fresh; 32] } else { self.resume.unwrap_or([1; 32]) };
        let mut payload = Vec::new();
        let granted = map(&[("resume", Value::Binary(resume.to_vec()))]);
        rmpv::encode::write_value(&mut payload, &granted).unwrap();
        let mut message = vec![0; 512];
        let length = heard.state.write_message(&payload, &mut message).unwrap();
        write_message(&mut heard.stream, &message[..length]).unwrap();
        let state = heard.state.into_transport_mode().unwrap();
        Sealed { stream: heard.stream, resume, state, opened: Vec::new(), taken: 0 }
    }

    /// The whole handshake and hello; the enrolment is burnt and the link's secret the valid one.
    pub fn link<S: Read + Write>(&mut self, stream: S) -> Client<Sealed<S>> {
        let heard = self.hear(stream).expect("no first message");
        let mut client = Client::new(self.answer(heard));
        // Links of one provider do not use each other's ids, nor the keys that come of them.
        client.last_id = u32::from(self.fresh) * 1000;
        assert_eq!(client.hello().text("t"), "hello");
        (self.enrol, self.resume) = (None, Some(client.stream.resume));
        client
    }
}

fn read_first(secret: &[u8; 32], message: &[u8]) -> (Vec<u8>, snow::HandshakeState) {
    let mut state = snow::Builder::with_resolver(PATTERN.parse().unwrap(), sandlotd::seal::resolver())
        .prologue(PROLOGUE)
        .unwrap()
        .local_private_key(&PROVIDER_PRIVATE)
        .unwrap()
        .psk(2, secret)
        .unwrap()
        .build_responder()
        .unwrap();
    let mut payload = vec![0; 512];
    let length = state.read_message(message, &mut payload).unwrap();
    payload.truncate(length);
    (payload, state)
}

fn opened(payload: &[u8]) -> Opened {
    let message = Message(rmpv::decode::read_value(&mut &*payload).unwrap());
    Opened {
        name: message.text("name").to_owned(),
        using: message.text("use").to_owned(),
        boot: message.bytes("boot").to_vec(),
    }
}

/// `None` at the end.
pub fn read_message(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut prefix = [0; 2];
    stream.read_exact(&mut prefix).ok()?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(prefix))];
    stream.read_exact(&mut message).ok()?;
    Some(message)
}

pub fn write_message(stream: &mut impl Write, message: &[u8]) -> std::io::Result<()> {
    let prefix = u16::try_from(message.len()).unwrap().to_be_bytes();
    stream.write_all(&[prefix.as_slice(), message].concat())
}

/// The next connection of a daemon that dials.
pub fn arrival(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection to a daemon that listens.
pub fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}
