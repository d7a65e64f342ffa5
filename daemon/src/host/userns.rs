//! How a host that is not root of the machine becomes root of a user namespace of its own, with as many ids as it may have.
//!
//! Everything after that is the same for every mode: the host is root of some user namespace, and sandboxes are its children.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities};

use super::ids::{IdMap, Mode, RANGE};
use super::runtime::errno_of;
use super::trial::Trial;
use crate::confinement::Privileges;
use crate::error::{Code, Error, Result, last_errno};
use crate::message::Missing;
use crate::namespaces;

/// Where the set-user-ID helpers of shadow-utils may be. Not the client's PATH: they decide about ids.
const HELPER_DIRECTORIES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"];

/// What to do where this user, or this container, may not make namespaces.
pub const REMEDY: &str = "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, \
                          kernel.apparmor_restrict_unprivileged_userns=0); in a container: --security-opt seccomp=unconfined \
                          --security-opt apparmor=unconfined --security-opt systempaths=unconfined, or --privileged";

/// What this process has become.
#[derive(Debug)]
pub struct Standing {
    pub mode: Mode,
    pub source: Source,
    /// Whether we are root of the machine, or of some user namespace below it.
    pub realm: Realm,
    /// Why it is not a better mode.
    pub missing: Vec<Missing>,
}

/// Where ids of sandboxes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A range of the machine's for each, with idmapped mounts.
    Machine,
    /// The same for all.
    Shared(IdMap),
}

/// Of what we are root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realm {
    Machine,
    UserNamespace,
}

/// Take the best standing that can be had, or the one that is wanted.
///
/// # Errors
/// `unsupported` where the wanted mode, or any at all, cannot be had; with a remedy.
pub fn enter(wanted: Option<Mode>) -> Result<Standing> {
    if is_root()? {
        let ids = own_ids(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default());
        return match wanted {
            None | Some(Mode::RangeRoot | Mode::Nested) => Ok(as_root(ids)),
            Some(mode) => refuse(&format!("root does not use mode {}: it has more ids than that", mode.name())),
        };
    }
    let (mut missing, mut ranges) = (Vec::new(), None);
    if wanted != Some(Mode::Single) {
        match Ranges::find() {
            Ok(found) => ranges = Some(found),
            Err(lack) if wanted == Some(Mode::RangeRootless) => {
                return refuse(&format!("range-rootless: {}; {}", lack.why, lack.remedy));
            }
            Err(lack) => missing.push(lack),
        }
    }
    if !matches!(wanted, None | Some(Mode::RangeRootless | Mode::Single)) {
        return refuse("range-root needs root with CAP_SYS_ADMIN");
    }
    unshare_between(ranges.as_ref(), wanted, &mut missing)
}

/// Make the namespaces, and have the ids given from outside where there are ranges.
fn unshare_between(ranges: Option<&Ranges>, wanted: Option<Mode>, missing: &mut Vec<Missing>) -> Result<Standing> {
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let helpers = ranges.map(|ranges| ranges.start_helpers(own)).transpose()?;
    unshare()?;
    if let (Some([users, groups]), Some(ranges)) = (helpers, ranges) {
        match users.finish() {
            Ok(()) => {
                groups.finish()?;
                let count = ranges.uids.count.min(ranges.gids.count).min(RANGE);
                return Ok(Standing {
                    mode: Mode::RangeRootless,
                    source: Source::Shared(IdMap { first: 1, count }),
                    realm: Realm::UserNamespace,
                    missing: std::mem::take(missing),
                });
            }
            Err(error) if wanted.is_some() => return Err(error),
            // No map is written yet: one id can still be had.
            Err(error) => missing.push(Missing {
                what: "newuidmap".to_owned(),
                why: error.message.into_owned(),
                remedy: "see its message; it needs the user's name in /etc/passwd and its set-user-ID bit".to_owned(),
            }),
        }
    }
    map_own_ids(own)?;
    Ok(Standing {
        mode: Mode::Single,
        source: Source::Shared(IdMap { first: 0, count: 1 }),
        realm: Realm::UserNamespace,
        missing: std::mem::take(missing),
    })
}

