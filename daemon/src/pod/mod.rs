//! PID 1 of a container that others have made from a task image, as in a pod of Kubernetes.
//!
//! There is no host above and no blueprint: what the daemon shall be stands in its environment ([`environment`]), whom
//! commands may be is what the container lets it be ([`standing`]), and the container's cgroup is read and never written
//! ([`container`]). [`boot`] puts these together; [`hooks`] is what the main loop can do to the container as a whole.

mod boot;
mod container;
mod copies;
mod environment;
mod hooks;
mod install;
mod ipc;
mod pause;
mod pioneer;
mod renewed;
mod standing;
mod survey;
mod tier;
mod tracked;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;

pub use install::install;
pub use pause::pause;

/// The role `pod`: serve the container that this process is PID 1 of.
///
/// `sandlotd pod` takes no arguments: everything is in its environment.
pub fn run(arguments: &[OsString]) -> ExitCode {
    if !arguments.is_empty() || rustix::process::getpid() != rustix::process::Pid::INIT {
        eprintln!("sandlotd pod has to be process 1 of a container (no shareProcessNamespace, no hostPID)");
        return ExitCode::from(2);
    }
    let ended = boot::boot().and_then(|(source, context)| crate::serve::serve(source, context));
    match ended {
        Ok(ended) => ExitCode::from(ended.exit_code()),
        Err(error) => {
            eprintln!("sandlotd pod: {error}");
            ExitCode::FAILURE
        }
    }
}
