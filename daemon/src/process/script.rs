//! Scripts for the image's own shell.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode};
use rustix::io::Errno;

use super::program::{Environment, MAX_ARGUMENT_BYTES, Program};
use crate::error::{Error, Result};

/// How a shell runs a script that it gets as a file and not as an argument: `$0` and the parameters are those of
/// `sh -c`, and the file is read as it is executed.
pub const RUN_FILE: &[u8] = b". /proc/self/fd/3";
/// First words of such a script, on its first line so that line numbers stay: its descriptor is nobody else's.
pub const CLOSE_FILE: &[u8] = b"exec 3<&-;";

/// `sh -c script`, or `sh -l -c script`; a script too long for an argument comes in a file.
///
/// # Errors
/// No memory for the file.
pub fn program(script: &[u8], login: bool, env: &Environment) -> Result<(Program, Option<OwnedFd>)> {
    let file = if script.len() < MAX_ARGUMENT_BYTES { None } else { Some(file(script)?) };
    let text = if file.is_some() { RUN_FILE } else { script };
    let argv: &[&[u8]] = if login { &[b"sh", b"-l", b"-c", text] } else { &[b"sh", b"-c", text] };
    Ok((Program::shell(argv, env), file))
}

fn file(script: &[u8]) -> Result<OwnedFd> {
    let create = || {
        let file = rustix::fs::memfd_create("script", MemfdFlags::CLOEXEC)?;
        // Whoever the command runs as opens it by its name in /proc.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o444))?;
        write_all(&file, CLOSE_FILE)?;
        write_all(&file, script)?;
        Ok(file)
    };
    create().map_err(|errno| Error::system("keep a long script", errno))
}

/// Write everything to a file that takes it at once.
pub fn write_all(file: impl AsFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