fn refuse<T>(why: &str) -> Result<T> {
    Err(Error::new(Code::Unsupported, why.to_owned()))
}

/// Root that may do what root does. In a container it is often root by name alone.
fn is_root() -> Result<bool> {
    let held = capabilities(None).map_err(|errno| Error::system("look at the capabilities", errno))?;
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
    Ok(rustix::process::geteuid().is_root() && held.effective.contains(needed))
}

/// Root of the machine, or of a container with ids of its own.
fn as_root(ids: u32) -> Standing {
    if ids == u32::MAX {
        return Standing { mode: Mode::RangeRoot, source: Source::Machine, realm: Realm::Machine, missing: Vec::new() };
    }
    let map = if ids > 1 { IdMap { first: 1, count: (ids - 1).min(RANGE) } } else { IdMap { first: 0, count: 1 } };
    let missing = Missing {
        what: "range-root".to_owned(),
        why: format!("this is root of a user namespace with {ids} ids, which all sandboxes share"),
        remedy: "run outside of that container or namespace, or give it more ids".to_owned(),
    };
    Standing { mode: Mode::Nested, source: Source::Shared(map), realm: Realm::UserNamespace, missing: vec![missing] }
}

/// How many ids from 0 on a uid_map has; all of them outside of every user namespace.
fn own_ids(uid_map: &str) -> u32 {
    let first = uid_map.lines().next().map(|line| line.split_whitespace().collect::<Vec<_>>()).unwrap_or_default();
    match first.as_slice() {
        ["0", "0", count] | ["0", _, count] => count.parse().unwrap_or(1),
        _ => 1,
    }
}

