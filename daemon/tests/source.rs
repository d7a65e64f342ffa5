//! A network source by itself: whom it lets in, which secret it uses, when it gives up. Time is told to it.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sandlotd::connection::Connection;
use sandlotd::error::Code;
use sandlotd::limits::{HANDSHAKE_MS, MAX_HALF_OPEN_DAEMON};
use sandlotd::source::{Accepted, Arrival, LinkSettings, Loss, NetworkSource};
use support::network::{
    Provider, Recording, arrival as arrival_of, dial, local_name, read_message, settings, write_message,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A source whose clock stands still unless it is moved.
struct Clocked {
    source: NetworkSource,
    now: Instant,
}

impl Clocked {
    fn new(settings: LinkSettings) -> Self {
        let source = NetworkSource::new(settings).unwrap();
        Clocked { source, now: Instant::now() }
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.source.port().unwrap()))
    }

    /// Move the clock, and do what is due then.
    fn pass(&mut self, time: Duration) -> Option<Loss> {
        self.now += time;
        self.source.expire(self.now)
    }

    /// Do what can be done until `done` says so.
    fn until<T>(&mut self, mut done: impl FnMut(&NetworkSource, Option<(Connection, Arrival)>) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            let link = match self.source.accept(self.now) {
                Accepted::Link(connection, arrival) => Some((connection, arrival)),
                Accepted::Nothing => {
                    let mut fds = [PollFd::new(&self.source, PollFlags::IN)];
                    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).unwrap();
                    None
                }
                _ => None,
            };
            if let Some(value) = done(&self.source, link) {
                return value;
            }
            assert!(began.elapsed() < MINUTE, "it never came");
        }
    }

    fn link(&mut self) -> (Connection, Arrival) {
        self.until(|_, link| link)
    }

    /// Go on until the other side of `stream` has been closed by the source.
    fn until_closed(&mut self, stream: &mut (impl Read + AsFd)) {
        self.until(|_, _| {
            let mut fds = [PollFd::new(stream, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
            if fds[0].revents().is_empty() {
                return None;
            }
            // A reset is an end as well.
            (stream.read(&mut [0; 512]).unwrap_or(0) == 0).then_some(())
        });
    }

    /// Do what can be done now. A link if there was one.
    fn settle(&mut self) -> Option<(Connection, Arrival)> {
        loop {
            match self.source.accept(self.now) {
                Accepted::Link(connection, arrival) => return Some((connection, arrival)),
                Accepted::Nothing | Accepted::Closed => return None,
                Accepted::Other => {}
            }
        }
    }

    /// Whether the source has not closed its end, of which the first message has not been read.
    fn is_open(&self, stream: &TcpStream) -> bool {
        let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        fds[0].revents().is_empty()
    }

    /// Go on until the daemon's first message can be read from `stream`.
    fn until_spoken(&mut self, stream: &impl AsFd) {
        self.until(|_, _| {
            let mut fds = [PollFd::new(stream, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
            (!fds[0].revents().is_empty()).then_some(())
        });
    }

    /// Let a provider that dials have a link.
    fn enter(&mut self, provider: &mut Provider) -> (TcpStream, Connection, Arrival) {
        let stream = dial(self.address());
        self.until_spoken(&stream);
        let heard = provider.hear(stream).unwrap();
        let sealed = provider.answer(heard);
        (provider.enrol, provider.resume) = (None, Some(sealed.resume));
        let (connection, arrival) = self.link();
        (sealed.stream, connection, arrival)
    }

    /// Dial until somebody hears it, and say what with.
    fn dials(&mut self, listener: &TcpListener) -> TcpStream {
        self.pass(Duration::from_secs(10));
        let stream = arrival_of(listener);
        self.until_spoken(&stream);
        stream
    }
}

fn listening() -> LinkSettings {
    LinkSettings { listen: Some(0), ..settings() }
}

fn dialling(listener: &TcpListener) -> LinkSettings {
    LinkSettings { dial: vec![listener.local_addr().unwrap()], ..settings() }
}

/// Without a link the grace runs from the start; with one it does not; when the last is gone it runs anew.
#[test]
fn grace_is_time_without_any_link() {
    let mut source = Clocked::new(LinkSettings { grace: Some(10 * MINUTE), ..listening() });
    assert_eq!(source.pass(9 * MINUTE), None);
    let mut provider = Provider::new();
    let first = source.enter(&mut provider);
    let second = source.enter(&mut provider);
    assert_eq!(source.pass(100 * MINUTE), None);
    source.source.closed(first.2, source.now);
    assert_eq!(source.pass(100 * MINUTE), None);
    source.source.closed(second.2, source.now);
    assert_eq!(source.pass(9 * MINUTE), None);
    assert!(source.source.next_deadline().unwrap() <= source.now + MINUTE);
    assert_eq!(source.pass(MINUTE), Some(Loss::Links));
}

/// From the start on, if nobody ever comes.
#[test]
fn grace_runs_from_the_start() {
    let mut source = Clocked::new(LinkSettings { grace: Some(MINUTE), ..listening() });
    assert_eq!(source.pass(MINUTE), Some(Loss::Links));
}

/// A connection that is not authenticated is no link, whatever it says.
#[test]
fn a_stranger_does_not_hold_the_grace() {
    let mut source = Clocked::new(LinkSettings { grace: Some(MINUTE), ..listening() });
    let stranger = dial(source.address());
    source.until_spoken(&stranger);
    assert_eq!(source.pass(MINUTE), Some(Loss::Links));
}

/// A lease ends unless renewed, link or no link; one that never ends or is nothing is refused.
#[test]
fn a_lease_is_renewed_or_ends() {
    let mut source = Clocked::new(LinkSettings { lease: Some(MINUTE), ..listening() });
    let _link = source.enter(&mut Provider::new());
    assert_eq!(source.pass(MINUTE / 2), None);
    source.source.renew(10 * MINUTE, source.now).unwrap();
    assert_eq!(source.pass(9 * MINUTE), None);
    for wrong in [Duration::ZERO, Duration::MAX] {
        assert_eq!(source.source.renew(wrong, source.now).unwrap_err().code, Code::BadRequest);
    }
    assert_eq!(source.pass(MINUTE), Some(Loss::Lease));
    let mut unleased = Clocked::new(listening());
    assert_eq!(unleased.source.renew(MINUTE, unleased.now).unwrap_err().code, Code::Unsupported);
}

/// The first link enrols; the next ones resume with what it was given, in the name of the same process.
#[test]
fn after_enrolment_links_resume() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut source = Clocked::new(dialling(&listener));
    let mut provider = Provider::new();
    let first = provider.hear(source.dials(&listener)).unwrap();
    let opened = first.opened.clone();
    assert_eq!((opened.name.as_str(), opened.using.as_str(), opened.boot.len()), ("pod", "enrol", 8));
    let sealed = provider.answer(first);
    provider.resume = Some(sealed.resume);
    let (connection, arrival) = source.link();
    source.source.proven(arrival);
    drop((connection, sealed));
    source.source.closed(arrival, source.now);
    for _ in 0..3 {
        let again = provider.hear(source.dials(&listener)).unwrap();
        assert_eq!((again.opened.using.as_str(), &again.opened.boot), ("resume", &opened.boot));
        let _sealed = provider.answer(again);
        let (_, arrival) = source.link();
        source.source.closed(arrival, source.now);
    }
}

/// While a link is there nobody is dialled; once it is lost, soon again, and the pauses grow with each refusal.
#[test]
fn the_provider_is_dialled_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut source = Clocked::new(dialling(&listener));
    let mut provider = Provider::new();
    let heard = provider.hear(source.dials(&listener)).unwrap();
    let _sealed = provider.answer(heard);
    let (_, arrival) = source.link();
    source.source.proven(arrival);
    assert_eq!(source.source.next_deadline(), None);
    source.source.closed(arrival, source.now);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let due = source.source.next_deadline().unwrap();
        pauses.push(due - source.now);
        source.pass(due - source.now);
        drop(arrival_of(&listener));
        // Refused: something is due before the handshake would have been given up.
        let given_up = source.now + Duration::from_millis(HANDSHAKE_MS);
        source.until(|source, _| source.next_deadline().is_some_and(|due| due < given_up).then_some(()));
    }
    assert!(pauses[0] <= Duration::from_millis(50) && pauses[4] >= Duration::from_millis(200), "{pauses:?}");
}

