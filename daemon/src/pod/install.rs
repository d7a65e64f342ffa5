//! The role `install`: put this executable where another container finds it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

/// Name of the daemon in the directory.
const NAME: &str = "sandlotd";
const MODE: u32 = 0o755;

/// `sandlotd install DIRECTORY` copies its own executable to `DIRECTORY/sandlotd`, mode 0755: the whole file or none.
pub fn install(arguments: &[OsString]) -> ExitCode {
    let [directory] = arguments else {
        eprintln!("usage: sandlotd install DIRECTORY");
        return ExitCode::from(2);
    };
    match copy_to(Path::new("/proc/self/exe"), Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandlotd install: {}: {error}", Path::new(directory).display());
            ExitCode::FAILURE
        }
    }
}

fn copy_to(executable: &Path, directory: &Path) -> io::Result<()> {
    let part = directory.join(format!(".{NAME}.{}", std::process::id()));
    let written = write_whole(executable, &part).and_then(|()| fs::rename(&part, directory.join(NAME)));
    if written.is_err() {
        // What is half made helps nobody; the first error is the one to tell.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write_whole(executable: &Path, part: &Path) -> io::Result<()> {
    let mut from = fs::File::open(executable)?;
    let mut to = fs::OpenOptions::new().write(true).create_new(true).mode(MODE).open(part)?;
    io::copy(&mut from, &mut to)?;
    to.set_permissions(fs::Permissions::from_mode(MODE))?;
    to.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("sandlot-install-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// The whole file, executable for everybody, in place of an older one; nothing else is left in the directory.
    #[test]
    fn the_executable_is_copied_whole() {
        let top = scratch("whole");
        fs::write(top.join("source"), b"program").unwrap();
        let target = top.join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join(NAME), b"older").unwrap();
        copy_to(&top.join("source"), &target).unwrap();
        assert_eq!(fs::read(target.join(NAME)).unwrap(), b"program");
        assert_eq!(fs::metadata(target.join(NAME)).unwrap().permissions().mode() & 0o7777, MODE);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
        fs::remove_dir_all(top).unwrap();
    }

    /// A copy that fails leaves nothing.
    #[test]
    fn nothing_half_made_is_left() {
        let top = scratch("half");
        fs::create_dir(top.join(NAME)).unwrap();
        fs::write(top.join(NAME).join("in the way"), b"").unwrap();
        fs::write(top.join("source"), b"program").unwrap();
        assert!(copy_to(&top.join("source"), &top).is_err());
        assert_eq!(fs::read_dir(&top).unwrap().count(), 2);
        fs::remove_dir_all(top).unwrap();
    }
}
