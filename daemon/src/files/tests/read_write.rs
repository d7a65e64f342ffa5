//! Single files.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use super::super::testing::{Collected, Scratch, Scripted, entry};
use super::super::{Item, Mkdir, Range, Write, mkdir, read, write};
use crate::error::Code;
use crate::message::Kind;

const PLAIN: Write = Write { mode: None, parents: true };

fn mode(scratch: &Scratch, path: &str) -> u32 {
    std::fs::metadata(scratch.at(path)).unwrap().permissions().mode() & 0o7777
}

/// What was written is read back, for sizes around the chunk and for none.
#[test]
fn written_bytes_are_read_back() {
    let scratch = Scratch::new();
    for size in [0, 1, 262_143, 262_144, 262_145, 1_000_000] {
        let content: Vec<u8> = (0..size).map(|index| (index * 7 % 251) as u8).collect();
        assert_eq!(write(&scratch.root(), b"/f", PLAIN, &mut Scripted::data(&content)).unwrap(), size as u64);
        let mut out = Collected::default();
        let facts = read(&scratch.root(), b"f", Range::default(), &mut out).unwrap();
        assert_eq!((out.bytes() == content, facts.size, facts.mode), (true, size as u64, 0o644));
    }
    assert_eq!(scratch.names(""), ["f"]);
}

/// A range is cut out exactly; beyond the end there is nothing.
#[test]
fn ranges_are_exact() {
    let scratch = Scratch::new();
    let content: Vec<u8> = (0..600_000).map(|index| (index % 253) as u8).collect();
    scratch.write("f", &content);
    let beyond = Range { offset: u64::MAX, limit: None };
    assert_eq!(read(&scratch.root(), b"f", beyond, &mut Collected::default()).unwrap_err().code, Code::BadRequest);
    for (offset, limit) in [
        (0, Some(0)),
        (0, Some(10)),
        (5, Some(300_000)),
        (599_990, None),
        (599_990, Some(50)),
        (600_000, None),
        (700_000, Some(1)),
    ] {
        let mut out = Collected::default();
        let facts = read(&scratch.root(), b"f", Range { offset, limit }, &mut out).unwrap();
        let start = (offset as usize).min(content.len());
        let end = limit.map_or(content.len(), |limit| (start + limit as usize).min(content.len()));
        assert_eq!((out.bytes() == content[start..end], facts.size), (true, 600_000), "{offset} {limit:?}");
    }
}

/// Files of `/proc` say that they are empty and are not; they are read to their end, and in part.
#[test]
fn files_of_unknown_size_are_read_to_their_end() {
    let root = super::super::Root::new(super::super::testing::open("/".as_ref()), b"/", Default::default());
    let expected = std::fs::read("/proc/version").unwrap();
    let mut out = Collected::default();
    let facts = read(&root, b"/proc/version", Range::default(), &mut out).unwrap();
    assert_eq!((out.bytes(), facts.size), (expected.clone(), expected.len() as u64));
    let mut out = Collected::default();
    read(&root, b"/proc/version", Range { offset: 6, limit: Some(7) }, &mut out).unwrap();
    assert_eq!(out.bytes(), expected[6..13]);
}

/// What would block or is no file is refused at once: nobody writes to the fifo of this test.
#[test]
fn only_regular_files_are_read_and_replaced() {
    let scratch = Scratch::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, scratch.at("fifo"), rustix::fs::Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.at("socket")).unwrap();
    for name in ["fifo", "socket"] {
        let error = read(&scratch.root(), name.as_bytes(), Range::default(), &mut Collected::default()).unwrap_err();
        assert_eq!(error.code, Code::Unsupported);
        let error = write(&scratch.root(), name.as_bytes(), PLAIN, &mut Scripted::data(b"x")).unwrap_err();
        assert_eq!(error.code, Code::Unsupported);
    }
    assert!(std::fs::symlink_metadata(scratch.at("fifo")).unwrap().file_type().is_fifo());
    let root = super::super::Root::new(super::super::testing::open("/".as_ref()), b"/", Default::default());
    let error = read(&root, b"/dev/zero", Range::default(), &mut Collected::default()).unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
    let error = write(&root, b"/proc/sys/kernel/hostname", PLAIN, &mut Scripted::data(b"x")).unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
}

/// A new file has 0644, a replaced one keeps its mode, and a mode that is given wins; the umask has no say.
#[test]
fn modes_are_kept_or_given() {
    let scratch = Scratch::new();
    write(&scratch.root(), b"new", PLAIN, &mut Scripted::data(b"")).unwrap();
    assert_eq!(mode(&scratch, "new"), 0o644);
    std::fs::set_permissions(scratch.at("new"), std::fs::Permissions::from_mode(0o751)).unwrap();
    write(&scratch.root(), b"new", PLAIN, &mut Scripted::data(b"x")).unwrap();
    assert_eq!(mode(&scratch, "new"), 0o751);
    write(&scratch.root(), b"new", Write { mode: Some(0o6666), parents: true }, &mut Scripted::data(b"x")).unwrap();
    assert_eq!(mode(&scratch, "new"), 0o6666);
    let error =
        write(&scratch.root(), b"new", Write { mode: Some(0o100_644), parents: true }, &mut Scripted::data(b""));
    assert_eq!(error.unwrap_err().code, Code::BadRequest);
}

