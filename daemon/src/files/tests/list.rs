//! Listing directories.

use super::super::testing::{Collected, Scratch, Scripted};
use super::super::{Extent, Write, list, write};
use crate::error::Code;
use crate::message::Kind;

const ALL: Extent = Extent { recursive: true, limit: None };

fn paths(out: &Collected) -> Vec<String> {
    let mut paths: Vec<String> =
        out.listed.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect();
    paths.sort();
    paths
}

/// One level or all of them, paths relative to the directory, links as links.
#[test]
fn levels_are_listed_as_asked() {
    let scratch = Scratch::new();
    scratch.write("d/a", "123");
    scratch.write("d/sub/b", "");
    scratch.link("d/link", "sub");
    scratch.link("to-d", "d");
    let mut out = Collected::default();
    assert!(!list(&scratch.root(), b"/to-d", Extent::default(), &mut out).unwrap());
    assert_eq!(paths(&out), ["a", "link", "sub"]);
    let file = out.listed.iter().find(|entry| entry.path == b"a").unwrap();
    assert_eq!((file.kind, file.size), (Kind::File, 3));
    let link = out.listed.iter().find(|entry| entry.path == b"link").unwrap();
    assert_eq!((link.kind, link.target.as_ref().map(|target| target.to_vec())), (Kind::Link, Some(b"sub".to_vec())));
    let mut out = Collected::default();
    list(&scratch.root(), b"d", ALL, &mut out).unwrap();
    assert_eq!(paths(&out), ["a", "link", "sub", "sub/b"]);
    assert_eq!(list(&scratch.root(), b"d/a", ALL, &mut out).unwrap_err().code, Code::NotADirectory);
    assert_eq!(list(&scratch.root(), b"none", ALL, &mut out).unwrap_err().code, Code::NotFound);
}

/// A limit cuts exactly, and says so only if it did.
#[test]
fn a_limit_is_exact() {
    let scratch = Scratch::new();
    for number in 0..10 {
        scratch.write(&format!("f{number}"), "");
    }
    for (limit, count, truncated) in [(0, 0, true), (9, 9, true), (10, 10, false), (11, 10, false)] {
        let mut out = Collected::default();
        let extent = Extent { recursive: false, limit: Some(limit) };
        assert_eq!(list(&scratch.root(), b"/", extent, &mut out).unwrap(), truncated);
        assert_eq!(out.listed.len(), count);
    }
}

/// A directory of 100,000 names comes in batches, each name once.
#[test]
fn huge_directories_come_in_batches() {
    struct Batches(usize, std::collections::HashSet<Vec<u8>>);
    impl super::super::Listing for Batches {
        fn entries(&mut self, entries: &[crate::message::ListEntry]) -> crate::error::Result<()> {
            self.0 = self.0.max(entries.len());
            self.1.extend(entries.iter().map(|entry| entry.path.clone()));
            Ok(())
        }
    }
    let scratch = Scratch::in_memory();
    for number in 0..100_000 {
        std::fs::File::create(scratch.at(&format!("name-{number}"))).unwrap();
    }
    let mut out = Batches(0, Default::default());
    assert!(!list(&scratch.root(), b"/", Extent::default(), &mut out).unwrap());
    assert_eq!(out.1.len(), 100_000);
    assert!(out.0 <= 512);
}

/// File systems of the kernel are named and not gone into; `/proc` itself cannot be walked.
#[test]
fn kernel_file_systems_are_not_walked() {
    let root = super::super::Root::new(super::super::testing::open("/".as_ref()), b"/", Default::default());
    let mut out = Collected::default();
    assert_eq!(list(&root, b"/proc", ALL, &mut out).unwrap_err().code, Code::Unsupported);
    list(&root, b"/proc", Extent { recursive: false, limit: Some(5) }, &mut out).unwrap();
    assert_eq!(out.listed.len(), 5);
}

/// A receiver that wants no more ends the listing.
#[test]
fn a_cancelled_listing_ends() {
    let scratch = Scratch::new();
    write(&scratch.root(), b"f", Write { mode: None, parents: true }, &mut Scripted::data(b"")).unwrap();
    let mut out = Collected { patience: Some(0), ..Collected::default() };
    assert_eq!(list(&scratch.root(), b"/", ALL, &mut out).unwrap_err().code, Code::Cancelled);
}
