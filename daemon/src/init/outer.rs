//! The outer mount namespace: what every episode of a sandbox is built from, and what nothing but the init ever sees.
//!
//! ```text
//! /l/base            topmost lower of `/`: mount points and the three files of /etc that name the machine
//! /l/0/0 ... /l/1/0  lowers of each target, read-only
//! /proc              masked as container engines do it
//! /sys               the few read-only parts that programs ask for
//! /dev/null ...      the six harmless devices
//! /disk              the upper's directory, where it is on disk
//! /u                 where an episode mounts its upper
//! /r                 where an episode mounts its root; for a bare sandbox, its one directory
//! ```

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::base;
use super::blueprint::{Blueprint, Parts, ProcPlan, RootPlan, Target};
use super::mounts::{self, Depth, INERT};
use crate::error::{Error, Result};

/// Harmless devices, as every container has them.
pub const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Bytes and files of the root, which holds mount points and little else.
const ROOT_BYTES: u64 = 4 << 20;
const ROOT_FILES: u64 = 4096;

/// Files of /proc that say too much about the machine or let it be changed.
const MASKED_FILES: [&str; 8] =
    ["kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts", "kmsg"];
/// Directories of /proc, likewise.
const MASKED_DIRECTORIES: [&str; 3] = ["acpi", "asound", "scsi"];
/// Parts of /proc that may be read only.
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];
/// Parts of /sys that programs read to size themselves. The rest names hardware and is left out.
const SYSTEM_PARTS: [&str; 3] = ["devices/system/cpu", "devices/system/node", "kernel/mm/transparent_hugepage"];

/// The finished outer namespace. The calling process is in it.
#[derive(Debug)]
pub struct Outer {
    /// To come back to it at a reset.
    pub namespace: OwnedFd,
    /// A /proc in which we can be found. Nothing is masked in it.
    pub proc: OwnedFd,
    /// Its root directory, from which the image can be seen at any time.
    pub root: OwnedFd,
}

/// Leave the host's mounts for a namespace that holds only what `blueprint` and `parts` give.
pub fn build(blueprint: &Blueprint, parts: &Parts) -> Result<Outer> {
    mounts::isolate_propagation()?;
    let furniture = Furniture::gather(blueprint.proc)?;
    open_empty_root(ROOT_BYTES, ROOT_FILES)?;
    mounts::become_root()?;
    make_directories(&["l", "l/base", "proc", "sys", "dev", "disk", "u", "r"])?;
    let proc = furniture.place()?;
    match &blueprint.root {
        RootPlan::Bare => attach(parts.lowers.first(), c"/r")?,
        RootPlan::Overlay { targets, .. } => {
            attach_lowers(targets, &parts.lowers)?;
            base::furnish(blueprint, targets, &parts.lowers)?;
            attach(parts.disk.as_ref(), c"/disk")?;
        }
    }
    let root = open_directory("/")?;
    Ok(Outer { namespace: crate::namespaces::current(proc.as_fd(), "mnt")?, proc, root })
}

/// A place in the outer namespace.
pub fn open_directory(path: &str) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::at_path("open a directory", errno, path.as_bytes()))
}

fn attach(mount: Option<&OwnedFd>, path: &CStr) -> Result<()> {
    mount
        .map_or(Ok(()), |mount| mounts::attach(mount, path))
        .map_err(|errno| Error::system("attach a directory", errno))
}

