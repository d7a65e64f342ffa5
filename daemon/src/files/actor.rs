//! Doing file work with a user's rights, on this thread alone.
//!
//! The kernel keeps credentials per thread; glibc's wrappers change those of the whole process, so the calls here are
//! raw. Only the identity for file access changes (fsuid, fsgid, groups, effective capabilities): nothing in the
//! sandbox can signal or trace the thread by it.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, getgroups};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};

use crate::confinement::Identity;
use crate::error::{Code, Error, Result};

/// What root of a sandbox may do with files; the same as for its commands.
const ROOT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// Run `work` with the rights of `identity`, and put the thread's own back whatever happens.
///
/// Must not be called on a thread that relies on a parent-death signal: the kernel clears it at a change of identity.
///
/// # Errors
/// `user_unsupported` when the id mode has no such user, else what `work` returns.
pub fn act_as<T>(identity: &Identity, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let own = Own::look()?;
    own.become_other(identity)?;
    work()
}

/// The thread's own credentials; dropping it puts them back.
#[derive(Debug)]
struct Own {
    uid: u32,
    gid: u32,
    groups: Vec<Gid>,
    sets: CapabilitySets,
    was_dumpable: bool,
}

impl Own {
    fn look() -> Result<Self> {
        let failed = |errno| Error::system("read the thread's credentials", errno);
        Ok(Own {
            uid: fs_uid(),
            gid: fs_gid(),
            groups: getgroups().map_err(failed)?,
            sets: capabilities(None).map_err(failed)?,
            was_dumpable: rustix::process::dumpable_behavior().map_err(failed)? == DumpableBehavior::Dumpable,
        })
    }

    fn become_other(&self, identity: &Identity) -> Result<()> {
        self.change_groups(identity)?;
        if identity.gid != self.gid {
            set_fs_gid(identity.gid);
        }
        if identity.uid != self.uid {
            set_fs_uid(identity.uid);
        }
        if fs_gid() != identity.gid || fs_uid() != identity.uid {
            return Err(unsupported(identity));
        }
        let kept = if identity.uid == 0 { ROOT_CAPABILITIES } else { CapabilitySet::empty() };
        let sets = CapabilitySets { effective: self.sets.effective & kept, ..self.sets };
        set_capabilities(None, sets).map_err(|errno| Error::system("drop capabilities", errno))
    }

    fn change_groups(&self, identity: &Identity) -> Result<()> {
        let wanted: Vec<Gid> = identity.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
        if same_groups(&wanted, &self.groups) {
            return Ok(());
        }
        match set_thread_groups(&wanted) {
            Ok(()) => Ok(()),
            // With a single id the kernel forbids giving groups up; the daemon itself is then the only user there is.
            Err(Errno::PERM) if identity.uid == self.uid && identity.gid == self.gid => Ok(()),
            Err(_) => Err(unsupported(identity)),
        }
    }

    fn put_back(&self) -> rustix::io::Result<()> {
        // First the right to change the rest; last again, because the kernel adjusts the sets when fsuid changes.
        set_capabilities(None, self.sets)?;
        set_fs_uid(self.uid);
        set_fs_gid(self.gid);
        match set_thread_groups(&self.groups) {
            Err(Errno::PERM) if same_groups(&getgroups()?, &self.groups) => {}
            other => other?,
        }
        set_capabilities(None, self.sets)?;
        if !self.was_dumpable {
            rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        }
        if fs_uid() != self.uid || fs_gid() != self.gid { Err(Errno::PERM) } else { Ok(()) }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(errno) = self.put_back() {
            // A thread that keeps a stranger's rights would do the next caller's work with them.
            eprintln!("sandlotd: cannot restore credentials: {errno}");
            std::process::abort();
        }
    }
}

fn unsupported(identity: &Identity) -> Error {
    Error::new(Code::UserUnsupported, format!("cannot act as {}:{} here", identity.uid, identity.gid))
}

fn same_groups(left: &[Gid], right: &[Gid]) -> bool {
    let sorted = |groups: &[Gid]| {
        let mut raw: Vec<u32> = groups.iter().map(|gid| gid.as_raw()).collect();
        raw.sort_unstable();
        raw.dedup();
        raw
    };
    left == right || sorted(left) == sorted(right)
}

fn fs_uid() -> u32 {
    set_fs_uid(u32::MAX)
}

fn fs_gid() -> u32 {
    set_fs_gid(u32::MAX)
}

/// Returns the id before the call; an id the kernel cannot take changes nothing.
fn set_fs_uid(uid: u32) -> u32 {
    set_id(libc::SYS_setfsuid, libc::SYS_geteuid, libc::SYS_setresuid, uid)
}

/// As [`set_fs_uid`], for the group.
fn set_fs_gid(gid: u32) -> u32 {
    set_id(libc::SYS_setfsgid, libc::SYS_getegid, libc::SYS_setresgid, gid)
}

/// Where there are no ids for file access alone (gVisor), files go by the effective ones. Real and saved ids stay, which
/// are those by which a thread can be signalled, and with which it comes back.
fn set_id(set_fs: libc::c_long, get_effective: libc::c_long, set_all: libc::c_long, id: u32) -> u32 {
    const UNCHANGED: libc::c_long = -1;
    // SAFETY: these calls take integers and touch no memory of ours.
    unsafe {
        let before = libc::syscall(set_fs, libc::c_long::from(id));
        if before >= 0 {
            return before as u32;
        }
        let before = libc::syscall(get_effective) as u32;
        if id != u32::MAX {
            libc::syscall(set_all, UNCHANGED, libc::c_long::from(id), UNCHANGED);
        }
        before
    }
}
