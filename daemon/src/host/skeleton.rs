//! The `host` image: this machine's own programs, and of everything else an allow-list.
//!
//! `/usr` (and what is not merged into it) is shown by overlays of their own. The rest of the root is a small directory
//! made here: links, empty directories, and copies of the files of `/etc` that programs need. Home directories, keys,
//! sockets, host-specific configuration and the names of the machine's people are not on the list.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::runtime::errno_of;
use crate::error::{Error, Result};

/// Names at the root that are links into `/usr` on a merged system and directories on others.
const SYSTEM_LINKS: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"];

/// Empty directories with their modes.
const DIRECTORIES: [(&str, u32); 23] = [
    ("usr", 0o755),
    ("etc", 0o755),
    ("root", 0o700),
    ("home", 0o755),
    ("tmp", 0o1777),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    ("opt", 0o755),
    ("srv", 0o755),
    ("mnt", 0o755),
    ("media", 0o755),
    ("etc/ssl", 0o755),
    ("etc/ssl/certs", 0o755),
    ("etc/default", 0o755),
];

/// Files and directories of `/etc`. A `*` at the end stands for any rest of the name.
///
/// Certificates are the one file with all of them: the hundreds of single ones would make most of the work of making this.
const CONFIGURATION: [&str; 56] = [
    "adduser.conf",
    "alpine-release",
    "alternatives",
    "bash.bashrc",
    "bindresvport.blacklist",
    "ca-certificates",
    "ca-certificates.conf",
    "centos-release",
    "debconf.conf",
    "debian_version",
    "default/useradd",
    "deluser.conf",
    "dpkg",
    "ethertypes",
    "fedora-release",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "issue",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "libaudit.conf",
    "locale.alias",
    "locale.conf",
    "locale.gen",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "mtab",
    "nsswitch.conf",
    "os-release",
    "pam.conf",
    "pam.d",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "profile",
    "protocols",
    "python3*",
    "redhat-release",
    "rpc",
    "security",
    "services",
    "shells",
    "skel",
    "ssl/certs/ca-certificates.crt",
    "ssl/certs/java",
    "ssl/openssl.cnf",
    "timezone",
];
/// The rest of the list: terminals and editors.
const MORE_CONFIGURATION: [&str; 3] = ["terminfo", "vim", "xattr.conf"];

/// A file of `/etc` that is longer is no configuration.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Directories of `/etc` are not deeper.
const MAX_DEPTH: usize = 6;
/// Ids from here on belong to people, up to those of `nobody` and services at the end.
const FIRST_PERSON: u32 = 1000;
const LAST_PERSON: u32 = 60_000;

/// Directories of the machine that get overlays of their own: `/usr`, and those that are not merged into it.
pub fn shared_directories(machine: &Path) -> Vec<PathBuf> {
    let mut directories = vec![PathBuf::from("/usr")];
    for name in SYSTEM_LINKS {
        if fs::symlink_metadata(machine.join(name)).is_ok_and(|entry| entry.is_dir()) {
            directories.push(Path::new("/").join(name));
        }
    }
    directories
}

/// This machine's skeleton at `to`, made unless it is there. It belongs to `owner`, root of the sandboxes: their own ids
/// see it as root's only where it is idmapped or given to them.
pub fn ensure(to: &Path, owner: Option<u32>) -> Result<()> {
    if to.exists() {
        return Ok(());
    }
    let nascent = to.with_extension("new");
    build(Path::new("/"), &nascent)?;
    if let Some(owner) = owner {
        give(&nascent, owner)
            .map_err(|error| Error::system("give the host image to the sandboxes", errno_of(&error)))?;
    }
    fs::rename(&nascent, to).map_err(|error| Error::system("make the host image", errno_of(&error)))
}