/// Mounts taken while the host's own are still in sight, since a new /proc may only be mounted beside a visible one.
#[derive(Debug)]
struct Furniture {
    /// A mount to be attached, or the directory of one that stays where it is.
    proc: OwnedFd,
    proc_plan: ProcPlan,
    devices: Vec<(&'static str, OwnedFd)>,
    system: Vec<(&'static str, OwnedFd)>,
}

impl Furniture {
    fn gather(proc_plan: ProcPlan) -> Result<Self> {
        let proc = match proc_plan {
            ProcPlan::Own => mounts::new_filesystem("proc", &[], INERT)?,
            ProcPlan::Absent => open_directory("/proc")?,
        };
        let mut devices = Vec::new();
        for name in DEVICES {
            let path = format!("/dev/{name}");
            let device = mounts::clone_tree(rustix::fs::CWD, path.as_str(), Depth::Single)
                .map_err(|errno| Error::at_path("take a device", errno, path.as_bytes()))?;
            devices.push((name, device));
        }
        let mut system = Vec::new();
        for part in SYSTEM_PARTS {
            match mounts::clone_tree(rustix::fs::CWD, format!("/sys/{part}"), Depth::Whole) {
                Ok(tree) => system.push((part, tree)),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error::at_path("take a part of /sys", errno, part.as_bytes())),
            }
        }
        Ok(Furniture { proc, proc_plan, devices, system })
    }

    /// Attach everything in the new root, masked and read-only where it must be. Gives /proc.
    fn place(self) -> Result<OwnedFd> {
        let place = |errno| Error::system("attach devices", errno);
        for (name, device) in &self.devices {
            let path = format!("/dev/{name}");
            mounts::make_mount_point(path.as_str()).map_err(place)?;
            mounts::attach(device, path.as_str()).map_err(place)?;
        }
        if self.proc_plan == ProcPlan::Own {
            mounts::attach(&self.proc, c"/proc").map_err(|errno| Error::system("attach /proc", errno))?;
            mask_proc()?;
        }
        place_system(&self.system).map_err(|errno| Error::system("attach /sys", errno))?;
        Ok(self.proc)
    }
}

/// Be in a directory that can become the root, with nothing in it, for so many bytes and files. What was in sight still is.
pub fn open_empty_root(bytes: u64, files: u64) -> Result<()> {
    let (bytes, files) = (bytes.to_string(), files.to_string());
    let root = mounts::new_filesystem(
        "tmpfs",
        &[("size", bytes.as_str()), ("nr_inodes", files.as_str()), ("mode", "0755")],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )?;
    mounts::attach(&root, c"/").map_err(|errno| Error::system("attach the outer root", errno))?;
    rustix::process::fchdir(&root).map_err(|errno| Error::system("enter the outer root", errno))
}

fn mask_proc() -> Result<()> {
    let failed = |errno| Error::system("mask /proc", errno);
    // Copies are taken of attached mounts: before Linux 6.15 there are none of detached ones.
    for name in MASKED_FILES {
        let null = |_: &str| mounts::clone_tree(rustix::fs::CWD, c"/dev/null", Depth::Single);
        cover(&format!("/proc/{name}"), null).map_err(failed)?;
    }
    let mut empty: Option<String> = None;
    for name in MASKED_DIRECTORIES {
        let path = format!("/proc/{name}");
        let covered = match &empty {
            Some(first) => cover(&path, |_| mounts::clone_tree(rustix::fs::CWD, first.as_str(), Depth::Single)),
            None => cover(&path, |_| new_empty()),
        };
        if covered.map_err(failed)? && empty.is_none() {
            empty = Some(path);
        }
    }
    for name in READ_ONLY {
        cover(&format!("/proc/{name}"), |path| {
            let part = mounts::clone_tree(rustix::fs::CWD, path, Depth::Single)?;
            mounts::restrict(&part, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
            Ok(part)
        })
        .map_err(failed)?;
    }
    Ok(())
}

/// A directory in which there is nothing and never will be.
fn new_empty() -> rustix::io::Result<OwnedFd> {
    let options = [("size", "4k"), ("nr_inodes", "1"), ("mode", "0555")];
    mounts::new_filesystem("tmpfs", &options, INERT | MountAttrFlags::MOUNT_ATTR_RDONLY)
        .map_err(|error| Errno::from_raw_os_error(error.errno.unwrap_or(libc::EIO)))
}

/// Mount what `make` gives over `path`. False when the kernel has no such path.
fn cover(path: &str, make: impl FnOnce(&str) -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<bool> {
    match rustix::fs::access(path, rustix::fs::Access::EXISTS) {
        Ok(()) => mounts::attach(make(path)?, path).map(|()| true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn place_system(parts: &[(&str, OwnedFd)]) -> rustix::io::Result<()> {
    let skeleton = mounts::new_filesystem("tmpfs", &[("size", "64k"), ("nr_inodes", "64"), ("mode", "0755")], INERT)
        .map_err(|error| Errno::from_raw_os_error(error.errno.unwrap_or(libc::EIO)))?;
    mounts::attach(&skeleton, c"/sys")?;
    for directory in ["fs", "fs/cgroup", "class", "block"] {
        rustix::fs::mkdirat(&skeleton, directory, Mode::from_raw_mode(0o755))?;
    }
    for (part, tree) in parts {
        let path = format!("/sys/{part}");
        make_parents(&path)?;
        rustix::fs::mkdir(path.as_str(), Mode::from_raw_mode(0o755))?;
        mounts::restrict(tree, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        mounts::attach(tree, path.as_str())?;
    }
    mounts::restrict(&skeleton, MountAttrFlags::MOUNT_ATTR_RDONLY)
}

fn make_parents(path: &str) -> rustix::io::Result<()> {
    for (end, _) in path.match_indices('/').skip(1) {
        match rustix::fs::mkdir(&path[..end], Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Directories below the new root.
pub fn make_directories(names: &[&str]) -> Result<()> {
    for name in names {
        rustix::fs::mkdir(format!("/{name}"), Mode::from_raw_mode(0o755))
            .map_err(|errno| Error::at_path("make a directory of the outer root", errno, name.as_bytes()))?;
    }
    Ok(())
}

/// The lowers of each target, at `/l/<target>/<layer>`.
pub fn attach_lowers(targets: &[Target], lowers: &[OwnedFd]) -> Result<()> {
    let mut rest = lowers.iter();
    for (number, target) in targets.iter().enumerate() {
        make_directories(&[&format!("l/{number}")])?;
        for (layer, lower) in rest.by_ref().take(target.lowers).enumerate() {
            let name = format!("l/{number}/{layer}");
            make_directories(&[&name])?;
            mounts::attach(lower.as_fd(), format!("/{name}"))
                .map_err(|errno| Error::system("attach a layer", errno))?;
        }
    }
    Ok(())
}
