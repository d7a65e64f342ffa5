//! Every message of `wire/contract.md` as a type: requests borrow from their frame, replies borrow from their maker.
//!
//! [`parse`] is the only match on request names, [`Reply`] the only list of replies. A known field of the wrong type
//! or out of its range is a breach like one of the framing: it ends the connection.

pub mod command;
pub mod file;
pub mod host;

use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;

use crate::error::{Code, Error, Result};
use crate::frame::Envelope;

pub use command::*;
pub use file::*;
pub use host::*;

/// A list of byte strings of the wire.
pub type Blobs<'a> = Vec<&'a Bytes>;

/// Everything a client may say.
#[derive(Debug)]
pub enum Request<'a> {
    Hello(Hello<'a>),
    Ping,
    Pong,
    Ack(Ack),
    Exec(Box<Exec<'a>>),
    Attach(Attach<'a>),
    Stdin(Stdin<'a>),
    Resize(Resize<'a>),
    Signal(Signal<'a>),
    Forget(Forget<'a>),
    Cancel,
    ShellOpen(ShellOpen<'a>),
    ShellRun(ShellRun<'a>),
    ShellClose(ShellClose<'a>),
    Read(Read<'a>),
    Write(Write<'a>),
    Stat(Stat<'a>),
    List(List<'a>),
    Mkdir(Mkdir<'a>),
    Remove(Remove<'a>),
    Upload(Transfer<'a>),
    Download(Transfer<'a>),
    Changes(Transfer<'a>),
    Entry(Entry<'a>),
    Data(Data<'a>),
    End,
    Usage,
    Processes,
    Quiesce(Quiesce),
    Reset(Reset),
    RenewLease(RenewLease),
    Bye,
    Create(Box<Create<'a>>),
    Enter(Named<'a>),
    Destroy(Destroy<'a>),
    HostList,
    Renew(Renew<'a>),
    Watch,
    Probe,
}

/// Which of the two roles reads: `list` means files to one and sandboxes to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Init,
    Host,
}

/// Decode the message in `payload`, whose shape `envelope` has already proved.
///
/// `Ok(None)` is a message nobody knows.
///
/// # Errors
/// `protocol_error`: the connection is to be closed.
pub fn parse<'a>(role: Role, envelope: &Envelope<'a>, payload: &'a [u8]) -> Result<Option<Request<'a>>> {
    Ok(Some(match (role, envelope.kind) {
        (_, "hello") => Request::Hello(decode(payload)?),
        (_, "ping") => Request::Ping,
        (_, "pong") => Request::Pong,
        (_, "cancel") => Request::Cancel,
        (_, "bye") => Request::Bye,
        (Role::Init, kind) => return parse_for_init(kind, payload),
        (Role::Host, kind) => return parse_for_host(kind, payload),
    }))
}

fn parse_for_init<'a>(kind: &str, payload: &'a [u8]) -> Result<Option<Request<'a>>> {
    Ok(Some(match kind {
        "ack" => Request::Ack(decode(payload)?),
        "exec" => Request::Exec(Box::new(decode(payload)?)),
        "attach" => Request::Attach(decode(payload)?),
        "stdin" => Request::Stdin(decode(payload)?),
        "resize" => Request::Resize(decode(payload)?),
        "signal" => Request::Signal(decode(payload)?),
        "forget" => Request::Forget(decode(payload)?),
        "shell_open" => Request::ShellOpen(decode(payload)?),
        "shell_run" => Request::ShellRun(decode(payload)?),
        "shell_close" => Request::ShellClose(decode(payload)?),
        "read" => Request::Read(decode(payload)?),
        "write" => Request::Write(decode(payload)?),
        "stat" => Request::Stat(decode(payload)?),
        "list" => Request::List(decode(payload)?),
        "mkdir" => Request::Mkdir(decode(payload)?),
        "remove" => Request::Remove(decode(payload)?),
        "upload" => Request::Upload(decode(payload)?),
        "download" => Request::Download(decode(payload)?),
        "changes" => Request::Changes(decode(payload)?),
        "entry" => Request::Entry(decode(payload)?),
        "data" => Request::Data(decode(payload)?),
        "end" => Request::End,
        "usage" => Request::Usage,
        "processes" => Request::Processes,
        "quiesce" => Request::Quiesce(decode(payload)?),
        "renew" => Request::RenewLease(decode(payload)?),
        "reset" => Request::Reset(decode(payload)?),
        _ => return Ok(None),
    }))
}

fn parse_for_host<'a>(kind: &str, payload: &'a [u8]) -> Result<Option<Request<'a>>> {
    Ok(Some(match kind {
        "create" => Request::Create(Box::new(decode(payload)?)),
        "enter" => Request::Enter(decode(payload)?),
        "destroy" => Request::Destroy(decode(payload)?),
        "list" => Request::HostList,
        "renew" => Request::Renew(decode(payload)?),
        "watch" => Request::Watch,
        "probe" => Request::Probe,
        _ => return Ok(None),
    }))
}

fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T> {
    rmp_serde::from_slice(payload).map_err(|error| Error::new(Code::ProtocolError, error.to_string()))
}

#[derive(Debug, Deserialize)]
pub struct Hello<'a> {
    pub versions: Vec<u64>,
    #[serde(default)]
    pub client: &'a str,
}

/// "Consumed up to offset `off` of stream `s`."
#[derive(Debug, Deserialize)]
pub struct Ack {
    pub s: u8,
    pub off: u64,
}

/// Everything a daemon may say. `t` comes from the variant's name.
#[derive(Debug, Serialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Reply<'a> {
    Hello(HelloReply<'a>),
    Ping {
        id: u32,
    },
    Pong {
        id: u32,
    },
    Ack {
        id: u32,
        s: u8,
        off: u64,
    },
    Error(ErrorReply<'a>),
    Ok {
        id: u32,
    },
    Started {
        id: u32,
        pid: u32,
    },
    Out {
        id: u32,
        s: u8,
        off: u64,
        d: &'a Bytes,
    },
    Gap {
        id: u32,
        s: u8,
        from: u64,
        to: u64,
    },
    Exit(Exit<'a>),
    Data(DataReply<'a>),
    Entry(EntryReply<'a>),
    Entries(Entries<'a>),
    #[serde(rename = "ok")]
    OkShell(ShellOpened<'a>),
    #[serde(rename = "ok")]
    OkRead(ReadDone),
    #[serde(rename = "ok")]
    OkWrite(WriteDone),
    #[serde(rename = "ok")]
    OkStat(StatReply<'a>),
    #[serde(rename = "ok")]
    OkList(ListDone),
    #[serde(rename = "ok")]
    OkTransfer(TransferDone<'a>),
    #[serde(rename = "ok")]
    OkUsage(UsageReply),
    #[serde(rename = "ok")]
    OkProcesses(Processes<'a>),
    #[serde(rename = "ok")]
    OkReset(ResetDone),
    #[serde(rename = "ok")]
    OkCreate(Created<'a>),
    #[serde(rename = "ok")]
    OkDestroy(Destroyed),
    #[serde(rename = "ok")]
    OkSandboxes(Sandboxes<'a>),
    #[serde(rename = "ok")]
    OkProbe(Probed<'a>),
    Gone(Gone<'a>),
}

#[derive(Debug, Serialize)]
pub struct HelloReply<'a> {
    pub version: u32,
    pub role: &'a str,
    pub daemon: &'a str,
    pub name: &'a str,
    pub features: &'a [&'a str],
    pub mode: &'a str,
    pub unenforced: &'a [String],
}

#[derive(Debug, Serialize)]
pub struct ErrorReply<'a> {
    pub id: u32,
    pub code: Code,
    pub message: &'a str,
    pub errno: Option<i32>,
    pub path: Option<&'a Bytes>,
    pub why: Option<&'a str>,
}

impl<'a> Reply<'a> {
    /// `error` as the answer to call `id`; 0 is the connection itself.
    pub fn error(id: u32, error: &'a Error) -> Self {
        Reply::Error(ErrorReply {
            id,
            code: error.code,
            message: error.short_message(),
            errno: error.errno,
            path: error.path.as_deref().map(Bytes::new),
            why: error.why,
        })
    }

    /// Append this message as one frame, prefix included.
    pub fn encode(&self, frame: &mut Vec<u8>) -> Result<()> {
        let start = frame.len();
        frame.extend_from_slice(&[0; crate::frame::PREFIX_BYTES]);
        let mut serializer = rmp_serde::Serializer::new(&mut *frame).with_struct_map();
        if let Err(error) = self.serialize(&mut serializer) {
            frame.truncate(start);
            return Err(Error::new(Code::Internal, error.to_string()));
        }
        let length = frame.len() - start - crate::frame::PREFIX_BYTES;
        let prefix = u32::try_from(length).map_err(|_| Error::new(Code::Internal, "reply too long"))?;
        frame[start..start + crate::frame::PREFIX_BYTES].copy_from_slice(&prefix.to_be_bytes());
        Ok(())
    }
}
