//! Links across a network: who may have one, how it begins, breaks and begins again.
#![allow(clippy::unwrap_used)]

mod support;

#[path = "../examples/link_vectors.rs"]
mod link_vectors;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use rmpv::Value;
use sandlotd::limits::MAX_HALF_OPEN_DAEMON;
use sandlotd::source::LinkSettings;
use support::network::{Pod, Provider, Sealed, Trickle, arrival, dial, local_name, settings, write_message};
use support::noise::Noise;
use support::{Client, PATIENCE, bin, bins, map, resident_kib};

/// The vectors that the other language runs are what this one makes.
#[test]
fn the_vectors_are_ours() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/vectors/links.json");
    assert!(std::fs::read_to_string(path).unwrap() == link_vectors::text(), "cargo run --example link_vectors");
}

/// A daemon dials its provider, and runs commands for it.
#[test]
fn a_dialled_provider_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _pod = Pod::start(LinkSettings { dial: vec![listener.local_addr().unwrap()], ..settings() });
    let mut client = Provider::new().link(arrival(&listener));
    assert_eq!(client.run("echo dialled").out(), "dialled\n");
}

/// A provider dials a daemon that listens.
#[test]
fn a_provider_that_dials_is_served() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut client = Provider::new().link(dial(pod.address()));
    assert_eq!(client.run("echo listened").out(), "listened\n");
}

/// A provider that comes over the abstract socket is served.
#[test]
fn a_local_relay_is_served() {
    let name = local_name();
    let _pod = Pod::start(LinkSettings { local: Some(name.clone()), ..settings() });
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut client = Provider::new().link(stream);
    assert_eq!(client.run("echo local").out(), "local\n");
}

/// A link that breaks under a command loses nothing: the next one goes on at the byte where it broke, and nothing runs twice.
#[test]
fn a_cut_link_is_taken_up_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _pod = Pod::start(LinkSettings { dial: vec![listener.local_addr().unwrap()], ..settings() });
    let mut provider = Provider::new();
    let mut client = provider.link(arrival(&listener));
    let witness = std::env::temp_dir().join(format!("sandlot-links-{}", std::process::id()));
    let script = format!("echo begun | tee -a {0}; read line; echo $line; rm {0}", witness.display());
    let fields = [("mode", "stream".into()), ("stdin_open", true.into())];
    let id = client.begin_script(&script, &fields);
    assert_eq!(client.next_of(id).text("t"), "started");
    assert_eq!(client.next_of(id).bytes("d"), b"begun\n");
    drop(client);
    let mut client = provider.link(arrival(&listener));
    let key = Value::from(format!("run {id}"));
    let id = client.begin("attach", &[("key", key.clone()), ("out_from", 6.into()), ("err_from", 0.into())]);
    assert_eq!(client.next_of(id).text("t"), "ack");
    assert_eq!(std::fs::read(&witness).unwrap(), b"begun\n");
    client.send(map(&[
        ("t", "stdin".into()),
        ("id", id.into()),
        ("key", key),
        ("off", 0.into()),
        ("d", bin("ended\n")),
        ("eof", true.into()),
    ]));
    let mut message = client.next_of(id);
    while message.text("t") == "ack" {
        message = client.next_of(id);
    }
    assert_eq!((message.number("off"), message.bytes("d")), (6, &b"ended\n"[..]));
    assert_eq!(client.next_of(id).code(), Some(0));
}

/// An old link that is silent, not closed, does not stand in the way of a new one.
#[test]
fn a_new_link_is_taken_beside_a_silent_one() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut provider = Provider::new();
    let mut old = provider.link(dial(pod.address()));
    old.ask("ping", &[]);
    let mut new = provider.link(dial(pod.address()));
    assert_eq!(new.run("echo new").out(), "new\n");
    assert_eq!(old.run("echo old").out(), "old\n");
}

/// More links than a daemon keeps: the one that has been silent longest makes way.
#[test]
fn the_most_silent_link_makes_way() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut provider = Provider::new();
    let mut links: Vec<_> = (0..65)
        .map(|_| {
            let mut client = provider.link(dial(pod.address()));
            assert_eq!(client.ask("ping", &[]).text("t"), "pong");
            client
        })
        .collect();
    let mut oldest = links.remove(0);
    while let Some(message) = oldest.try_receive() {
        // It was asked whether it is still there.
        assert_eq!(message.text("t"), "ping");
    }
    for mut client in links {
        assert_eq!(client.ask("ping", &[]).text("t"), "pong");
    }
}

