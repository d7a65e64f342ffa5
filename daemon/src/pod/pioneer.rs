//! Namespaces of our own inside of a container, made by a process that can be lost.
//!
//! A process that has made a user namespace cannot leave it, so this is tried by a child: it makes everything, the first
//! episode included, and hands it over. Only then does the daemon enter, and where anything is refused (by a seccomp
//! profile, an LSM, a file system) the daemon stays what it was. As the child's creator it is also who may write its maps.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::copies;
use super::survey::Survey;
use crate::error::{Code, Error, Result, last_errno};
use crate::init::blueprint::{Blueprint, Carried};
use crate::init::episode::{self, Episode, Spaces};
use crate::init::mounts::{self, Depth};
use crate::init::outer::{self, Outer, attach_lowers, make_directories, open_directory};
use crate::init::{base, handover};
use crate::namespaces;

/// Descriptors beside one for each upper.
const FIXED: usize = 9;

/// What the child has made.
#[derive(Debug)]
pub struct Made {
    user: OwnedFd,
    outer: Outer,
    episode: Episode,
}

/// Make the namespaces with the first episode. The process has one thread, no children, and can still be looked into.
///
/// # Errors
/// What was refused. The process itself has changed nothing either way.
pub fn make(blueprint: &Blueprint, survey: &Survey) -> Result<Made> {
    let failed = |errno| Error::system("make a socket pair", errno);
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
    // SAFETY: the process has one thread; the child leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(ours);
        let result = make_in_child(&theirs, blueprint, survey);
        if let Err(error) = &result {
            eprintln!("sandlotd: no namespaces of our own here: {error}");
        }
        // SAFETY: always.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    drop(theirs);
    let made = u32::try_from(child).map_err(|_| Error::system("fork", last_errno())).and_then(|child| {
        handover::receive(&ours, &mut Vec::new())?;
        map_ids(child)?;
        handover::send_text(&ours, b"m", &[]).map_err(|errno| Error::system("answer", errno))?;
        receive(&ours, survey)
    });
    drop(ours);
    let mut status = 0;
    // SAFETY: our own child, whose status goes into plain memory of ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    made.map_err(|error| match error.code {
        // The child has said why.
        Code::Gone => Error::new(Code::Unsupported, "it may have no namespaces of its own"),
        _ => error,
    })
}

impl Made {
    /// Be in the first episode. There is no way back, and none from half of the way.
    pub fn enter(self) -> Result<(Outer, Episode)> {
        namespaces::enter(self.user.as_fd(), LinkNameSpaceType::User)?;
        self.episode.enter()?;
        Ok((self.outer, self.episode))
    }
}

