//! What the main loop knows of the sandbox it serves: made by [`crate::init`], used by [`crate::serve`] and the verbs.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::cgroup::Leaves;
use crate::error::Result;
use crate::init::Confinement;
use crate::message::{ProcessEntry, QuiesceHow, UsageReply, Verified};

/// One sandbox as its main loop sees it.
#[derive(Debug)]
pub struct SandboxContext {
    pub name: String,
    /// The id mode, as told in `hello.mode`.
    pub mode: String,
    /// Limits that are not enforced, as told in `hello` and in every `exit`.
    pub unenforced: Vec<String>,
    /// The sandbox's own environment, `KEY=value` each, without HOME, USER and LOGNAME of a user.
    pub env: Vec<Vec<u8>>,
    /// Absolute, inside the sandbox's root.
    pub workdir: Vec<u8>,
    /// Nil = root of the sandbox. The form is that of `exec.user`.
    pub user: Option<String>,
    /// The current episode's root directory. The hooks replace it at a reset.
    pub root: OwnedFd,
    pub confinement: Confinement,
    pub leaves: Leaves,
    pub hooks: Box<dyn Hooks>,
    /// End the sandbox when no command has lived and no message has come for so long.
    pub idle_timeout: Option<Duration>,
}

/// What only [`crate::init`] can do to the sandbox as a whole.
///
/// The main loop has already forgotten its own processes (parked shells, shells, commands) and joined its threads
/// when it calls `reset`: the calling process is single-threaded.
pub trait Hooks: Debug {
    /// Kill every process but this one, reap until none is left, and put a fresh episode in place of this one.
    fn reset(&mut self) -> Result<Episode>;

    /// Kill, freeze or thaw every process but this one. Returns what was found.
    ///
    /// After `Kill` everything is dead and reaped by this call except children in `ours`, whose end the main loop
    /// itself collects through their pidfds.
    fn quiesce(&mut self, how: QuiesceHow, ours: &[u32]) -> Result<Vec<ProcessEntry>>;

    /// Numbers of the sandbox as a whole; `id` is filled in by the caller.
    fn usage(&self) -> UsageReply;
}

/// What a reset leaves.
#[derive(Debug)]
pub struct Episode {
    /// The new root directory.
    pub root: OwnedFd,
    pub killed: u32,
    /// What the dropped upper held, where that is known.
    pub changed_bytes: Option<u64>,
    pub verified: Verified,
}
