//! The runtime directory: where a host's socket and scratch directories are, and how the remains of dead hosts are found.
//!
//! ```text
//! DIR/<id>/state     held locked while the host or its warden lives; lines of `key value`
//! DIR/<id>/socket    the listener
//! DIR/<id>/image/    skeleton of the `host` image
//! DIR/<id>/disk/N/   uppers on disk, unless the client names another place: then they are in PLACE/<id>/N/
//! DIR/ids/<block>    locks on blocks of ids
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::cgroup::group;
use crate::error::{Code, Error, Result};
use crate::removal;

/// The key of the state under which the directory of the uppers on disk is noted.
pub const DISKS: &str = "disk";
const STATE: &str = "state";
const IDS: &str = "ids";
/// How often a directory is made anew that was swept at once.
const MAKES: u32 = 100;

/// A host's own directory, locked.
#[derive(Debug)]
pub struct Runtime {
    pub id: String,
    pub path: PathBuf,
    shared: PathBuf,
    state: OwnedFd,
}

impl Runtime {
    /// Make the directory of a new host below `shared`.
    pub fn create(shared: &Path) -> Result<Self> {
        make_private(shared)?;
        make_private(&shared.join(IDS))?;
        let mut again = 0..MAKES;
        loop {
            match Self::make(shared) {
                // A sweeper has taken it for a dead host's in the moment before it was locked.
                Err(error) if error.errno.is_some_and(is_swept) && again.next().is_some() => {}
                made => return made,
            }
        }
    }

    fn make(shared: &Path) -> Result<Self> {
        let id = random_id()?;
        let path = shared.join(&id);
        let failed = |errno| Error::at_path("make the runtime directory", errno, path.as_os_str().as_encoded_bytes());
        // The state is locked before its directory has its name: under that, a sweeper never sees it unlocked.
        let nascent = shared.join(format!(".{id}"));
        rustix::fs::mkdir(&nascent, Mode::RWXU).map_err(failed)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
        let state = rustix::fs::open(nascent.join(STATE), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        rustix::fs::flock(&state, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
        rustix::fs::rename(&nascent, &path).map_err(failed)?;
        Ok(Runtime { id, path, shared: shared.to_owned(), state })
    }

    /// Note something that must be removed should we be killed.
    pub fn note(&self, key: &str, value: &Path) -> Result<()> {
        let mut line = format!("{key} ").into_bytes();
        line.extend_from_slice(value.as_os_str().as_encoded_bytes());
        line.push(b'\n');
        rustix::io::write(&self.state, &line).map(drop).map_err(|errno| Error::system("write the state", errno))
    }

    /// What the warden shares: as long as either lives, nobody else sweeps.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.state.as_fd()
    }

    pub fn socket(&self) -> PathBuf {
        self.path.join("socket")
    }

    pub fn ids(&self) -> PathBuf {
        self.shared.join(IDS)
    }

    /// Remove the directory and what was noted.
    pub fn remove(&self) -> Result<()> {
        remove_remains(&self.path)
    }
}

fn is_swept(errno: i32) -> bool {
    [Errno::NOENT, Errno::WOULDBLOCK].map(Errno::raw_os_error).contains(&errno)
}

/// Remove what dead hosts have left below `shared`. Gives their ids.
///
/// # Errors
/// The first thing that could not be removed; the rest is swept all the same.
pub fn sweep(shared: &Path) -> Result<Vec<String>> {
    let (mut swept, mut result) = (Vec::new(), Ok(()));
    let entries = std::fs::read_dir(shared).map_err(|error| Error::system("sweep", errno_of(&error)))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == IDS || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match sweep_one(&entry.path()) {
            Ok(true) => swept.push(name),
            Ok(false) => {}
            Err(error) => result = Err(error),
        }
    }
    result.map(|()| swept)
}

/// Sweep one host's directory if neither it nor its warden lives.
fn sweep_one(path: &Path) -> Result<bool> {
    let failed = |errno| Error::at_path("sweep", errno, path.as_os_str().as_encoded_bytes());
    let state =
        match rustix::fs::open(path.join(STATE), OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(state) => state,
            // Being made or being removed just now by somebody else.
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(failed(errno)),
        };
    match rustix::fs::flock(&state, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(false),
        Err(errno) => return Err(failed(errno)),
    }
    remove_remains(path)?;
    Ok(true)
}

/// Remove the directory of a host, and what its state notes, the state last: until then another try may follow.
pub fn remove_remains(path: &Path) -> Result<()> {
    let failed = |errno| Error::at_path("remove the runtime directory", errno, path.as_os_str().as_encoded_bytes());
    let state = match std::fs::read_to_string(path.join(STATE)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(errno_of(&error))),
    };
    for line in state.lines() {
        if let Some(cgroup) = line.strip_prefix("cgroup ") {
            group::kill_and_remove(Path::new(cgroup))?;
        }
    }
    for line in state.lines() {
        let Some(disks) = line.strip_prefix(DISKS).and_then(|rest| rest.strip_prefix(' ')).map(Path::new) else {
            continue;
        };
        if let (Some(parent), Some(name)) = (disks.parent(), disks.file_name()) {
            removal::remove_tree(parent, name)?;
        }
    }
    for entry in std::fs::read_dir(path).map_err(|error| failed(errno_of(&error)))?.flatten() {
        if entry.file_name() != STATE {
            removal::remove_tree(path, &entry.file_name())?;
        }
    }
    rustix::fs::unlink(path.join(STATE)).map_err(failed)?;
    rustix::fs::rmdir(path).map_err(failed)
}

/// A directory to which only we may write.
fn make_private(path: &Path) -> Result<()> {
    let failed = |errno| Error::at_path("make the runtime directory", errno, path.as_os_str().as_encoded_bytes());
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let entry = rustix::fs::lstat(path).map_err(failed)?;
    let ours = entry.st_uid == rustix::process::geteuid().as_raw() && entry.st_mode & 0o022 == 0;
    if ours && rustix::fs::FileType::from_raw_mode(entry.st_mode) == rustix::fs::FileType::Directory {
        return Ok(());
    }
    Err(Error::new(
        Code::Permission,
        "the runtime directory must be a directory of this user to which nobody else may write",
    )
    .with_path(path.as_os_str().as_encoded_bytes()))
}

fn random_id() -> Result<String> {
    use std::fmt::Write;

    let mut bytes = [0_u8; 6];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::system("choose an id", errno))?;
    let mut id = String::with_capacity(12);
    for byte in bytes {
        // Writing to a String does not fail.
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}

/// The errno of an error of the standard library.
pub fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts start while others that start sweep what dead ones have left: all of them get a directory.
    #[test]
    fn a_directory_that_is_being_made_may_be_swept() {
        let shared = std::env::temp_dir().join(format!("sandlotd-{}", random_id().unwrap()));
        make_private(&shared).unwrap();
        std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                for _ in 0..300 {
                    Runtime::create(&shared).unwrap().remove().unwrap();
                }
            });
            while !maker.is_finished() {
                // What it meets half removed is somebody else's to remove.
                drop(sweep(&shared));
            }
        });
        std::fs::remove_dir_all(&shared).unwrap();
    }
}
