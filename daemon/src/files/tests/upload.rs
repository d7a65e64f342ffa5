//! Trees from entries.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::super::testing::{Scratch, Scripted, entry, file, pointing};
use super::super::{Destination, Entry, Item, Summary, upload};
use crate::error::{Code, Error};
use crate::message::Kind;

fn send(scratch: &Scratch, path: &str, items: Vec<Item>) -> Result<Summary, Error> {
    upload(&scratch.root(), path.as_bytes(), Destination::Files, &mut Scripted::new(items))
}

fn refused(items: Vec<Item>) -> Code {
    let scratch = Scratch::new();
    let code = send(&scratch, "/t", items).unwrap_err().code;
    assert!(scratch.names("").iter().all(|name| name == "t"));
    code
}

/// Files, directories and links arrive, the root is made with its parents, and the counts are right.
#[test]
fn a_tree_arrives() {
    let scratch = Scratch::new();
    let mut items = vec![entry("", Kind::Dir), entry("d", Kind::Dir)];
    items.extend(file("d/f", b"content"));
    items.extend(file("top", b""));
    items.push(pointing("link", Kind::Link, "d/f"));
    items.push(pointing("hard", Kind::Hard, "d/f"));
    items.push(entry("pipe", Kind::Fifo));
    let done = send(&scratch, "/some/where", items).unwrap();
    assert_eq!((done.files, done.dirs, done.links, done.bytes), (2, 2, 2, 7));
    assert_eq!(done.skipped, [b"pipe"]);
    assert_eq!(std::fs::read(scratch.at("some/where/hard")).unwrap(), b"content");
    assert_eq!(std::fs::metadata(scratch.at("some/where/d/f")).unwrap().nlink(), 2);
    assert_eq!(scratch.names("some/where"), ["d", "hard", "link", "top"]);
}

/// One file is a transfer too, to exactly that name, over a link and not through it.
#[test]
fn a_single_file_replaces_the_name() {
    let scratch = Scratch::new();
    scratch.write("target", "untouched");
    scratch.link("name", "target");
    send(&scratch, "name", file("", b"new")).unwrap();
    assert_eq!(std::fs::read(scratch.at("name")).unwrap(), b"new");
    assert_eq!(std::fs::read(scratch.at("target")).unwrap(), b"untouched");
    send(&scratch, "made/below/name", file("", b"deep")).unwrap();
    assert_eq!(std::fs::read(scratch.at("made/below/name")).unwrap(), b"deep");
    std::fs::create_dir(scratch.at("dir")).unwrap();
    assert_eq!(send(&scratch, "dir", file("", b"")).unwrap_err().code, Code::IsADirectory);
    assert_eq!(send(&scratch, "one", [file("", b""), file("two", b"")].concat()).unwrap_err().code, Code::BadRequest);
}

/// Paths that could mean something else than a name below the root are refused, and nothing is made.
#[test]
fn dangerous_paths_are_refused() {
    for path in ["..", "../x", "a/../x", "/abs", "a//b", "a/", "./a", "a/.", "nul\0"] {
        assert_eq!(refused(file(path, b"x")), Code::BadRequest, "{path}");
        assert_eq!(
            refused([file("f", b""), vec![pointing("h", Kind::Hard, path)]].concat()),
            Code::BadRequest,
            "{path}"
        );
    }
    assert_eq!(refused(vec![entry(&"x/".repeat(2100), Kind::Dir)]), Code::NameTooLong);
    assert_eq!(refused(vec![entry("link", Kind::Link)]), Code::BadRequest);
    assert_eq!(refused(vec![pointing("link", Kind::Link, "")]), Code::BadRequest);
    assert_eq!(refused(vec![entry("w", Kind::Whiteout)]), Code::BadRequest);
    assert_eq!(refused(vec![Item::Data { at: None, bytes: vec![1] }]), Code::BadRequest);
}

