//! The vectors of `wire/vectors`, which both sides run.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;

use rmpv::Value;
use sandlotd::message::{self, Role};
use support::noise::Noise;
use support::{Client, Sandbox, resident_kib};

fn vectors(file: &str) -> Vec<serde_json::Value> {
    let path = format!("{}/../wire/vectors/{file}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn frame(row: &serde_json::Value) -> Vec<u8> {
    let hex = row["hex"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|index| u8::from_str_radix(&hex[index..index + 2], 16).unwrap()).collect()
}

fn role(row: &serde_json::Value) -> Role {
    if row["role"] == "host" { Role::Host } else { Role::Init }
}

/// What a client may say is understood, field by field as the vector's words have it.
#[test]
fn requests_are_understood() {
    for row in ["init", "host"].into_iter().flat_map(vectors).filter(|row| row["direction"] == "c2d") {
        let frame = frame(&row);
        let envelope =
            sandlotd::frame::inspect(&frame[4..]).unwrap_or_else(|breach| panic!("{}: {breach}", row["name"]));
        assert_eq!(envelope.kind, row["json"]["t"].as_str().unwrap());
        assert_eq!(u64::from(envelope.id), row["json"]["id"].as_u64().unwrap_or(0));
        let request = message::parse(role(&row), &envelope, &frame[4..])
            .unwrap_or_else(|error| panic!("{}: {error}", row["name"]));
        assert!(request.is_some(), "{}", row["name"]);
    }
}

/// What a daemon says is well formed by our own rules too.
#[test]
fn replies_are_well_formed() {
    for row in ["init", "host"].into_iter().flat_map(vectors).filter(|row| row["direction"] == "d2c") {
        let frame = frame(&row);
        let envelope =
            sandlotd::frame::inspect(&frame[4..]).unwrap_or_else(|breach| panic!("{}: {breach}", row["name"]));
        assert_eq!(envelope.kind, row["json"]["t"].as_str().unwrap());
    }
}

/// Each bad message is answered with its code: a breach ends the connection, anything else leaves it alive.
#[test]
fn bad_messages_are_answered_with_their_code() {
    let sandbox = Sandbox::start();
    for row in vectors("bad").iter().filter(|row| row["direction"] == "c2d" && row["role"] == "init") {
        let mut client = sandbox.open();
        client.stream.write_all(&frame(row)).unwrap();
        let expected = row["error"].as_str().unwrap();
        let answer = client.try_receive().unwrap_or_else(|| panic!("{}: no answer", row["name"]));
        assert_eq!((answer.text("t"), answer.text("code")), ("error", expected), "{}", row["name"]);
        if expected == "protocol_error" {
            assert_eq!((answer.number("id"), client.try_receive()), (0, None), "{}", row["name"]);
        }
    }
    assert_eq!(sandbox.open().ask("ping", &[]).text("t"), "pong");
}

/// Frames cut, stretched, flipped and mixed never bring the reader down, and whatever is accepted is a message.
#[test]
fn mutated_frames_never_break_the_reader() {
    let seeds: Vec<Vec<u8>> = ["init", "host", "bad"].into_iter().flat_map(vectors).map(|row| frame(&row)).collect();
    let mut noise = Noise(0x5eed);
    for _ in 0..200_000 {
        let mut bytes = seeds[noise.below(seeds.len())].clone();
        for _ in 0..=noise.below(4) {
            mutate(&mut bytes, &mut noise, &seeds);
        }
        let payload = bytes.get(4..).unwrap_or_default();
        if let Ok(envelope) = sandlotd::frame::inspect(payload) {
            let mut rest = payload;
            assert!(rmpv::decode::read_value(&mut rest).unwrap().is_map() && rest.is_empty());
            for role in [Role::Init, Role::Host] {
                drop(message::parse(role, &envelope, payload));
            }
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, noise: &mut Noise, seeds: &[Vec<u8>]) {
    if bytes.is_empty() {
        return bytes.push(noise.next() as u8);
    }
    let place = noise.below(bytes.len());
    match noise.below(5) {
        0 => bytes[place] ^= 1 << noise.below(8),
        1 => bytes[place] = noise.next() as u8,
        2 => bytes.truncate(place),
        3 => bytes.insert(place, noise.next() as u8),
        _ => {
            let other = &seeds[noise.below(seeds.len())];
            bytes.splice(place.., other[noise.below(other.len())..].iter().copied());
        }
    }
}

/// A daemon that has been told nonsense by a thousand clients serves the next one, in the memory it had.
#[test]
fn a_daemon_survives_nonsense() {
    let sandbox = Sandbox::start();
    let seeds: Vec<Vec<u8>> = vectors("init").iter().map(frame).filter(|frame| !ends_the_sandbox(frame)).collect();
    let mut noise = Noise(0xda7a);
    let memory = |sandbox: &Sandbox| resident_kib(sandbox.init_pid());
    let mut before = 0;
    for round in 0..1000 {
        let mut client = sandbox.open();
        client.stream.set_nonblocking(true).unwrap();
        for _ in 0..10 {
            let mut bytes = seeds[noise.below(seeds.len())].clone();
            if noise.below(2) == 0 {
                mutate(&mut bytes, &mut noise, &seeds);
            }
            // A full socket or a closed one is as good.
            drop(client.stream.write(&bytes));
        }
        drop(client);
        if round == 200 {
            before = memory(&sandbox);
        }
    }
    let mut client = sandbox.open();
    assert_eq!(client.run("echo alive").out(), "alive\n");
    let after = memory(&sandbox);
    assert!(after < before + 4096, "{before} KiB before, {after} KiB after");
}

/// A reset would end the connections' commands; a fresh one is a test of its own.
fn ends_the_sandbox(frame: &[u8]) -> bool {
    let kinds: [&[u8]; 4] = [b"upload", b"remove", b"write", b"mkdir"];
    kinds.iter().any(|kind| frame.windows(kind.len()).any(|window| window == *kind))
}

/// A frame that announces two mebibytes and never comes costs what came of it.
#[test]
fn an_unfinished_frame_is_waited_for_without_harm() {
    let sandbox = Sandbox::start();
    let mut silent: Vec<Client> = (0..20).map(|_| sandbox.open()).collect();
    for client in &mut silent {
        client.stream.write_all(&2_097_152_u32.to_be_bytes()).unwrap();
    }
    let mut client = sandbox.open();
    assert_eq!(client.run("echo alive").out(), "alive\n");
    assert!(resident_kib(sandbox.init_pid()) < 64 * 1024);
}

/// A client that asks and never reads bounds itself: the daemon stops listening to it and to nobody else.
#[test]
fn a_client_that_never_reads_bounds_itself() {
    let sandbox = Sandbox::start();
    let mut deaf = sandbox.open();
    deaf.stream.set_nonblocking(true).unwrap();
    let ping = b"\0\0\0\x0c\x82\xa1t\xa4ping\xa2id\x01".repeat(1000);
    for _ in 0..20_000 {
        if deaf.stream.write(&ping).is_err() {
            std::thread::yield_now();
        }
    }
    let mut client = sandbox.open();
    assert_eq!(client.run("echo alive").out(), "alive\n");
    assert!(resident_kib(sandbox.init_pid()) < 64 * 1024);
}

/// The opening: another version is refused by name, and nothing comes before hello.
#[test]
fn the_opening_is_checked() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.connect();
    client.send(support::map(&[("t", "hello".into()), ("versions", Value::Array(vec![2.into(), 3.into()]))]));
    let error = client.receive();
    assert_eq!((error.text("code"), error.number("id")), ("version", 0));
    assert_eq!(client.try_receive(), None);
    let mut client = sandbox.connect();
    client.send(support::map(&[("t", "ping".into()), ("id", 1.into())]));
    assert_eq!(client.receive().text("code"), "protocol_error");
    let mut client = sandbox.connect();
    client.send(support::map(&[("t", "hello".into()), ("pad", "x".repeat(5000).into())]));
    assert_eq!(client.receive().text("code"), "protocol_error");
}