impl Standing {
    /// Come down to what a trial says is possible.
    ///
    /// # Errors
    /// `unsupported` where no sandbox can be had at all, or not the wanted mode.
    pub fn adjust(&mut self, trial: &Trial, wanted: Option<Mode>) -> Result<()> {
        if let Some(number) = trial.overlay {
            return refuse(&format!(
                "overlays in user namespaces do not work here ({}): Linux 5.11 has them",
                text(number)
            ));
        }
        if let Some(number) = trial.network {
            return refuse(&format!("network namespaces cannot be made ({}); {REMEDY}", text(number)));
        }
        if let Some(number) = trial.proc {
            self.mode = Mode::Nested;
            self.missing.push(Missing {
                what: "/proc".to_owned(),
                why: format!("a /proc of its own is refused ({}): sandboxes have none", text(number)),
                remedy: "in a container: --security-opt systempaths=unconfined, or --privileged".to_owned(),
            });
        }
        if let (Source::Machine, Some(number)) = (self.source, trial.idmap) {
            self.mode = Mode::Nested;
            self.source = Source::Shared(IdMap { first: super::ids::FIRST_ID, count: RANGE });
            self.missing.push(Missing {
                what: "idmapped mounts".to_owned(),
                why: format!(
                    "the file system of /usr cannot be shown with other ids ({}): system files belong to nobody, and all \
                     sandboxes share one range of ids",
                    text(number)
                ),
                remedy: "ext4, xfs or btrfs on Linux 5.19; not the overlay of a container".to_owned(),
            });
        }
        match wanted {
            Some(Mode::Nested) => self.mode = Mode::Nested,
            Some(mode) if mode != self.mode => {
                let why = self.missing.last().map_or("", |missing| missing.why.as_str());
                return refuse(&format!("mode {} cannot be had: {why}", mode.name()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Ids of a sandbox, for the trial.
    pub fn sample(&self) -> IdMap {
        match self.source {
            Source::Machine => IdMap { first: super::ids::FIRST_ID, count: RANGE },
            Source::Shared(map) => map,
        }
    }

    /// What root of a sandbox may be given.
    pub fn privileges(&self) -> Privileges {
        if self.sample().count > 1 { Privileges::Range } else { Privileges::Single }
    }
}

fn text(number: i32) -> String {
    std::io::Error::from_raw_os_error(number).to_string()
}

/// One line of /etc/subuid or /etc/subgid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subordinate {
    start: u32,
    count: u32,
}

/// Subordinate ids of this user, and the programs that give them.
#[derive(Debug)]
struct Ranges {
    uids: Subordinate,
    gids: Subordinate,
    newuidmap: PathBuf,
    newgidmap: PathBuf,
}

impl Ranges {
    fn find() -> std::result::Result<Self, Missing> {
        let helper = |name: &str| {
            let found =
                HELPER_DIRECTORIES.iter().map(|directory| Path::new(directory).join(name)).find(|path| path.exists());
            found.ok_or_else(|| Missing {
                what: name.to_owned(),
                why: format!("{name} is not installed, so sandboxes have one id each"),
                remedy: "install the package uidmap (Debian, Ubuntu) or shadow-utils".to_owned(),
            })
        };
        let uid = rustix::process::getuid().as_raw();
        let name = user_name(&std::fs::read_to_string("/etc/passwd").unwrap_or_default(), uid);
        let range = |file: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            subordinate(&text, name.as_deref(), uid).ok_or_else(|| Missing {
                what: file.to_owned(),
                why: format!("{file} gives this user no range of ids, so sandboxes have one id each"),
                remedy: format!(
                    "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {}",
                    name.as_deref().unwrap_or("USER")
                ),
            })
        };
        Ok(Ranges {
            newuidmap: helper("newuidmap")?,
            newgidmap: helper("newgidmap")?,
            uids: range("/etc/subuid")?,
            gids: range("/etc/subgid")?,
        })
    }
}

impl Ranges {
    /// Our own id as 0 and the subordinate ones from 1 on, to be written once the namespaces are there.
    fn start_helpers(&self, own: (u32, u32)) -> Result<[Helper; 2]> {
        Ok([Helper::start(&self.newuidmap, own.0, self.uids)?, Helper::start(&self.newgidmap, own.1, self.gids)?])
    }
}

/// The name of user `uid` in the text of a passwd file.
fn user_name(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The largest range of a user, given by name or number.
fn subordinate(text: &str, name: Option<&str>, uid: u32) -> Option<Subordinate> {
    let number = uid.to_string();
    let ranges = text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let (start, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (Some(owner) == name || owner == number).then_some(Subordinate { start, count })
    });
    ranges.filter(|range| range.count > 0).max_by_key(|range| range.count)
}

/// Our own id as 0, and no other.
fn map_own_ids(own: (u32, u32)) -> Result<()> {
    let write = |file: &str, text: String| {
        std::fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| Error::system(&format!("write {file}"), errno_of(&error)))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("0 {} 1\n", own.0))?;
    write("gid_map", format!("0 {} 1\n", own.1))
}

/// New user and mount namespaces, in which we are nobody yet.
fn unshare() -> Result<()> {
    namespaces::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(|error| Error {
        code: Code::Unsupported,
        message: format!("{}; {REMEDY}", error.message).into(),
        ..error
    })
}

/// A child outside of the new namespaces that executes a helper when told to: only from there may it write our maps.
struct Helper {
    child: Pid,
    go: OwnedFd,
    name: String,
}

impl Helper {
    fn start(program: &Path, own: u32, range: Subordinate) -> Result<Self> {
        let failed = |errno| Error::at_path("start a helper", errno, program.as_os_str().as_encoded_bytes());
        let pid = rustix::process::getpid().as_raw_nonzero().to_string();
        let count = range.count.min(RANGE).to_string();
        let words = [
            program.display().to_string(),
            pid,
            "0".to_owned(),
            own.to_string(),
            "1".to_owned(),
            "1".to_owned(),
            range.start.to_string(),
            count,
        ];
        let words: Vec<CString> = words.into_iter().filter_map(|word| CString::new(word).ok()).collect();
        let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        argv.push(std::ptr::null());
        let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed)?;
        // SAFETY: this process has one thread; the child makes system calls only.
        match unsafe { libc::fork() } {
            -1 => Err(failed(last_errno())),
            0 => {
                // Else our own copy would keep the pipe from ever ending, should the parent die.
                drop(go);
                let mut byte = [0_u8; 1];
                if matches!(rustix::io::read(&wait, &mut byte), Ok(1)) {
                    // SAFETY: a null-terminated array of C strings that live as long as this process.
                    unsafe { libc::execv(argv[0], argv.as_ptr()) };
                }
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(127) }
            }
            child => {
                let child = Pid::from_raw(child).ok_or_else(|| failed(Errno::SRCH))?;
                Ok(Helper { child, go, name: program.display().to_string() })
            }
        }
    }

