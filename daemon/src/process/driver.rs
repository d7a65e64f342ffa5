//! The loop that a persistent shell runs, and what it says of each run.
//!
//! Control goes over descriptors that the runs never see: the shell moves them out of reach before it reads a run's
//! script, and the script's own first words close the one it is read from. A run is a file, so it may be as long as it
//! likes and hold anything; errors in it end the run and not the loop (`command .`).

use std::ffi::c_int;

use crate::error::{Code, Error, Result};

/// Numbers of the control descriptors in a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    first: c_int,
}

impl Numbers {
    /// Plain shells know only one-digit descriptors; in bash high ones are in nobody's way.
    pub fn for_program(program: &[u8]) -> Self {
        Numbers { first: if program.ends_with(b"bash") { 250 } else { 6 } }
    }

    /// The script of the run, for reading.
    pub fn script(self) -> c_int {
        self.first
    }

    /// One line begins a run.
    pub fn go(self) -> c_int {
        self.first + 1
    }

    fn work(self) -> c_int {
        self.first + 2
    }

    /// What the loop says of a run.
    pub fn status(self) -> c_int {
        self.first + 3
    }

    /// The loop, as argument of `-c`.
    pub fn text(self) -> Vec<u8> {
        let (script, go, work, status) = (self.script(), self.go(), self.work(), self.status());
        let run = format!("command . /proc/self/fd/{work} {script}<&- {go}<&- {status}>&-");
        format!(
            "while IFS= command read -r OPTARG <&{go}; do exec {work}<&{script}; case $OPTARG in \
             m) unset OPTARG; {run} 2>&1;; *) unset OPTARG; {run};; esac; \
             command printf '%s\\n%s\\n\\0' \"$?\" \"$PWD\" >&{status}; done"
        )
        .into_bytes()
    }

    /// First words of a run's script, on its first line.
    pub fn prologue(self) -> Vec<u8> {
        format!("exec {}<&-;", self.work()).into_bytes()
    }
}

/// The line that begins a run.
pub fn go_line(merge: bool) -> &'static [u8] {
    if merge { b"m\n" } else { b"p\n" }
}

/// What a shell says after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: u8,
    pub cwd: Vec<u8>,
}

/// The longest status: a path and a code.
pub const MAX_STATUS_BYTES: usize = 8192;

/// Take a whole status out of what has come.
///
/// # Errors
/// Anything that the loop does not say: somebody else has written, or the loop is broken.
pub fn parse_status(bytes: &mut Vec<u8>) -> Result<Option<Status>> {
    let broken = || Error::new(Code::Internal, "a shell says what its loop does not say");
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else {
        return if bytes.len() > MAX_STATUS_BYTES { Err(broken()) } else { Ok(None) };
    };
    let rest = bytes.split_off(end + 1);
    let whole = std::mem::replace(bytes, rest);
    let text = whole.strip_suffix(b"\n\0").ok_or_else(broken)?;
    let line = text.iter().position(|byte| *byte == b'\n').ok_or_else(broken)?;
    let code = std::str::from_utf8(&text[..line]).ok().and_then(|code| code.parse().ok()).ok_or_else(broken)?;
    Ok(Some(Status { code, cwd: text[line + 1..].to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A status comes in pieces, and its path may hold anything.
    #[test]
    fn a_status_is_taken_when_it_is_whole() {
        let mut bytes = b"7\n/a\nb".to_vec();
        assert_eq!(parse_status(&mut bytes).unwrap(), None);
        bytes.extend_from_slice(b"\n\0rest");
        assert_eq!(parse_status(&mut bytes).unwrap(), Some(Status { code: 7, cwd: b"/a\nb".to_vec() }));
        assert_eq!(bytes, b"rest");
    }

    /// What the loop never says is not believed.
    #[test]
    fn forgeries_are_refused() {
        for text in [&b"\0"[..], b"x\n/\n\0", b"300\n/\n\0", b"0 /\n\0", &[b'x'; MAX_STATUS_BYTES + 1]] {
            assert!(parse_status(&mut text.to_vec()).is_err(), "{text:?}");
        }
    }
}
