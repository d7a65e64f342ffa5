//! Trees that somebody changes while they are being worked on. Whatever is answered, nothing outside is touched.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::testing::{Collected, Random, Scratch, Scripted, entry, file};
use super::super::{Destination, Extent, Range, Remove, Write, download, list, read, remove, upload, write};
use crate::error::Code;

/// Long enough to meet every window many times on two cores.
const ROUNDS: usize = 400;

/// Exchange `left` and `right` without pause while `work` runs.
fn while_swapping(left: &Path, right: &Path, work: impl FnOnce()) {
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            while !over.load(Ordering::Relaxed) {
                let _ = renameat_with(CWD, left, CWD, right, RenameFlags::EXCHANGE);
                // Locks of the directories are not fair; the other side must get its turn.
                std::thread::yield_now();
            }
        });
        let _done = Done(&over);
        work();
    });
}

struct Trap {
    scratch: Scratch,
}

impl Trap {
    /// `inside/d` is now a directory, now a link to `outside`.
    fn new() -> Self {
        let scratch = Scratch::new();
        scratch.write("outside/f", "precious");
        scratch.write("outside/sub/f", "precious");
        scratch.write("inside/d/f", "harmless");
        scratch.write("inside/d/sub/f", "harmless");
        scratch.link("inside/l", scratch.at("outside").to_str().unwrap());
        Trap { scratch }
    }

    fn root(&self) -> super::super::Root {
        Scratch(self.scratch.at("inside")).into_root()
    }

    fn run(&self, work: impl FnMut(usize)) {
        let (left, right) = (self.scratch.at("inside/d"), self.scratch.at("inside/l"));
        while_swapping(&left, &right, || (0..ROUNDS).for_each(work));
        assert_eq!(self.scratch.names("outside"), ["f", "sub"]);
        assert_eq!(self.scratch.names("outside/sub"), ["f"]);
        for file in ["outside/f", "outside/sub/f"] {
            assert_eq!(std::fs::read(self.scratch.at(file)).unwrap(), b"precious");
        }
    }
}

/// A link swapped in for a directory is never written through.
#[test]
fn uploads_never_write_through_a_swapped_link() {
    let trap = Trap::new();
    let root = trap.root();
    let mut made = 0;
    trap.run(|round| {
        let mut items = vec![entry("d", crate::message::Kind::Dir)];
        items.extend(file("d/f", b"new"));
        items.extend(file(&format!("d/sub/{}", round % 7), b"new"));
        made += usize::from(upload(&root, b"/", Destination::Files, &mut Scripted::new(items)).is_ok());
    });
    assert!(made > 0);
}

/// Nor does writing one file, reading, or listing leave the root.
#[test]
fn single_files_never_leave_the_root() {
    let trap = Trap::new();
    let root = trap.root();
    trap.run(|_| {
        let _ = write(&root, b"d/f", Write { mode: None, parents: true }, &mut Scripted::data(b"harmless"));
        let mut out = Collected::default();
        if read(&root, b"d/sub/f", Range::default(), &mut out).is_ok() {
            assert_eq!(out.bytes(), b"harmless");
        }
        let _ = list(&root, b"/", Extent { recursive: true, limit: None }, &mut Collected::default());
    });
}

/// Removing a tree removes a link that was swapped into it, and not what it leads to.
#[test]
fn removing_never_follows_a_swapped_link() {
    let trap = Trap::new();
    let root = trap.root();
    trap.run(|_| {
        let _ = remove(&root, b"d", Remove { recursive: true, missing_ok: true });
        let _ = std::fs::create_dir_all(trap.scratch.at("inside/d/sub"));
        let _ = std::fs::write(trap.scratch.at("inside/l/g"), "");
        let _ = std::fs::remove_file(trap.scratch.at("outside/g"));
        let _ = std::os::unix::fs::symlink(trap.scratch.at("outside"), trap.scratch.at("inside/l"));
    });
}

/// A download shows a swapped link as a link, or the directory, and never what is outside.
#[test]
fn downloads_never_follow_a_swapped_link() {
    let trap = Trap::new();
    let root = trap.root();
    trap.run(|_| {
        let mut out = Collected::default();
        match download(&root, b"/", &mut out) {
            Ok(_) => assert!(!out.bytes().windows(8).any(|bytes| bytes == b"precious")),
            Err(error) => assert_eq!(error.code, Code::Busy),
        }
    });
}

