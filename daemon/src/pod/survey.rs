//! What a container's root is made of, and how overlays can stand over it.
//!
//! A user namespace may not take a directory as lower of an overlay that has mounts of somebody else's below it: what
//! they hide would come to light. So there is an overlay for each directory that has none below it, and a layer of our
//! own for the few directories in between (`/` and `/etc`, where the kubelet mounts its files).
//!
//! An overlay is a mount, and where something is mounted a directory can be neither removed nor renamed. Nobody does
//! that to `/usr`, but packages do it in `/etc`: what is there is copied too, as far as it is little.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::copies::Budget;
use crate::error::{Code, Error, Result};
use crate::init::blueprint::{Carried, Target};

/// Overlays of one sandbox.
const MOST_TARGETS: usize = 200;
/// Directories of /dev that an episode makes itself.
const MADE: [&str; 3] = ["/dev/pts", "/dev/shm", "/dev/mqueue"];

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub at: String,
    pub read_only: bool,
}

/// What there is, and what becomes of it.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The first is `/`, which has no lower but the layer of our own.
    pub targets: Vec<Target>,
    /// Directories of our own layer, parents first.
    pub directories: Vec<String>,
    /// Files and links of our own layer.
    pub others: Vec<String>,
    pub carried: Carried,
    pub read_only: bool,
    budget: Budget,
}

impl Survey {
    /// Look around.
    ///
    /// # Errors
    /// `unsupported` with what cannot be kept as it is.
    pub fn take(daemon: &Path) -> Result<Self> {
        let text = std::fs::read_to_string("/proc/self/mountinfo").map_err(|error| unsupported("mountinfo", &error))?;
        let mounts = parse(&text);
        let mut survey = Survey {
            read_only: mounts.iter().any(|mount| mount.at == "/" && mount.read_only),
            targets: vec![Target { path: "/".to_owned(), lowers: 0 }],
            ..Survey::default()
        };
        let outermost = outermost(&mounts);
        for mount in outermost.iter().filter(|mount| mount.at != "/dev") {
            survey.add_mount(mount, daemon)?;
        }
        survey.carried.devices = devices(Path::new("/dev"))?;
        let points: BTreeSet<&str> = outermost.iter().map(|mount| mount.at.as_str()).collect();
        survey.add_directory("/", &points)?;
        if survey.targets.len() > MOST_TARGETS {
            return Err(refused(format!("{} directories beside mounts", survey.targets.len())));
        }
        Ok(survey)
    }

    /// A mount is carried on, unless it is a file, which is copied, or an empty volume, which starts empty every time.
    fn add_mount(&mut self, mount: &Mount, daemon: &Path) -> Result<()> {
        let facts = std::fs::metadata(&mount.at).map_err(|error| unsupported(&mount.at, &error))?;
        if !facts.is_dir() {
            return Ok(());
        }
        let is_given = ["/proc", "/sys"].contains(&mount.at.as_str()) || daemon.starts_with(&mount.at);
        if mount.read_only || is_given {
            self.carried.places.push(mount.at.clone());
            return Ok(());
        }
        let mut entries = std::fs::read_dir(&mount.at).map_err(|error| unsupported(&mount.at, &error))?;
        if entries.next().is_some() {
            return Err(refused(format!("the volume at {} can be written and is not empty", mount.at)));
        }
        if mount.at == "/tmp" && !self.read_only {
            // gVisor's, where the image has nothing there: a directory of the root like any other.
            return Ok(());
        }
        self.carried.scratch.push((mount.at.clone(), facts.mode() & 0o7777, (facts.uid(), facts.gid())));
        Ok(())
    }

    /// `path` has mounts below it: each of its entries is looked at.
    fn add_directory(&mut self, path: &str, points: &BTreeSet<&str>) -> Result<()> {
        let entries = std::fs::read_dir(path).map_err(|error| unsupported(path, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| unsupported(path, &error))?.path();
            let name = entry.to_str().ok_or_else(|| refused(format!("a name in {path} that is not UTF-8")))?.to_owned();
            let facts = std::fs::symlink_metadata(&entry).map_err(|error| unsupported(&name, &error))?;
            if facts.is_dir() {
                self.add_below(path, name, points)?;
            } else if facts.is_file() || facts.is_symlink() {
                self.budget.spend(&facts).ok_or_else(|| refused("too many files beside mounts".to_owned()))?;
                self.others.push(name);
            } else {
                return Err(refused(format!("{name} is no file, directory or link")));
            }
        }
        Ok(())
    }

