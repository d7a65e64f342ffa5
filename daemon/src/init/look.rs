//! How an episode looks that nothing has run in: what a reset is held against.

use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatVfs, openat, statat};
use rustix::io::Errno;

use super::blueprint::{Blueprint, RootPlan, UpperPlan};
use super::episode::Episode;
use crate::error::{Error, Result};
use crate::message::{Network, Verified};

/// What can be seen of an episode that the calling process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Names at the top of each upper.
    uppers: Vec<Vec<Vec<u8>>>,
    /// What the upper's file system holds, where it is the sandbox's own.
    inodes: Option<u64>,
    /// `/proc/self/mountinfo`, taken apart only when there is something to compare it with.
    mounts: String,
    hostname: Vec<u8>,
}

/// Namespaces of the calling process by inode. None of two that live at the same time are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inodes {
    ipc: u64,
    net: u64,
}

impl Look {
    pub fn at(blueprint: &Blueprint, episode: &Episode, proc: BorrowedFd<'_>) -> Result<Self> {
        let failed = |errno| Error::system("look at the episode", errno);
        let uppers = episode.uppers.iter().map(|(_, upper)| names(upper)).collect::<rustix::io::Result<_>>();
        Ok(Look {
            uppers: uppers.map_err(failed)?,
            inodes: own_upper(blueprint, episode).map(|usage| usage.f_files - usage.f_ffree),
            mounts: mounts(proc)?,
            hostname: rustix::system::uname().nodename().to_bytes().to_vec(),
        })
    }

    /// Item by item, whether this is as `fresh`; the namespaces were `before` and are `now`.
    pub fn compare(&self, fresh: &Look, before: Inodes, now: Inodes, network: Network) -> Verified {
        Verified {
            // What runs is the main loop's to say.
            processes: false,
            files: self.uppers == fresh.uppers && self.inodes == fresh.inodes,
            mounts: places(&self.mounts) == places(&fresh.mounts),
            ipc: now.ipc != before.ipc,
            hostname: self.hostname == fresh.hostname,
            network: network == Network::Host || now.net != before.net,
        }
    }
}

impl Inodes {
    pub fn current(proc: BorrowedFd<'_>) -> Result<Self> {
        let inode = |kind: &str| {
            statat(proc, format!("self/ns/{kind}"), AtFlags::empty())
                .map(|space| space.st_ino)
                .map_err(|errno| Error::system("look at a namespace", errno))
        };
        Ok(Inodes { ipc: inode("ipc")?, net: inode("net")? })
    }
}

/// Numbers of the upper's file system, where that is the sandbox's own.
pub fn own_upper(blueprint: &Blueprint, episode: &Episode) -> Option<StatVfs> {
    match blueprint.root {
        RootPlan::Overlay { upper: UpperPlan::Tmpfs { .. }, .. } => rustix::fs::fstatvfs(episode.upper.as_ref()?).ok(),
        _ => None,
    }
}

fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn mounts(proc: BorrowedFd<'_>) -> Result<String> {
    let failed = |errno| Error::system("list the mounts", errno);
    let file = openat(proc, "self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    let mut text = String::new();
    std::fs::File::from(file)
        .read_to_string(&mut text)
        .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    Ok(text)
}

/// What is mounted where and how, by place, without the numbers that differ from mount to mount, and without the
/// directories of the uppers, which differ from episode to episode where they are on disk. Not every kernel lists mounts
/// in the order in which they were made; those at one place stay in theirs.
fn places(mountinfo: &str) -> Vec<Vec<&str>> {
    let mut places: Vec<Vec<&str>> = mountinfo.lines().map(|line| line.split(' ').skip(4).collect()).collect();
    places.sort_by_key(|fields| fields.first().copied());
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(mounts: &str) -> Look {
        Look { uppers: vec![vec![]], inodes: Some(7), mounts: mounts.to_owned(), hostname: b"sandbox".to_vec() }
    }

    const ROOT: &str = "30 29 0:26 / / rw,relatime - overlay overlay rw,lowerdir=/l/base\n";

    /// Numbers of mounts and devices differ from episode to episode and do not count; everything else does, by item.
    #[test]
    fn each_difference_is_its_items() {
        let fresh = look(ROOT);
        let (before, now) = (Inodes { ipc: 1, net: 2 }, Inodes { ipc: 3, net: 4 });
        let all = Verified { processes: false, files: true, mounts: true, ipc: true, hostname: true, network: true };
        let again = look(&ROOT.replace("30 29 0:26", "77 70 0:99"));
        assert_eq!(again.compare(&fresh, before, now, Network::None), all);
        let more = look(&format!("{ROOT}31 30 0:27 / /mnt rw - tmpfs none rw\n"));
        assert_eq!(more.compare(&fresh, before, now, Network::None), Verified { mounts: false, ..all });
        let (one, other) = ("31 30 0:27 / /a rw - tmpfs none rw\n", "32 30 0:28 / /b rw - tmpfs none rw\n");
        let (fresh_two, turned) = (look(&[ROOT, one, other].concat()), look(&[other, one, ROOT].concat()));
        assert_eq!(turned.compare(&fresh_two, before, now, Network::None), all);
        let writable = look(&ROOT.replace("rw,relatime", "ro,relatime"));
        assert_eq!(writable.compare(&fresh, before, now, Network::None), Verified { mounts: false, ..all });
        let files = Look { inodes: Some(8), ..look(ROOT) };
        assert_eq!(files.compare(&fresh, before, now, Network::None), Verified { files: false, ..all });
        let named = Look { hostname: b"other".to_vec(), ..look(ROOT) };
        assert_eq!(named.compare(&fresh, before, now, Network::None), Verified { hostname: false, ..all });
        let same = fresh.compare(&fresh, before, before, Network::None);
        assert_eq!(same, Verified { ipc: false, network: false, ..all });
        assert!(fresh.compare(&fresh, before, before, Network::Host).network);
    }
}
