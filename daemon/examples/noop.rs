//! Latency of a short command through the main loop, interleaved with its floor: a spawn of `sh -c` with two pipes.
//!
//! Every answer is checked: each command exits with a code of its own and prints its number.
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rmpv::Value;

const BLOCKS: usize = 20;
const PER_BLOCK: usize = 100;

fn main() {
    // Microseconds of work that the client does between two commands.
    let gap = std::env::args().nth(1).map_or(0, |gap| gap.parse().unwrap());
    let gap = Duration::from_micros(gap);
    let sandbox = support::Sandbox::start();
    let mut client = sandbox.open();
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let mut number = 0;
    for _ in 0..BLOCKS {
        for _ in 0..PER_BLOCK {
            number += 1;
            ours.push(through_daemon(&mut client, number));
            work(gap);
        }
        for _ in 0..PER_BLOCK {
            number += 1;
            floor.push(plain_spawn(number));
            work(gap);
        }
    }
    let (ours, floor) = (percentiles(ours), percentiles(floor));
    println!("daemon p50 {:?} p99 {:?} · spawn p50 {:?} p99 {:?}", ours.0, ours.1, floor.0, floor.1);
    println!(
        "ratio p50 {:.2} p99 {:.2}",
        ours.0.as_secs_f64() / floor.0.as_secs_f64(),
        ours.1.as_secs_f64() / floor.1.as_secs_f64()
    );
}

fn work(gap: Duration) {
    let began = Instant::now();
    while began.elapsed() < gap {
        std::hint::spin_loop();
    }
}

fn through_daemon(client: &mut support::Client, number: usize) -> Duration {
    let done = vec![Value::from(format!("run {}", number - 1))];
    let key = format!("run {number}");
    let script = format!("echo {number}; exit {}", number % 256);
    let began = Instant::now();
    let fields = [("key", Value::from(key)), ("script", support::bin(script)), ("done", Value::Array(done))];
    let id = client.begin("exec", &fields);
    let exit = client.next_of(id);
    let took = began.elapsed();
    assert_eq!((exit.out(), exit.code()), (format!("{number}\n"), Some(number as u64 % 256)));
    took
}

fn plain_spawn(number: usize) -> Duration {
    let script = format!("echo {number}; exit {}", number % 256);
    let began = Instant::now();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).stdin(Stdio::null());
    let output = command.output().unwrap();
    let took = began.elapsed();
    assert_eq!((output.stdout, output.status.code()), (format!("{number}\n").into_bytes(), Some(number as i32 % 256)));
    took
}

fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}
