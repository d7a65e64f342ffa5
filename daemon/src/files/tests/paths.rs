//! Where paths lead.

use super::super::testing::{Collected, Scratch};
use super::super::{Follow, Range, Root, Stop, read, stat};
use crate::error::Code;
use crate::message::Kind;

fn content(root: &Root, path: &str) -> Result<Vec<u8>, Code> {
    let mut out = Collected::default();
    read(root, path.as_bytes(), Range::default(), &mut out).map_err(|error| error.code)?;
    Ok(out.bytes())
}

/// An absolute link, and one with more `..` than there are directories, end inside the root.
#[test]
fn links_cannot_leave_the_root() {
    let outside = Scratch::new();
    outside.write("inner/etc/passwd", "inside");
    outside.write("secret", "outside");
    let root = Scratch(outside.at("inner"));
    root.link("absolute", "/etc/passwd");
    root.link("climbing", "../../../../../../etc/passwd");
    root.link("secret", "../secret");
    root.link("up", "..");
    let root = root.into_root();
    assert_eq!(content(&root, "/absolute").unwrap(), b"inside");
    assert_eq!(content(&root, "climbing").unwrap(), b"inside");
    assert_eq!(content(&root, "/../../etc/../etc/passwd").unwrap(), b"inside");
    assert_eq!(content(&root, "secret"), Err(Code::Loop));
    assert_eq!(content(&root, "up/secret"), Err(Code::Loop));
}

/// Relative paths begin at the working directory, and `.` and `..` mean what they always mean.
#[test]
fn relative_paths_begin_at_the_working_directory() {
    let scratch = Scratch::new();
    scratch.write("work/dir/file", "here");
    scratch.write("top", "above");
    let root = Root::new(super::super::testing::open(scratch.path()), b"/work", Stop::default());
    assert_eq!(content(&root, "dir/file").unwrap(), b"here");
    assert_eq!(content(&root, "./dir/../dir//file").unwrap(), b"here");
    assert_eq!(content(&root, "../top").unwrap(), b"above");
    assert_eq!(content(&root, "/top").unwrap(), b"above");
    assert_eq!(stat(&root, b"..", Follow::Yes).unwrap().kind, Kind::Dir);
    assert_eq!(stat(&root, b"/", Follow::No).unwrap().kind, Kind::Dir);
}

/// Every way in which a path can be wrong has a code of its own.
#[test]
fn wrong_paths_are_told_apart() {
    let scratch = Scratch::new();
    scratch.write("file", "");
    scratch.write("dir/inner", "");
    scratch.link("circle", "circle");
    scratch.link("dangling", "nowhere");
    let root = scratch.root();
    assert_eq!(content(&root, ""), Err(Code::NotFound));
    assert_eq!(content(&root, "/missing"), Err(Code::NotFound));
    assert_eq!(content(&root, "missing/file"), Err(Code::NotFound));
    assert_eq!(content(&root, "dangling"), Err(Code::NotFound));
    assert_eq!(content(&root, "file/below"), Err(Code::NotADirectory));
    assert_eq!(content(&root, "file/"), Err(Code::NotADirectory));
    assert_eq!(content(&root, "dir"), Err(Code::IsADirectory));
    assert_eq!(content(&root, "circle"), Err(Code::Loop));
    assert_eq!(content(&root, "nul\0byte"), Err(Code::BadRequest));
    assert_eq!(content(&root, &"x".repeat(300)), Err(Code::NameTooLong));
    assert_eq!(content(&root, &"x/".repeat(2049)), Err(Code::NameTooLong));
}

/// The error names the path that was asked for.
#[test]
fn errors_carry_the_path() {
    let scratch = Scratch::new();
    let error = read(&scratch.root(), b"/no/such", Range::default(), &mut Collected::default()).unwrap_err();
    assert_eq!(error.path.as_deref(), Some(&b"/no/such"[..]));
    assert_eq!(error.errno, Some(libc::ENOENT));
}

/// `stat` follows the last link or tells about it, as asked; a slash at the end means what it leads to.
#[test]
fn stat_follows_as_asked() {
    let scratch = Scratch::new();
    scratch.write("dir/file", "12345");
    scratch.link("to-file", "dir/file");
    scratch.link("to-dir", "dir");
    let root = scratch.root();
    let link = stat(&root, b"to-file", Follow::No).unwrap();
    assert_eq!((link.kind, link.target.as_deref()), (Kind::Link, Some(&b"dir/file"[..])));
    let followed = stat(&root, b"to-file", Follow::Yes).unwrap();
    assert_eq!((followed.kind, followed.size, followed.target), (Kind::File, 5, None));
    assert_eq!(stat(&root, b"to-dir/", Follow::No).unwrap().kind, Kind::Dir);
    assert_eq!(stat(&root, b"to-file/", Follow::No).unwrap_err().code, Code::NotADirectory);
}

/// Any byte but NUL and the slash may be in a name.
#[test]
fn names_are_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let name = b"new\nline \xff\xfe \x1b[31m";
    std::fs::write(scratch.path().join(std::ffi::OsStr::from_bytes(name)), "odd").unwrap();
    let mut out = Collected::default();
    read(&scratch.root(), name, Range::default(), &mut out).unwrap();
    assert_eq!(out.bytes(), b"odd");
}

/// Nothing of the daemon's own process can be read through it, by whatever name; other processes can as always.
#[test]
fn the_daemons_own_process_stays_closed() {
    let root = Root::new(super::super::testing::open(std::path::Path::new("/")), b"/", Stop::default());
    let own = std::process::id();
    for path in ["/proc/self/mem", "/proc/self/environ", "/proc/thread-self/maps", "/proc/self/task/../status"] {
        assert_eq!(content(&root, path), Err(Code::Permission), "{path}");
    }
    assert_eq!(content(&root, &format!("/proc/{own}/status")), Err(Code::Permission));
    let thread = rustix::thread::gettid().as_raw_nonzero();
    assert_eq!(content(&root, &format!("/proc/{thread}/status")), Err(Code::Permission));
    assert_eq!(stat(&root, b"/proc/self/exe", Follow::No).unwrap_err().code, Code::Permission);
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let status = content(&root, &format!("/proc/{}/status", other.id()));
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(status.unwrap().starts_with(b"Name:\t"));
}
