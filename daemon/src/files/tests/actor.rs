//! Acting as a user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::thread::{CapabilitySet, capabilities};

use super::super::testing::{Collected, Scratch, Scripted, is_root};
use super::super::{Range, Write, act_as, list, read, write};
use crate::confinement::Identity;
use crate::error::Code;

const PLAIN: Write = Write { mode: None, parents: true };

fn user(uid: u32) -> Identity {
    Identity { uid, gid: uid, groups: vec![uid] }
}

fn allow(scratch: &Scratch, path: &str, uid: u32, mode: u32) {
    std::os::unix::fs::chown(scratch.at(path), Some(uid), Some(uid)).unwrap();
    std::fs::set_permissions(scratch.at(path), std::fs::Permissions::from_mode(mode)).unwrap();
}

fn reads(scratch: &Scratch, identity: &Identity, path: &str) -> Result<(), Code> {
    let read = || read(&scratch.root(), path.as_bytes(), Range::default(), &mut Collected::default());
    act_as(identity, read).map(drop).map_err(|error| error.code)
}

/// A user has its own rights, its groups' and nobody else's, and what it makes is its own.
#[test]
fn users_have_their_own_rights() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    allow(&scratch, "", 0, 0o755);
    for (name, owner, mode) in [("roots", 0, 0o600), ("own", 1234, 0o600), ("groups", 77, 0o640), ("locked", 0, 0o644)]
    {
        scratch.write(name, "x");
        allow(&scratch, name, owner, mode);
    }
    assert_eq!(reads(&scratch, &user(1234), "roots"), Err(Code::Permission));
    assert_eq!(reads(&scratch, &user(1234), "own"), Ok(()));
    assert_eq!(reads(&scratch, &user(1234), "groups"), Err(Code::Permission));
    assert_eq!(reads(&scratch, &Identity { groups: vec![1234, 77], ..user(1234) }, "groups"), Ok(()));
    let denied = act_as(&user(1234), || write(&scratch.root(), b"new", PLAIN, &mut Scripted::data(b"x")));
    assert_eq!(denied.unwrap_err().code, Code::Permission);
    std::fs::create_dir(scratch.at("home")).unwrap();
    allow(&scratch, "home", 1234, 0o700);
    act_as(&user(1234), || write(&scratch.root(), b"home/a/f", PLAIN, &mut Scripted::data(b"x"))).unwrap();
    assert_eq!(std::fs::metadata(scratch.at("home/a/f")).unwrap().uid(), 1234);
    let denied = act_as(&user(4321), || list(&scratch.root(), b"home", Default::default(), &mut Collected::default()));
    assert_eq!(denied.unwrap_err().code, Code::Permission);
}

/// A file that its user may not write is not replaced either, although its directory would allow it.
#[test]
fn files_without_write_permission_are_not_replaced() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    scratch.write("f", "locked");
    allow(&scratch, "", 1234, 0o755);
    allow(&scratch, "f", 0, 0o644);
    let denied = act_as(&user(1234), || write(&scratch.root(), b"f", PLAIN, &mut Scripted::data(b"x")));
    assert_eq!(denied.unwrap_err().code, Code::Permission);
    assert_eq!((std::fs::read(scratch.at("f")).unwrap(), scratch.names("")), (b"locked".to_vec(), vec!["f".into()]));
}

/// Root's new version of a user's file stays the user's, set-user-ID bit included; a user's own never gets root's.
#[test]
fn replaced_files_keep_their_owner() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    scratch.write("f", "x");
    allow(&scratch, "f", 1234, 0o4755);
    write(&scratch.root(), b"f", PLAIN, &mut Scripted::data(b"y")).unwrap();
    let facts = std::fs::metadata(scratch.at("f")).unwrap();
    assert_eq!((facts.uid(), facts.permissions().mode() & 0o7777), (1234, 0o4755));
    allow(&scratch, "", 1234, 0o755);
    allow(&scratch, "f", 0, 0o4757);
    act_as(&user(1234), || write(&scratch.root(), b"f", PLAIN, &mut Scripted::data(b"y"))).unwrap();
    let facts = std::fs::metadata(scratch.at("f")).unwrap();
    assert_eq!((facts.uid(), facts.permissions().mode() & 0o7777), (1234, 0o757));
}

/// Root of a sandbox has what its commands have: the rights over files, nothing over the machine.
#[test]
fn root_has_rights_over_files_only() {
    if !is_root() {
        return;
    }
    let inside = act_as(&user(0), || Ok(capabilities(None).unwrap().effective)).unwrap();
    let all = capabilities(None).unwrap().effective;
    assert!(!inside.intersects(CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE | CapabilitySet::SYS_RESOURCE));
    assert!(inside.contains(CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN));
    assert!(all.contains(CapabilitySet::SYS_ADMIN));
}

/// The thread has its own identity again afterwards, also when the work fails or panics; other threads never lose it.
#[test]
fn the_threads_own_identity_comes_back() {
    if !is_root() {
        return;
    }
    let state = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let facts = |status: &str| -> Vec<String> {
        let named = |line: &&str| ["Uid:", "Gid:", "Groups:", "CapEff:"].iter().any(|name| line.starts_with(name));
        status.lines().filter(named).map(str::to_owned).collect()
    };
    let before = facts(&state());
    act_as(&user(1234), || {
        let others = std::thread::spawn(move || facts(&state())).join().unwrap();
        assert_eq!(others.last(), Some(&"CapEff:\t0000000000000000".to_owned()), "a new thread inherits its maker's");
        Ok(())
    })
    .unwrap();
    assert_eq!(facts(&state()), before);
    act_as::<()>(&user(1234), || Err(crate::error::Error::new(Code::Io, "failed"))).unwrap_err();
    assert_eq!(facts(&state()), before);
    let panicked = std::panic::catch_unwind(|| act_as::<()>(&user(1234), || panic!("on purpose")));
    assert!(panicked.is_err());
    assert_eq!(facts(&state()), before);
    act_as(&Identity { uid: 1234, gid: u32::MAX, groups: vec![] }, || Ok(())).unwrap_err();
    assert_eq!(facts(&state()), before);
}

/// While one thread acts as a user, another goes on as itself.
#[test]
fn other_threads_are_not_affected() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    scratch.write("roots", "x");
    allow(&scratch, "roots", 0, 0o600);
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            act_as(&user(1234), || {
                barrier.wait();
                barrier.wait();
                Ok(())
            })
            .unwrap();
        });
        barrier.wait();
        assert!(std::fs::read(scratch.at("roots")).is_ok());
        barrier.wait();
    });
}

/// An id that does not exist here is refused by name.
#[test]
fn unmapped_users_are_refused() {
    if !super::super::testing::in_namespaces("actor::unmapped_users_are_refused") {
        return;
    }
    let error = act_as(&user(1234), || Ok(())).unwrap_err();
    assert_eq!(error.code, Code::UserUnsupported);
    act_as(&Identity { uid: 0, gid: 0, groups: vec![0] }, || Ok(())).unwrap();
}
