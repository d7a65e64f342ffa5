//! Both ends of a transfer in memory, and directories to work in.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};

use super::{Entry, Incoming, Item, Listing, Outgoing, Root, Stop};
use crate::error::{Code, Error, Result};
use crate::message::{Kind, ListEntry};

/// Set where a test runs in namespaces of its own.
const INSIDE: &str = "SANDLOT_TEST_INSIDE";

/// A directory that goes away with its value.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        Scratch::below(&std::env::temp_dir())
    }

    /// In memory where that can be had: for trees whose size is the point.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Scratch::below(memory) } else { Scratch::new() }
    }

    fn below(above: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("sandlot-files-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = above.join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn at(&self, relative: &str) -> PathBuf {
        self.0.join(relative)
    }

    /// This directory as the root of an operation, with `/` as the working directory.
    pub fn root(&self) -> Root {
        Root::new(open(&self.0), b"/", Stop::default())
    }

    /// As [`Scratch::root`], and the directory stays.
    pub fn into_root(self) -> Root {
        let root = self.root();
        std::mem::forget(self);
        root
    }

    pub fn root_with(&self, stop: &Stop) -> Root {
        Root::new(open(&self.0), b"/", stop.clone())
    }

    pub fn write(&self, relative: &str, content: impl AsRef<[u8]>) {
        let path = self.at(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn link(&self, relative: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.at(relative)).unwrap();
    }

    pub fn names(&self, relative: &str) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.at(relative))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os(INSIDE).is_some() {
            let _ = std::process::Command::new("umount").args(["-R", "-l"]).arg(&self.0).stderr(Stdio::null()).status();
        }
        // Also what a test took its own rights to, or made too deep for paths.
        let _ = std::process::Command::new("rm").arg("-rf").arg(&self.0).status();
    }
}

pub fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Keeps what is sent.
#[derive(Debug, Default)]
pub struct Collected {
    pub items: Vec<Item>,
    pub listed: Vec<ListEntry>,
    /// Calls after which everything is refused, as after a cancel.
    pub patience: Option<usize>,
}

impl Collected {
    fn count(&mut self) -> Result<()> {
        match self.patience.as_mut() {
            Some(0) => Err(Error::new(Code::Cancelled, "cancelled")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub fn entries(&self) -> Vec<&Entry> {
        fn entry(item: &Item) -> Option<&Entry> {
            match item {
                Item::Entry(entry) => Some(entry),
                _ => None,
            }
        }
        self.items.iter().filter_map(entry).collect()
    }

    /// Kind and path of each entry, sorted by path: `file a/b`.
    pub fn summary(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.entries().iter().map(|entry| brief(entry)).collect();
        lines.sort_by(|left, right| {
            left.split_once(' ').map(|(_, path)| path).cmp(&right.split_once(' ').map(|(_, path)| path))
        });
        lines
    }

    pub fn find(&self, path: &str) -> &Entry {
        self.entries().into_iter().find(|entry| entry.path == path.as_bytes()).unwrap()
    }

    /// All data, in the order it came.
    pub fn bytes(&self) -> Vec<u8> {
        let data = |item: &Item| match item {
            Item::Data { bytes, .. } => bytes.clone(),
            _ => Vec::new(),
        };
        self.items.iter().flat_map(data).collect()
    }

    pub fn into_items(self) -> Scripted {
        Scripted::new(self.items)
    }
}

fn brief(entry: &Entry) -> String {
    let kind = match entry.kind {
        Kind::Dir if entry.opaque => "opaque".to_owned(),
        kind => format!("{kind:?}").to_lowercase(),
    };
    format!("{kind} {}", String::from_utf8_lossy(&entry.path))
}

impl Outgoing for Collected {
    fn entry(&mut self, entry: &Entry) -> Result<()> {
        self.count()?;
        self.items.push(Item::Entry(entry.clone()));
        Ok(())
    }

    fn data(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.count()?;
        assert!(bytes.len() <= crate::limits::MAX_CHUNK_BYTES && !bytes.is_empty());
        self.items.push(Item::Data { at: Some(at), bytes: bytes.to_vec() });
        Ok(())
    }
}

impl Listing for Collected {
    fn entries(&mut self, entries: &[ListEntry]) -> Result<()> {
        self.count()?;
        self.listed.extend_from_slice(entries);
        Ok(())
    }
}

/// Brings items, then the end, or an error in its place.
#[derive(Debug)]
pub struct Scripted {
    items: VecDeque<Item>,
    end: Option<Error>,
}

impl Scripted {
    pub fn new(items: Vec<Item>) -> Self {
        Scripted { items: items.into(), end: None }
    }

    /// The link breaks after the last item.
    pub fn broken(items: Vec<Item>) -> Self {
        Scripted { items: items.into(), end: Some(Error::new(Code::Gone, "the link is lost")) }
    }

    pub fn data(bytes: &[u8]) -> Self {
        let chunks = bytes.chunks(crate::limits::MAX_CHUNK_BYTES);
        Scripted::new(chunks.map(|chunk| Item::Data { at: None, bytes: chunk.to_vec() }).collect())
    }
}

impl Incoming for Scripted {
    fn next(&mut self) -> Result<Item> {
        match (self.items.pop_front(), self.end.take()) {
            (Some(item), end) => {
                self.end = end;
                Ok(item)
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Item::End),
        }
    }
}

pub fn file(path: &str, content: &[u8]) -> Vec<Item> {
    let entry = Entry { size: Some(content.len() as u64), ..Entry::new(path.as_bytes(), Kind::File) };
    let mut items = vec![Item::Entry(entry)];
    items.extend(content.chunks(1000).map(|chunk| Item::Data { at: None, bytes: chunk.to_vec() }));
    items
}

pub fn entry(path: &str, kind: Kind) -> Item {
    Item::Entry(Entry::new(path.as_bytes(), kind))
}

pub fn pointing(path: &str, kind: Kind, target: &str) -> Item {
    Item::Entry(Entry { target: Some(target.as_bytes().to_vec()), ..Entry::new(path.as_bytes(), kind) })
}

/// Whether this machine can run a test's real part. Where everything must run, what is missing is a failure.
pub fn can(what: &str, possible: bool) -> bool {
    if !possible {
        assert!(std::env::var_os("CI").is_none(), "cannot {what} here, and CI must");
        eprintln!("SKIPPED: cannot {what} here");
    }
    possible
}

pub fn is_root() -> bool {
    can("act as other users (not root)", rustix::process::geteuid().is_root())
}

/// Run the test `name` again, alone, as root of user and mount namespaces of its own. True inside of them.
pub fn in_namespaces(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let module = module_path!().trim_start_matches("sandlotd::").trim_end_matches("::testing");
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "--test-threads=1"]).arg(format!("{module}::tests::{name}"));
    let output = command.env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("unshare failed") && !can("make user namespaces", false) {
        return false;
    }
    assert!(output.status.success() && text.contains("1 passed"), "inside the namespaces:\n{text}");
    false
}

/// Mount a file system, inside of [`in_namespaces`].
pub fn mount(kind: &str, at: &Path, options: &str) {
    let status = std::process::Command::new("mount").args(["-t", kind, "-o", options, kind]).arg(at).status().unwrap();
    assert!(status.success(), "mount -t {kind} -o {options}");
}

/// Small and repeatable randomness (SplitMix64, Steele et al. 2014).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}
