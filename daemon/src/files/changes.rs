//! What an episode changed: read from the overlays' upper directories, and held against the image.
//!
//! An upper directory has everything that was touched, which is more than what differs: parents of changes, files that
//! were only opened for writing. So each of its entries is compared with what the lower directories show.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Stat, fstat, readlinkat};
use rustix::io::Errno;

use super::download::{Sender, Tried};
use super::make::DIRECTORY_MODE;
use super::overlay::{Changed, Image, Layer, is_opaque, is_whiteout, open_directory, open_file};
use super::read::fill;
use super::record::{self, Record};
use super::root::Root;
use super::stat::{kind_of, look, permissions};
use super::walk::Walk;
use super::{Outgoing, Summary, join};
use crate::error::{Code, Error, Result};
use crate::limits::MAX_PATH_BYTES;
use crate::message::Kind;

/// Read at once of each of two files that are compared.
const COMPARE_BYTES: usize = 64 * 1024;

/// What the root of a sandbox is made of.
#[derive(Debug, Default)]
pub struct Layout {
    pub overlays: Vec<Layer>,
    /// Absolute paths of all other mounts: they have no image to differ from.
    pub others: Vec<Vec<u8>>,
    /// In the place of both where there are no overlays of ours: what was kept, and what its times prove.
    pub record: Option<Arc<Record>>,
}

/// Send what differs from the image at and below `path`, in the form that [`super::upload`] makes from it the same
/// difference elsewhere. Unchanged directories are sent only above something that differs.
///
/// # Errors
/// `unsupported` where nothing is known of an image: a bare sandbox, or below another mount such as `/dev`. Such
/// mounts below `path` are named in `skipped`.
pub fn changes(root: &Root, path: &[u8], layout: &Layout, out: &mut impl Outgoing) -> Result<Summary> {
    if let Some(record) = &layout.record {
        return record::changes(root, path, record, out);
    }
    let place = root.canonical(path)?;
    let Some(layer) = containing(layout, &place) else {
        return Err(Error::new(Code::Unsupported, "there is no image to compare with here").with_path(path));
    };
    let inner: Vec<&Layer> = layout.overlays.iter().filter(|inner| is_below(&inner.target, &place)).collect();
    let mut differ = Differ {
        root,
        layout,
        sender: Sender::new(root, path, out),
        pending: Vec::new(),
        announced: 0,
        shared: inner.iter().map(|inner| relative(&inner.target, &place)).collect(),
        sent: Vec::new(),
    };
    let existed = differ.start(layer, &place)?;
    for layer in inner {
        differ.inner(layer, &place)?;
    }
    for other in layout.others.iter().filter(|other| is_below(other, &place)) {
        differ.sender.summary.skip(relative(other, &place))?;
    }
    if existed { Ok(differ.sender.summary) } else { Err(Error::at_path("open", Errno::NOENT, path)) }
}

/// The overlay that `place` is on, unless another mount covers it.
fn containing<'a>(layout: &'a Layout, place: &[u8]) -> Option<&'a Layer> {
    let covers = |target: &[u8]| target == place || is_below(place, target);
    let layer = layout.overlays.iter().filter(|layer| covers(&layer.target)).max_by_key(|layer| layer.target.len())?;
    let covered = layout.others.iter().any(|other| covers(other) && other.len() > layer.target.len());
    (!covered).then_some(layer)
}

/// Whether an absolute path is strictly below another.
fn is_below(path: &[u8], above: &[u8]) -> bool {
    if above == b"/" {
        return path != b"/";
    }
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"))
}

/// `path`, which is at or below `above`, from there on.
fn relative<'p>(path: &'p [u8], above: &[u8]) -> &'p [u8] {
    let rest = path.strip_prefix(above).unwrap_or(path);
    rest.strip_prefix(b"/").unwrap_or(rest)
}

/// A directory that is sent only if something in it is.
struct Pending {
    facts: Stat,
    path: Vec<u8>,
}

struct Differ<'a, O> {
    root: &'a Root,
    layout: &'a Layout,
    sender: Sender<'a, O>,
    /// The directories above the current entry.
    pending: Vec<Pending>,
    /// How many of them have been sent.
    announced: usize,
    /// Overlays below the root of the transfer; what is above one of them may be met once for each.
    shared: Vec<&'a [u8]>,
    /// Directories above those that have been sent.
    sent: Vec<Vec<u8>>,
}

/// Where in one overlay the comparison is.
struct Spot<'a> {
    layer: &'a Layer,
    /// Of the current path: below the overlay's root, and below the root of the transfer.
    inside: Vec<u8>,
    outside: Vec<u8>,
}

impl Spot<'_> {
    fn child(&self, relative: &[u8]) -> Self {
        Spot { layer: self.layer, inside: join(&self.inside, relative), outside: join(&self.outside, relative) }
    }
}