    fn finish(self) -> Result<()> {
        let failed = |errno| Error::system(&self.name, errno);
        rustix::io::write(&self.go, b"g").map_err(failed)?;
        loop {
            match waitpid(Some(self.child), WaitOptions::empty()) {
                Ok(Some((_, status))) if status.exit_status() == Some(0) => return Ok(()),
                Ok(_) => {
                    return refuse(&format!(
                        "{} refused the range of ids that /etc/subuid or /etc/subgid gives",
                        self.name
                    ));
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The user's largest range counts, by name or by number; other users' and broken lines do not.
    #[test]
    fn the_largest_own_range_is_taken() {
        let text = "ann:100000:65536\nbob:1:1\n1000:300000:70000\nann:x:y\nann:5\n\nann:7:0\n";
        assert_eq!(subordinate(text, Some("ann"), 1000), Some(Subordinate { start: 300_000, count: 70_000 }));
        assert_eq!(subordinate(text, Some("ann"), 1), Some(Subordinate { start: 100_000, count: 65_536 }));
        assert_eq!(subordinate(text, None, 7), None);
    }

    /// Root of the machine has all ids; root of a container has what its map says; nonsense is one.
    #[test]
    fn a_map_tells_how_many_ids_there_are() {
        assert_eq!(own_ids("         0          0 4294967295\n"), u32::MAX);
        assert_eq!(own_ids("0 100000 65536\n65536 1 5\n"), 65_536);
        assert_eq!(own_ids("0 1000 1\n"), 1);
        assert_eq!(own_ids("5 1000 10\n"), 1);
        assert_eq!(own_ids(""), 1);
    }

    /// What the trial refuses comes down to a declared mode, or to an error where nothing is left or it was not wanted.
    #[test]
    fn refusals_come_down_to_nested() {
        let mut standing = as_root(u32::MAX);
        standing.adjust(&Trial::default(), None).unwrap();
        assert_eq!((standing.mode, standing.source), (Mode::RangeRoot, Source::Machine));
        let no_idmap = Trial { idmap: Some(libc::EINVAL), ..Trial::default() };
        assert_eq!(as_root(u32::MAX).adjust(&no_idmap, Some(Mode::RangeRoot)).unwrap_err().code, Code::Unsupported);
        standing.adjust(&no_idmap, None).unwrap();
        assert_eq!(standing.mode, Mode::Nested);
        assert!(matches!(standing.source, Source::Shared(map) if map.count == RANGE));
        assert_eq!(standing.missing.len(), 1);
        let no_overlay = Trial { overlay: Some(libc::EPERM), ..Trial::default() };
        assert_eq!(as_root(u32::MAX).adjust(&no_overlay, None).unwrap_err().code, Code::Unsupported);
        let mut container = as_root(65_536);
        container.adjust(&no_idmap, None).unwrap();
        assert_eq!(container.source, Source::Shared(IdMap { first: 1, count: 65_535 }));
        assert_eq!(as_root(1).privileges(), Privileges::Single);
    }

    /// Names come from the passwd file itself, since a static binary asks no name service.
    #[test]
    fn names_are_read_from_passwd() {
        let passwd = "root:x:0:0::/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(user_name(passwd, 5), None);
    }
}
