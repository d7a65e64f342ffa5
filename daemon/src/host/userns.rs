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
use crate::error::{Code, Error, Result};
use crate::init::mounts::last_errno;
use crate::init::namespaces;
use crate::message::Missing;

/// Where the set-user-ID helpers of shadow-utils may be. Not the client's PATH: they decide about ids.
const HELPER_DIRECTORIES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"];

/// What this process has become.
#[derive(Debug)]
pub struct Standing {
    pub mode: Mode,
    /// The ids that all sandboxes share, for every mode but range-root.
    pub shared: IdMap,
    /// Why it is not a better mode.
    pub missing: Vec<Missing>,
}

/// Take the best standing that can be had, or the one that is wanted.
///
/// # Errors
/// `unsupported` where the wanted mode, or any at all, cannot be had; with a remedy.
pub fn enter(wanted: Option<Mode>) -> Result<Standing> {
    if is_root()? {
        return match wanted {
            None | Some(Mode::RangeRoot) => {
                Ok(Standing { mode: Mode::RangeRoot, shared: IdMap { first: 0, count: 0 }, missing: Vec::new() })
            }
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
                    shared: IdMap { first: 1, count },
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
    Ok(Standing { mode: Mode::Single, shared: IdMap { first: 0, count: 1 }, missing: std::mem::take(missing) })
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
    namespaces::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(|error| {
        let remedy = "this user may not make user namespaces: set sysctl kernel.unprivileged_userns_clone=1, \
                      user.max_user_namespaces above 0 and kernel.apparmor_restrict_unprivileged_userns=0; in a container: \
                      --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined";
        Error { code: Code::Unsupported, message: format!("{}; {remedy}", error.message).into(), ..error }
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

    /// Names come from the passwd file itself, since a static binary asks no name service.
    #[test]
    fn names_are_read_from_passwd() {
        let passwd = "root:x:0:0::/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(user_name(passwd, 5), None);
    }
}