impl<'a, O: Outgoing> Differ<'a, O> {
    /// Compare from `place` down. Says whether there is or was anything.
    fn start(&mut self, layer: &'a Layer, place: &[u8]) -> Result<bool> {
        let inside = relative(place, &layer.target).to_vec();
        let spot = Spot { layer, inside, outside: Vec::new() };
        let (image, changed) = layer.descend(&spot.inside)?;
        match changed {
            Changed::Nothing => Ok(!matches!(image, Image::Nothing)),
            Changed::Removed => {
                let existed = !matches!(image, Image::Nothing);
                if existed {
                    self.sender.gone(b"")?;
                }
                Ok(existed)
            }
            Changed::Upper => {
                let (parent, name) = super::split(&spot.inside);
                let dir = open_directory(layer.upper.as_fd(), parent).map_err(|errno| self.failed(errno, b""))?;
                let Some(dir) = dir else { return Ok(false) };
                let name = if spot.inside.is_empty() { b"." } else { name };
                let found = look(dir.as_fd(), name).map_err(|errno| self.failed(errno, b""))?;
                if kind_of(&found) == Kind::Dir {
                    self.tree(&spot, image)?;
                } else {
                    self.other(&spot, dir.as_fd(), name, &found, &image)?;
                }
                Ok(true)
            }
        }
    }

    /// Compare an overlay that is mounted below the root of the transfer.
    fn inner(&mut self, layer: &'a Layer, place: &[u8]) -> Result<()> {
        let outside = relative(&layer.target, place).to_vec();
        self.pending.clear();
        self.announced = 0;
        let ends = (0..outside.len()).filter(|&end| outside[end] == b'/');
        for above in std::iter::once(&b""[..]).chain(ends.map(|end| &outside[..end])) {
            let full = if above.is_empty() { place.to_vec() } else { join(place, above) };
            let dir = self.root.directory(&full)?;
            let facts = fstat(&dir).map_err(|errno| self.failed(errno, above))?;
            self.pending.push(Pending { facts, path: above.to_vec() });
        }
        let image = layer.image_root()?;
        self.tree(&Spot { layer, inside: Vec::new(), outside: outside.clone() }, image)
    }

