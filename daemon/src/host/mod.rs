//! Makes and destroys sandboxes on one machine: one process for all sandboxes of one client.
//!
//! # How a client starts a host
//! ```text
//! sandlotd host --runtime-dir DIR --control-fd N --client-pid P [--disk-dir DIR] [--mode MODE]
//! ```
//! | argument | meaning |
//! |---|---|
//! | `--runtime-dir DIR` | absolute; shared by all hosts of one user (`/run/sandlot` for root). Made with mode 0700 when it is missing. The host makes `DIR/<id>/` for itself |
//! | `--control-fd N` | one end of a `SOCK_STREAM` socketpair that the client keeps. The host sends one frame on it and reads only its end of file |
//! | `--client-pid P` | the client: it must be the host's parent when the host starts. Its death ends the host, also while a forked worker of it holds the other end of `N` open |
//! | `--disk-dir DIR` | absolute, exists: where uppers on disk are made, in `DIR/<id>/`. Default: in the runtime directory, which is often in memory |
//! | `--mode MODE` | `range-root`, `range-rootless`, `single` or `nested`; default: the best that this machine has. A mode that cannot be had is an error |
//!
//! Standard input, output and error may be anything; the host writes only to standard error, and only what ends it.
//! It closes every other descriptor, makes a session of its own, ignores SIGINT, SIGHUP and SIGPIPE, and takes SIGTERM as the end of its client.
//!
//! # What the client gets
//! One frame (wire contract, section 1) on the control descriptor, within milliseconds:
//! - `ready{id:0, host, socket, pid, mode, swept}`: `host` (str) is the host's id, `socket` (bin) the path of its listener, `pid` (u32) the host's
//!   process, `mode` (str) the id mode, `swept` ([str]) the dead hosts whose remains it removed at its start; or
//! - `error{id:0, code, message, errno, path, why}` as in the contract (`unsupported`, `bad_request`, `permission`, `internal`, ...), then it exits with code 1.
//!
//! From then on each connection to `socket` speaks the contract: `hello` (role `host`), then section 7.
//!
//! # How it ends
//! The end of the control descriptor, the death of the client or SIGTERM closes the host: attached sandboxes are destroyed at once, no
//! new ones are made, leased ones live on until their lease ends, and then the host exits with code 0 and its directory is gone.
//! When the host itself is killed, its inits die with it and its warden (role `warden`, started by the host) removes the rest; what even
//! that could not remove goes when the next host starts.
//!
//! # Files in the runtime directory
//! `DIR/<id>/state` is held locked (`flock`) as long as the host or its warden lives, and says what must be removed after it: lines of `key value`.
//! `DIR/<id>/socket` is the listener. `DIR/ids/<block>` are locks on blocks of ids (mode range-root).

pub mod arguments;
pub mod birth;
pub mod clients;
pub mod creation;
mod dispatch;
mod ending;
pub mod ids;
pub mod plan;
pub mod probe;
pub mod runtime;
pub mod sandbox;
pub mod service;
pub mod skeleton;
pub mod start;
pub mod trial;
pub mod userns;
pub mod warden;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::error::{Error, Result};

/// The role `host`: one process for all sandboxes of one client.
pub fn run(arguments: &[OsString]) -> ExitCode {
    report(start::start(arguments).and_then(|mut service| {
        let served = service.run();
        service.leave().and(served)
    }))
}

/// The role `warden`: watches a host and removes what it leaves when it is killed.
pub fn run_warden(arguments: &[OsString]) -> ExitCode {
    report(warden::run(arguments))
}

fn report(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandlotd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Become the leader of a session of our own: what is typed at the client's terminal is not meant for us.
pub(crate) fn leave_terminal() -> Result<()> {
    match rustix::process::setsid() {
        // PERM: we lead our process group already, and so a session, since nobody else starts us as a leader.
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(errno) => Err(Error::system("leave the terminal", errno)),
    }
}
