//! The topmost lower of `/`: what a sandbox needs and its image need not have.
//!
//! Being a lower it costs no mount, it is not in the upper (so it never counts as a change), and the files in it may be
//! edited, moved and removed inside like any other.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::blueprint::{Blueprint, Target};
use crate::error::{Error, Result};

const BASE: &str = "/l/base";

/// Fill `/l/base` for the sandbox of `blueprint`, whose `lowers` are given lowest first.
pub fn furnish(blueprint: &Blueprint, targets: &[Target], lowers: &[OwnedFd]) -> Result<()> {
    let image = Image { layers: &lowers[..targets.first().map_or(0, |target| target.lowers)] };
    let failed = |errno| Error::system("make the base layer", errno);
    image.copy_attributes(image.layers.last(), c"", BASE).map_err(failed)?;
    for name in ["proc", "sys", "dev"] {
        rustix::fs::mkdir(format!("{BASE}/{name}"), Mode::from_raw_mode(0o755)).map_err(failed)?;
    }
    for (name, mode) in [("tmp", 0o1777), ("run", 0o755), ("root", 0o700)] {
        if image.find(name).map_err(failed)?.is_none() {
            make_directory(&format!("{BASE}/{name}"), mode).map_err(failed)?;
        }
    }
    image.name_the_machine(blueprint).map_err(failed)
}

/// The layers of `/`, as an overlay would show them.
struct Image<'a> {
    layers: &'a [OwnedFd],
}

impl Image<'_> {
    /// The topmost entry `name` of the root directory, and its layer.
    fn find(&self, name: &str) -> rustix::io::Result<Option<(&OwnedFd, Stat)>> {
        for layer in self.layers.iter().rev() {
            match rustix::fs::statat(layer, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(entry) if is_whiteout(&entry) => return Ok(None),
                Ok(entry) => return Ok(Some((layer, entry))),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    fn copy_attributes(&self, layer: Option<&OwnedFd>, name: &std::ffi::CStr, to: &str) -> rustix::io::Result<()> {
        let Some(layer) = layer else { return Ok(()) };
        let entry = rustix::fs::statat(layer, name, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
        apply(&entry, to)
    }

    /// `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`, unless `/etc` itself is something else than a directory.
    fn name_the_machine(&self, blueprint: &Blueprint) -> rustix::io::Result<()> {
        let etc = format!("{BASE}/etc");
        match self.find("etc")? {
            Some((_, entry)) if FileType::from_raw_mode(entry.st_mode) != FileType::Directory => return Ok(()),
            Some((_, entry)) => {
                make_directory(&etc, 0o755)?;
                apply(&entry, &etc)?;
            }
            None => make_directory(&etc, 0o755)?,
        }
        let name = &blueprint.hostname;
        let hosts = format!("127.0.0.1\tlocalhost {name}\n::1\tlocalhost ip6-localhost ip6-loopback\n");
        write_file(&format!("{etc}/hosts"), hosts.as_bytes())?;
        write_file(&format!("{etc}/hostname"), format!("{name}\n").as_bytes())?;
        write_file(&format!("{etc}/resolv.conf"), &blueprint.resolver)
    }
}

fn is_whiteout(entry: &Stat) -> bool {
    FileType::from_raw_mode(entry.st_mode) == FileType::CharacterDevice && entry.st_rdev == 0
}

/// Owner and mode of `entry` for the directory `to`. Ids that are not mapped here stay root's.
pub fn apply(entry: &Stat, to: &str) -> rustix::io::Result<()> {
    let owner = (rustix::fs::Uid::from_raw(entry.st_uid), rustix::fs::Gid::from_raw(entry.st_gid));
    match rustix::fs::chown(to, Some(owner.0), Some(owner.1)) {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno),
    }
    rustix::fs::chmod(to, Mode::from_raw_mode(entry.st_mode & 0o7777))
}

/// Make a directory with exactly this mode, whatever the umask.
pub fn make_directory(path: &str, mode: u32) -> rustix::io::Result<()> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(mode))?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

fn write_file(path: &str, content: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?;
    let mut rest = content;
    while !rest.is_empty() {
        let count = rustix::io::write(file.as_fd(), rest)?;
        rest = rest.get(count..).ok_or(Errno::IO)?;
    }
    Ok(())
}
