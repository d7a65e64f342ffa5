//! The main loop of a sandbox.

use crate::sandbox::SandboxContext;
use crate::source::Source;

/// Why the loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The host has closed its end of the source.
    SourceClosed,
    /// Nobody has used the sandbox for its `idle_timeout`.
    Idle,
}

/// Serve the connections that come from `source` until the host is gone or the sandbox is idle for too long.
///
/// # Errors
/// Only what makes serving impossible from the start (no epoll). After that nothing a client or a command does ends it.
pub fn serve(source: Source, context: SandboxContext) -> rustix::io::Result<Ended> {
    let _ = (source, context);
    Ok(Ended::SourceClosed)
}