/// A link that broke before it said anything leaves it open what the provider knows: both secrets are tried in turn.
#[test]
fn a_link_that_broke_early_is_resumed_or_enrolled_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut source = Clocked::new(dialling(&listener));
    let mut provider = Provider::new();
    let heard = provider.hear(source.dials(&listener)).unwrap();
    let sealed = provider.answer(heard);
    let (_, arrival) = source.link();
    source.source.closed(arrival, source.now);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let heard = provider.hear(source.dials(&listener)).unwrap();
        seen.push(heard.opened.using.clone());
        drop(heard);
        let given_up = source.now + Duration::from_millis(HANDSHAKE_MS);
        source.until(|source, _| source.next_deadline().is_some_and(|due| due < given_up).then_some(()));
    }
    assert_eq!(seen, ["resume", "enrol", "resume", "enrol"]);
    // The provider had heard it after all: the secret of that link is the valid one.
    provider.resume = Some(sealed.resume);
    let heard = provider.hear(source.dials(&listener)).unwrap();
    assert_eq!(heard.opened.using, "resume");
    provider.answer(heard);
    source.link();
}

/// Whoever does not have the provider's key, or not the secret, gets no link, whatever is said.
#[test]
fn only_the_provider_gets_a_link() {
    let mut source = Clocked::new(listening());
    let address = source.address();
    let mut wrong_secret = Provider::new();
    wrong_secret.enrol = Some([8; 32]);
    let stream = dial(address);
    source.until_spoken(&stream);
    let heard = wrong_secret.hear(stream).unwrap();
    let mut sealed = wrong_secret.answer(heard);
    source.until_closed(&mut sealed.stream);
    let short = vec![0; 47];
    for nonsense in [&[][..], &[0], &[0xff; 96], &short, &[0; 510]] {
        let mut stream = dial(address);
        source.until_spoken(&stream);
        read_message(&mut stream).unwrap();
        write_message(&mut stream, nonsense).unwrap();
        source.until_closed(&mut stream);
    }
    // Longer than anything that could be right: refused at its length.
    let mut stream = dial(address);
    source.until_spoken(&stream);
    read_message(&mut stream).unwrap();
    stream.write_all(&511_u16.to_be_bytes()).unwrap();
    source.until_closed(&mut stream);
    source.enter(&mut Provider::new());
}

