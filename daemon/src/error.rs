//! What a caller is told when something cannot be done: one closed set of codes; the client maps the code, never the text.

use std::borrow::Cow;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::limits::MAX_MESSAGE_CHARS;

/// The closed set of `wire/contract.md`, section 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Version,
    ProtocolError,
    UnknownMessage,
    BadRequest,
    TooMany,
    Busy,
    NoSuchKey,
    Moved,
    Cancelled,
    Unsupported,
    UserUnknown,
    UserUnsupported,
    NotFound,
    NotADirectory,
    IsADirectory,
    Permission,
    Exists,
    NotEmpty,
    Loop,
    NameTooLong,
    ArgumentTooLong,
    NoSpace,
    ReadOnly,
    Io,
    Image,
    Capacity,
    LimitUnenforceable,
    Gone,
    Internal,
}

impl From<Errno> for Code {
    /// The code of a failed system call. What has no name of its own is `io`, with the number beside it.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Code::NotFound,
            Errno::NOTDIR => Code::NotADirectory,
            Errno::ISDIR => Code::IsADirectory,
            Errno::ACCESS | Errno::PERM => Code::Permission,
            Errno::EXIST => Code::Exists,
            Errno::NOTEMPTY => Code::NotEmpty,
            Errno::LOOP => Code::Loop,
            Errno::NAMETOOLONG => Code::NameTooLong,
            Errno::TOOBIG => Code::ArgumentTooLong,
            Errno::NOSPC | Errno::DQUOT => Code::NoSpace,
            Errno::ROFS => Code::ReadOnly,
            Errno::BUSY => Code::Busy,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => Code::Capacity,
            _ => Code::Io,
        }
    }
}

/// A call's failure, as it goes over the wire in `error{id, code, message, errno, path, why}`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct Error {
    pub code: Code,
    /// For people. Cut to `max_message_chars` when it is sent.
    pub message: Cow<'static, str>,
    pub errno: Option<i32>,
    pub path: Option<Vec<u8>>,
    pub why: Option<&'static str>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Error { code, message: message.into(), errno: None, path: None, why: None }
    }

    /// A failed system call; `doing` says what was tried ("open", "mount the upper").
    pub fn system(doing: &str, errno: Errno) -> Self {
        let text = std::io::Error::from_raw_os_error(errno.raw_os_error());
        Error {
            code: Code::from(errno),
            message: Cow::Owned(format!("{doing}: {text}")),
            errno: Some(errno.raw_os_error()),
            path: None,
            why: None,
        }
    }

    /// The same, about a path of the sandbox.
    pub fn at_path(doing: &str, errno: Errno, path: &[u8]) -> Self {
        Error::system(doing, errno).with_path(path)
    }

    #[must_use]
    pub fn with_path(mut self, path: &[u8]) -> Self {
        self.path = Some(path.to_vec());
        self
    }

    #[must_use]
    pub fn with_why(mut self, why: &'static str) -> Self {
        self.why = Some(why);
        self
    }

    /// The message as it may be sent: at most `max_message_chars`.
    pub fn short_message(&self) -> &str {
        match self.message.char_indices().nth(MAX_MESSAGE_CHARS) {
            Some((end, _)) => &self.message[..end],
            None => &self.message,
        }
    }
}

/// Of the call of libc's that has just failed.
pub fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message longer than the wire allows is cut at a character, not inside one.
    #[test]
    fn long_messages_are_cut_at_a_character() {
        let error = Error::new(Code::Io, "é".repeat(MAX_MESSAGE_CHARS + 7));
        assert_eq!(error.short_message(), "é".repeat(MAX_MESSAGE_CHARS));
        assert_eq!(Error::new(Code::Io, "short").short_message(), "short");
    }

    /// Errors of the file system keep their kind and number; what has no kind of its own is `io`.
    #[test]
    fn system_errors_keep_their_kind() {
        let kinds = [
            (libc::ENOENT, Code::NotFound),
            (libc::ENOTDIR, Code::NotADirectory),
            (libc::EISDIR, Code::IsADirectory),
            (libc::EACCES, Code::Permission),
            (libc::EPERM, Code::Permission),
            (libc::EEXIST, Code::Exists),
            (libc::ENOTEMPTY, Code::NotEmpty),
            (libc::ELOOP, Code::Loop),
            (libc::ENAMETOOLONG, Code::NameTooLong),
            (libc::ENOSPC, Code::NoSpace),
            (libc::EDQUOT, Code::NoSpace),
            (libc::EROFS, Code::ReadOnly),
            (libc::EBUSY, Code::Busy),
            (libc::EMFILE, Code::Capacity),
            (libc::ENOMEM, Code::Capacity),
        ];
        for number in 1..134 {
            let expected = kinds.iter().find(|(kind, _)| *kind == number).map(|(_, code)| *code);
            let error = Error::at_path("open", Errno::from_raw_os_error(number), b"/p");
            assert_eq!((error.errno, error.path.as_deref()), (Some(number), Some(&b"/p"[..])));
            match (number, expected) {
                (libc::E2BIG, _) => assert_eq!(error.code, Code::ArgumentTooLong),
                (libc::ENFILE | libc::EAGAIN, _) => assert_eq!(error.code, Code::Capacity),
                (_, expected) => assert_eq!(error.code, expected.unwrap_or(Code::Io), "{number}"),
            }
        }
    }
}
