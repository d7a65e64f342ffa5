//! What the main loop knows of the sandbox it serves: made by [`crate::init`] or [`crate::pod`], used by [`crate::serve`] and the verbs.

use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::cgroup::Leaves;
use crate::confinement::Confinement;
use crate::error::Result;
use crate::files::{Destination, Layout};
use crate::message::{UsageReply, Verified};
use crate::process::score::Score;
use crate::process::tree::Company;
use crate::users::{self, IdMaps, User};

/// What SIGTERM from outside means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTerminate {
    /// Every process of the sandbox is to end by itself: it is passed on.
    PassOn,
    /// The sandbox ends at once.
    End,
}

/// One sandbox as its main loop sees it.
#[derive(Debug)]
pub struct SandboxContext {
    pub name: String,
    /// The id mode, as told in `hello.mode`.
    pub mode: String,
    /// What `hello.features` says beyond what every daemon of this version can do.
    pub features: &'static [&'static str],
    /// Limits that are not enforced, as told in `hello` and in every `exit`.
    pub unenforced: Vec<String>,
    /// The sandbox's own environment, `KEY=value` each, without HOME, USER and LOGNAME of a user.
    pub env: Vec<Vec<u8>>,
    /// Absolute, inside the sandbox's root.
    pub workdir: Vec<u8>,
    /// Nil = root of the sandbox. The form is that of `exec.user`.
    pub user: Option<String>,
    /// The ids that exist in the sandbox. Read before there is a root of its own, which need not have a `/proc`.
    pub id_maps: IdMaps,
    /// What a command without input reads. Opened before there is a root of its own, which need not have a `/dev`.
    pub null: OwnedFd,
    /// The current episode's root directory. The hooks replace it at a reset.
    pub root: OwnedFd,
    /// What an upload makes of whiteouts and opaque directories.
    pub destination: Destination,
    pub confinement: Confinement,
    pub leaves: Leaves,
    /// Keeps the kernel from killing the daemon for memory where commands have no leaf.
    pub score: Option<Score>,
    pub on_terminate: OnTerminate,
    pub hooks: Box<dyn Hooks>,
    /// End the sandbox when no command has lived and no message has come for so long.
    pub idle_timeout: Option<Duration>,
}

impl SandboxContext {
    /// What a command runs as that names no user, by the tables of the current episode.
    ///
    /// # Errors
    /// As [`users::resolve`].
    pub fn default_user(&self) -> Result<User> {
        users::resolve(self.root.as_fd(), self.user.as_deref().unwrap_or("0:0"), &self.id_maps)
    }
}

/// What only [`crate::init`] can do to the sandbox as a whole. Reaping stays with the main loop.
pub trait Hooks: Debug {
    /// Send SIGKILL to every process but this one, frozen ones included. The caller reaps until none is left.
    fn kill_all(&mut self) -> Result<()>;

    /// Freeze or thaw every process but this one.
    fn freeze(&mut self, frozen: bool) -> Result<()>;

    /// Put a fresh episode in place of this one.
    ///
    /// The caller has killed and reaped every process, closed what it had of them and joined its threads: the calling
    /// process is single-threaded and alone. An error leaves the sandbox to be deleted.
    fn reset(&mut self) -> Result<Episode>;

    /// Drop the former episode and prepare for the next reset, off everybody's way.
    ///
    /// Called after each successful reset, once the caller has let go of what it held of the former episode and has
    /// answered: whoever lets go last pays for dropping its files.
    fn settle(&mut self) -> Result<()>;

    /// Numbers of the sandbox as a whole; the caller fills in `id`.
    fn usage(&self) -> UsageReply;

    /// How many kills for memory there were in the sandbox, where no leaf counts those of each command.
    fn memory_kills(&self) -> u64 {
        0
    }

    /// Where nothing but a look at all processes finds those of a command: how many there are to look at.
    fn company(&self) -> Company {
        Company::Few
    }

    /// When [`Hooks::watch`] wants to be called while a command lives.
    fn next_watch(&self) -> Option<Instant> {
        None
    }

    /// Look after what the kernel does not look after here.
    fn watch(&mut self, _now: Instant) {}

    /// Whatever has to be done before anything can change the sandbox is done when this returns. Called before each call.
    fn get_ready(&mut self) {}

    /// What the current episode's root is made of.
    fn layout(&self) -> Result<Layout>;
}

/// What a reset leaves.
#[derive(Debug)]
pub struct Episode {
    /// The new root directory.
    pub root: OwnedFd,
    /// What the dropped upper held, where that is known.
    pub changed_bytes: Option<u64>,
    /// `processes` is the caller's finding and false here.
    pub verified: Verified,
}