/// Sizes and positions that cannot be are refused, and the file is not there.
#[test]
fn impossible_data_is_refused() {
    let sized = |size| Item::Entry(Entry { size: Some(size), ..Entry::new(b"f", Kind::File) });
    let at = |at, count: usize| Item::Data { at: Some(at), bytes: vec![1; count] };
    assert_eq!(refused(vec![sized(3), at(0, 4)]), Code::BadRequest);
    assert_eq!(refused(vec![sized(3), at(3, 1)]), Code::BadRequest);
    assert_eq!(refused(vec![sized(u64::MAX)]), Code::BadRequest);
    assert_eq!(refused(vec![entry("f", Kind::File), at(u64::MAX, 1)]), Code::BadRequest);
    assert_eq!(refused(vec![sized(1), entry("d", Kind::Dir), at(0, 1)]), Code::BadRequest);
}

/// Content that was there stays, files of the same name are replaced, and what is in the way of a directory goes.
#[test]
fn existing_content_is_merged() {
    let scratch = Scratch::new();
    scratch.write("t/keep", "kept");
    scratch.write("t/d/keep", "kept");
    scratch.write("t/d/replace", "old");
    scratch.write("t/blocker", "a file");
    let mut items = vec![entry("d", Kind::Dir), entry("blocker", Kind::Dir)];
    items.extend(file("d/replace", b"new"));
    items.extend(file("blocker/inside", b"in"));
    send(&scratch, "t", items).unwrap();
    assert_eq!(std::fs::read(scratch.at("t/d/replace")).unwrap(), b"new");
    assert_eq!(std::fs::read(scratch.at("t/blocker/inside")).unwrap(), b"in");
    assert_eq!(
        (scratch.names("t"), scratch.names("t/d")),
        (vec!["blocker".into(), "d".into(), "keep".into()], vec!["keep".into(), "replace".into()])
    );
    assert_eq!(send(&scratch, "t", file("d", b"")).unwrap_err().code, Code::IsADirectory);
}

/// A link that is already there is never written through: not as a file, not as a directory on the way.
#[test]
fn nothing_is_written_through_a_link() {
    let scratch = Scratch::new();
    scratch.write("outside/file", "untouched");
    std::fs::create_dir(scratch.at("t")).unwrap();
    scratch.link("t/file", "../outside/file");
    scratch.link("t/dir", "../outside");
    scratch.link("t/way", "../outside");
    let mut items = file("file", b"new");
    items.push(entry("dir", Kind::Dir));
    items.extend(file("dir/new", b"new"));
    send(&scratch, "t", items).unwrap();
    assert_eq!(send(&scratch, "t", file("way/new", b"")).unwrap_err().code, Code::NotADirectory);
    assert_eq!(
        (scratch.names("outside"), std::fs::read(scratch.at("outside/file")).unwrap()),
        (vec!["file".into()], b"untouched".to_vec())
    );
    assert_eq!(std::fs::read(scratch.at("t/file")).unwrap(), b"new");
    assert_eq!(scratch.names("t/dir"), ["new"]);
}

/// Hard links go to files of the same transfer and to no others.
#[test]
fn hard_links_stay_in_the_transfer() {
    let scratch = Scratch::new();
    scratch.write("t/before", "of somebody else");
    assert_eq!(send(&scratch, "t", vec![pointing("h", Kind::Hard, "before")]).unwrap_err().code, Code::BadRequest);
    assert_eq!(send(&scratch, "t", vec![pointing("h", Kind::Hard, "missing")]).unwrap_err().code, Code::BadRequest);
    scratch.link("t/link", "before");
    assert_eq!(send(&scratch, "t", vec![pointing("h", Kind::Hard, "link")]).unwrap_err().code, Code::BadRequest);
    let mut items = file("before", b"ours");
    items.extend([pointing("h", Kind::Hard, "before"), pointing("h", Kind::Hard, "before")]);
    send(&scratch, "t", items).unwrap();
    assert_eq!(std::fs::metadata(scratch.at("t/h")).unwrap().nlink(), 2);
    assert_eq!(scratch.names("t"), ["before", "h", "link"]);
}