/// When the last link is gone the daemon waits for its grace and exits; so it does when its lease runs out.
#[test]
fn a_daemon_that_nobody_needs_exits() {
    let short = Some(Duration::from_millis(50));
    let alone = Pod::start(LinkSettings { listen: Some(0), grace: short, ..settings() });
    assert_eq!(alone.wait(), 11);
    let leased = Pod::start(LinkSettings { listen: Some(0), lease: short, ..settings() });
    assert_eq!(leased.wait(), 12);
}

/// A lease is renewed over the link, and only where there is one.
#[test]
fn a_lease_is_renewed_over_the_link() {
    let lease = Some(Duration::from_secs(3600));
    let leased = Pod::start(LinkSettings { listen: Some(0), lease, ..settings() });
    let mut client = Provider::new().link(dial(leased.address()));
    assert_eq!(client.ask("renew", &[("lease_ms", 0.into())]).text("code"), "bad_request");
    assert_eq!(client.ask("renew", &[("lease_ms", u64::MAX.into())]).text("t"), "ok");
    assert_eq!(client.ask("renew", &[("lease_ms", 1.into())]).text("t"), "ok");
    assert_eq!(leased.wait(), 12);
    let unleased = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut client = Provider::new().link(dial(unleased.address()));
    assert_eq!(client.ask("renew", &[("lease_ms", 1000.into())]).text("code"), "unsupported");
}

/// Whatever way the bytes of a link are cut, the same comes out: pieces of a message, of a frame, and none at all.
#[test]
fn any_cut_of_the_stream_is_understood() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut provider = Provider::new();
    let mut slow = provider.link(Trickle(dial(pod.address())));
    assert_eq!(slow.run("echo slow").out(), "slow\n");
    let mut client = provider.link(dial(pod.address()));
    let mut noise = Noise(0x1ead);
    for round in 0..50 {
        let script = format!("echo {round} {}", "x".repeat(noise.below(20_000)));
        let request = map(&[
            ("t", "exec".into()),
            ("id", (1 + round).into()),
            ("key", round.to_string().into()),
            ("script", bin(&script)),
        ]);
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &request).unwrap();
        let frame = [u32::try_from(payload.len()).unwrap().to_be_bytes().as_slice(), &payload].concat();
        send_cut(&mut client.stream, &frame, &mut noise);
        assert_eq!(client.next_of(1 + round).out(), format!("{}\n", &script[5..]));
    }
}

/// Seal `bytes` in messages of any length, and write them in pieces of any length.
fn send_cut(sealed: &mut Sealed<TcpStream>, mut bytes: &[u8], noise: &mut Noise) {
    let mut wire = Vec::new();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(noise.below(bytes.len() + 1));
        write_message(&mut wire, &sealed.seal(piece)).unwrap();
        bytes = rest;
    }
    let mut wire = wire.as_slice();
    while !wire.is_empty() {
        let (piece, rest) = wire.split_at(1 + noise.below(wire.len()));
        sealed.stream.write_all(piece).unwrap();
        wire = rest;
    }
}

/// Megabytes go through sealed as they are, in both directions at once, the longest frame there may be among them.
#[test]
fn megabytes_go_through_unchanged() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut client = Provider::new().link(dial(pod.address()));
    let mut noise = Noise(0xb16);
    let script = format!("true {:x}\ncat <<'END'\n{}\nEND", noise.next(), "0123456789abcdef".repeat(60_000));
    assert_eq!(client.run(&script).out(), format!("{}\n", "0123456789abcdef".repeat(60_000)));
    let exit = client.run("i=0; while [ $i -lt 300000 ]; do echo $i; i=$((i+1)); done");
    let expected: String = (0..300_000).map(|line| format!("{line}\n")).collect();
    assert!(exit.out() == expected);
}

/// A message that somebody has changed, repeated or left out ends the link and nothing else.
#[test]
fn a_tampered_link_ends() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut provider = Provider::new();
    let ping = b"\0\0\0\x0c\x82\xa1t\xa4ping\xa2id\x01";
    let tamperings: [fn(&mut Vec<Vec<u8>>); 5] = [
        |messages| messages[1][3] ^= 1,
        |messages| *messages[1].last_mut().unwrap() ^= 0x80,
        |messages| messages[1] = messages[0].clone(),
        |messages| drop(messages.remove(1)),
        |messages| messages[1].truncate(15),
    ];
    for tamper in tamperings {
        let mut client = provider.link(dial(pod.address()));
        let mut messages: Vec<_> = (0..3).map(|_| client.stream.seal(ping)).collect();
        tamper(&mut messages);
        for message in &messages {
            // It may be closed already.
            drop(write_message(&mut client.stream.stream, message));
        }
        assert_eq!(client.receive().text("t"), "pong");
        assert!(client.try_receive().is_none());
    }
    assert_eq!(provider.link(dial(pod.address())).run("echo alive").out(), "alive\n");
}