    /// Compare a directory of the upper and everything below it.
    fn tree(&mut self, top: &Spot<'a>, image: Image) -> Result<()> {
        let upper = top.layer.upper.as_fd();
        let opened = open_directory(upper, &top.inside).map_err(|errno| self.failed(errno, &top.outside))?;
        let Some(opened) = opened else { return Ok(()) };
        let mut walk = Walk::new(opened.as_fd()).map_err(|errno| self.failed(errno, &top.outside))?;
        let mut merged = vec![self.directory(&walk, top, image)?];
        loop {
            self.root.stop.check()?;
            match walk.next().map_err(|errno| self.failed(errno, &top.outside))? {
                Some(found) => {
                    let spot = top.child(&walk.path_of(&found.name));
                    if spot.inside.len() > MAX_PATH_BYTES {
                        return Err(Error::system("name a file", Errno::NAMETOOLONG));
                    }
                    if self.is_covered(&spot) {
                        continue;
                    }
                    let parents = merged.last().map_or(&[][..], Vec::as_slice);
                    let image = top.layer.image_at(parents, &spot.inside)?;
                    if let Some(lowers) = self.visit(&mut walk, &spot, &found.name, image)? {
                        merged.push(lowers);
                    }
                }
                None => {
                    merged.pop();
                    self.pending.pop();
                    self.announced = self.announced.min(self.pending.len());
                    if walk.leave()?.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Compare one name. For a directory, go into it and return the lowers that are merged in it.
    fn visit(&mut self, walk: &mut Walk, spot: &Spot<'a>, name: &[u8], image: Image) -> Result<Option<Vec<usize>>> {
        let found = match look(walk.dir(), name) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(|errno| self.failed(errno, &spot.outside))?,
        };
        if kind_of(&found) == Kind::Dir {
            match walk.enter(name) {
                Ok(_) => return self.directory(walk, spot, image).map(Some),
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(self.failed(errno, &spot.outside)),
            }
        }
        self.other(spot, walk.dir(), name, &found, &image)?;
        Ok(None)
    }

    /// The directory that `walk` is in: send it if it differs itself, else remember it for its children.
    fn directory(&mut self, walk: &Walk, spot: &Spot<'a>, image: Image) -> Result<Vec<usize>> {
        let facts = fstat(walk.dir()).map_err(|errno| self.failed(errno, &spot.outside))?;
        let opaque = is_opaque(walk.dir(), &spot.outside)?;
        let (differs, opaque, lowers) = match image {
            Image::Nothing => (true, false, Vec::new()),
            Image::Other(..) => {
                self.announce()?;
                self.sender.gone(&spot.outside)?;
                (true, false, Vec::new())
            }
            Image::Dir(_, _) if opaque => (true, true, Vec::new()),
            Image::Dir(before, lowers) if spot.inside.is_empty() => {
                (!same_rights(&before, &facts) && !is_as_made(&facts), false, lowers)
            }
            Image::Dir(before, lowers) => (!same_attributes(&before, &facts), false, lowers),
        };
        if differs {
            self.announce()?;
            self.send_directory(&facts, &spot.outside, opaque)?;
        }
        self.pending.push(Pending { facts, path: spot.outside.clone() });
        if differs {
            self.announced = self.pending.len();
        }
        Ok(lowers)
    }

    /// Something of the upper that is no directory.
    fn other(&mut self, spot: &Spot<'a>, dir: BorrowedFd<'_>, name: &[u8], found: &Stat, image: &Image) -> Result<()> {
        if is_whiteout(found) {
            if matches!(image, Image::Nothing) {
                return Ok(());
            }
            self.announce()?;
            return self.sender.gone(&spot.outside);
        }
        if let Image::Other(before, lower) = image
            && self.is_same(spot, dir, name, found, before, *lower)?
        {
            return Ok(());
        }
        self.announce()?;
        if matches!(image, Image::Dir(..)) {
            self.sender.gone(&spot.outside)?;
        }
        match kind_of(found) {
            Kind::File => self.sender.file(dir, name, &spot.outside),
            Kind::Link => match self.sender.link(dir, name, &spot.outside)? {
                Tried::Sent => Ok(()),
                Tried::Changed => Err(Error::new(Code::Busy, "a link was replaced meanwhile").with_path(&spot.outside)),
            },
            _ => self.sender.summary.skip(&spot.outside),
        }
    }

    /// Whether a touched file is as it was in the image after all.
    fn is_same(
        &self,
        spot: &Spot<'a>,
        dir: BorrowedFd<'_>,
        name: &[u8],
        now: &Stat,
        before: &Stat,
        lower: usize,
    ) -> Result<bool> {
        let kind = kind_of(now);
        // Several names in the upper are a difference in itself.
        if kind != kind_of(before) || !same_attributes(before, now) || now.st_size != before.st_size || now.st_nlink > 1
        {
            return Ok(false);
        }
        let failed = |errno| self.failed(errno, &spot.outside);
        let image = spot.layer.lowers[lower].as_fd();
        match kind {
            Kind::File => {
                let (now, before) = match (open_file(dir, name), open_file(image, &spot.inside)) {
                    (Ok(now), Ok(before)) => (now, before),
                    // It was replaced since; sending it will tell what it is now.
                    (Err(Errno::NOENT | Errno::LOOP), _) => return Ok(false),
                    (Err(errno), _) | (_, Err(errno)) => return Err(failed(errno)),
                };
                self.same_content(&now, &before, &spot.outside)
            }
            Kind::Link => {
                let now = readlinkat(dir, name, Vec::new()).map_err(failed)?;
                Ok(now == readlinkat(image, spot.inside.as_slice(), Vec::new()).map_err(failed)?)
            }
            _ => Ok(true),
        }
    }

    fn same_content(&self, now: &OwnedFd, before: &OwnedFd, path: &[u8]) -> Result<bool> {
        let failed = |errno| self.failed(errno, path);
        let mut buffers = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
        loop {
            self.root.stop.check()?;
            let left = fill(now, &mut buffers.0).map_err(failed)?;
            let right = fill(before, &mut buffers.1).map_err(failed)?;
            if buffers.0[..left] != buffers.1[..right] {
                return Ok(false);
            }
            if left == 0 {
                return Ok(true);
            }
        }
    }

    /// Send the directories above, if they have not been.
    fn announce(&mut self) -> Result<()> {
        let mut rest = std::mem::take(&mut self.pending);
        for pending in &rest[self.announced..] {
            self.send_directory(&pending.facts, &pending.path, false)?;
        }
        self.announced = rest.len();
        std::mem::swap(&mut self.pending, &mut rest);
        Ok(())
    }

    fn send_directory(&mut self, facts: &Stat, path: &[u8], opaque: bool) -> Result<()> {
        if self.shared.iter().any(|target| path.is_empty() || is_below(target, path)) {
            if self.sent.iter().any(|sent| sent == path) {
                return Ok(());
            }
            self.sent.push(path.to_vec());
        }
        self.sender.directory(facts, path, opaque)
    }

    /// Whether something is mounted over this path, so that what the upper has here cannot be seen.
    fn is_covered(&self, spot: &Spot<'_>) -> bool {
        let here =
            |target: &[u8]| is_below(target, &spot.layer.target) && relative(target, &spot.layer.target) == spot.inside;
        self.layout.overlays.iter().any(|layer| here(&layer.target))
            || self.layout.others.iter().any(|other| here(other))
    }

    fn failed(&self, errno: Errno, path: &[u8]) -> Error {
        self.sender.failed("compare with the image", errno, path)
    }
}

fn same_rights(before: &Stat, now: &Stat) -> bool {
    permissions(before) == permissions(now) && before.st_uid == now.st_uid && before.st_gid == now.st_gid
}

/// An overlay's root has time and rights of an upper directory that was made with the sandbox.
fn is_as_made(root: &Stat) -> bool {
    permissions(root) == DIRECTORY_MODE && root.st_uid == 0 && root.st_gid == 0
}

fn same_attributes(before: &Stat, now: &Stat) -> bool {
    let time = |facts: &Stat| (facts.st_mtime, facts.st_mtime_nsec);
    same_rights(before, now) && time(before) == time(now)
}
