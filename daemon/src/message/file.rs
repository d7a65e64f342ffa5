//! Messages about files (contract, section 5).

use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;

#[derive(Debug, Deserialize)]
pub struct Read<'a> {
    #[serde(borrow)]
    pub path: &'a Bytes,
    #[serde(default)]
    pub offset: u64,
    /// Nil: to the end.
    #[serde(default)]
    pub limit: Option<u64>,
    #[serde(default)]
    pub user: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub struct Write<'a> {
    #[serde(borrow)]
    pub path: &'a Bytes,
    /// Nil: the old file's, or 0644.
    #[serde(default)]
    pub mode: Option<u32>,
    #[serde(default = "yes")]
    pub parents: bool,
    #[serde(borrow, default)]
    pub d: Option<&'a Bytes>,
    #[serde(default)]
    pub eof: bool,
    #[serde(default)]
    pub user: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub struct Stat<'a> {
    #[serde(borrow)]
    pub path: &'a Bytes,
    #[serde(default = "yes")]
    pub follow: bool,
    #[serde(default)]
    pub user: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub struct List<'a> {
    #[serde(borrow)]
    pub path: &'a Bytes,
    #[serde(default)]
    pub recursive: bool,
    #[serde(default)]
    pub limit: Option<u64>,
    #[serde(default)]
    pub user: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub struct Mkdir<'a> {
    #[serde(borrow)]
    pub path: &'a Bytes,
    #[serde(default)]
    pub mode: Option<u32>,
    #[serde(default = "yes")]
    pub parents: bool,
    #[serde(default = "yes")]
    pub exist_ok: bool,
    #[serde(default)]
    pub user: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub struct Remove<'a> {
    #[serde(borrow)]
    pub path: &'a Bytes,
    #[serde(default)]
    pub recursive: bool,
    #[serde(default)]
    pub missing_ok: bool,
    #[serde(default)]
    pub user: Option<&'a str>,
}

/// `upload`, `download` and `changes`.
#[derive(Debug, Deserialize)]
pub struct Transfer<'a> {
    #[serde(borrow)]
    pub path: &'a Bytes,
    #[serde(default)]
    pub user: Option<&'a str>,
}

/// Kinds of files; the last three exist only in transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    File,
    Dir,
    Link,
    Fifo,
    Socket,
    Char,
    Block,
    /// Another name of an earlier file of the same transfer.
    Hard,
    /// An overlay whiteout; only to a bare root.
    Whiteout,
    /// Removed since the image.
    Gone,
}

/// One file of a transfer towards the sandbox.
#[derive(Debug, Deserialize)]
pub struct Entry<'a> {
    #[serde(borrow)]
    pub path: &'a Bytes,
    pub kind: Kind,
    #[serde(default)]
    pub mode: Option<u32>,
    #[serde(default)]
    pub mtime_ns: Option<u64>,
    #[serde(default)]
    pub size: Option<u64>,
    #[serde(borrow, default)]
    pub target: Option<&'a Bytes>,
    #[serde(default)]
    pub uid: Option<u32>,
    #[serde(default)]
    pub gid: Option<u32>,
    #[serde(default)]
    pub opaque: bool,
}

/// File data towards the sandbox.
#[derive(Debug, Deserialize)]
pub struct Data<'a> {
    #[serde(default)]
    pub s: u8,
    /// Position in the transfer's data; flow control counts it.
    pub off: u64,
    #[serde(borrow)]
    pub d: &'a Bytes,
    /// Position in the file. Nil: right after the chunk before.
    #[serde(default)]
    pub at: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct DataReply<'a> {
    pub id: u32,
    pub s: u8,
    pub off: u64,
    pub d: &'a Bytes,
    /// Only in directory transfers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct EntryReply<'a> {
    pub id: u32,
    pub path: &'a Bytes,
    pub kind: Kind,
    pub mode: Option<u32>,
    pub mtime_ns: Option<u64>,
    pub size: Option<u64>,
    pub target: Option<&'a Bytes>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub opaque: bool,
}

#[derive(Debug, Serialize)]
pub struct Entries<'a> {
    pub id: u32,
    pub entries: &'a [ListEntry],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListEntry {
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    pub kind: Kind,
    pub size: u64,
    pub mode: u32,
    pub mtime_ns: u64,
    pub target: Option<serde_bytes::ByteBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReadDone {
    pub id: u32,
    pub size: u64,
    pub mode: u32,
    pub mtime_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WriteDone {
    pub id: u32,
    pub size: u64,
}

#[derive(Debug, Serialize)]
pub struct StatReply<'a> {
    pub id: u32,
    pub kind: Kind,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_ns: u64,
    pub target: Option<&'a Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ListDone {
    pub id: u32,
    pub truncated: bool,
}

/// The end of `upload`, `download` and `changes`.
#[derive(Debug, Serialize)]
pub struct TransferDone<'a> {
    pub id: u32,
    pub files: u64,
    pub dirs: u64,
    pub links: u64,
    pub bytes: u64,
    pub skipped: &'a [serde_bytes::ByteBuf],
}

fn yes() -> bool {
    true
}
