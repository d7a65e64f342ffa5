//! Makes and destroys sandboxes on one machine.

use std::ffi::OsString;
use std::process::ExitCode;

/// The role `host`: one process for all sandboxes of one client.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let _ = arguments;
    ExitCode::FAILURE
}

/// The role `warden`: watches a host and removes what it leaves when it is killed.
pub fn run_warden(arguments: &[OsString]) -> ExitCode {
    let _ = arguments;
    ExitCode::FAILURE
}