/// Modes with all their bits and times to the nanosecond arrive, for directories too, whatever is made in them later.
#[test]
fn modes_and_times_arrive() {
    let scratch = Scratch::new();
    let described = |path: &str, kind, mode, mtime_ns| {
        Item::Entry(Entry { mode: Some(mode), mtime_ns: Some(mtime_ns), ..Entry::new(path.as_bytes(), kind) })
    };
    let times = [1_000_000_000_123_456_789, 1_500_000_000_000_000_001, 1_234_567_890_000_000_000];
    let mut link = described("s", Kind::Link, 0o777, times[2]);
    if let Item::Entry(link) = &mut link {
        link.target = Some(b"x".to_vec());
    }
    let items = vec![
        described("", Kind::Dir, 0o755, times[0]),
        described("d", Kind::Dir, 0o3711, times[1]),
        described("ro", Kind::Dir, 0o555, times[2]),
        described("ro/f", Kind::File, 0o4750, times[0]),
        described("d/f", Kind::File, 0o600, times[0]),
        // Back in a directory that was left already.
        described("ro/late", Kind::File, 0o444, times[1]),
        link,
    ];
    send(&scratch, "t", items).unwrap();
    let facts = |path: &str| {
        let facts = std::fs::symlink_metadata(scratch.at(path)).unwrap();
        (facts.permissions().mode() & 0o7777, (facts.mtime() * 1_000_000_000 + facts.mtime_nsec()) as u64)
    };
    assert_eq!(facts("t"), (0o755, times[0]));
    assert_eq!(facts("t/d"), (0o3711, times[1]));
    assert_eq!(facts("t/ro"), (0o555, times[2]));
    assert_eq!(facts("t/ro/f"), (0o4750, times[0]));
    assert_eq!(facts("t/ro/late"), (0o444, times[1]));
    assert_eq!(facts("t/s").1, times[2]);
}

/// When it breaks off, finished files stay, the unfinished one does not, and nothing temporary is left.
#[test]
fn a_broken_upload_leaves_no_part_of_a_file() {
    let scratch = Scratch::new();
    scratch.write("t/second", "old");
    let mut items = file("first", b"done");
    items.extend(file("second", &[1; 5000]));
    items.truncate(items.len() - 2);
    let error = upload(&scratch.root(), b"t", Destination::Files, &mut Scripted::broken(items)).unwrap_err();
    assert_eq!((error.code, scratch.names("t")), (Code::Gone, vec!["first".into(), "second".into()]));
    assert_eq!(std::fs::read(scratch.at("t/second")).unwrap(), b"old");
}

/// What is gone is removed whatever it was, and what was never there is gone already.
#[test]
fn gone_removes() {
    let scratch = Scratch::new();
    scratch.write("t/d/x/y", "");
    scratch.write("t/f", "");
    scratch.write("t/opaque/old", "");
    scratch.write("t/becomes-file/old", "");
    scratch.link("t/link", "d");
    let mut items: Vec<Item> =
        ["d", "f", "never", "never/below", "f/below", "link/x"].map(|path| entry(path, Kind::Gone)).into();
    items.push(Item::Entry(Entry { opaque: true, ..Entry::new(b"opaque", Kind::Dir) }));
    items.extend(file("opaque/new", b""));
    items.push(Item::Entry(Entry { opaque: true, ..Entry::new(b"becomes-file", Kind::File) }));
    send(&scratch, "t", items).unwrap();
    assert_eq!(scratch.names("t"), ["becomes-file", "link", "opaque"]);
    assert_eq!(scratch.names("t/opaque"), ["new"]);
    send(&scratch, "t", vec![entry("", Kind::Gone)]).unwrap();
    assert!(scratch.names("").is_empty());
}