/// Writing follows a link as opening it would, also to a file that does not exist yet, and the link stays.
#[test]
fn writing_follows_links() {
    let scratch = Scratch::new();
    scratch.write("dir/old", "old");
    scratch.link("to-old", "dir/old");
    scratch.link("to-new", "/dir/new");
    scratch.link("dir/again", "../to-old");
    let root = scratch.root();
    write(&root, b"to-old", PLAIN, &mut Scripted::data(b"1")).unwrap();
    write(&root, b"to-new", PLAIN, &mut Scripted::data(b"2")).unwrap();
    write(&root, b"dir/again", PLAIN, &mut Scripted::data(b"3")).unwrap();
    assert_eq!(std::fs::read(scratch.at("dir/old")).unwrap(), b"3");
    assert_eq!(std::fs::read(scratch.at("dir/new")).unwrap(), b"2");
    assert_eq!(scratch.names("dir"), ["again", "new", "old"]);
    assert!(std::fs::symlink_metadata(scratch.at("to-old")).unwrap().is_symlink());
}

/// Directories that are missing are made, or are an error, as asked.
#[test]
fn parents_are_made_as_asked() {
    let scratch = Scratch::new();
    let error = write(&scratch.root(), b"a/b/f", Write { parents: false, ..PLAIN }, &mut Scripted::data(b""));
    assert_eq!(error.unwrap_err().code, Code::NotFound);
    write(&scratch.root(), b"a/b//c/./f", PLAIN, &mut Scripted::data(b"deep")).unwrap();
    assert_eq!(std::fs::read(scratch.at("a/b/c/f")).unwrap(), b"deep");
    assert_eq!(mode(&scratch, "a/b"), 0o755);
    scratch.write("file", "");
    let error = write(&scratch.root(), b"file/x/y", PLAIN, &mut Scripted::data(b"")).unwrap_err();
    assert_eq!(error.code, Code::NotADirectory);
}

/// When the data stops coming the old file is whole, there is no other, and directories made for it are gone.
#[test]
fn a_broken_write_leaves_nothing() {
    let scratch = Scratch::new();
    scratch.write("old", "whole");
    let chunk = Item::Data { at: None, bytes: vec![7; 100_000] };
    for path in ["old", "new", "made/for/it"] {
        let mut source = Scripted::broken(vec![chunk.clone(), chunk.clone()]);
        assert_eq!(write(&scratch.root(), path.as_bytes(), PLAIN, &mut source).unwrap_err().code, Code::Gone);
    }
    assert_eq!(std::fs::read(scratch.at("old")).unwrap(), b"whole");
    assert_eq!(scratch.names(""), ["old"]);
    let error = write(&scratch.root(), b"new", PLAIN, &mut Scripted::new(vec![entry("x", Kind::File)])).unwrap_err();
    assert_eq!((error.code, scratch.names("")), (Code::BadRequest, vec!["old".to_owned()]));
}

/// A directory cannot be written over, nor a name that only means one.
#[test]
fn directories_are_not_written_over() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.at("dir")).unwrap();
    for path in ["dir", "dir/", "dir/.", "/", "new/", "dir/.."] {
        let error = write(&scratch.root(), path.as_bytes(), PLAIN, &mut Scripted::data(b"")).unwrap_err();
        assert_eq!(error.code, Code::IsADirectory, "{path}");
    }
    assert_eq!(scratch.names(""), ["dir"]);
}

/// An open file of before goes on to show the old content: nobody ever sees a part of the new one.
#[test]
fn readers_of_the_old_file_keep_it() {
    use std::io::Read;
    let scratch = Scratch::new();
    scratch.write("f", "old content");
    let mut before = std::fs::File::open(scratch.at("f")).unwrap();
    write(&scratch.root(), b"f", PLAIN, &mut Scripted::data(b"new")).unwrap();
    let mut text = String::new();
    before.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), before.metadata().unwrap().nlink()), ("old content", 0));
}

/// `mkdir` knows its mode, parents, and what may be there already.
#[test]
fn mkdir_does_what_it_is_told() {
    let scratch = Scratch::new();
    let root = scratch.root();
    let new = Mkdir { mode: None, parents: false, exist_ok: false };
    mkdir(&root, b"a", Mkdir { mode: Some(0o1770), ..new }).unwrap();
    assert_eq!(mode(&scratch, "a"), 0o1770);
    assert_eq!(mkdir(&root, b"a", new).unwrap_err().code, Code::Exists);
    mkdir(&root, b"a/", Mkdir { exist_ok: true, mode: Some(0o700), ..new }).unwrap();
    assert_eq!(mode(&scratch, "a"), 0o1770);
    assert_eq!(mkdir(&root, b"x/y", new).unwrap_err().code, Code::NotFound);
    mkdir(&root, b"x/y/z", Mkdir { parents: true, ..new }).unwrap();
    scratch.write("file", "");
    scratch.link("to-a", "a");
    scratch.link("dangling", "nothing");
    let fine = Mkdir { exist_ok: true, parents: true, mode: None };
    mkdir(&root, b"to-a", fine).unwrap();
    mkdir(&root, b"/", fine).unwrap();
    assert_eq!(mkdir(&root, b"file", fine).unwrap_err().code, Code::Exists);
    assert_eq!(mkdir(&root, b"dangling", fine).unwrap_err().code, Code::Exists);
    assert_eq!(mkdir(&root, b"made/file\0", fine).unwrap_err().code, Code::BadRequest);
    assert_eq!(
        mkdir(&root, b"made/above/file/x", Mkdir { mode: Some(0o70000), ..fine }).unwrap_err().code,
        Code::BadRequest
    );
    assert!(!scratch.at("made").exists());
}