/// Hundreds of strangers that say anything, or nothing and stay, cost no memory and do not keep the provider out.
#[test]
fn strangers_do_not_wear_a_daemon_out() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut provider = Provider::new();
    let mut client = provider.link(dial(pod.address()));
    let mut noise = Noise(0x57a9);
    let mut before = 0;
    let mut lingering = Vec::new();
    for round in 0..400 {
        let mut stranger = dial(pod.address());
        let bytes: Vec<u8> = (0..noise.below(700)).map(|_| noise.next() as u8).collect();
        // A closed one is as good.
        drop(stranger.write_all(&bytes));
        if round % 5 == 0 {
            lingering.push(stranger);
        }
        if round == 100 {
            before = resident_kib(pod.init_pid());
        }
    }
    assert_eq!(client.run("echo old").out(), "old\n");
    assert_eq!(provider.link(dial(pod.address())).run("echo new").out(), "new\n");
    let after = resident_kib(pod.init_pid());
    assert!(after < before + 2048, "{before} KiB before, {after} KiB after");
}

/// A provider that asks and never reads bounds itself on a sealed link as on a plain one.
#[test]
fn a_provider_that_never_reads_bounds_itself() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut provider = Provider::new();
    let mut deaf = provider.link(dial(pod.address()));
    let pings = b"\0\0\0\x0c\x82\xa1t\xa4ping\xa2id\x01".repeat(4000);
    deaf.stream.stream.set_nonblocking(true).unwrap();
    let mut refused = 0;
    while refused < 20 {
        let message = deaf.stream.seal(&pings);
        if write_message(&mut deaf.stream.stream, &message).is_err() {
            // What it has taken it has to go through first; the next message would not open, but none is read.
            refused += 1;
            std::thread::yield_now();
        }
    }
    assert_eq!(provider.link(dial(pod.address())).run("echo alive").out(), "alive\n");
    assert!(resident_kib(pod.init_pid()) < 64 * 1024);
}

fn local(name: &[u8]) -> UnixStream {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A command of the sandbox that connects to the daemon's own socket and stays.
fn begin_inside<S: Read + Write>(client: &mut Client<S>, name: &[u8]) -> u32 {
    let argv = bins(&[env!("CARGO_BIN_EXE_sandlotd"), "connect", std::str::from_utf8(name).unwrap()]);
    let key = Value::from(format!("inside {}", client.count()));
    client.begin("exec", &[("key", key), ("argv", argv), ("mode", "stream".into()), ("stdin_open", true.into())])
}

/// Processes of the sandbox that hold every place have to give one up to who comes from outside.
#[test]
fn processes_inside_do_not_keep_the_provider_out() {
    let name = local_name();
    let _pod = Pod::start(LinkSettings { local: Some(name.clone()), ..settings() });
    let mut provider = Provider::new();
    let mut client = provider.link(local(&name));
    let inside: Vec<u32> = (0..MAX_HALF_OPEN_DAEMON).map(|_| begin_inside(&mut client, &name)).collect();
    for id in &inside {
        assert_eq!(client.next_of(*id).text("t"), "started");
        // The first message: it has a place.
        assert_eq!(client.next_of(*id).text("t"), "out");
    }
    assert_eq!(provider.link(local(&name)).run("echo outside").out(), "outside\n");
}

/// Those who come from outside keep their places whatever comes from inside.
#[test]
fn processes_inside_push_out_nobody_from_outside() {
    let name = local_name();
    let _pod = Pod::start(LinkSettings { local: Some(name.clone()), ..settings() });
    let mut provider = Provider::new();
    let mut client = provider.link(local(&name));
    let outside: Vec<_> = (0..MAX_HALF_OPEN_DAEMON).map(|_| provider.hear(local(&name)).unwrap()).collect();
    let id = begin_inside(&mut client, &name);
    assert_eq!(client.next_of(id).text("t"), "started");
    // Closed at once: it hears nothing, not even a first message.
    let exit = client.next_of(id);
    assert_eq!((exit.text("t"), exit.code(), exit.end("out").number("total")), ("exit", Some(0), 0));
    for heard in outside {
        let mut client = Client::new(provider.answer(heard));
        assert_eq!(client.hello().text("t"), "hello");
    }
}
