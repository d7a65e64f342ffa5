//! The role `connect`: standard input and output to and from the daemon of this network namespace.
//!
//! It is started inside of a sandbox from outside, through whatever can execute a program there, and understands
//! nothing of what it carries: that is sealed between the daemon and its provider.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::ExitCode;

use crate::source::LOCAL_NAME;

const BUFFER_BYTES: usize = 64 * 1024;
/// Nobody listens.
const NO_DAEMON: u8 = 3;
/// A side broke while bytes were on their way.
const BROKEN: u8 = 4;

/// Carry bytes both ways until the daemon has closed its side.
///
/// The argument, if any, is the abstract socket's name. Exit codes: 0 the daemon has ended the link, 2 wrong arguments,
/// 3 nobody listens, 4 a side broke while bytes were on their way.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let name = match arguments {
        [] => LOCAL_NAME,
        [name] => name.as_bytes(),
        _ => {
            eprintln!("usage: sandlotd connect [NAME]");
            return ExitCode::from(2);
        }
    };
    let stream = match SocketAddr::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address)) {
        Ok(stream) => stream,
        Err(error) => {
            eprintln!("sandlotd connect: no daemon here: {error}");
            return ExitCode::from(NO_DAEMON);
        }
    };
    match carry(&stream) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandlotd connect: {error}");
            ExitCode::from(BROKEN)
        }
    }
}

/// One thread a direction, so that neither waits for the other. The end of one is told to the daemon, and the end of the
/// daemon's is the end of both.
fn carry(stream: &UnixStream) -> std::io::Result<()> {
    let (input, output) = (own_file(std::io::stdin().as_fd())?, own_file(std::io::stdout().as_fd())?);
    let upwards = stream.try_clone()?;
    std::thread::Builder::new().stack_size(BUFFER_BYTES * 3).spawn(move || {
        // Whatever ended it, nothing more comes: the daemon answers what it has and closes.
        if let Err(error) = pump(&input, &upwards) {
            eprintln!("sandlotd connect: standard input: {error}");
        }
        drop(upwards.shutdown(Shutdown::Write));
    })?;
    pump(stream, &output)
}

/// A descriptor of our own, without the buffer of the standard library's.
fn own_file(fd: impl AsFd) -> std::io::Result<File> {
    let fd: OwnedFd = fd.as_fd().try_clone_to_owned()?;
    Ok(File::from(fd))
}

fn pump(mut from: impl Read, mut to: impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..count])?;
    }
}
