//! PID 1 of a sandbox: boot, confinement of commands, reset.
//!
//! A host starts it in a new user, mount and PID namespace, as root of that user namespace, with nothing but a private
//! link to the host. What it shall become comes over the link ([`blueprint`], [`handover`]). It builds an outer mount
//! namespace that commands never see ([`outer`], [`base`]) and in it one episode after the other ([`episode`], [`renewal`]).
//!
//! Commands get less than the init has: see [`crate::confinement`].

pub mod base;
pub mod blueprint;
pub mod boot;
pub mod episode;
pub mod handover;
mod layout;
pub mod look;
pub mod mounts;
pub mod outer;
pub mod renewal;
pub mod spare;

use std::ffi::OsString;
use std::process::ExitCode;

/// Exit code of an init whose sandbox nobody has used for its idle time-out.
pub const IDLE: u8 = 10;

/// The role `init`: boot the sandbox that the host describes, then serve it.
///
/// `sandlotd init` takes no arguments: the link is descriptor 3, and everything else comes over it.
pub fn run(arguments: &[OsString]) -> ExitCode {
    if !arguments.is_empty() || rustix::process::getpid() != rustix::process::Pid::INIT {
        eprintln!("sandlotd init is started by sandlotd host, as process 1 of a sandbox");
        return ExitCode::from(2);
    }
    match boot::boot() {
        Ok((source, context)) => match crate::serve::serve(source, context) {
            Ok(ended) => ExitCode::from(ended.exit_code()),
            Err(error) => {
                eprintln!("sandlotd init: {error}");
                ExitCode::FAILURE
            }
        },
        // The host has been told.
        Err(_) => ExitCode::FAILURE,
    }
}