/// Make the skeleton at `to`, which does not exist, from the machine whose root is `machine`.
pub fn build(machine: &Path, to: &Path) -> Result<()> {
    let built = || {
        make_directory(to, 0o755)?;
        for (name, mode) in DIRECTORIES {
            make_directory(&to.join(name), mode)?;
        }
        symlink("/run", to.join("var/run"))?;
        symlink("/run/lock", to.join("var/lock"))?;
        for name in SYSTEM_LINKS {
            match fs::symlink_metadata(machine.join(name)) {
                Ok(entry) if entry.is_symlink() => symlink(fs::read_link(machine.join(name))?, to.join(name))?,
                Ok(entry) if entry.is_dir() => make_directory(&to.join(name), 0o755)?,
                _ => {}
            }
        }
        for pattern in CONFIGURATION.iter().chain(&MORE_CONFIGURATION) {
            copy_matching(&machine.join("etc"), &to.join("etc"), pattern)?;
        }
        write_accounts(&machine.join("etc"), &to.join("etc"))
    };
    built().map_err(|error: io::Error| {
        Error::at_path("make the host image", errno_of(&error), to.as_os_str().as_encoded_bytes())
    })
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Copy what `pattern` names. What the machine does not have is passed over.
fn copy_matching(from: &Path, to: &Path, pattern: &str) -> io::Result<()> {
    let (directory, last) = pattern.rsplit_once('/').unwrap_or(("", pattern));
    let source = from.join(directory);
    for name in matching_names(&source, last)? {
        let target = to.join(directory);
        fs::create_dir_all(&target)?;
        copy(&source.join(&name), &target.join(&name), MAX_DEPTH)?;
    }
    Ok(())
}

fn matching_names(directory: &Path, pattern: &str) -> io::Result<Vec<OsString>> {
    let Some(stem) = pattern.strip_suffix('*') else {
        let there = fs::symlink_metadata(directory.join(pattern)).is_ok();
        return Ok(if there { vec![OsString::from(pattern)] } else { Vec::new() });
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if name.as_encoded_bytes().starts_with(stem.as_bytes()) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Copy a link, a directory or a file that everybody may read. The rest is not for everybody and stays out.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    if is_manual_page(from) {
        return Ok(());
    }
    let entry = fs::symlink_metadata(from)?;
    let public = entry.mode() & 0o004 != 0;
    if entry.is_symlink() {
        symlink(fs::read_link(from)?, to)
    } else if entry.is_dir() && public && depth > 0 {
        make_directory(to, 0o755)?;
        for child in fs::read_dir(from)? {
            let name = child?.file_name();
            copy(&from.join(&name), &to.join(&name), depth - 1)?;
        }
        Ok(())
    } else if entry.is_file() && public && entry.len() <= MAX_FILE_BYTES {
        fs::write(to, fs::read(from)?)?;
        fs::set_permissions(to, fs::Permissions::from_mode(entry.mode() & 0o755))
    } else {
        Ok(())
    }
}

/// Four in five links of `alternatives` lead to pages of the manual, which no program reads.
fn is_manual_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

/// passwd and group with the machine's own accounts but not its people, and shadow files in which all are locked.
fn write_accounts(from: &Path, to: &Path) -> io::Result<()> {
    let users = accounts(&read_or_empty(&from.join("passwd"))?);
    let groups = accounts(&read_or_empty(&from.join("group"))?);
    let users = if users.is_empty() { "root:x:0:0:root:/root:/bin/sh\n".to_owned() } else { users };
    let groups = if groups.is_empty() { "root:x:0:\n".to_owned() } else { groups };
    write(&to.join("shadow"), &locked(&users, "*:19000:0:99999:7:::"), 0o640)?;
    write(&to.join("gshadow"), &locked(&groups, "*::"), 0o640)?;
    write(&to.join("passwd"), &users, 0o644)?;
    write(&to.join("group"), &groups, 0o644)
}

fn read_or_empty(path: &Path) -> io::Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// The lines of a passwd or group file that are not about people.
fn accounts(text: &str) -> String {
    let system = |line: &&str| {
        let id = line.split(':').nth(2).and_then(|field| field.parse::<u32>().ok());
        id.is_some_and(|id| !(FIRST_PERSON..=LAST_PERSON).contains(&id))
    };
    text.lines().filter(system).fold(String::new(), |text, line| text + line + "\n")
}

fn locked(accounts: &str, rest: &str) -> String {
    let names = accounts.lines().filter_map(|line| line.split(':').next());
    names.fold(String::new(), |text, name| text + name + ":" + rest + "\n")
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Change the owner of everything at and below `path`.
fn give(path: &Path, owner: u32) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(owner), Some(owner))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), owner)?;
        }
    }
    Ok(())
}

