//! Messages about commands and persistent shells (contract, section 4) and about the sandbox itself (section 6).

use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;

use super::Blobs;

/// Whom a timeout or a cancel kills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kill {
    #[default]
    Tree,
    Leader,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Collect,
    Stream,
    Job,
}

/// What a cap keeps of a stream that exceeds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    #[default]
    Both,
    Head,
    Tail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalTo {
    Tree,
    Leader,
    Group,
}

#[derive(Debug, Deserialize)]
pub struct Exec<'a> {
    pub key: &'a str,
    #[serde(borrow, default)]
    pub argv: Option<Blobs<'a>>,
    #[serde(borrow, default)]
    pub script: Option<&'a Bytes>,
    #[serde(borrow, default)]
    pub cwd: Option<&'a Bytes>,
    #[serde(borrow, default)]
    pub env: Blobs<'a>,
    #[serde(default)]
    pub user: Option<&'a str>,
    #[serde(borrow, default)]
    pub stdin: Option<&'a Bytes>,
    #[serde(default)]
    pub stdin_open: bool,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub kill: Kill,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default)]
    pub cap_out: Option<u64>,
    #[serde(default)]
    pub cap_err: Option<u64>,
    #[serde(default)]
    pub keep: Keep,
    #[serde(default)]
    pub merge: bool,
    /// Rows and columns of a controlling terminal.
    #[serde(default)]
    pub pty: Option<(u16, u16)>,
    #[serde(default)]
    pub login: bool,
    #[serde(default)]
    pub done: Vec<&'a str>,
}

#[derive(Debug, Deserialize)]
pub struct Attach<'a> {
    pub key: &'a str,
    #[serde(default)]
    pub out_from: u64,
    #[serde(default)]
    pub err_from: u64,
    #[serde(default = "yes")]
    pub output: bool,
}

#[derive(Debug, Deserialize)]
pub struct Stdin<'a> {
    /// Nil: the command of this call.
    #[serde(default)]
    pub key: Option<&'a str>,
    pub off: u64,
    #[serde(borrow, default)]
    pub d: Option<&'a Bytes>,
    #[serde(default)]
    pub eof: bool,
}

#[derive(Debug, Deserialize)]
pub struct Resize<'a> {
    #[serde(default)]
    pub key: Option<&'a str>,
    pub rows: u16,
    pub cols: u16,
}

#[derive(Debug, Deserialize)]
pub struct Signal<'a> {
    pub key: &'a str,
    pub signal: u8,
    pub to: SignalTo,
}

#[derive(Debug, Deserialize)]
pub struct Forget<'a> {
    #[serde(borrow)]
    pub keys: Vec<&'a str>,
}

#[derive(Debug, Deserialize)]
pub struct ShellOpen<'a> {
    pub key: &'a str,
    #[serde(borrow, default)]
    pub program: Option<&'a Bytes>,
    #[serde(borrow, default)]
    pub cwd: Option<&'a Bytes>,
    #[serde(borrow, default)]
    pub env: Blobs<'a>,
    #[serde(default)]
    pub user: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub struct ShellRun<'a> {
    /// The key the shell was opened with.
    pub shell: &'a str,
    pub key: &'a str,
    #[serde(borrow)]
    pub script: &'a Bytes,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub cap_out: Option<u64>,
    #[serde(default)]
    pub cap_err: Option<u64>,
    #[serde(default)]
    pub keep: Keep,
    #[serde(default)]
    pub merge: bool,
}

#[derive(Debug, Deserialize)]
pub struct ShellClose<'a> {
    pub shell: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuiesceHow {
    Kill,
    Freeze,
    Thaw,
}

#[derive(Debug, Deserialize)]
pub struct Quiesce {
    pub how: QuiesceHow,
}

#[derive(Debug, Deserialize)]
pub struct Reset {
    #[serde(default)]
    pub keep_results: bool,
}

/// `renew` to an init; the host's names a sandbox and is [`super::Renew`].
#[derive(Debug, Deserialize)]
pub struct RenewLease {
    pub lease_ms: u64,
}

/// How a command ended. Exactly one of `code` and `signal` is not nil.
#[derive(Debug, Serialize)]
pub struct Exit<'a> {
    pub id: u32,
    pub code: Option<u8>,
    pub signal: Option<u8>,
    pub timed_out: bool,
    pub oom: bool,
    pub out: StreamEnd<'a>,
    pub err: StreamEnd<'a>,
    pub wall_us: u64,
    pub user_us: u64,
    pub sys_us: u64,
    pub peak_bytes: Option<u64>,
    pub spawn_us: u64,
    pub unenforced: &'a [String],
    /// Only after `shell_run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<&'a Bytes>,
    /// Only after `shell_run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alive: Option<bool>,
}

#[derive(Debug, Serialize)]
pub struct StreamEnd<'a> {
    pub total: u64,
    pub kept: u64,
    pub head: u64,
    pub d: &'a Bytes,
}

#[derive(Debug, Serialize)]
pub struct ShellOpened<'a> {
    pub id: u32,
    pub pid: u32,
    pub program: &'a Bytes,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct UsageReply {
    pub id: u32,
    pub cpu_us: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub pids: Option<u64>,
    pub pids_limit: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub disk_limit_bytes: Option<u64>,
    pub oom_kills: Option<u64>,
    pub cpu_limit_millis: Option<u64>,
}

/// Answer to `processes` and `quiesce`.
#[derive(Debug, Serialize)]
pub struct Processes<'a> {
    pub id: u32,
    pub processes: &'a [ProcessEntry],
}

/// One process as `/proc` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessEntry {
    pub pid: u32,
    pub ppid: u32,
    pub uid: u32,
    /// The letter of `/proc/PID/stat`.
    pub state: String,
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// At most 4 KiB in all.
    pub argv: Vec<serde_bytes::ByteBuf>,
    /// The command it belongs to, where that is known.
    pub key: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct ResetDone {
    pub id: u32,
    pub killed: u32,
    pub changed_bytes: Option<u64>,
    pub took_us: u64,
    pub verified: Verified,
}

/// What a reset has looked at and found as it was after creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    pub processes: bool,
    pub files: bool,
    pub mounts: bool,
    pub ipc: bool,
    pub hostname: bool,
    pub network: bool,
}

fn yes() -> bool {
    true
}