    /// A directory of one that has mounts below it: a mount itself, another such one, or free to be copied or to be the
    /// lower of an overlay.
    fn add_below(&mut self, above: &str, name: String, points: &BTreeSet<&str>) -> Result<()> {
        let below = format!("{name}/");
        let is_free = !points.contains(name.as_str()) && !points.iter().any(|point| point.starts_with(&below));
        if is_free
            && above != "/"
            && let Some(tree) = self.budget.spend_tree(&name)
        {
            self.directories.extend(tree.directories);
            self.others.extend(tree.others);
            return Ok(());
        }
        self.directories.push(name.clone());
        if is_free {
            self.targets.push(Target { path: name, lowers: 1 });
        } else if !points.contains(name.as_str()) {
            self.add_directory(&name, points)?;
        }
        Ok(())
    }
}

/// Mounts that lie in no other but the root.
fn outermost(mounts: &[Mount]) -> Vec<Mount> {
    let mut found: Vec<Mount> = Vec::new();
    for mount in mounts.iter().filter(|mount| mount.at != "/") {
        let within = |outer: &Mount| Path::new(&mount.at).starts_with(&outer.at) && mount.at != outer.at;
        if !mounts.iter().any(|outer| outer.at != "/" && within(outer)) {
            // The last of several at one place is the one that is seen.
            found.retain(|other| other.at != mount.at);
            found.push(mount.clone());
        }
    }
    found
}

/// Names of all devices below `top`, relative to it.
fn devices(top: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from(top)];
    while let Some(directory) = waiting.pop() {
        let shown = directory.display().to_string();
        for entry in std::fs::read_dir(&directory).map_err(|error| unsupported(&shown, &error))? {
            let path = entry.map_err(|error| unsupported(&shown, &error))?.path();
            let Ok(facts) = std::fs::symlink_metadata(&path) else { continue };
            let kind = facts.file_type();
            if kind.is_dir() && !MADE.iter().any(|made| path == Path::new(made)) {
                waiting.push(path);
            } else if (kind.is_char_device() || kind.is_block_device())
                && let Some(name) = path.strip_prefix(top).ok().and_then(Path::to_str)
                && !["ptmx", "console"].contains(&name)
            {
                found.push(name.to_owned());
            }
        }
    }
    Ok(found)
}

/// The lines of `/proc/self/mountinfo`.
pub fn parse(mountinfo: &str) -> Vec<Mount> {
    let parse_line = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let (at, options) = (fields.next()?, fields.next()?);
        Some(Mount { at: unescape(at), read_only: options.split(',').any(|option| option == "ro") })
    };
    mountinfo.lines().filter_map(parse_line).collect()
}

/// Spaces and the like stand as three octal digits after a backslash.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.map_or('\\', char::from));
        rest = rest.get(at + if code.is_some() { 4 } else { 1 }..).unwrap_or_default();
    }
    plain + rest
}

fn refused(why: String) -> Error {
    Error::new(Code::Unsupported, why)
}

fn unsupported(what: &str, error: &std::io::Error) -> Error {
    refused(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
20 1 0:40 / / rw,relatime - overlay overlay rw
21 20 0:41 / /proc rw - proc proc rw
22 21 0:41 /bus /proc/bus ro - proc proc rw
23 20 8:1 /hosts /etc/hosts rw - ext4 /dev/sda rw
24 20 8:1 /v /a\\040b ro - ext4 /dev/sda rw
25 24 8:1 /w /a\\040b/c rw - ext4 /dev/sda rw
";

    /// What lies in another mount goes with it; names may hold spaces.
    #[test]
    fn only_the_outermost_mounts_are_carried() {
        let mounts = parse(MOUNTS);
        let mount = |at: &str, read_only| Mount { at: at.to_owned(), read_only };
        assert_eq!(mounts[0], mount("/", false));
        assert_eq!(outermost(&mounts), [mount("/proc", false), mount("/etc/hosts", false), mount("/a b", true)]);
    }

    /// Text without codes, and broken codes, stay what they are.
    #[test]
    fn names_are_unescaped() {
        assert_eq!(unescape("/a\\134b"), "/a\\b");
        assert_eq!(unescape("/a\\"), "/a\\");
        assert_eq!(unescape("/plain"), "/plain");
    }
}
