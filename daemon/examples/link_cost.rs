//! What a sealed TCP link on loopback costs beside the plain socket of a host: a ping, a short command, and bulk data both ways.
//!
//!     cargo run --profile thin --example link_cost
//!
//! All four are interleaved in blocks, and every answer is checked.
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rmpv::Value;
use sandlotd::source::LinkSettings;
use support::network::{Pod, Provider, dial, settings};
use support::{Client, Sandbox, bin, map};

const BLOCKS: usize = 20;
const PER_BLOCK: usize = 50;
const BULK_BYTES: u64 = 64 << 20;

fn main() {
    let sandbox = Sandbox::start();
    let mut plain = sandbox.open();
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut sealed = Provider::new().link(dial(pod.address()));
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..BLOCKS {
        for _ in 0..PER_BLOCK {
            times[0].push(ping(&mut plain));
            times[1].push(ping(&mut sealed));
            times[2].push(command(&mut plain));
            times[3].push(command(&mut sealed));
        }
    }
    let [ping_plain, ping_sealed, plain_took, sealed_took] = times.map(median);
    println!("ping    plain {ping_plain:?} · sealed {ping_sealed:?}");
    println!("command plain {plain_took:?} · sealed {sealed_took:?}");
    for _ in 0..3 {
        bulk("down  plain ", sandbox.init_pid(), || down(&mut plain));
        bulk("down  sealed", pod.init_pid(), || down(&mut sealed));
        bulk("up    plain ", sandbox.init_pid(), || up(&mut plain));
        bulk("up    sealed", pod.init_pid(), || up(&mut sealed));
    }
}

/// Prints the rate, and what one byte costs the daemon's main thread: that holds on a busy machine too.
fn bulk(what: &str, daemon: i32, transfer: impl FnOnce() -> f64) {
    let before = cpu(daemon);
    let rate = transfer();
    let spent = cpu(daemon) - before;
    println!("{what} {rate:.0} MB/s · daemon busy {:.0} us for a MB", spent.as_secs_f64() * 1e12 / BULK_BYTES as f64);
}

/// Time that the first thread of a process has been running.
fn cpu(pid: i32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn ping<S: Read + Write>(client: &mut Client<S>) -> Duration {
    let began = Instant::now();
    assert_eq!(client.ask("ping", &[]).text("t"), "pong");
    began.elapsed()
}

fn command<S: Read + Write>(client: &mut Client<S>) -> Duration {
    let code = u64::from(client.count() % 256);
    let began = Instant::now();
    assert_eq!(client.run(&format!("exit {code}")).code(), Some(code));
    began.elapsed()
}

/// Output of a command, in megabytes a second.
fn down<S: Read + Write>(client: &mut Client<S>) -> f64 {
    let began = Instant::now();
    let id = client.begin(
        "exec",
        &[
            ("key", format!("down {}", client.count()).into()),
            ("script", bin(format!("head -c {BULK_BYTES} /dev/zero"))),
            ("mode", "stream".into()),
        ],
    );
    let mut have = 0;
    loop {
        let message = client.next_of(id);
        match message.text("t") {
            "out" => {
                have += message.bytes("d").len() as u64;
                let ack = [("t", "ack".into()), ("id", id.into()), ("s", 1.into()), ("off", have.into())];
                client.send(map(&ack));
            }
            "exit" => break,
            _ => {}
        }
    }
    assert_eq!(have, BULK_BYTES);
    BULK_BYTES as f64 / 1e6 / began.elapsed().as_secs_f64()
}

/// A file that is written, in megabytes a second.
fn up<S: Read + Write>(client: &mut Client<S>) -> f64 {
    let chunk = vec![0; 256 * 1024];
    let began = Instant::now();
    let id = client.begin("write", &[("path", bin("/dev/shm/sandlot-link-cost")), ("d", bin(""))]);
    let (mut sent, mut acknowledged) = (0, 0);
    while sent < BULK_BYTES {
        while sent + chunk.len() as u64 > acknowledged + (1 << 20) {
            acknowledged = client.next_of(id).number("off");
        }
        let data = [
            ("t", "data".into()),
            ("id", id.into()),
            ("s", 0.into()),
            ("off", sent.into()),
            ("d", Value::Binary(chunk.clone())),
        ];
        client.send(map(&data));
        sent += chunk.len() as u64;
    }
    client.send(map(&[("t", "end".into()), ("id", id.into())]));
    loop {
        let message = client.next_of(id);
        if message.text("t") == "ok" {
            assert_eq!(message.number("size"), BULK_BYTES);
            break;
        }
        assert_eq!(message.text("t"), "ack");
    }
    let took = began.elapsed();
    client.ask("remove", &[("path", bin("/dev/shm/sandlot-link-cost"))]);
    BULK_BYTES as f64 / 1e6 / took.as_secs_f64()
}