/// A second message that was recorded is of no use to whoever plays it again.
#[test]
fn a_recorded_answer_is_refused() {
    let mut source = Clocked::new(listening());
    let mut provider = Provider::new();
    let stream = dial(source.address());
    source.until_spoken(&stream);
    let heard = provider.hear(Recording::of(stream)).unwrap();
    let answered = provider.answer(heard);
    source.link();
    let mut again = dial(source.address());
    source.until_spoken(&again);
    read_message(&mut again).unwrap();
    again.write_all(&answered.stream.written).unwrap();
    source.until_closed(&mut again);
}

/// One enrolment is enough: another that has begun meanwhile is dropped, and comes back as a resume.
#[test]
fn only_one_enrolment_is_finished() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut source = Clocked::new(LinkSettings { listen: Some(0), ..dialling(&listener) });
    let mut provider = Provider::new();
    let mut dialled = source.dials(&listener);
    source.enter(&mut provider);
    let heard = provider.hear(&mut dialled).unwrap();
    assert_eq!(heard.opened.using, "enrol");
    source.until_closed(&mut dialled);
    let heard = provider.hear(source.dials(&listener)).unwrap();
    assert_eq!(heard.opened.using, "resume");
    provider.answer(heard);
    source.link();
}

/// Who says nothing, and who says one byte now and then, is given up at the same moment.
#[test]
fn slow_strangers_are_given_up() {
    let mut source = Clocked::new(listening());
    let (mut silent, mut slow) = (dial(source.address()), dial(source.address()));
    source.until_spoken(&silent);
    source.until_spoken(&slow);
    for byte in [0, 96, 0, 0, 0, 0, 0, 0, 0] {
        slow.write_all(&[byte]).unwrap();
        source.settle();
        source.pass(Duration::from_millis(HANDSHAKE_MS / 10));
    }
    assert_eq!((source.is_open(&silent), source.is_open(&slow)), (true, true));
    source.pass(Duration::from_millis(HANDSHAKE_MS / 10));
    source.until_closed(&mut silent);
    source.until_closed(&mut slow);
}

/// The same goes for who is dialled: a listener that never answers does not hold up the next try.
#[test]
fn a_silent_provider_is_dialled_again() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let good = TcpListener::bind("127.0.0.1:0").unwrap();
    let dial = vec![silent.local_addr().unwrap(), good.local_addr().unwrap()];
    let mut source = Clocked::new(LinkSettings { dial, ..settings() });
    let mut provider = Provider::new();
    let _never_answered = source.dials(&silent);
    source.pass(Duration::from_millis(HANDSHAKE_MS));
    let heard = provider.hear(source.dials(&good)).unwrap();
    provider.answer(heard);
    source.link();
}

/// Strangers that are half open are few: one more from the same machine pushes out the oldest, and the provider gets in.
#[test]
fn half_open_connections_are_few() {
    let mut source = Clocked::new(listening());
    let mut strangers: Vec<TcpStream> = (0..MAX_HALF_OPEN_DAEMON).map(|_| dial(source.address())).collect();
    strangers.iter().for_each(|stranger| source.until_spoken(stranger));
    let one_more = dial(source.address());
    source.until_spoken(&one_more);
    source.until_closed(&mut strangers[0]);
    assert!(strangers[1..].iter().all(|stranger| source.is_open(stranger)));
    source.enter(&mut Provider::new());
}

/// An abstract socket that somebody else has is a fault only where it is the only way in.
#[test]
fn a_taken_abstract_socket_is_fatal_only_alone() {
    let name = local_name();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _taken = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let alone = NetworkSource::new(LinkSettings { local: Some(name.clone()), ..settings() });
    assert_eq!(alone.unwrap_err().errno, Some(rustix::io::Errno::ADDRINUSE.raw_os_error()));
    let mut source = Clocked::new(LinkSettings { local: Some(name), ..listening() });
    source.enter(&mut Provider::new());
}
