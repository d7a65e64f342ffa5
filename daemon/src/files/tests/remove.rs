//! Removing.

use rustix::fs::{Mode, OFlags, mkdirat, openat};

use super::super::testing::{Scratch, open};
use super::super::{Remove, Stop, remove};
use crate::error::Code;

const ONE: Remove = Remove { recursive: false, missing_ok: false };
const TREE: Remove = Remove { recursive: true, missing_ok: false };

/// Files, links themselves and empty directories go; a full directory only with everything in it.
#[test]
fn what_is_named_is_removed_and_nothing_else() {
    let scratch = Scratch::new();
    scratch.write("keep/precious", "x");
    scratch.write("tree/a/b", "x");
    scratch.link("tree/a/out", "../../keep");
    scratch.link("link", "keep");
    let root = scratch.root();
    remove(&root, b"link", ONE).unwrap();
    assert_eq!(remove(&root, b"tree", ONE).unwrap_err().code, Code::NotEmpty);
    remove(&root, b"tree", TREE).unwrap();
    std::fs::create_dir(scratch.at("empty")).unwrap();
    remove(&root, b"empty/", ONE).unwrap();
    scratch.link("link", "keep");
    assert_eq!(remove(&root, b"link/", TREE).unwrap_err().code, Code::NotADirectory);
    assert_eq!(scratch.names(""), ["keep", "link"]);
    assert_eq!(scratch.names("keep"), ["precious"]);
}

/// Missing is an error unless it is fine; the root and dots are no names.
#[test]
fn missing_and_nameless_paths() {
    let scratch = Scratch::new();
    scratch.write("d/f", "");
    let root = scratch.root();
    assert_eq!(remove(&root, b"none", TREE).unwrap_err().code, Code::NotFound);
    assert_eq!(remove(&root, b"none/below", TREE).unwrap_err().code, Code::NotFound);
    remove(&root, b"none/below", Remove { missing_ok: true, ..TREE }).unwrap();
    for path in ["/", "d/.", "d/..", "..", "."] {
        assert_eq!(remove(&root, path.as_bytes(), TREE).unwrap_err().code, Code::BadRequest, "{path}");
    }
    assert_eq!(scratch.names("d"), ["f"]);
}

/// A tree far deeper than a path can say is removed, with few descriptors and no deep stack.
#[test]
fn trees_deeper_than_paths_are_removed() {
    let scratch = Scratch::in_memory();
    let name = "n".repeat(200);
    let mut dir = open(scratch.path());
    for _ in 0..3000 {
        mkdirat(&dir, name.as_str(), Mode::RWXU).unwrap();
        for file in ["before", "zafter"] {
            openat(&dir, file, OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        }
        dir = openat(&dir, name.as_str(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(dir);
    remove(&scratch.root(), name.as_bytes(), TREE).unwrap();
    assert_eq!(scratch.names(""), ["before", "zafter"]);
}

/// A wide tree goes completely, although names vanish while they are being read.
#[test]
fn wide_trees_are_removed_completely() {
    let scratch = Scratch::in_memory();
    for dir in 0..20 {
        std::fs::create_dir_all(scratch.at(&format!("t/d{dir}"))).unwrap();
        for file in 0..1000 {
            std::fs::File::create(scratch.at(&format!("t/d{dir}/{file}"))).unwrap();
        }
    }
    remove(&scratch.root(), b"t", TREE).unwrap();
    assert!(scratch.names("").is_empty());
}

/// A wish to stop ends it between two names.
#[test]
fn removing_stops_when_asked() {
    let scratch = Scratch::in_memory();
    for number in 0..2000 {
        scratch.write(&format!("t/{number}"), "");
    }
    let stop = Stop::default();
    stop.set();
    assert_eq!(remove(&scratch.root_with(&stop), b"t", TREE).unwrap_err().code, Code::Cancelled);
    assert!(!scratch.names("t").is_empty());
}
