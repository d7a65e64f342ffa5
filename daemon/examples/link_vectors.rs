//! Writes `wire/vectors/links.json`: whole links with all keys fixed, which both languages run.
//!
//!     cargo run --example link_vectors > ../wire/vectors/links.json
//!
//! Each row has everything that goes in, in hex, and every message that comes out, length included. In rows with
//! `"fails"` the named step is refused: `message_1` or `transport` by the provider, `message_2` by the daemon.
#![allow(clippy::unwrap_used)]

use sandlotd::seal::{Handshake, Key, Opening, PATTERN, PROLOGUE, Seal, Secret, Use};
use serde_bytes::Bytes;
use serde_json::{Value, json};

const PROVIDER_PRIVATE: [u8; 32] = [0x11; 32];
const DAEMON_EPHEMERAL: [u8; 32] = [0x22; 32];
const PROVIDER_EPHEMERAL: [u8; 32] = [0x33; 32];
const ENROL: [u8; 32] = [0x44; 32];
const RESUME: [u8; 32] = [0x55; 32];
const BOOT: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

#[allow(dead_code)] // `tests/links.rs` takes in this file for its text.
fn main() {
    print!("{}", text());
}

/// The file, a row a line.
pub fn text() -> String {
    let lines: Vec<String> = rows().iter().map(Value::to_string).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}

fn rows() -> Vec<Value> {
    let enrol = link("a first link", Use::Enrol, ENROL, "sandbox-1");
    let resume = link("a link that goes on", Use::Resume, RESUME, "sandbox-1");
    let long = link("a name of 253 characters", Use::Enrol, ENROL, &"n".repeat(253));
    let mut rows = vec![enrol.clone(), resume, long];
    rows.push(spoilt(&enrol, "the provider has another key", "message_1", |row| {
        row["provider_private"] = hex(&[0x12; 32]).into();
    }));
    rows.push(spoilt(&enrol, "a bit of message 1 is flipped", "message_1", |row| flip(&mut row["message_1"])));
    rows.push(spoilt(&enrol, "message 2 is of another link", "message_2", |row| {
        row["message_2"] = link("", Use::Enrol, RESUME, "sandbox-1")["message_2"].clone();
    }));
    rows.push(spoilt(&enrol, "a bit of message 2 is flipped", "message_2", |row| flip(&mut row["message_2"])));
    rows.push(spoilt(&enrol, "the daemon has another secret", "message_2", |row| {
        row["secret"] = hex(&[0x45; 32]).into();
        row["message_1"] = link("", Use::Enrol, [0x45; 32], "sandbox-1")["message_1"].clone();
    }));
    rows.push(spoilt(&enrol, "a transport message is flipped", "transport", |row| {
        flip(&mut row["transport"][1]["message"]);
    }));
    rows.push(spoilt(&enrol, "a transport message comes twice", "transport", |row| {
        let again = row["transport"][1].clone();
        row["transport"].as_array_mut().unwrap().insert(2, again);
    }));
    rows.push(spoilt(&enrol, "a transport message is missing", "transport", |row| {
        row["transport"].as_array_mut().unwrap().remove(1);
    }));
    rows
}

/// One link from the first message on.
fn link(name: &str, using: Use, secret: [u8; 32], sandbox: &str) -> Value {
    let opening = Opening { name: sandbox, using, boot: Bytes::new(&BOOT) };
    let (handshake, first) =
        Handshake::begin_with_ephemeral(&DAEMON_EPHEMERAL, &Key(public()), &Secret::new(secret), &opening).unwrap();
    let mut responder = responder(&secret);
    let mut buffer = vec![0; 65_535];
    let length = responder.read_message(&first[2..], &mut buffer).unwrap();
    let first_payload = buffer[..length].to_vec();
    let second_payload = rmp_serde::to_vec_named(&Granted { resume: Bytes::new(&RESUME) }).unwrap();
    let length = responder.write_message(&second_payload, &mut buffer).unwrap();
    let second = framed(&buffer[..length]);
    let (seal, _) = handshake.finish(&second[2..]).unwrap();
    json!({
        "name": name,
        "provider_private": hex(&PROVIDER_PRIVATE),
        "provider_public": hex(&public()),
        "daemon_ephemeral_private": hex(&DAEMON_EPHEMERAL),
        "provider_ephemeral_private": hex(&PROVIDER_EPHEMERAL),
        "secret": hex(&secret),
        "opening": {"name": sandbox, "use": if using == Use::Enrol { "enrol" } else { "resume" }, "boot": hex(&BOOT)},
        "message_1_payload": hex(&first_payload),
        "message_1": hex(&first),
        "resume": hex(&RESUME),
        "message_2_payload": hex(&second_payload),
        "message_2": hex(&second),
        "transport": transport(seal, responder.into_transport_mode().unwrap()),
    })
}

#[derive(serde::Serialize)]
struct Granted<'a> {
    resume: &'a Bytes,
}

fn transport(mut daemon: Seal, mut provider: snow::TransportState) -> Vec<Value> {
    let plains: [(&str, &[u8]); 6] = [
        ("provider", b"hello from the provider"),
        ("daemon", b"hello from the daemon"),
        ("daemon", b""),
        ("daemon", b"again"),
        ("provider", &[0xff; 100]),
        ("provider", b""),
    ];
    plains
        .into_iter()
        .map(|(from, plain)| {
            let mut message = Vec::new();
            if from == "provider" {
                let mut buffer = vec![0; plain.len() + 16];
                provider.write_message(plain, &mut buffer).unwrap();
                message = framed(&buffer);
            } else {
                daemon.seal_message(plain, &mut message).unwrap();
            }
            json!({"from": from, "plain": hex(plain), "message": hex(&message)})
        })
        .collect()
}

fn responder(secret: &[u8; 32]) -> snow::HandshakeState {
    snow::Builder::with_resolver(PATTERN.parse().unwrap(), sandlotd::seal::resolver())
        .prologue(PROLOGUE)
        .unwrap()
        .local_private_key(&PROVIDER_PRIVATE)
        .unwrap()
        .psk(2, secret)
        .unwrap()
        .fixed_ephemeral_key_for_testing_only(&PROVIDER_EPHEMERAL)
        .build_responder()
        .unwrap()
}

fn public() -> [u8; 32] {
    let mut dh = sandlotd::seal::resolver().resolve_dh(&snow::params::DHChoice::Curve25519).unwrap();
    dh.set(&PROVIDER_PRIVATE);
    dh.pubkey().try_into().unwrap()
}

fn spoilt(row: &Value, name: &str, fails: &str, spoil: impl FnOnce(&mut Value)) -> Value {
    let mut row = row.clone();
    row["name"] = name.into();
    row["fails"] = fails.into();
    spoil(&mut row);
    row
}

/// The last bit of a message in hex.
fn flip(message: &mut Value) {
    let text = message.as_str().unwrap();
    let last = u8::from_str_radix(&text[text.len() - 2..], 16).unwrap();
    *message = format!("{}{:02x}", &text[..text.len() - 2], last ^ 1).into();
}

fn framed(message: &[u8]) -> Vec<u8> {
    [u16::try_from(message.len()).unwrap().to_be_bytes().as_slice(), message].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
