//! PID 1 of a sandbox: boot, confinement of commands, reset.

use std::ffi::OsString;
use std::process::ExitCode;

/// The role `init`: boot the sandbox that the host describes, then serve it.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let _ = arguments;
    ExitCode::FAILURE
}

/// Numeric identity of a command, already resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What a command may not do, applied in its child just before exec.
#[derive(Debug, Default)]
pub struct Confinement {}

impl Confinement {
    /// None at all: only for a process that is not in a sandbox of ours.
    pub fn none() -> Self {
        Confinement::default()
    }

    /// Capabilities, seccomp, identity, no_new_privs.
    ///
    /// Called in a child that shares the parent's memory while the parent runs on (`CLONE_VM` without
    /// `CLONE_VFORK`): only raw system calls (rustix, or `libc::syscall`), never libc's `setuid` family; allocates
    /// nothing, takes no lock, writes nothing but its own stack.
    ///
    /// # Errors
    /// The first system call that failed; the child reports it and exits.
    pub fn apply_in_child(&self, identity: &Identity) -> rustix::io::Result<()> {
        let _ = identity;
        Ok(())
    }
}
