//! Reading one file.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SeekFrom, fstat, openat, seek};
use rustix::io::Errno;

use super::Outgoing;
use super::root::{Place, Root, at};
use super::stat::{Facts, kind_of, look, name_of};
use crate::error::{Code, Error, Result};
use crate::limits::MAX_CHUNK_BYTES;
use crate::message::Kind;

/// First read of a file whose size is not known, as in `/proc`.
const UNSIZED_BYTES: usize = 64 * 1024;

/// Which bytes of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range {
    pub offset: u64,
    /// Nil: to the end.
    pub limit: Option<u64>,
}

/// Send a range of the file at `path`. Never waits for a writer: what is no regular file is refused.
///
/// A file that grows meanwhile is read up to the size it had; one of unknown size (`/proc`) up to its end. The size in
/// the answer is that of the file as far as it could be seen.
pub fn read(root: &Root, path: &[u8], range: Range, out: &mut impl Outgoing) -> Result<Facts> {
    if i64::try_from(range.offset).is_err() {
        return Err(Error::new(Code::BadRequest, "an offset beyond any file").with_path(path));
    }
    let place = root.resolve(path)?;
    let file = open_regular(&place, path)?;
    let mut facts = Facts::new(&fstat(&file).map_err(at("stat", path))?, None);
    if range.offset > 0 {
        seek(&file, SeekFrom::Start(range.offset)).map_err(at("seek", path))?;
    }
    let available = if facts.size > 0 { facts.size.saturating_sub(range.offset) } else { u64::MAX };
    let wanted = range.limit.unwrap_or(u64::MAX).min(available);
    let sent = send(&file, path, wanted, out)?;
    let seen = range.offset.saturating_add(sent);
    facts.size = match (sent < wanted, sent) {
        (false, 0) => facts.size,
        (false, _) => facts.size.max(seen),
        // The end was met.
        (true, 1..) => seen,
        (true, 0) => Facts::new(&fstat(&file).map_err(at("stat", path))?, None).size,
    };
    Ok(facts)
}

/// Open what must be a regular file, for reading, without ever waiting and without touching a device.
pub(super) fn open_regular(place: &Place, path: &[u8]) -> Result<OwnedFd> {
    let found = look(place.dir.as_fd(), &place.name).map_err(at("open", path))?;
    refuse_others(kind_of(&found), place.wants_dir, path)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&place.dir, place.name.as_slice(), flags, Mode::empty()).map_err(at("open", path))?;
    // It may have been replaced since the look; a fifo is then open without having waited.
    let opened = fstat(&file).map_err(at("stat", path))?;
    refuse_others(kind_of(&opened), place.wants_dir, path)?;
    Ok(file)
}

/// Refuse everything but a regular file.
pub(super) fn refuse_others(kind: Kind, wants_dir: bool, path: &[u8]) -> Result<()> {
    match kind {
        Kind::File if wants_dir => Err(Error::at_path("open", Errno::NOTDIR, path)),
        Kind::File => Ok(()),
        Kind::Dir => Err(Error::at_path("open", Errno::ISDIR, path)),
        Kind::Link => Err(Error::at_path("open", Errno::LOOP, path)),
        other => Err(Error::new(Code::Unsupported, format!("a {} is not a file", name_of(other))).with_path(path)),
    }
}

fn send(file: &OwnedFd, path: &[u8], wanted: u64, out: &mut impl Outgoing) -> Result<u64> {
    let first = if wanted == u64::MAX { UNSIZED_BYTES as u64 } else { wanted };
    let mut buffer = vec![0; usize::try_from(first).unwrap_or(usize::MAX).clamp(1, MAX_CHUNK_BYTES)];
    let mut sent = 0;
    while sent < wanted {
        let room = usize::try_from(wanted - sent).unwrap_or(usize::MAX).min(buffer.len());
        let count = fill(file, &mut buffer[..room]).map_err(|errno| unreadable(errno, path))?;
        if count > 0 {
            out.data(sent, &buffer[..count])?;
            sent += count as u64;
        }
        if count < room {
            break;
        }
        if wanted == u64::MAX && buffer.len() < MAX_CHUNK_BYTES {
            buffer.resize(MAX_CHUNK_BYTES, 0);
        }
    }
    Ok(sent)
}

/// Read until `buffer` is full or the file ends.
pub(super) fn fill(file: &OwnedFd, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(file, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

fn unreadable(errno: Errno, path: &[u8]) -> Error {
    match errno {
        Errno::AGAIN => Error::new(Code::Unsupported, "reading this would wait for somebody to write").with_path(path),
        other => Error::at_path("read", other, path),
    }
}
