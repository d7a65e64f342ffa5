//! Trees that are downloaded and uploaded again are the same trees.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, UTIME_OMIT, chmod, utimensat};

use super::super::testing::{Collected, Random, Scratch};
use super::super::{Destination, Item, download, upload};
use crate::error::Code;
use crate::message::Kind;

/// Everything about one name: type and mode, time, content or target, and which names are the same file.
#[derive(PartialEq, Eq)]
pub struct Seen {
    mode: u32,
    mtime: (i64, i64),
    content: Vec<u8>,
    /// The first path of the same file.
    same_as: Vec<u8>,
}

impl Seen {
    pub fn forget_other_names(&mut self) {
        self.same_as.clear();
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (head, same) = (&self.content[..self.content.len().min(40)], String::from_utf8_lossy(&self.same_as));
        write!(formatter, "{:o} {:?} {} {head:?} = {same:?}", self.mode, self.mtime, self.content.len())
    }
}

/// Every path below `top`, itself included.
pub fn paths(top: &Path) -> Vec<Vec<u8>> {
    let mut found = vec![PathBuf::new()];
    let mut next = 0;
    while next < found.len() {
        let path = found[next].clone();
        next += 1;
        if top.join(&path).symlink_metadata().unwrap().is_dir() {
            found
                .extend(std::fs::read_dir(top.join(&path)).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
    }
    found.into_iter().map(|path| path.into_os_string().into_encoded_bytes()).collect()
}

pub fn snapshot(top: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut seen = BTreeMap::new();
    for path in paths(top) {
        let full = top.join(OsStr::from_bytes(&path));
        let facts = std::fs::symlink_metadata(&full).unwrap();
        let (content, id) = if facts.is_symlink() {
            (std::fs::read_link(&full).unwrap().into_os_string().into_encoded_bytes(), Vec::new())
        } else if facts.is_file() {
            (std::fs::read(&full).unwrap(), facts.ino().to_be_bytes().to_vec())
        } else {
            (Vec::new(), Vec::new())
        };
        seen.insert(
            path,
            Seen { mode: facts.mode(), mtime: (facts.mtime(), facts.mtime_nsec()), content, same_as: id },
        );
    }
    let mut first = HashMap::new();
    for (name, seen) in &mut seen {
        if !seen.same_as.is_empty() {
            seen.same_as = first.entry(seen.same_as.clone()).or_insert_with(|| name.clone()).clone();
        }
    }
    seen
}

pub fn set_time(path: &Path, random: &mut Random) {
    let last_modification =
        Timespec { tv_sec: random.below(2_000_000_000) as i64, tv_nsec: random.below(1_000_000_000) as i64 };
    let times = Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Names that have tripped others: bytes that are no UTF-8, newlines, dashes, dots, spaces, the longest there is.
pub fn odd_name(random: &mut Random) -> Vec<u8> {
    let number = random.below(1000);
    let mut name = match random.below(8) {
        0 => b"\xff\xfe\x80".to_vec(),
        1 => b"line\nbreak\r".to_vec(),
        2 => b"-rf".to_vec(),
        3 => b"...".to_vec(),
        4 => b" * ".to_vec(),
        5 => "długa-nazwa-ß-日本".into(),
        6 => vec![b'x'; 250],
        _ => b"plain".to_vec(),
    };
    name.extend(number.to_string().bytes());
    name
}

/// A tree below `top` from a seed: files of many sizes, holes, links of both kinds, directories, odd names and modes.
pub fn plant(top: &Path, random: &mut Random, count: usize) {
    let mut dirs = vec![top.to_path_buf()];
    let mut files: Vec<PathBuf> = Vec::new();
    for _ in 0..count {
        let path = dirs[random.below(dirs.len() as u64) as usize].join(OsStr::from_bytes(&odd_name(random)));
        if path.symlink_metadata().is_ok() || path.as_os_str().len() > 2000 {
            continue;
        }
        match random.below(10) {
            0..=1 => {
                std::fs::create_dir(&path).unwrap();
                dirs.push(path);
            }
            2 => std::os::unix::fs::symlink(OsStr::from_bytes(&odd_name(random)), &path).unwrap(),
            3 if !files.is_empty() => {
                std::fs::hard_link(&files[random.below(files.len() as u64) as usize], &path).unwrap();
            }
            _ => {
                plant_file(&path, random);
                files.push(path);
            }
        }
    }
    for path in files.iter().chain(dirs.iter().rev()) {
        let bits = [0o755, 0o644, 0o600, 0o2750, 0o1777, 0o4711][random.below(6) as usize];
        chmod(path, Mode::from_raw_mode(if path.is_dir() { bits | 0o700 } else { bits | 0o400 })).unwrap();
        set_time(path, random);
    }
}

fn plant_file(path: &Path, random: &mut Random) {
    let file = std::fs::File::create(path).unwrap();
    let sizes = [0, 1, 4095, 4096, 70_000, 262_144, 262_145, 600_000];
    let size = sizes[random.below(sizes.len() as u64) as usize];
    if random.below(3) == 0 {
        file.set_len(size as u64 * 2).unwrap();
        file.write_all_at(&random.bytes(size / 3), size as u64).unwrap();
    } else {
        file.write_all_at(&random.bytes(size), 0).unwrap();
    }
}

/// For trees from many seeds: what comes back is what went, to the nanosecond, the hole and the second name.
#[test]
fn what_goes_comes_back() {
    for seed in 0..12 {
        // Half of them on a disk.
        let scratch = if seed % 2 == 0 { Scratch::new } else { Scratch::in_memory };
        let (from, to) = (scratch(), scratch());
        plant(from.path(), &mut Random(seed), 120);
        let mut out = Collected::default();
        let sent = download(&from.root(), b"/", &mut out).unwrap();
        let made = upload(&to.root(), b"/copy/of", Destination::Files, &mut out.into_items()).unwrap();
        assert_eq!(sent, made, "seed {seed}");
        assert!(snapshot(from.path()) == snapshot(&to.at("copy/of")), "seed {seed}");
    }
}

/// Uploading over what an earlier upload made gives the new tree where the two meet.
#[test]
fn a_second_upload_replaces() {
    let (first, second, to) = (Scratch::new(), Scratch::new(), Scratch::new());
    plant(first.path(), &mut Random(1), 60);
    plant(second.path(), &mut Random(1), 90);
    for from in [&first, &second] {
        let mut out = Collected::default();
        download(&from.root(), b"/", &mut out).unwrap();
        upload(&to.root(), b"/", Destination::Files, &mut out.into_items()).unwrap();
    }
    assert!(snapshot(second.path()) == snapshot(to.path()));
}

/// Holes stay holes: a file of a gigabyte with two bytes in it costs next to nothing on the way and on arrival.
#[test]
fn holes_are_not_sent() {
    let (from, to) = (Scratch::new(), Scratch::new());
    let file = std::fs::File::create(from.at("sparse")).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"a", 100 << 20).unwrap();
    file.write_all_at(b"z", (1 << 30) - 1).unwrap();
    let mut out = Collected::default();
    let sent = download(&from.root(), b"/", &mut out).unwrap();
    assert!(sent.bytes < 1 << 20);
    upload(&to.root(), b"/", Destination::Files, &mut out.into_items()).unwrap();
    let copy = std::fs::File::open(to.at("sparse")).unwrap();
    let facts = copy.metadata().unwrap();
    assert_eq!(facts.len(), 1 << 30);
    assert!(facts.blocks() * 512 < 1 << 20);
    let mut byte = [0];
    copy.read_exact_at(&mut byte, 100 << 20).unwrap();
    assert_eq!(byte, *b"a");
    copy.read_exact_at(&mut byte, (1 << 30) - 1).unwrap();
    assert_eq!(byte, *b"z");
}

/// Depths of 300 directories come and go.
#[test]
fn deep_trees_come_back() {
    let (from, to) = (Scratch::in_memory(), Scratch::in_memory());
    let path = (0..300).map(|level| format!("d{level}")).collect::<Vec<_>>().join("/");
    from.write(&format!("{path}/bottom"), "deep");
    from.write("d0/d1/sibling", "later");
    let mut out = Collected::default();
    download(&from.root(), b"/", &mut out).unwrap();
    upload(&to.root(), b"/", Destination::Files, &mut out.into_items()).unwrap();
    assert!(snapshot(from.path()) == snapshot(to.path()));
}

/// What is deeper than a path of the wire can say is an error, not an omission.
#[test]
fn paths_too_long_to_say_are_an_error() {
    let scratch = Scratch::new();
    let name = "n".repeat(250);
    let mut dir = super::super::testing::open(scratch.path());
    for _ in 0..20 {
        rustix::fs::mkdirat(&dir, name.as_str(), Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, name.as_str(), rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    }
    assert_eq!(download(&scratch.root(), b"/", &mut Collected::default()).unwrap_err().code, Code::NameTooLong);
}

/// A hundred thousand files go through one at a time; what is remembered does not grow with them.
#[test]
fn huge_directories_are_streamed() {
    struct Counting(u64);
    impl super::super::Outgoing for Counting {
        fn entry(&mut self, _: &super::super::Entry) -> crate::error::Result<()> {
            self.0 += 1;
            Ok(())
        }
        fn data(&mut self, _: u64, _: &[u8]) -> crate::error::Result<()> {
            Ok(())
        }
    }
    let scratch = Scratch::in_memory();
    for number in 0..100_000 {
        std::fs::File::create(scratch.at(&format!("{number}"))).unwrap();
    }
    let mut out = Counting(0);
    let sent = download(&scratch.root(), b"/", &mut out).unwrap();
    assert_eq!((out.0, sent.files), (100_001, 100_000));
}

/// What is no file is named, and one file alone is the root of its transfer.
#[test]
fn what_is_skipped_is_named() {
    let scratch = Scratch::new();
    scratch.write("t/f", "x");
    rustix::fs::mkfifoat(CWD, scratch.at("t/pipe"), Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.at("t/socket")).unwrap();
    let mut out = Collected::default();
    let mut skipped = download(&scratch.root(), b"t", &mut out).unwrap().skipped;
    skipped.sort();
    assert_eq!(skipped, [b"pipe".to_vec(), b"socket".to_vec()]);
    assert_eq!(out.summary(), ["dir ", "file f"]);
    scratch.link("to-f", "t/f");
    let mut out = Collected::default();
    download(&scratch.root(), b"to-f", &mut out).unwrap();
    assert_eq!((out.summary(), out.bytes()), (vec!["file ".to_owned()], b"x".to_vec()));
    assert_eq!(download(&scratch.root(), b"t/pipe", &mut Collected::default()).unwrap_err().code, Code::Unsupported);
    assert_eq!(download(&scratch.root(), b"t/f/", &mut Collected::default()).unwrap_err().code, Code::NotADirectory);
}

/// Names of one file beyond the transfer do not confuse those within.
#[test]
fn hard_links_are_recognised() {
    let scratch = Scratch::new();
    scratch.write("outside", "x");
    std::fs::create_dir(scratch.at("t")).unwrap();
    for name in ["t/a", "t/b"] {
        std::fs::hard_link(scratch.at("outside"), scratch.at(name)).unwrap();
    }
    let mut out = Collected::default();
    let sent = download(&scratch.root(), b"t", &mut out).unwrap();
    assert_eq!((sent.files, sent.links), (1, 1));
    let hard = out.entries().into_iter().find(|entry| entry.kind == Kind::Hard).unwrap().clone();
    let first = out.entries().into_iter().find(|entry| entry.kind == Kind::File).unwrap();
    assert_eq!(hard.target.as_ref(), Some(&first.path));
}

/// A receiver that gives up ends the download with its own error.
#[test]
fn a_cancelled_download_ends() {
    let scratch = Scratch::new();
    scratch.write("t/f", vec![1; 2_000_000]);
    let mut out = Collected { patience: Some(3), ..Collected::default() };
    assert_eq!(download(&scratch.root(), b"t", &mut out).unwrap_err().code, Code::Cancelled);
    assert!(matches!(out.items.last(), Some(Item::Data { .. })));
}
