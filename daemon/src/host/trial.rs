//! What the kernel, and the container that we may be in, let a sandbox do: tried once, in a sandbox of nothing.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode as FileMode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags};
use serde::{Deserialize, Serialize};

use super::birth;
use super::ids::IdMap;
use super::userns::Realm;
use crate::error::{Code, Error, Result};
use crate::init::mounts::{self, Depth, INERT};

/// What was refused, and by which error; nothing where it works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// A /proc of its own.
    pub proc: Option<i32>,
    /// An overlay that belongs to a user namespace.
    pub overlay: Option<i32>,
    /// Extended attributes on tmpfs, without which a directory of the image that was removed cannot be made again.
    pub attributes: Option<i32>,
    /// The machine's own directories with other ids.
    pub idmap: Option<i32>,
    /// A network namespace.
    pub network: Option<i32>,
}

/// Try everything with the ids of `map`.
///
/// # Errors
/// `unsupported` where not even a user namespace can be had.
pub fn run(map: IdMap, realm: Realm) -> Result<Trial> {
    let (ours, theirs) = birth::make_link()?;
    let (pid, pidfd) = birth::clone(None, || attempt_in_child(&theirs)).map_err(|errno| {
        let error = Error::system("make user, mount and process namespaces", errno);
        Error {
            code: Code::Unsupported,
            message: format!("{}; {}", error.message, super::userns::REMEDY).into(),
            ..error
        }
    })?;
    drop(theirs);
    let tried = birth::name_child(pid, map, &ours)
        .map_err(|errno| Error::system("give a sandbox its ids", errno))
        .and_then(|()| hear(&ours))
        .and_then(|trial| Ok(Trial { idmap: try_idmap(pid, realm)?, ..trial }));
    birth::reap(&pidfd);
    tried
}

fn hear(link: &OwnedFd) -> Result<Trial> {
    let mut buffer = [0_u8; 512];
    let count = rustix::net::recv(link, &mut buffer, rustix::net::RecvFlags::empty())
        .map_err(|errno| Error::system("hear of the trial", errno))?
        .0;
    rmp_serde::from_slice(&buffer[..count]).map_err(|error| Error::new(Code::Internal, format!("trial: {error}")))
}

/// Whether files of the machine can be shown with the ids of the child's user namespace.
fn try_idmap(pid: u32, realm: Realm) -> Result<Option<i32>> {
    if realm == Realm::UserNamespace {
        // File systems of the machine are idmapped by root of the machine alone.
        return Ok(Some(libc::EPERM));
    }
    let space = birth::user_namespace(pid)?;
    let tried = mounts::clone_tree(CWD, c"/usr", Depth::Single).and_then(|tree| mounts::map_ids(&tree, space.as_fd()));
    Ok(tried.err().map(Errno::raw_os_error))
}

/// In the child, which is a copy of a process with one thread: try, tell, and wait for the end.
fn attempt_in_child(link: &OwnedFd) -> Errno {
    let told = birth::wait_for_ids(link).and_then(|()| {
        let trial = attempt();
        let bytes = rmp_serde::to_vec_named(&trial).map_err(|_| Errno::IO)?;
        rustix::net::send(link, &bytes, rustix::net::SendFlags::NOSIGNAL)?;
        // The parent still needs our user namespace; it kills us when it is done, or its end does.
        let mut byte = [0_u8; 1];
        rustix::net::recv(link, &mut byte, rustix::net::RecvFlags::empty())
    });
    told.map_or_else(|errno| errno, |_| Errno::INTR)
}

fn attempt() -> Trial {
    let number = |error: Error| error.errno.unwrap_or(libc::EIO);
    Trial {
        proc: mounts::new_filesystem("proc", &[], INERT).err().map(number),
        overlay: try_overlay().err().map(number),
        attributes: try_attributes().err().map(number),
        idmap: None,
        network: crate::namespaces::unshare(rustix::thread::UnshareFlags::NEWNET).err().map(number),
    }
}

fn small_tmpfs() -> Result<OwnedFd> {
    mounts::new_filesystem("tmpfs", &[("size", "64k")], MountAttrFlags::MOUNT_ATTR_NODEV)
}

fn try_overlay() -> Result<()> {
    let failed = |errno| Error::system("mount an overlay", errno);
    mounts::isolate_propagation()?;
    let scratch = small_tmpfs()?;
    mounts::attach(&scratch, c"/").map_err(failed)?;
    rustix::process::fchdir(&scratch).map_err(failed)?;
    for name in ["l", "u", "w", "m"] {
        rustix::fs::mkdirat(&scratch, name, FileMode::RWXU).map_err(failed)?;
    }
    let options = c"userxattr,lowerdir=l,upperdir=u,workdir=w";
    rustix::mount::mount(c"overlay", c"m", c"overlay", MountFlags::empty(), options).map_err(failed)
}

fn try_attributes() -> Result<()> {
    let failed = |errno| Error::system("set an attribute", errno);
    let scratch = small_tmpfs()?;
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&scratch, OsStr::new("f"), flags, FileMode::RWXU).map_err(failed)?;
    rustix::fs::fsetxattr(&file, c"user.sandlot", b"x", XattrFlags::empty()).map_err(failed)
}
