//! Removing a tree that hostile code has made: links are not followed, and depth costs no stack.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Remove `name` in the directory `parent`, with all below it. Nothing there is success.
///
/// What lies deeper than descriptors may be open is moved up first, so that a tree of any depth can be removed.
pub fn remove_tree(parent: &Path, name: &OsStr) -> Result<()> {
    let failed = |errno| Error::at_path("remove", errno, parent.join(name).as_os_str().as_encoded_bytes());
    let name = CString::new(name.as_bytes()).map_err(|_| failed(Errno::INVAL))?;
    let top = rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let top = match top {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
    };
    remove_in(&top, name).map_err(failed)
}

/// Directories open at once on the way down.
const DEPTH: usize = 64;

/// A directory on the way down, and its name in the one above.
struct Level {
    directory: OwnedFd,
    name: CString,
}

/// Remove `name` in the open directory `top`, with all below it. Nothing there is success.
pub fn remove_in(top: &OwnedFd, name: CString) -> rustix::io::Result<()> {
    let mut levels: Vec<Level> = Vec::new();
    if let Some(directory) = unlink_or_open(top, &name)? {
        levels.push(Level { directory, name });
    }
    let mut lifted = 0_u64;
    while let Some(level) = levels.last() {
        match first_directory(&level.directory)? {
            Some(child) if levels.len() < DEPTH => {
                if let Some(directory) = unlink_or_open(&level.directory, &child)? {
                    levels.push(Level { directory, name: child });
                }
            }
            Some(child) => {
                // Too deep: give it a place at the top of the tree and come back for it.
                lifted = lift(&level.directory, &child, &levels[0].directory, lifted)?;
            }
            None => {
                let Some(level) = levels.pop() else { break };
                let above = levels.last().map_or(top.as_fd(), |above| above.directory.as_fd());
                drop(level.directory);
                match unlinkat(above, level.name.as_c_str(), AtFlags::REMOVEDIR) {
                    // Somebody else removes the same tree.
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
    }
    Ok(())
}

/// Move a directory to a name at the top that nothing has yet. Gives the number of that name.
fn lift(from: &OwnedFd, name: &CString, top: &OwnedFd, last: u64) -> rustix::io::Result<u64> {
    let mut number = last;
    loop {
        number += 1;
        let place = CString::new(format!(".lifted-{number}")).map_err(|_| Errno::INVAL)?;
        match rustix::fs::renameat(from, name.as_c_str(), top, place.as_c_str()) {
            Ok(()) => return Ok(number),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Unlink what is no directory; open what is one.
fn unlink_or_open(parent: &OwnedFd, name: &CString) -> rustix::io::Result<Option<OwnedFd>> {
    match unlinkat(parent, name.as_c_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(parent, name.as_c_str(), flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // A directory without rights for its owner stops only those who are not root.
            rustix::fs::chmodat(parent, name.as_c_str(), Mode::RWXU, AtFlags::empty())?;
            openat(parent, name.as_c_str(), flags, Mode::empty()).map(Some)
        }
        Err(Errno::NOENT) => Ok(None),
        other => other.map(Some),
    }
}

/// Unlink everything in `directory` that is no directory, and name the first that is.
fn first_directory(directory: &OwnedFd) -> rustix::io::Result<Option<CString>> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("sandlot-removal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Files, links and directories go; what a link points to stays.
    #[test]
    fn links_are_not_followed() {
        let top = scratch("links");
        std::fs::create_dir_all(top.join("tree/a/b")).unwrap();
        std::fs::create_dir(top.join("kept")).unwrap();
        std::fs::write(top.join("kept/file"), "x").unwrap();
        symlink("../kept", top.join("tree/link")).unwrap();
        symlink("../../../kept", top.join("tree/a/b/link")).unwrap();
        std::fs::set_permissions(top.join("tree/a"), std::fs::Permissions::from_mode(0o000)).unwrap();
        remove_tree(&top, OsStr::new("tree")).unwrap();
        assert!(!top.join("tree").exists());
        assert!(top.join("kept/file").exists());
        remove_tree(&top, OsStr::new("tree")).unwrap();
        std::fs::remove_dir_all(top).unwrap();
    }

    /// A tree deeper than any path may be long, as hostile code makes it with relative names.
    #[test]
    fn depth_is_no_defence() {
        let top = scratch("deep");
        let mut at = rustix::fs::open(&top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        remove_tree(&top, OsStr::new("d")).unwrap();
        assert_eq!(std::fs::read_dir(&top).unwrap().count(), 0);
        std::fs::remove_dir_all(top).unwrap();
    }
}
