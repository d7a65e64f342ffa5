//! Messages to a host (contract, section 7).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;

use super::Blobs;

#[derive(Debug, Deserialize)]
pub struct Create<'a> {
    pub name: &'a str,
    #[serde(borrow)]
    pub image: Image<'a>,
    pub upper: Upper,
    #[serde(borrow, default)]
    pub env: Blobs<'a>,
    #[serde(borrow, default)]
    pub workdir: Option<&'a Bytes>,
    #[serde(default)]
    pub user: Option<&'a str>,
    #[serde(default)]
    pub hostname: Option<&'a str>,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub limits_mode: LimitsMode,
    #[serde(default)]
    pub shm_bytes: Option<u64>,
    #[serde(default)]
    pub read_only: bool,
    #[serde(default)]
    pub owner: Owner,
    #[serde(default)]
    pub lease_ms: Option<u64>,
    #[serde(default)]
    pub idle_timeout_ms: Option<u64>,
    #[serde(default)]
    pub max_lifetime_ms: Option<u64>,
    #[serde(borrow, default)]
    pub labels: BTreeMap<&'a str, &'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageKind {
    Host,
    Layers,
    Bare,
}

#[derive(Debug, Deserialize)]
pub struct Image<'a> {
    pub kind: ImageKind,
    /// Directories, lowest first, never written to (`layers`).
    #[serde(borrow, default)]
    pub layers: Blobs<'a>,
    /// A directory that is written to directly (`bare`).
    #[serde(borrow, default)]
    pub path: Option<&'a Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpperKind {
    Tmpfs,
    Disk,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Upper {
    pub kind: UpperKind,
    #[serde(default)]
    pub size_bytes: Option<u64>,
    #[serde(default)]
    pub inodes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    #[default]
    None,
    Host,
}

/// Nil = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Limits {
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    #[serde(default)]
    pub cpu_millis: Option<u64>,
    #[serde(default)]
    pub pids: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum LimitsMode {
    #[default]
    #[serde(rename = "require")]
    Require,
    #[serde(rename = "best-effort")]
    BestEffort,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    #[default]
    Attached,
    Leased,
}

#[derive(Debug, Deserialize)]
pub struct Named<'a> {
    pub name: &'a str,
}

#[derive(Debug, Deserialize)]
pub struct Destroy<'a> {
    pub name: &'a str,
    #[serde(default)]
    pub grace_ms: u64,
}

#[derive(Debug, Deserialize)]
pub struct Renew<'a> {
    pub name: &'a str,
    pub lease_ms: u64,
}

#[derive(Debug, Serialize)]
pub struct Created<'a> {
    pub id: u32,
    pub unenforced: &'a [String],
    /// Microseconds by step.
    pub spans: &'a BTreeMap<&'a str, u64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Destroyed {
    pub id: u32,
    pub existed: bool,
}

#[derive(Debug, Serialize)]
pub struct Sandboxes<'a> {
    pub id: u32,
    pub sandboxes: &'a [SandboxEntry],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SandboxEntry {
    pub name: String,
    pub owner: Owner,
    pub pid: u32,
    pub mode: String,
    pub created_ms: u64,
    pub lease_left_ms: Option<u64>,
    pub labels: BTreeMap<String, String>,
    pub image: String,
}

/// Why a sandbox is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    Oom,
    Killed,
    Exited,
    LeaseExpired,
    Idle,
    Lifetime,
    HostClosing,
}

#[derive(Debug, Serialize)]
pub struct Gone<'a> {
    pub id: u32,
    pub name: &'a str,
    pub why: Why,
    pub detail: &'a str,
}

#[derive(Debug, Serialize)]
pub struct Probed<'a> {
    pub id: u32,
    pub mode: &'a str,
    pub facts: &'a BTreeMap<String, String>,
    pub missing: &'a [Missing],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub what: String,
    pub why: String,
    pub remedy: String,
}
