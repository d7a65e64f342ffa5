//! The role `connect`: bytes both ways between its standard streams and the daemon's abstract socket.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use sandlotd::source::LinkSettings;
use support::network::{Pod, Provider, local_name, settings};

fn relay(name: &[u8]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sandlotd"))
        .arg("connect")
        .arg(std::str::from_utf8(name).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Both pipes of a relay as one stream.
struct Pipes(ChildStdin, ChildStdout);

impl Pipes {
    fn of(child: &mut Child) -> Self {
        Pipes(child.stdin.take().unwrap(), child.stdout.take().unwrap())
    }
}

impl Read for Pipes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.1.read(buffer)
    }
}

impl Write for Pipes {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        self.0.write(buffer)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// A provider at the other end of a relay is served like any other, megabytes included, and leaving it is a clean end.
#[test]
fn a_provider_is_served_through_a_relay() {
    let name = local_name();
    let _pod = Pod::start(LinkSettings { local: Some(name.clone()), ..settings() });
    let mut provider = Provider::new();
    for round in 0..3 {
        let mut child = relay(&name);
        let mut client = provider.link(Pipes::of(&mut child));
        assert_eq!(client.run(&format!("echo relayed {round}")).out(), format!("relayed {round}\n"));
        assert_eq!(client.run("head -c 5000000 /dev/zero").out().len(), 5_000_000);
        drop(client);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

/// The end of standard input reaches the other side, what comes after it still comes through, and then it ends.
#[test]
fn the_end_of_input_is_passed_on() {
    let name = local_name();
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut child = relay(&name);
    let mut pipes = Pipes::of(&mut child);
    let (mut stream, _) = listener.accept().unwrap();
    pipes.write_all(b"question").unwrap();
    drop(pipes.0);
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"question");
    stream.write_all(b"answer").unwrap();
    drop(stream);
    heard.clear();
    pipes.1.read_to_end(&mut heard).unwrap();
    assert_eq!((heard.as_slice(), child.wait().unwrap().code()), (&b"answer"[..], Some(0)));
}

/// A daemon that ends the link ends the relay, whether or not anything more could be said to it.
#[test]
fn the_end_of_the_link_ends_it() {
    let name = local_name();
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut child = relay(&name);
    let _input = child.stdin.take().unwrap();
    drop(listener.accept().unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Nobody there, nobody who reads any more, and wrong arguments have codes of their own.
#[test]
fn faults_have_codes_of_their_own() {
    let mut alone = relay(&local_name());
    assert_eq!(alone.wait().unwrap().code(), Some(3));
    let mut told = String::new();
    alone.stderr.unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains("no daemon here"), "{told}");

    let name = local_name();
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut unread = relay(&name);
    let _input = unread.stdin.take().unwrap();
    drop(unread.stdout.take());
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"nobody reads this").unwrap();
    assert_eq!(unread.wait().unwrap().code(), Some(4));

    let many = Command::new(env!("CARGO_BIN_EXE_sandlotd")).args(["connect", "a", "b"]).output().unwrap();
    assert_eq!(many.status.code(), Some(2));
}
