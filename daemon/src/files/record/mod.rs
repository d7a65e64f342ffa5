//! What a few directories held at a moment, kept to tell and undo what was changed in them since.
//!
//! There is no copy-on-write here, so this is a copy ([`taking`]), made of as much as is little: names and attributes of
//! all that lies in a place, and the content of its small files. Against it a place is compared ([`comparing`]); what
//! differs is told ([`telling`]) or put back ([`restoring`]). Everything else ([`elsewhere`]) is not kept, and is proved
//! to be as it was by its change times ([`clock`]), or it is not.

mod clock;
mod comparing;
mod elsewhere;
mod restoring;
mod taking;
mod telling;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Stat};

use super::join;
use super::overlay::open_directory;
use crate::error::{Code, Error, Result};

pub use clock::{ClockWatch, Moment};
pub use taking::Budget;
pub(super) use telling::changes;

/// The places, and what they held.
#[derive(Debug)]
pub struct Record {
    /// Whatever has no later change time is as it was.
    since: Moment,
    /// In order of their paths; none lies in another.
    places: Vec<Place>,
    /// Directories above the places, by their absolute paths. An overlay gives them new change times when it first copies
    /// something below them, and keeps the time of the last modification; so it is their names that count.
    above: BTreeMap<Vec<u8>, (Kept, BTreeSet<Vec<u8>>)>,
    /// Where something is mounted.
    mounts: BTreeSet<Vec<u8>>,
    /// The content of files, one after the other, in memory that no command can reach.
    content: OwnedFd,
}

/// A directory that is kept with everything below.
#[derive(Debug)]
struct Place {
    /// Absolute, with no links in it.
    path: Vec<u8>,
    top: Kept,
    /// What each directory held, by the path of the directory relative to the place.
    directories: HashMap<Vec<u8>, BTreeMap<Vec<u8>, Kept>>,
    /// Whether change times tell of every change: memory file systems do not see what is written through a mapping.
    trusts_times: bool,
}

/// One file, directory or link.
#[derive(Clone, Debug)]
struct Kept {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, u64),
    size: u64,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// A directory.
    Names,
    /// A link.
    Target(Vec<u8>),
    /// A file: where it begins in the record's memory.
    At(u64),
    /// Something that cannot be put back.
    Not,
}

impl Kept {
    fn new(facts: &Stat, content: Content) -> Self {
        Kept {
            mode: facts.st_mode,
            owner: (facts.st_uid, facts.st_gid),
            mtime: mtime(facts),
            size: u64::try_from(facts.st_size).unwrap_or(0),
            content,
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.content, Content::Names)
    }

    fn has_rights_of(&self, facts: &Stat) -> bool {
        self.mode == facts.st_mode && self.owner == (facts.st_uid, facts.st_gid)
    }
}

impl Place {
    /// The absolute path of what is in it.
    fn full(&self, inside: &[u8]) -> Vec<u8> {
        if inside.is_empty() { self.path.clone() } else { join(&self.path, inside) }
    }
}

impl Record {
    /// Everything was put back.
    pub fn begin_anew(&mut self, since: Moment) {
        self.since = since;
    }

    /// The place that an absolute path is in, and where.
    fn place_of<'p>(&self, path: &'p [u8]) -> Option<(&Place, &'p [u8])> {
        self.places.iter().find_map(|place| Some((place, below(&place.path, path)?)))
    }
}

/// An absolute path relative to one that it is at or below.
fn below<'p>(above: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(above.strip_suffix(b"/").unwrap_or(above))?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// A directory by its absolute path, if it is there and no link leads to it.
fn open(root: BorrowedFd<'_>, path: &[u8]) -> Result<Option<OwnedFd>> {
    let relative = path.strip_prefix(b"/").unwrap_or(path);
    open_directory(root, relative).map_err(|errno| Error::at_path("open", errno, path))
}

fn is_directory(facts: &Stat) -> bool {
    FileType::from_raw_mode(facts.st_mode) == FileType::Directory
}

fn mtime(facts: &Stat) -> (i64, u64) {
    (facts.st_mtime, facts.st_mtime_nsec)
}

/// The names in a directory.
fn names(dir: impl AsFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// What was changed cannot be undone, or cannot be told.
fn refused(why: &'static str, path: &[u8]) -> Error {
    Error::new(Code::Unsupported, why).with_path(path)
}
