//! Both ends of a command's standard streams.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, Uid};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::confinement::Identity;
use crate::error::{Code, Error, Result};
use crate::message::Exec;
use crate::process::spawn::pipe;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// Something will be written to standard input.
    pub input: bool,
    pub merge: bool,
    /// Rows and columns.
    pub terminal: Option<(u16, u16)>,
}

impl Wiring {
    pub fn of(request: &Exec<'_>) -> Self {
        Wiring { input: request.stdin.is_some() || request.stdin_open, merge: request.merge, terminal: request.pty }
    }
}

/// Our ends, non-blocking.
#[derive(Debug)]
pub struct Stdio {
    pub input: Option<OwnedFd>,
    pub outputs: [Option<OwnedFd>; 2],
    pub is_terminal: bool,
}

/// The command's ends: standard input, output, error.
pub type Theirs = [OwnedFd; 3];

/// Make the streams of one command; its ends belong to the user it runs as, so that `/dev/stderr` can be opened.
///
/// # Errors
/// No descriptor or no terminal left.
pub fn open(wiring: Wiring, null: BorrowedFd<'_>, identity: &Identity) -> Result<(Stdio, Theirs)> {
    let opened = match wiring.terminal {
        Some(size) => open_terminal(size, identity),
        None => open_pipes(wiring, null, identity),
    };
    opened.map_err(|errno| match wiring.terminal {
        Some(_) => Error { code: Code::Unsupported, ..Error::system("open a terminal", errno) },
        None => Error::system("open pipes", errno),
    })
}

fn open_pipes(wiring: Wiring, null: BorrowedFd<'_>, identity: &Identity) -> rustix::io::Result<(Stdio, Theirs)> {
    let (their_in, input) = if wiring.input {
        let (read, write) = pipe()?;
        rustix::io::ioctl_fionbio(&write, true)?;
        give(&read, identity)?;
        (read, Some(write))
    } else {
        (duplicate(null)?, None)
    };
    let (out, their_out) = output(identity)?;
    let (err, their_err) = if wiring.merge {
        (None, duplicate(their_out.as_fd())?)
    } else {
        let (err, their_err) = output(identity)?;
        (Some(err), their_err)
    };
    Ok((Stdio { input, outputs: [Some(out), err], is_terminal: false }, [their_in, their_out, their_err]))
}

fn output(identity: &Identity) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe()?;
    rustix::io::ioctl_fionbio(&read, true)?;
    give(&write, identity)?;
    Ok((read, write))
}

fn open_terminal((rows, cols): (u16, u16), identity: &Identity) -> rustix::io::Result<(Stdio, Theirs)> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    rustix::termios::tcsetwinsize(&slave, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?;
    give(&slave, identity)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    let theirs = [slave.try_clone(), slave.try_clone()].map(|fd| fd.map_err(|_| rustix::io::Errno::MFILE));
    let [their_in, their_out] = theirs;
    let input = duplicate(master.as_fd())?;
    Ok((Stdio { input: Some(input), outputs: [Some(master), None], is_terminal: true }, [their_in?, their_out?, slave]))
}

fn duplicate(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

fn give(fd: &OwnedFd, identity: &Identity) -> rustix::io::Result<()> {
    if identity.uid == 0 && identity.gid == 0 {
        return Ok(());
    }
    rustix::fs::fchown(fd, Some(Uid::from_raw(identity.uid)), Some(Gid::from_raw(identity.gid)))
}