/// What a sandbox that shares this machine's network asks for names.
pub fn resolver(machine: &Path) -> Vec<u8> {
    fs::read(machine.join(OsStr::new("etc/resolv.conf"))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> PathBuf {
        let top = std::env::temp_dir().join(format!("sandlot-skeleton-{name}-{}", std::process::id()));
        for directory in ["etc/ssl/certs", "etc/ssl/private", "etc/python3.9", "usr/bin", "lib64", "home/ann/.ssh"] {
            fs::create_dir_all(top.join(directory)).unwrap();
        }
        symlink("usr/bin", top.join("bin")).unwrap();
        fs::write(top.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n").unwrap();
        fs::write(top.join("etc/group"), "root:x:0:\nann:x:1000:\nnogroup:x:65534:\n").unwrap();
        fs::write(top.join("etc/shadow"), "root:$6$secret:1::::::\n").unwrap();
        fs::write(top.join("etc/services"), "ssh 22/tcp\n").unwrap();
        fs::write(top.join("etc/ssl/private/key"), "secret").unwrap();
        fs::write(top.join("etc/ssl/openssl.cnf"), "secret").unwrap();
        fs::set_permissions(top.join("etc/ssl/openssl.cnf"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(top.join("etc/ssl/certs/ca-certificates.crt"), "certificate").unwrap();
        fs::create_dir_all(top.join("etc/alternatives")).unwrap();
        symlink("/usr/bin/mawk", top.join("etc/alternatives/awk")).unwrap();
        symlink("/usr/share/man/man1/mawk.1.gz", top.join("etc/alternatives/awk.1.gz")).unwrap();
        fs::write(top.join("etc/python3.9/sitecustomize.py"), "").unwrap();
        fs::write(top.join("etc/secret.conf"), "secret").unwrap();
        top
    }

    fn all_text(path: &Path) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(path).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                text += &all_text(&entry.path());
            } else if kind.is_file() {
                text += &fs::read_to_string(entry.path()).unwrap();
            }
        }
        text
    }

    /// What is on the list comes in; secrets, people and everything unlisted do not.
    #[test]
    fn only_listed_public_files_come_in() {
        let top = machine("listed");
        let image = top.join("image");
        build(&top, &image).unwrap();
        assert_eq!(fs::read_to_string(image.join("etc/services")).unwrap(), "ssh 22/tcp\n");
        assert!(image.join("etc/ssl/certs/ca-certificates.crt").exists());
        let alternatives = fs::read_dir(image.join("etc/alternatives")).unwrap();
        assert_eq!(alternatives.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>(), ["awk"]);
        assert!(image.join("etc/python3.9/sitecustomize.py").exists());
        assert_eq!(fs::read_link(image.join("bin")).unwrap(), Path::new("usr/bin"));
        assert!(image.join("lib64").is_dir());
        let text = all_text(&image);
        assert!(!text.contains("secret") && !text.contains("ann"), "{text}");
        assert!(fs::read_to_string(image.join("etc/shadow")).unwrap().starts_with("root:*:"));
        assert_eq!(fs::read_dir(image.join("home")).unwrap().count(), 0);
        fs::remove_dir_all(top).unwrap();
    }

    /// Directories that are not merged into /usr are shared by themselves; links are not.
    #[test]
    fn unmerged_directories_are_shared() {
        let top = machine("shared");
        assert_eq!(shared_directories(&top), [PathBuf::from("/usr"), PathBuf::from("/lib64")]);
        fs::remove_dir_all(top).unwrap();
    }
}
