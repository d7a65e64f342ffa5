//! A disk without room.

use super::super::testing::{Scratch, Scripted, file, in_namespaces, mount};
use super::super::{Destination, Mkdir, Write, mkdir, upload, write};
use crate::error::Code;

const PLAIN: Write = Write { mode: None, parents: true };

fn small_disk(options: &str) -> Scratch {
    let scratch = Scratch::new();
    mount("tmpfs", scratch.path(), options);
    scratch
}

/// No room for the data: a typed error, the old file, and nothing else.
#[test]
fn a_full_disk_leaves_the_old_file() {
    if !in_namespaces("full_disk::a_full_disk_leaves_the_old_file") {
        return;
    }
    let scratch = small_disk("size=1m");
    scratch.write("old", "whole");
    for path in ["old", "new", "deep/er/new"] {
        let error = write(&scratch.root(), path.as_bytes(), PLAIN, &mut Scripted::data(&[1; 2_000_000])).unwrap_err();
        assert_eq!((error.code, error.errno), (Code::NoSpace, Some(libc::ENOSPC)));
        assert_eq!(error.path.as_deref(), Some(path.as_bytes()));
    }
    assert_eq!((scratch.names(""), std::fs::read(scratch.at("old")).unwrap()), (vec!["old".into()], b"whole".to_vec()));
    let error = upload(&scratch.root(), b"t", Destination::Files, &mut Scripted::new(file("f", &[1; 2_000_000])));
    let error = error.unwrap_err();
    assert_eq!((error.code, error.path.as_deref()), (Code::NoSpace, Some(&b"t/f"[..])));
    assert!(scratch.names("t").is_empty());
    write(&scratch.root(), b"fits", PLAIN, &mut Scripted::data(&[1; 900_000])).unwrap();
}

/// No room for one more name: the same, and directories made on the way are gone.
#[test]
fn a_disk_without_inodes_leaves_nothing() {
    if !in_namespaces("full_disk::a_disk_without_inodes_leaves_nothing") {
        return;
    }
    let scratch = small_disk("size=1m,nr_inodes=5");
    let error = write(&scratch.root(), b"a/b/c/d/e/f/g", PLAIN, &mut Scripted::data(b"x")).unwrap_err();
    assert_eq!(error.code, Code::NoSpace);
    let all = Mkdir { mode: None, parents: true, exist_ok: true };
    assert_eq!(mkdir(&scratch.root(), b"a/b/c/d/e/f/g", all).unwrap_err().code, Code::NoSpace);
    assert!(scratch.names("").is_empty());
}

/// A file system that is read-only says so.
#[test]
fn a_read_only_disk_says_so() {
    if !in_namespaces("full_disk::a_read_only_disk_says_so") {
        return;
    }
    let scratch = small_disk("ro");
    let error = write(&scratch.root(), b"f", PLAIN, &mut Scripted::data(b"x")).unwrap_err();
    assert_eq!(error.code, Code::ReadOnly);
}