/// Everybody in the child's namespace is who he is in ours.
fn map_ids(child: u32) -> Result<()> {
    for kind in ["uid", "gid"] {
        let failed = |error: std::io::Error| {
            Error::system("write the maps of ids", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        let own = std::fs::read_to_string(format!("/proc/self/{kind}_map")).map_err(failed)?;
        let mut file =
            std::fs::OpenOptions::new().write(true).open(format!("/proc/{child}/{kind}_map")).map_err(failed)?;
        // One write, as the kernel wants it.
        file.write_all(same_ids(&own).as_bytes()).map_err(failed)?;
    }
    Ok(())
}

fn same_ids(map: &str) -> String {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.first().zip(fields.get(2)).map(|(first, count)| format!("{first} {first} {count}\n"))
    };
    map.lines().filter_map(line).collect()
}

fn receive(link: &OwnedFd, survey: &Survey) -> Result<Made> {
    let mut descriptors = Vec::new();
    while descriptors.len() < FIXED + survey.targets.len() {
        handover::receive(link, &mut descriptors)?;
    }
    let uppers = descriptors.split_off(FIXED);
    let short = |_| Error::new(Code::Internal, "the wrong number of descriptors");
    let [user, namespace, proc, root, episode_root, upper, mounts, ipc, uts]: [OwnedFd; FIXED] =
        descriptors.try_into().map_err(short)?;
    let names = survey.targets.iter().map(|target| target.path.clone());
    let episode = Episode {
        serial: 0,
        root: episode_root,
        upper: Some(upper),
        uppers: names.zip(uppers).collect(),
        spaces: Spaces::shared_network(mounts, ipc, uts),
    };
    Ok(Made { user, outer: Outer { namespace, proc, root }, episode })
}

fn make_in_child(link: &OwnedFd, blueprint: &Blueprint, survey: &Survey) -> Result<()> {
    namespaces::unshare(UnshareFlags::NEWUSER)?;
    handover::send_text(link, b"u", &[]).map_err(|errno| Error::system("ask for ids", errno))?;
    handover::receive(link, &mut Vec::new())?;
    namespaces::unshare(UnshareFlags::NEWNS)?;
    let user = rustix::fs::open(c"/proc/self/ns/user", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::system("open the user namespace", errno))?;
    let outer = build_outer(survey)?;
    let episode = episode::build(blueprint, outer.proc.as_fd(), 0)?;
    let Some(upper) = &episode.upper else { return Err(Error::new(Code::Internal, "an episode without an upper")) };
    let [mounts, ipc, uts] = episode.spaces.descriptors();
    let fixed = [&user, &outer.namespace, &outer.proc, &outer.root, &episode.root, upper, mounts, ipc, uts];
    let uppers = episode.uppers.iter().map(|(_, upper)| upper);
    let all: Vec<BorrowedFd<'_>> = fixed.into_iter().chain(uppers).map(AsFd::as_fd).collect();
    handover::send(link, &all)
}

/// The namespace that every episode is built from: see [`crate::init::outer`] for its places.
fn build_outer(survey: &Survey) -> Result<Outer> {
    mounts::isolate_propagation()?;
    let take = |path: &str, depth| {
        mounts::clone_tree(CWD, path, depth).map_err(|errno| Error::at_path("take", errno, path.as_bytes()))
    };
    let proc = take("/proc", Depth::Whole)?;
    let directories = survey.targets.iter().filter(|target| target.lowers > 0);
    let lowers = directories.map(|target| take(&target.path, Depth::Single)).collect::<Result<Vec<_>>>()?;
    let old = open_directory("/")?;
    outer::open_empty_root(2 * copies::MOST_BYTES, 2 * copies::MOST_FILES)?;
    carry(&survey.carried)?;
    mounts::become_root()?;
    make_directories(&["l", "l/base", "u", "r", "disk"])?;
    attach_lowers(&survey.targets, &lowers)?;
    fill_base(&old, survey)?;
    Ok(Outer { namespace: namespaces::current(proc.as_fd(), "mnt")?, proc, root: open_directory("/")? })
}

/// Lay ready what every episode carries on, below the current directory, which becomes the root.
fn carry(carried: &Carried) -> Result<()> {
    for (number, place) in carried.places.iter().enumerate() {
        let to = format!(".{}", Carried::ready(number));
        episode::make_parents_of(&to, ".")
            .and_then(|()| base::make_directory(&to, 0o755))
            .and_then(|()| mounts::bind(place.as_str(), to.as_str(), Depth::Whole))
            .map_err(|errno| Error::at_path("take", errno, place.as_bytes()))?;
    }
    for name in &carried.devices {
        let (from, to) = (format!("/dev/{name}"), format!("./dev/{name}"));
        episode::make_parents_of(&to, ".")
            .and_then(|()| mounts::make_mount_point(to.as_str()))
            .and_then(|()| mounts::bind(from.as_str(), to.as_str(), Depth::Single))
            .map_err(|errno| Error::at_path("take", errno, from.as_bytes()))?;
    }
    Ok(())
}

/// Our own layer: what lies between the mounts, as it is in the container's root `old`.
fn fill_base(old: &OwnedFd, survey: &Survey) -> Result<()> {
    let attributes = |path: &str| {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statat(old, if path.is_empty() { "." } else { path }, flags)
    };
    let copy_directory = |path: &str| {
        let to = format!("/l/base/{path}");
        if !path.is_empty() {
            base::make_directory(&to, 0o700)?;
        }
        base::apply(&attributes(path)?, &to)
    };
    let failed = |path: &str, errno| Error::at_path("copy", errno, path.as_bytes());
    copy_directory("").map_err(|errno| failed("/", errno))?;
    for path in &survey.directories {
        copy_directory(&path[1..]).map_err(|errno| failed(path, errno))?;
    }
    for path in &survey.others {
        let facts = attributes(&path[1..]).map_err(|errno| failed(path, errno))?;
        copy_other(old, &path[1..], &facts).map_err(|errno| failed(path, errno))?;
    }
    // What was made in them has changed them.
    for path in survey.directories.iter().rev() {
        let facts = attributes(&path[1..]).map_err(|errno| failed(path, errno))?;
        keep_time(&format!("/l/base{path}"), &facts).map_err(|errno| failed(path, errno))?;
    }
    Ok(())
}

/// A file or a link.
fn copy_other(old: &OwnedFd, path: &str, facts: &rustix::fs::Stat) -> rustix::io::Result<()> {
    let to = format!("/l/base/{path}");
    if facts.st_mode & libc::S_IFMT == libc::S_IFLNK {
        rustix::fs::symlink(rustix::fs::readlinkat(old, path, Vec::new())?, to.as_str())?;
        let owner = (rustix::fs::Uid::from_raw(facts.st_uid), rustix::fs::Gid::from_raw(facts.st_gid));
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(CWD, to.as_str(), Some(owner.0), Some(owner.1), flags)?;
        return keep_time(&to, facts);
    }
    let from = rustix::fs::openat(old, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let into = rustix::fs::open(to.as_str(), flags, Mode::from_raw_mode(0o600))?;
    std::io::copy(&mut std::fs::File::from(from), &mut std::fs::File::from(into))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    base::apply(facts, &to)?;
    keep_time(&to, facts)
}

fn keep_time(path: &str, facts: &rustix::fs::Stat) -> rustix::io::Result<()> {
    let time = |seconds, nanoseconds| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    let times = rustix::fs::Timestamps {
        last_access: time(facts.st_atime, facts.st_atime_nsec),
        last_modification: time(facts.st_mtime, facts.st_mtime_nsec),
    };
    rustix::fs::utimensat(CWD, Path::new(path), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever ids there are, each keeps its number.
    #[test]
    fn ids_keep_their_numbers() {
        assert_eq!(same_ids("         0          0 4294967295\n"), "0 0 4294967295\n");
        assert_eq!(same_ids("0 100000 65536\n70000 5 1\n"), "0 0 65536\n70000 70000 1\n");
    }
}
