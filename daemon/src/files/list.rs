//! Listing directories, in the order the kernel gives.

use rustix::io::Errno;
use std::os::fd::AsFd;

use super::root::{Root, at, link_target};
use super::stat::{Facts, kind_of, look};
use super::walk::{Crossing, Found, Walk, is_kernel_file_system};
use super::{Listing, join, procfs};
use crate::error::{Code, Error, Result};
use crate::limits::MAX_PATH_BYTES;
use crate::message::{Kind, ListEntry};

/// Entries sent at once, so that a huge directory needs no memory.
const BATCH_ENTRIES: usize = 512;
/// Bytes of paths sent at once; with a link's target in each entry still far below a frame.
const BATCH_BYTES: usize = 256 * 1024;

#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Everything below too, parents before children; not into file systems of the kernel such as `/proc`.
    pub recursive: bool,
    /// Entries at most; nil: all.
    pub limit: Option<u64>,
}

/// Send what is in the directory `path`, paths relative to it. Says whether the limit cut something off.
pub fn list(root: &Root, path: &[u8], extent: Extent, out: &mut impl Listing) -> Result<bool> {
    let dir = root.directory(path)?;
    if extent.recursive && procfs::is_procfs(dir.as_fd()) {
        return Err(Error::new(Code::Unsupported, "processes come and go while they are listed").with_path(path));
    }
    let walk = Walk::new(dir.as_fd()).map_err(at("open", path))?;
    let mut batch = Batch { entries: Vec::new(), bytes: 0, left: extent.limit.unwrap_or(u64::MAX) };
    let truncated = walk_through(root, path, walk, extent.recursive, &mut batch, out)?;
    batch.send(out)?;
    Ok(truncated)
}

struct Batch {
    entries: Vec<ListEntry>,
    bytes: usize,
    left: u64,
}

impl Batch {
    fn push(&mut self, entry: ListEntry, out: &mut impl Listing) -> Result<()> {
        self.left -= 1;
        self.bytes += entry.path.len() + entry.target.as_ref().map_or(0, |target| target.len());
        self.entries.push(entry);
        if self.entries.len() >= BATCH_ENTRIES || self.bytes >= BATCH_BYTES {
            self.send(out)?;
        }
        Ok(())
    }

    fn send(&mut self, out: &mut impl Listing) -> Result<()> {
        if !self.entries.is_empty() {
            out.entries(&self.entries)?;
            self.entries.clear();
            self.bytes = 0;
        }
        Ok(())
    }
}

fn walk_through(
    root: &Root,
    path: &[u8],
    mut walk: Walk,
    recursive: bool,
    batch: &mut Batch,
    out: &mut impl Listing,
) -> Result<bool> {
    loop {
        root.stop.check()?;
        let next =
            walk.next().map_err(|errno| Error::at_path("read the directory", errno, &join(path, walk.path())))?;
        let Some(found) = next else {
            match walk.leave()? {
                Some(_) => continue,
                None => return Ok(false),
            }
        };
        let Some(entry) = describe(&walk, &found, path)? else { continue };
        if batch.left == 0 {
            return Ok(true);
        }
        let is_dir = entry.kind == Kind::Dir;
        batch.push(entry, out)?;
        if recursive && is_dir {
            descend(&mut walk, &found.name, path)?;
        }
    }
}

/// `None` when it has vanished.
fn describe(walk: &Walk, found: &Found, path: &[u8]) -> Result<Option<ListEntry>> {
    let relative = walk.path_of(&found.name);
    let failed = |errno| Error::at_path("stat", errno, &join(path, &relative));
    let stat = match look(walk.dir(), &found.name) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(failed)?,
    };
    if relative.len() > MAX_PATH_BYTES {
        return Err(Error::system("list", Errno::NAMETOOLONG));
    }
    let target = match kind_of(&stat) {
        Kind::Link => match link_target(walk.dir(), &found.name) {
            // As for links of other users' processes in /proc.
            Err(Errno::ACCESS | Errno::PERM) => None,
            other => other.map_err(failed)?,
        },
        _ => None,
    };
    let facts = Facts::new(&stat, target);
    Ok(Some(ListEntry {
        path: relative,
        kind: facts.kind,
        size: facts.size,
        mode: facts.mode,
        mtime_ns: facts.mtime_ns,
        target: facts.target.map(serde_bytes::ByteBuf::from),
    }))
}

fn descend(walk: &mut Walk, name: &[u8], path: &[u8]) -> Result<()> {
    let failed = |walk: &Walk, errno| Error::at_path("open", errno, &join(path, &walk.path_of(name)));
    match walk.enter(name) {
        Ok(Crossing::Same) => Ok(()),
        Ok(Crossing::Other) => {
            if is_kernel_file_system(walk.dir()).map_err(at("stat", path))? {
                walk.leave()?;
            }
            Ok(())
        }
        // It has vanished, or is no directory any more.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(failed(walk, errno)),
    }
}