/// Directories that move while a deep tree is removed never send the removal to another place.
#[test]
fn removing_survives_moved_directories() {
    let scratch = Scratch::in_memory();
    scratch.write("keep/me", "precious");
    let deep = (0..150).map(|level| format!("n{level}")).collect::<Vec<_>>().join("/");
    let root = scratch.root();
    for _ in 0..6 {
        scratch.write(&format!("t/a/{deep}/f"), "");
        scratch.write(&format!("t/b/{deep}/f"), "");
        while_swapping(&scratch.at("t/a/n0/n1"), &scratch.at("t/b/n0/n1/n2"), || {
            match remove(&root, b"t", Remove { recursive: true, missing_ok: true }) {
                Ok(()) => {}
                Err(error) => assert!(matches!(error.code, Code::NotEmpty | Code::Busy | Code::NotFound), "{error}"),
            }
        });
        remove(&root, b"t", Remove { recursive: true, missing_ok: true }).unwrap();
        assert_eq!(scratch.names(""), ["keep"]);
        assert_eq!(scratch.names("keep"), ["me"]);
    }
}

/// Somebody who keeps filling a directory gets an error out of its removal, not an endless one.
#[test]
fn a_refilled_directory_is_given_up() {
    let scratch = Scratch::in_memory();
    std::fs::create_dir(scratch.at("t")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for filler in 0..2 {
            let (scratch, over) = (&scratch, &over);
            scope.spawn(move || {
                let mut random = Random(filler);
                while !over.load(Ordering::Relaxed) {
                    let _ = std::fs::create_dir_all(scratch.at(&format!("t/{}/{}", random.below(50), random.next())));
                }
            });
        }
        match remove(&scratch.root(), b"t", Remove { recursive: true, missing_ok: true }) {
            Ok(()) => {}
            Err(error) => assert!(matches!(error.code, Code::NotEmpty | Code::Busy), "{error}"),
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A file that grows is sent as long as it was announced; one that is cut short is an error; neither hangs.
#[test]
fn files_that_change_size_are_handled() {
    let scratch = Scratch::new();
    let size = 3_000_000_u64;
    scratch.write("t/f", vec![7; size as usize]);
    let handle = std::fs::OpenOptions::new().write(true).open(scratch.at("t/f")).unwrap();
    struct Meddling<'a>(Collected, &'a std::fs::File, u64);
    impl super::super::Outgoing for Meddling<'_> {
        fn entry(&mut self, entry: &super::super::Entry) -> crate::error::Result<()> {
            if entry.kind == crate::message::Kind::File {
                self.1.set_len(self.2).unwrap();
            }
            self.0.entry(entry)
        }
        fn data(&mut self, at: u64, bytes: &[u8]) -> crate::error::Result<()> {
            self.0.data(at, bytes)
        }
    }
    let mut out = Meddling(Collected::default(), &handle, size + 1_000_000);
    download(&scratch.root(), b"t", &mut out).unwrap();
    assert_eq!((out.0.find("f").size, out.0.bytes().len() as u64), (Some(size), size));
    let mut out = Meddling(Collected::default(), &handle, 1_000_000);
    let error = download(&scratch.root(), b"t", &mut out).unwrap_err();
    assert_eq!((error.code, error.path), (Code::Busy, Some(b"t/f".to_vec())));
}

/// Reading a fifo that is swapped in for a file does not wait for a writer.
#[test]
fn a_swapped_in_fifo_never_blocks() {
    let scratch = Scratch::new();
    scratch.write("f", "content");
    rustix::fs::mkfifoat(rustix::fs::CWD, scratch.at("fifo"), rustix::fs::Mode::RWXU).unwrap();
    let root = scratch.root();
    while_swapping(&scratch.at("f"), &scratch.at("fifo"), || {
        for _ in 0..ROUNDS {
            if let Err(error) = read(&root, b"f", Range::default(), &mut Collected::default()) {
                assert_eq!(error.code, Code::Unsupported);
            }
            let _ = download(&root, b"/", &mut Collected::default());
        }
    });
}
