//! Mounts as values: a detached mount is a descriptor that nobody sees until it is attached.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};
use rustix::path::Arg;

use crate::error::{Error, Result, last_errno};

/// What the mounts of a sandbox have in common: no set-user-ID programs, no devices, nothing to execute.
pub const INERT: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// A new file system of type `kind`, mounted nowhere yet.
pub fn new_filesystem(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd> {
    let make = || {
        let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            if value.is_empty() {
                rustix::mount::fsconfig_set_flag(&context, *key)?;
            } else {
                rustix::mount::fsconfig_set_string(&context, *key, *value)?;
            }
        }
        rustix::mount::fsconfig_create(&context)?;
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    make().map_err(|errno| Error::system(&format!("mount {kind}"), errno))
}

/// A detached copy of the mount at `path` (with the mounts below it when `depth` says so).
pub fn clone_tree(directory: impl AsFd, path: impl Arg, depth: Depth) -> rustix::io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if depth == Depth::Whole {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(directory, path, flags)
}

/// How much of a tree of mounts [`clone_tree`] and [`bind`] take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    Single,
    /// Needed where the mounts below are locked, since a less privileged namespace may not uncover what they hide.
    Whole,
}

/// Add `attributes` to a mount.
pub fn restrict(mount: impl AsFd, attributes: MountAttrFlags) -> rustix::io::Result<()> {
    set_attributes(mount.as_fd(), MountAttr { set: u64::from(attributes.bits()), ..MountAttr::default() })
}

/// Show the files of a detached mount with the ids that the user namespace `userns` maps them to.
pub fn map_ids(mount: impl AsFd, userns: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let userns_fd = u64::try_from(userns.as_raw_fd()).map_err(|_| Errno::BADF)?;
    set_attributes(mount.as_fd(), MountAttr { set: MOUNT_ATTR_IDMAP, userns_fd, ..MountAttr::default() })
}

fn set_attributes(mount: BorrowedFd<'_>, attributes: MountAttr) -> rustix::io::Result<()> {
    // SAFETY: the path is an empty C string and the structure is as long as the length says.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Make a detached mount visible at `path`.
pub fn attach(mount: impl AsFd, path: impl Arg) -> rustix::io::Result<()> {
    rustix::mount::move_mount(mount, c"", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Move the mount at `from`, with what is mounted below it, to `to`.
pub fn relocate(from: impl Arg, to: impl Arg) -> rustix::io::Result<()> {
    rustix::mount::move_mount(CWD, from, CWD, to, MoveMountFlags::empty())
}

/// Mount what is at `from`, a directory or a single file, at `to` as well. Both are in sight, and the new mount can be
/// moved: gVisor has no detached mounts of single files, and locks the others where Linux unlocks them.
pub fn bind(from: impl Arg, to: impl Arg, depth: Depth) -> rustix::io::Result<()> {
    match depth {
        Depth::Single => rustix::mount::mount_bind(from, to),
        Depth::Whole => rustix::mount::mount_bind_recursive(from, to),
    }
}

/// Forbid writing to the mount at `path` that somebody has just made, with no other flags.
pub fn make_read_only(path: impl Arg) -> rustix::io::Result<()> {
    rustix::mount::mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, c"")
}

/// Nothing that is mounted or unmounted here reaches another mount namespace, or comes from one.
pub fn isolate_propagation() -> Result<()> {
    rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|errno| Error::system("make mounts private", errno))
}

/// Make the mount at the current directory the root of this mount namespace and drop the former root with all that is
/// mounted in it.
pub fn become_root() -> Result<()> {
    let pivot = || {
        rustix::process::pivot_root(c".", c".")?;
        // The former root now lies over the new one, at the same place.
        rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
        rustix::process::chdir(c"/")
    };
    pivot().map_err(|errno| Error::system("change the root", errno))
}

/// An empty file, for a mount of a single file to lie over.
pub fn make_mount_point(path: impl Arg) -> rustix::io::Result<()> {
    use rustix::fs::OFlags;
    rustix::fs::open(
        path,
        OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::from_raw_mode(0o444),
    )
    .map(drop)
}
