//! What was changed, as a transfer of files.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;
use rustix::io::Errno;

use super::comparing::{Difference, Purpose, What};
use super::{Place, Record, below, is_directory, open};
use crate::error::{Error, Result};
use crate::files::download::{Sender, Tried};
use crate::files::root::Root;
use crate::files::stat::{kind_of, look};
use crate::files::{Outgoing, Summary, join, split};
use crate::message::Kind;

/// Send what differs at and below `path`, as [`crate::files::changes`] does.
///
/// # Errors
/// `unsupported` where something was changed that is not kept.
pub(in crate::files) fn changes(root: &Root, path: &[u8], record: &Record, out: &mut impl Outgoing) -> Result<Summary> {
    let top = root.canonical(path)?;
    let mut teller = Teller { root, top: &top, sender: Sender::new(root, path, out), announced: BTreeSet::new() };
    if let Some((place, inside)) = record.place_of(&top) {
        teller.part(record, place, inside)?;
        return Ok(teller.sender.summary);
    }
    record.check_elsewhere(root.dir(), &top)?;
    for place in record.places.iter().filter(|place| below(&top, &place.path).is_some()) {
        teller.whole(record, place)?;
    }
    if open(root.dir(), &top)?.is_none() {
        return Err(Error::at_path("open", Errno::NOENT, path));
    }
    Ok(teller.sender.summary)
}

struct Teller<'a, O> {
    root: &'a Root,
    /// Where the transfer begins, absolute.
    top: &'a [u8],
    sender: Sender<'a, O>,
    /// Directories that have been sent, relative to the beginning.
    announced: BTreeSet<Vec<u8>>,
}

impl<O: Outgoing> Teller<'_, O> {
    /// Everything of a place that lies at or below the beginning.
    fn whole(&mut self, record: &Record, place: &Place) -> Result<()> {
        let found = record.compare((self.root.dir(), &self.root.stop), (place, b""), Purpose::Tell)?;
        self.send_all(place, found)
    }

    /// What lies at or below `inside` of a place, where the transfer begins.
    fn part(&mut self, record: &Record, place: &Place, inside: &[u8]) -> Result<()> {
        if inside.is_empty() {
            return self.whole(record, place);
        }
        // The directory above tells of the name itself.
        let (above, _) = split(inside);
        let found = record.compare((self.root.dir(), &self.root.stop), (place, above), Purpose::Tell)?;
        let is_inside = |one: &Difference| below(inside, &one.path).is_some();
        let was_there = place.directories.contains_key(inside)
            || place.directories.get(above).is_some_and(|kept| kept.contains_key(split(inside).1));
        let found: Vec<Difference> = found.into_iter().filter(is_inside).collect();
        if found.is_empty() && !was_there {
            return Err(Error::at_path("open", Errno::NOENT, self.top));
        }
        self.send_all(place, found)
    }

    fn send_all(&mut self, place: &Place, found: Vec<Difference>) -> Result<()> {
        for Difference { path, what } in found {
            self.root.stop.check()?;
            let full = place.full(&path);
            let Some(outside) = below(self.top, &full).map(<[u8]>::to_vec) else { continue };
            self.announce(split(&outside).0, &outside)?;
            if matches!(what, What::Gone | What::Replaced) {
                self.sender.gone(&outside)?;
            }
            if what != What::Gone {
                self.send(&full, &outside)?;
            }
        }
        Ok(())
    }

    /// Send the directories above, if they have not been.
    fn announce(&mut self, above: &[u8], of: &[u8]) -> Result<()> {
        if of.is_empty() {
            return Ok(());
        }
        let ends = (0..above.len()).filter(|&end| above[end] == b'/').map(|end| &above[..end]);
        let mut wanted = vec![&b""[..]];
        wanted.extend(ends);
        wanted.extend((!above.is_empty()).then_some(above));
        for path in wanted {
            if self.announced.insert(path.to_vec()) {
                let full = self.full(path);
                let dir = self.open(&full)?;
                let facts = fstat(&dir).map_err(|errno| self.sender.failed("stat", errno, path))?;
                self.sender.directory(&facts, path, false)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, full: &[u8], outside: &[u8]) -> Result<()> {
        let (above, name) = split(full);
        let dir = self.open(if above.is_empty() { b"/" } else { above })?;
        let facts = match look(dir.as_fd(), name) {
            Err(Errno::NOENT) => return Ok(()),
            other => other.map_err(|errno| self.sender.failed("stat", errno, outside))?,
        };
        if is_directory(&facts) {
            if self.announced.insert(outside.to_vec()) {
                self.sender.directory(&facts, outside, false)?;
            }
            return Ok(());
        }
        match kind_of(&facts) {
            Kind::File => self.sender.file(dir.as_fd(), name, outside),
            Kind::Link => match self.sender.link(dir.as_fd(), name, outside)? {
                Tried::Sent => Ok(()),
                Tried::Changed => Err(Error::at_path("read the link", Errno::BUSY, full)),
            },
            _ => self.sender.summary.skip(outside),
        }
    }

    fn open(&self, full: &[u8]) -> Result<OwnedFd> {
        open(self.root.dir(), full)?.ok_or_else(|| Error::at_path("open", Errno::NOENT, full))
    }

    fn full(&self, outside: &[u8]) -> Vec<u8> {
        match (outside, self.top) {
            (b"", top) => top.to_vec(),
            (outside, b"/") => [b"/", outside].concat(),
            (outside, top) => join(top, outside),
        }
    }
}
