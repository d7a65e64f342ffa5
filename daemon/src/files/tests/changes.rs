//! What differs from an image, on the kernel's own overlayfs.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

use super::super::testing::{Collected, Random, Scratch, in_namespaces, mount, open};
use super::super::{Destination, Layer, Layout, changes, upload};
use super::round_trip::{Seen, odd_name, paths, plant, set_time, snapshot};
use crate::error::{Code, Error};

/// Overlays over the same lowers; `0` is where things happen, `1` is the twin.
struct Overlays {
    scratch: Scratch,
    /// Mount points inside of the root, `/` first.
    targets: Vec<&'static str>,
}

impl Overlays {
    /// `fill` makes the lowers of each target: `t0/l0` is the lowest of the first.
    fn new(targets: &[&'static str], lowers: usize, fill: impl FnOnce(&Scratch)) -> Self {
        let scratch = Scratch::new();
        mount("tmpfs", scratch.path(), "size=400m");
        for target in 0..targets.len() {
            for lower in 0..lowers {
                std::fs::create_dir_all(scratch.at(&format!("t{target}/l{lower}"))).unwrap();
            }
        }
        fill(&scratch);
        for twin in 0..2 {
            std::fs::create_dir(scratch.at(&format!("m{twin}"))).unwrap();
            for (number, target) in targets.iter().enumerate() {
                let base = scratch.at(&format!("t{number}"));
                let (upper, work) = (base.join(format!("u{twin}")), base.join(format!("w{twin}")));
                std::fs::create_dir(&upper).unwrap();
                std::fs::create_dir(&work).unwrap();
                let lower: Vec<String> =
                    (0..lowers).rev().map(|lower| base.join(format!("l{lower}")).display().to_string()).collect();
                let at = PathBuf::from(format!("{}{target}", scratch.at(&format!("m{twin}")).display()));
                let options = format!(
                    "userxattr,lowerdir={},upperdir={},workdir={}",
                    lower.join(":"),
                    upper.display(),
                    work.display()
                );
                mount("overlay", &at, &options);
            }
        }
        Overlays { scratch, targets: targets.to_vec() }
    }

    fn single(fill: impl FnOnce(&Scratch)) -> Self {
        Overlays::new(&["/"], 1, fill)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.scratch.at(&format!("m0/{path}"))
    }

    fn layout(&self) -> Layout {
        let lowers = |number: usize| {
            let mut names: Vec<String> = self.scratch.names(&format!("t{number}"));
            names.retain(|name| name.starts_with('l'));
            names.reverse();
            names.iter().map(|name| open(&self.scratch.at(&format!("t{number}/{name}")))).collect()
        };
        let layer = |(number, target): (usize, &&str)| Layer {
            target: target.as_bytes().to_vec(),
            upper: open(&self.scratch.at(&format!("t{number}/u0"))),
            lowers: lowers(number),
        };
        Layout {
            overlays: self.targets.iter().enumerate().map(layer).collect(),
            others: vec![b"/mounted".to_vec()],
            record: None,
        }
    }

    fn changes(&self, path: &str) -> Result<Collected, Error> {
        let mut out = Collected::default();
        let root = Scratch(self.scratch.at("m0")).into_root();
        let summary = changes(&root, path.as_bytes(), &self.layout(), &mut out)?;
        assert_eq!(summary.files as usize, out.summary().iter().filter(|line| line.starts_with("file ")).count());
        Ok(out)
    }

    fn apply(&self, path: &str) {
        let out = self.changes(path).unwrap();
        let twin = Scratch(self.scratch.at("m1")).into_root();
        upload(&twin, path.as_bytes(), Destination::Files, &mut out.into_items()).unwrap();
    }

    /// Whether both now show the same, apart from other mounts and the time of the roots, which nobody changed. Which
    /// names are one file is left out: an overlay tells that only of files that are new.
    fn are_equal(&self) -> bool {
        let seen = |twin: &str| {
            let mut seen = snapshot(&self.scratch.at(twin));
            for target in &self.targets {
                seen.remove(target.trim_start_matches('/').as_bytes());
            }
            seen.remove(&b"mounted"[..]);
            seen.values_mut().for_each(Seen::forget_other_names);
            seen
        };
        let (one, other) = (seen("m0"), seen("m1"));
        for path in one.keys().chain(other.keys()).filter(|path| one.get(*path) != other.get(*path)) {
            let text = String::from_utf8_lossy(path);
            eprintln!("differs: {text:?}\n  {:?}\n  {:?}", one.get(path), other.get(path));
        }
        one == other
    }
}

fn image(scratch: &Scratch) {
    scratch.write("t0/l0/repo/src/a.py", "a");
    scratch.write("t0/l0/repo/src/b.py", "b");
    scratch.write("t0/l0/repo/docs/page", "text");
    scratch.write("t0/l0/etc/conf", "1");
    scratch.link("t0/l0/repo/link", "src/a.py");
}

/// Nothing changed, nothing sent; reading is no change.
#[test]
fn an_untouched_image_has_no_changes() {
    if !in_namespaces("changes::an_untouched_image_has_no_changes") {
        return;
    }
    let overlays = Overlays::single(image);
    std::fs::read(overlays.at("repo/src/a.py")).unwrap();
    // Copied up by the kernel for being opened, and the same as before.
    std::fs::OpenOptions::new().append(true).open(overlays.at("repo/src/b.py")).unwrap();
    assert!(overlays.scratch.at("t0/u0/repo/src/b.py").exists());
    for path in ["/", "/repo", "/repo/src/a.py"] {
        assert_eq!(overlays.changes(path).unwrap().summary(), Vec::<String>::new(), "{path}");
    }
}

/// Each kind of change is told as what it is, with the directories above it and nothing else.
#[test]
fn every_kind_of_change_is_told() {
    if !in_namespaces("changes::every_kind_of_change_is_told") {
        return;
    }
    let overlays = Overlays::single(image);
    std::fs::write(overlays.at("repo/src/a.py"), "changed").unwrap();
    std::fs::remove_file(overlays.at("repo/src/b.py")).unwrap();
    std::fs::create_dir(overlays.at("repo/new")).unwrap();
    std::os::unix::fs::symlink("elsewhere", overlays.at("repo/new/link")).unwrap();
    std::fs::set_permissions(overlays.at("etc/conf"), PermissionsExt::from_mode(0o600)).unwrap();
    let out = overlays.changes("/").unwrap();
    let expected = [
        "dir ",
        "dir etc",
        "file etc/conf",
        "dir repo",
        "dir repo/new",
        "link repo/new/link",
        "dir repo/src",
        "file repo/src/a.py",
        "gone repo/src/b.py",
    ];
    assert_eq!(out.summary(), expected);
    assert_eq!(out.find("etc/conf").mode, Some(0o600));
    assert_eq!(overlays.changes("/repo/src").unwrap().summary(), ["dir ", "file a.py", "gone b.py"]);
    assert_eq!(overlays.changes("repo/link").unwrap().summary(), ["file "]);
    assert_eq!(overlays.changes("/repo/docs").unwrap().summary(), Vec::<String>::new());
    assert_eq!(overlays.changes("/nothing").unwrap_err().code, Code::NotFound);
}

/// A directory that replaced another hides it; files and directories that took each other's place say so.
#[test]
fn replaced_directories_are_told() {
    if !in_namespaces("changes::replaced_directories_are_told") {
        return;
    }
    let overlays = Overlays::single(image);
    std::fs::remove_dir_all(overlays.at("repo/src")).unwrap();
    std::fs::create_dir(overlays.at("repo/src")).unwrap();
    std::fs::write(overlays.at("repo/src/only"), "x").unwrap();
    std::fs::remove_dir_all(overlays.at("repo/docs")).unwrap();
    std::fs::write(overlays.at("repo/docs"), "now a file").unwrap();
    std::fs::remove_file(overlays.at("etc/conf")).unwrap();
    std::fs::create_dir(overlays.at("etc/conf")).unwrap();
    let expected = [
        "dir ",
        "dir etc",
        "gone etc/conf",
        "dir etc/conf",
        "dir repo",
        "gone repo/docs",
        "file repo/docs",
        "opaque repo/src",
        "file repo/src/only",
    ];
    assert_eq!(overlays.changes("/").unwrap().summary(), expected);
    assert_eq!(overlays.changes("/repo/src").unwrap().summary(), ["opaque ", "file only"]);
    overlays.apply("/");
    assert!(overlays.are_equal());
}

/// A path that was removed as a whole is told as gone, and is gone where that is applied.
#[test]
fn a_removed_root_is_gone() {
    if !in_namespaces("changes::a_removed_root_is_gone") {
        return;
    }
    let overlays = Overlays::single(image);
    std::fs::remove_dir_all(overlays.at("repo")).unwrap();
    assert_eq!(overlays.changes("/repo").unwrap().summary(), ["gone "]);
    assert_eq!(overlays.changes("/repo/src/a.py").unwrap().summary(), ["gone "]);
    overlays.apply("/repo");
    assert!(!overlays.scratch.at("m1/repo").exists());
}

/// Content that was changed and given its old size and time back is found all the same.
#[test]
fn disguised_content_is_found() {
    if !in_namespaces("changes::disguised_content_is_found") {
        return;
    }
    let overlays = Overlays::single(image);
    let before = std::fs::metadata(overlays.at("repo/src/a.py")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(overlays.at("repo/src/a.py")).unwrap();
    file.write_all_at(b"b", 0).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(overlays.changes("/repo").unwrap().summary(), ["dir ", "dir src", "file src/a.py"]);
}

/// Several layers are merged as the kernel merges them: whiteouts, opaque directories and files among them.
#[test]
fn lower_layers_are_merged() {
    if !in_namespaces("changes::lower_layers_are_merged") {
        return;
    }
    let overlays = Overlays::new(&["/"], 3, |scratch| {
        scratch.write("t0/l0/a/low", "");
        scratch.write("t0/l0/b/hidden", "");
        scratch.write("t0/l0/c", "file below");
        scratch.write("t0/l1/a/mid", "");
        scratch.write("t0/l1/b/shown", "");
        rustix::fs::setxattr(scratch.at("t0/l1/b"), "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty())
            .unwrap();
        scratch.write("t0/l2/c/dir-above", "");
        let dir = open(&scratch.at("t0/l2"));
        std::fs::create_dir(scratch.at("t0/l2/a")).unwrap();
        let device = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(&dir, "a/low", device, rustix::fs::Mode::empty(), 0).unwrap();
    });
    assert_eq!(
        snapshot(&overlays.scratch.at("m0"))
            .keys()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect::<Vec<_>>(),
        ["", "a", "a/mid", "b", "b/shown", "c", "c/dir-above"]
    );
    assert_eq!(overlays.changes("/").unwrap().summary(), Vec::<String>::new());
    for path in ["a/low", "b/hidden"] {
        std::fs::write(overlays.at(path), "new").unwrap();
    }
    for path in ["a/mid", "b/shown", "c/dir-above"] {
        std::fs::remove_file(overlays.at(path)).unwrap();
    }
    let expected = [
        "dir ",
        "dir a",
        "file a/low",
        "gone a/mid",
        "dir b",
        "file b/hidden",
        "gone b/shown",
        "dir c",
        "gone c/dir-above",
    ];
    assert_eq!(overlays.changes("/").unwrap().summary(), expected);
}

/// Overlays below overlays belong to one answer, and each path to the overlay it is on; other mounts are named.
#[test]
fn several_overlays_are_one_tree() {
    if !in_namespaces("changes::several_overlays_are_one_tree") {
        return;
    }
    let overlays = Overlays::new(&["/", "/usr", "/opt/deep"], 1, |scratch| {
        scratch.write("t0/l0/etc/conf", "1");
        for dir in ["usr", "opt/deep", "mounted", "lib-target"] {
            std::fs::create_dir_all(scratch.at(&format!("t0/l0/{dir}"))).unwrap();
        }
        scratch.link("t0/l0/lib", "usr/lib");
        scratch.write("t1/l0/lib/python/site.py", "1");
        scratch.write("t2/l0/tool", "1");
    });
    mount("tmpfs", &overlays.at("mounted"), "size=1m");
    assert_eq!(overlays.changes("/").unwrap().summary(), Vec::<String>::new());
    std::fs::write(overlays.at("lib/python/site.py"), "2").unwrap();
    std::fs::write(overlays.at("opt/deep/tool"), "2").unwrap();
    let out = overlays.changes("/").unwrap();
    let expected = [
        "dir ",
        "dir opt",
        "dir opt/deep",
        "file opt/deep/tool",
        "dir usr",
        "dir usr/lib",
        "dir usr/lib/python",
        "file usr/lib/python/site.py",
    ];
    assert_eq!(out.summary(), expected);
    assert_eq!(overlays.changes("/lib/python").unwrap().summary(), ["dir ", "file site.py"]);
    assert_eq!(overlays.changes("/opt").unwrap().summary(), ["dir ", "dir deep", "file deep/tool"]);
    assert_eq!(overlays.changes("/mounted").unwrap_err().code, Code::Unsupported);
    let mut out = Collected::default();
    let root = Scratch(overlays.scratch.at("m0")).into_root();
    assert_eq!(changes(&root, b"/", &overlays.layout(), &mut out).unwrap().skipped, [b"mounted"]);
    assert_eq!(changes(&root, b"/", &Layout::default(), &mut out).unwrap_err().code, Code::Unsupported);
    overlays.apply("/");
    assert!(overlays.are_equal());
}

/// For images and episodes from many seeds: the changes, applied to a fresh twin, make it the same.
#[test]
fn changes_make_a_twin_the_same() {
    if !in_namespaces("changes::changes_make_a_twin_the_same") {
        return;
    }
    for seed in 0..12 {
        let mut random = Random(seed);
        let overlays = Overlays::new(&["/"], 1 + seed as usize % 3, |scratch| {
            for lower in 0..1 + seed as usize % 3 {
                plant(&scratch.at(&format!("t0/l{lower}")), &mut random, 50);
            }
        });
        for _ in 0..40 {
            meddle(&overlays, &mut random);
        }
        overlays.apply("/");
        assert!(overlays.are_equal(), "seed {seed}");
    }
}

/// One thing that an agent may do to a file.
fn meddle(overlays: &Overlays, random: &mut Random) {
    use std::os::unix::ffi::OsStrExt;
    let paths = paths(&overlays.scratch.at("m0"));
    let top = overlays.scratch.at("m0");
    let chosen = &paths[random.below(paths.len() as u64) as usize];
    let path = top.join(std::ffi::OsStr::from_bytes(chosen));
    let facts = std::fs::symlink_metadata(&path).unwrap();
    if facts.is_dir() {
        match random.below(6) {
            0 if !chosen.is_empty() => std::fs::remove_dir_all(&path).unwrap(),
            1 if !chosen.is_empty() => {
                std::fs::remove_dir_all(&path).unwrap();
                std::fs::create_dir(&path).unwrap();
            }
            2 if !chosen.is_empty() => {
                std::fs::remove_dir_all(&path).unwrap();
                std::fs::write(&path, "was a directory").unwrap();
            }
            3 => std::fs::set_permissions(&path, PermissionsExt::from_mode(0o711)).unwrap(),
            _ => {
                let inside = path.join(std::ffi::OsStr::from_bytes(&odd_name(random)));
                if std::fs::create_dir(&inside).is_ok() {
                    plant(&inside, random, 5);
                }
            }
        }
        return;
    }
    match random.below(6) {
        0 => std::fs::remove_file(&path).unwrap(),
        1 => {
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
        }
        2 => std::fs::rename(&path, top.join(std::ffi::OsStr::from_bytes(&odd_name(random)))).unwrap_or(()),
        3 if facts.is_file() => std::fs::hard_link(&path, top.join(format!("hard-{}", random.next()))).unwrap(),
        4 => set_time(&path, random),
        _ if facts.is_file() => std::fs::write(&path, random.bytes(100)).unwrap(),
        _ => {}
    }
}
