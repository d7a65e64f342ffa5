//! A fleet of daemons for pods on nodes that run nothing: one thread plays them all, each with its own secrets and name.
//!
//! Standard input says which pods run, one a line, fields parted by tabs; the program ends with it.
//!
//! ```text
//! runs  name  address  SANDLOT_ENROL  SANDLOT_KEY  SANDLOT_DIAL  SANDLOT_LISTEN
//! gone  name
//! ```
//!
//! A pod with an address to dial is dialled for; one with a port is listened for on its own address, which is one of this
//! machine's loopback. A connection to an address whose pod is not known yet waits for it, as a container that the API
//! server shows as running listens already. What commands answer is in [`answers`]: the pod's name, whatever they are.

mod answers;
mod link;
mod pods;

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sandlotd::reactor::{Interest, Reactor, Ready, Token};

use link::{Link, State};
use pods::{Pods, Told};

const STDIN: Token = 0;
const LISTENER: Token = 1 << 56;
const LINK: Token = 2 << 56;
const BACKLOG: i32 = 4096;
/// Before a link that was lost or could not be made is dialled for again.
const REDIAL: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    match Fleet::new().and_then(|mut fleet| fleet.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Fleet {
    reactor: Reactor,
    pods: Pods,
    listeners: HashMap<u16, OwnedFd>,
    links: HashMap<u64, Link>,
    last: u64,
    /// Accepted before their pods were known.
    early: HashMap<IpAddr, Vec<OwnedFd>>,
    /// Names to dial for again, soonest first.
    redials: VecDeque<(Instant, String)>,
}

impl Fleet {
    fn new() -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(std::io::stdin(), true)?;
        let reactor = Reactor::new()?;
        reactor.add(std::io::stdin(), STDIN, Interest::Read)?;
        Ok(Fleet {
            reactor,
            pods: Pods::default(),
            listeners: HashMap::new(),
            links: HashMap::new(),
            last: 0,
            early: HashMap::new(),
            redials: VecDeque::new(),
        })
    }

    fn run(&mut self) -> std::io::Result<()> {
        let mut ready = Vec::new();
        loop {
            self.reactor.wait(self.redials.front().map(|(due, _)| *due), &mut ready)?;
            for one in ready.drain(..) {
                match one.token & (0xff << 56) {
                    STDIN if !self.read_lines()? => return Ok(()),
                    STDIN => {}
                    LISTENER => self.accept((one.token & 0xffff) as u16),
                    _ => self.link_ready(one),
                }
            }
            while self.redials.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                if let Some((_, name)) = self.redials.pop_front() {
                    self.dial(&name);
                }
            }
        }
    }

    /// False at the end of standard input.
    fn read_lines(&mut self) -> std::io::Result<bool> {
        loop {
            match self.pods.read(std::io::stdin()) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
            while let Some(told) = self.pods.next_told()? {
                match told {
                    Told::Runs(name) => self.begin(&name)?,
                    Told::Gone(name) => self.end(&name),
                }
            }
        }
    }

    fn begin(&mut self, name: &str) -> std::io::Result<()> {
        let Some(pod) = self.pods.get(name) else { return Ok(()) };
        let (address, port) = (pod.address, pod.port);
        if let Some(port) = port {
            self.listen(port)?;
            for stream in self.early.remove(&address).unwrap_or_default() {
                self.add(stream, name.to_owned(), Interest::Read);
            }
        }
        self.dial(name);
        Ok(())
    }

    fn end(&mut self, name: &str) {
        for number in self.pods.remove(name) {
            self.links.remove(&number);
        }
    }

    fn listen(&mut self, port: u16) -> std::io::Result<()> {
        if self.listeners.contains_key(&port) {
            return Ok(());
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddr::from(([0, 0, 0, 0], port)))?;
        rustix::net::listen(&socket, BACKLOG)?;
        self.reactor.add(&socket, LISTENER | Token::from(port), Interest::Read)?;
        self.listeners.insert(port, socket);
        Ok(())
    }

    fn accept(&mut self, port: u16) {
        while let Some(stream) = self.accept_one(port) {
            let Some(address) = own_address(&stream) else { continue };
            match self.pods.at(address).map(str::to_owned) {
                Some(name) => self.add(stream, name, Interest::Read),
                None => self.early.entry(address).or_default().push(stream),
            }
        }
    }

    fn accept_one(&self, port: u16) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(self.listeners.get(&port)?, flags) {
            Ok(stream) => Some(stream),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            Err(errno) => {
                eprintln!("fleet: accept: {errno}");
                None
            }
        }
    }

    fn dial(&mut self, name: &str) {
        let Some(target) = self.pods.get_mut(name).and_then(pods::Pod::next_target) else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let begun = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).and_then(|socket| {
            match rustix::net::connect(&socket, &target) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(errno) => Err(errno),
            }
        });
        match begun {
            Ok(socket) => self.add(socket, name.to_owned(), Interest::Write),
            Err(_) => self.redials.push_back((Instant::now() + REDIAL, name.to_owned())),
        }
    }

    /// A socket becomes a link of a pod; one that was accepted is connected, one that was dialled will say when it is.
    fn add(&mut self, stream: OwnedFd, name: String, interest: Interest) {
        self.last += 1;
        let number = self.last;
        let Some(pod) = self.pods.get_mut(&name) else { return };
        pod.links.push(number);
        let link = Link::new(stream, name);
        if let Err(errno) = self.reactor.add(&link, LINK | number, interest) {
            eprintln!("fleet: epoll_ctl: {errno}");
            return;
        }
        self.links.insert(number, link);
        if interest == Interest::Read {
            self.link_ready(Ready { token: LINK | number, readable: false, writable: true });
        }
    }

    fn link_ready(&mut self, ready: Ready) {
        let number = ready.token & !(0xff << 56);
        let Some(link) = self.links.get_mut(&number) else { return };
        let state = match self.pods.get_mut(&link.pod) {
            Some(pod) => link.advance(ready, pod),
            None => State::Over,
        };
        let wanted = Interest::new(true, link.is_blocked());
        match state {
            State::Alive if wanted == link.interest => {}
            State::Alive => match self.reactor.change(link.as_fd(), LINK | number, wanted) {
                Ok(()) => link.interest = wanted,
                Err(errno) => eprintln!("fleet: epoll_ctl: {errno}"),
            },
            State::Over => self.close(number),
        }
    }

    fn close(&mut self, number: u64) {
        let Some(link) = self.links.remove(&number) else { return };
        let Some(pod) = self.pods.get_mut(&link.pod) else { return };
        pod.lost(number);
        if !pod.targets.is_empty() {
            self.redials.push_back((Instant::now() + REDIAL, link.pod));
        }
    }
}

fn own_address(stream: &OwnedFd) -> Option<IpAddr> {
    let address: SocketAddr = rustix::net::getsockname(stream).ok()?.try_into().ok()?;
    Some(address.ip())
}
