//! What a daemon of the fleet says to commands it cannot run.
//!
//! A script answers the name of the pod, on one line, and the code that its last `exit` names: whoever asks for another
//! code each time knows that it was this command that was answered. The script `:` answers nothing, and succeeds.

use sandlotd::error::{Code, Error, Result};
use sandlotd::message::{Exec, Exit, HelloReply, Reply, Request, StreamEnd};
use serde_bytes::Bytes;

pub enum Next {
    GoOn,
    Close,
}

/// Append the answer to `request` of call `id`, if it has one.
pub fn answer(id: u32, request: Option<&Request<'_>>, pod: &str, frames: &mut Vec<u8>) -> Result<Next> {
    match request {
        Some(Request::Hello(_)) => Reply::Hello(HelloReply {
            version: 1,
            role: "init",
            daemon: sandlotd::NAME,
            name: pod,
            features: &[],
            mode: "nested",
            unenforced: &[],
        })
        .encode(frames)?,
        Some(Request::Ping) => Reply::Pong { id }.encode(frames)?,
        Some(Request::Exec(exec)) => exit(id, exec, pod).encode_into(frames)?,
        Some(Request::Pong | Request::Ack(_) | Request::Forget(_) | Request::Cancel) => {}
        Some(Request::Bye) => return Ok(Next::Close),
        Some(_) | None => {
            let error = Error::new(Code::Unsupported, "a daemon of the fleet runs nothing");
            Reply::error(id, &error).encode(frames)?;
        }
    }
    Ok(Next::GoOn)
}

/// A command's end.
struct Ended {
    id: u32,
    code: u8,
    output: Vec<u8>,
}

impl Ended {
    fn encode_into(&self, frames: &mut Vec<u8>) -> Result<()> {
        let stream = |bytes: &[u8]| (bytes.len() as u64, bytes.len() as u64);
        let ((total, kept), nothing) = (stream(&self.output), Bytes::new(&[]));
        Reply::Exit(Exit {
            id: self.id,
            code: Some(self.code),
            signal: None,
            timed_out: false,
            oom: false,
            out: StreamEnd { total, kept, head: kept, d: Bytes::new(&self.output) },
            err: StreamEnd { total: 0, kept: 0, head: 0, d: nothing },
            wall_us: 0,
            user_us: 0,
            sys_us: 0,
            peak_bytes: None,
            spawn_us: 0,
            unenforced: &[],
            cwd: None,
            alive: None,
        })
        .encode(frames)
    }
}

fn exit(id: u32, exec: &Exec<'_>, pod: &str) -> Ended {
    let script = exec.script.map(|script| String::from_utf8_lossy(script)).unwrap_or_default();
    if script == ":" {
        return Ended { id, code: 0, output: Vec::new() };
    }
    Ended { id, code: code_of(&script), output: format!("{pod}\n").into_bytes() }
}

fn code_of(script: &str) -> u8 {
    let after = script.rsplit_once("exit ").map_or("", |(_, after)| after);
    let digits = after.find(|letter: char| !letter.is_ascii_digit()).map_or(after, |end| &after[..end]);
    digits.parse().unwrap_or(0)
}
