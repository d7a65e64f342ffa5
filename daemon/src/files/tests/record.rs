//! Places that are kept, and the proof of the rest.

use std::fs::{Permissions, create_dir, remove_dir_all, remove_file, set_permissions, write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use super::super::record::{Budget, Moment, Record};
use super::super::testing::{Collected, Scratch, open};
use super::super::{Destination, Layout, changes, upload};
use super::round_trip::{Seen, snapshot};
use crate::error::{Code, Error};

const PLENTY: Budget = Budget { names: 1000, bytes: 100_000 };

fn home() -> Scratch {
    let scratch = Scratch::in_memory();
    scratch.write("home/src/a.py", "a = 1\n");
    scratch.write("home/src/b.py", "b = 1\n");
    scratch.write("home/docs/deep/page", "text");
    scratch.write("home/cache/locked/module", "m");
    scratch.link("home/link", "src/a.py");
    scratch.write("elsewhere/empty", "");
    scratch.write("mounted/empty", "");
    set_permissions(scratch.at("home/src/b.py"), Permissions::from_mode(0o750)).unwrap();
    set_permissions(scratch.at("home/cache/locked"), Permissions::from_mode(0o555)).unwrap();
    scratch
}

fn take(scratch: &Scratch, budget: Budget) -> Record {
    let places = ["/home", "/home/src", "/none"].map(|path| path.as_bytes().to_vec());
    Record::take(open(scratch.path()).as_fd(), &places, [b"/mounted".to_vec()].into(), budget).unwrap()
}

fn restore(record: &Record, scratch: &Scratch) -> Result<bool, Error> {
    record.restore(open(scratch.path()).as_fd())
}

fn check(record: &Record, scratch: &Scratch) -> Result<(), Error> {
    record.check_elsewhere(open(scratch.path()).as_fd(), b"/")
}

/// What the place shows, but for the time of its top.
fn shown(scratch: &Scratch) -> Vec<(Vec<u8>, Seen)> {
    let mut seen = snapshot(&scratch.at("home"));
    seen.remove(&b""[..]);
    seen.into_iter().collect()
}

fn told(record: Record, scratch: &Scratch, path: &str) -> Result<Collected, Error> {
    let mut out = Collected::default();
    let layout = Layout { record: Some(Arc::new(record)), ..Layout::default() };
    let root = super::super::Root::new(open(scratch.path()), b"/", super::super::Stop::default());
    changes(&root, path.as_bytes(), &layout, &mut out).map(|_| out)
}

/// Everything that an episode does, also what leaves size and time as they were, and directories that are closed.
fn disturb(scratch: &Scratch) {
    let before = std::fs::metadata(scratch.at("home/src/a.py")).unwrap().modified().unwrap();
    write(scratch.at("home/src/a.py"), "a = 2\n").unwrap();
    std::fs::File::open(scratch.at("home/src/a.py")).unwrap().set_modified(before).unwrap();
    set_permissions(scratch.at("home/src/b.py"), Permissions::from_mode(0o777)).unwrap();
    remove_dir_all(scratch.at("home/docs")).unwrap();
    write(scratch.at("home/docs"), "no directory").unwrap();
    remove_file(scratch.at("home/link")).unwrap();
    create_dir(scratch.at("home/link")).unwrap();
    scratch.write("home/new/inner/file", "new");
    set_permissions(scratch.at("home/cache/locked"), Permissions::from_mode(0o755)).unwrap();
    write(scratch.at("home/cache/locked/more"), "more").unwrap();
    for closed in ["home/new/inner", "home/new", "home/cache/locked", "home/cache"] {
        set_permissions(scratch.at(closed), Permissions::from_mode(0o000)).unwrap();
    }
}

/// As it was in every respect, once and again.
#[test]
fn a_place_is_put_back_as_it_was() {
    let scratch = home();
    let before = shown(&scratch);
    let mut record = take(&scratch, PLENTY);
    for _ in 0..2 {
        disturb(&scratch);
        assert!(check(&record, &scratch).is_ok());
        assert!(restore(&record, &scratch).unwrap());
        assert_eq!(shown(&scratch), before);
        record.begin_anew(Moment::now());
    }
}

/// What is too large to be kept may stay, and may not change.
#[test]
fn what_is_not_kept_is_not_pretended_to_be_put_back() {
    let scratch = Scratch::new();
    scratch.write("home/large", vec![7; 5000]);
    scratch.write("home/small", "small");
    let record = take(&scratch, Budget { names: 100, bytes: 1000 });
    remove_file(scratch.at("home/small")).unwrap();
    // In memory nothing proves that a file has stayed.
    let in_memory = rustix::fs::statfs(scratch.path()).unwrap().f_type == 0x0102_1994;
    assert_eq!(restore(&record, &scratch).is_ok(), !in_memory);
    std::fs::OpenOptions::new().append(true).open(scratch.at("home/large")).unwrap().set_len(5001).unwrap();
    let error = restore(&record, &scratch).unwrap_err();
    assert_eq!((error.code, error.path.as_deref()), (Code::Unsupported, Some(&b"/home/large"[..])));
}

/// A place of more names than are kept is none: all in it has to stay as it is.
#[test]
fn too_many_names_are_not_kept() {
    let scratch = home();
    let record = take(&scratch, Budget { names: 3, bytes: 1000 });
    // The smaller place in it is kept instead.
    write(scratch.at("home/src/new"), "").unwrap();
    assert!(check(&record, &scratch).unwrap_err().path.unwrap().starts_with(b"/home"));
}

/// Anything that was done elsewhere is found, with its path; what only was read is not.
#[test]
fn what_was_changed_elsewhere_is_found() {
    type Change = fn(&Scratch);
    let cases: [(&str, Change); 6] = [
        ("/mounted", |at| write(at.at("mounted/new"), "").unwrap()),
        ("/elsewhere/empty", |at| write(at.at("elsewhere/empty"), "").unwrap()),
        ("/elsewhere/empty", |at| std::fs::hard_link(at.at("elsewhere/empty"), at.at("home/second")).unwrap()),
        ("/elsewhere", |at| remove_file(at.at("elsewhere/empty")).unwrap()),
        ("/elsewhere", |at| write(at.at("elsewhere/new"), "").unwrap()),
        ("/", |at| create_dir(at.at("new")).unwrap()),
    ];
    for (path, change) in cases {
        let scratch = home();
        let record = take(&scratch, PLENTY);
        std::fs::read(scratch.at("elsewhere/empty")).unwrap();
        assert!(check(&record, &scratch).is_ok());
        change(&scratch);
        let error = check(&record, &scratch).unwrap_err();
        assert_eq!(error.code, Code::Unsupported);
        assert!(error.path.unwrap().starts_with(path.as_bytes()), "{path}");
    }
}

/// Each difference is told as what it is, and makes the same of another copy.
#[test]
fn differences_are_told_exactly() {
    let (scratch, twin) = (home(), home());
    let record = take(&scratch, PLENTY);
    write(scratch.at("home/src/a.py"), "a = 2\n").unwrap();
    write(scratch.at("home/src/b.py"), "b = 1\n").unwrap();
    remove_dir_all(scratch.at("home/docs")).unwrap();
    remove_file(scratch.at("home/link")).unwrap();
    create_dir(scratch.at("home/link")).unwrap();
    scratch.write("home/new/inner", "new");
    let out = told(record, &scratch, "/home").unwrap();
    let kinds: Vec<String> = out.summary().into_iter().filter(|line| !line.starts_with("file src/b.py")).collect();
    let expected =
        ["dir ", "gone docs", "gone link", "dir link", "dir new", "file new/inner", "dir src", "file src/a.py"];
    assert_eq!(kinds, expected);
    let root = super::super::Root::new(open(twin.path()), b"/", super::super::Stop::default());
    upload(&root, b"/home", Destination::Files, &mut out.into_items()).unwrap();
    let names = |scratch: &Scratch| shown(scratch).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    assert_eq!(names(&twin), names(&scratch));
    assert_eq!(std::fs::read(twin.at("home/src/a.py")).unwrap(), b"a = 2\n");
}

/// A path inside of a place tells its own part, and one around it all of it, unless something else has changed.
#[test]
fn differences_are_told_from_where_they_are_asked_for() {
    let part = |path: &str, more: fn(&Scratch)| {
        let scratch = home();
        let record = take(&scratch, PLENTY);
        write(scratch.at("home/src/a.py"), "a = 22\n").unwrap();
        more(&scratch);
        told(record, &scratch, path).map(|out| out.summary())
    };
    let nothing: fn(&Scratch) = |_| ();
    let elsewhere: fn(&Scratch) = |at| write(at.at("elsewhere/empty"), "").unwrap();
    assert_eq!(part("/home/docs", nothing).unwrap(), Vec::<String>::new());
    assert_eq!(part("/home/src/a.py", elsewhere).unwrap(), ["file "]);
    assert_eq!(part("/home/src", elsewhere).unwrap(), ["dir ", "file a.py"]);
    assert_eq!(part("/", nothing).unwrap(), ["dir ", "dir home", "dir home/src", "file home/src/a.py"]);
    assert_eq!(part("/", elsewhere).unwrap_err().code, Code::Unsupported);
    assert_eq!(part("/elsewhere", nothing).unwrap(), Vec::<String>::new());
    assert_eq!(part("/home/none", nothing).unwrap_err().code, Code::NotFound);
}
