//! What a command may be: its ids, capabilities and system calls.

mod seccomp;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::process::raw;

/// What container engines give, less NET_RAW and MKNOD. apt, useradd, su and sudo work with these; nothing in here can
/// see or change another process' memory (SYS_PTRACE), the mounts (SYS_ADMIN) or the machine.
pub const CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// More capabilities than any kernel has.
const CAPABILITY_NUMBERS: u32 = 64;

/// Numeric identity of a command, already resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What root of the sandbox may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Privileges {
    /// Many ids: set-user-ID programs and changes of owner work.
    Range,
    /// One id: nothing that is executed gains a privilege.
    Single,
}

/// What a command may not do, applied in its child just before exec.
#[derive(Debug, Default)]
pub struct Confinement {
    rules: Option<Rules>,
}

#[derive(Clone, Debug)]
struct Rules {
    /// Empty where none can be installed.
    filter: Vec<libc::sock_filter>,
    no_new_privs: bool,
    ids: Ids,
    /// What root keeps.
    capabilities: CapabilitySet,
}

/// Who a command may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ids {
    Any,
    /// What the daemon is itself: the kernel lets it be nobody else.
    Only(Identity),
}

/// What a container that others have made lets its commands have.
#[derive(Clone, Debug)]
pub struct Allowance {
    pub ids: Ids,
    pub capabilities: CapabilitySet,
    /// Nothing that is executed gains a privilege, by the will of whoever made the container.
    pub no_new_privs: bool,
    /// Whether a filter may be installed although programs may gain privileges.
    pub is_admin: bool,
}

impl Confinement {
    /// None at all: only for a process that is not in a sandbox of ours.
    pub fn none() -> Self {
        Confinement::default()
    }

    /// That of a sandbox's commands.
    pub fn new(privileges: Privileges) -> Self {
        let root = Identity { uid: 0, gid: 0, groups: vec![0] };
        let (ids, no_new_privs) = match privileges {
            Privileges::Range => (Ids::Any, false),
            // There is one id, and groups may not be set.
            Privileges::Single => (Ids::Only(root), true),
        };
        let rules = Rules { filter: seccomp::program(), no_new_privs, ids, capabilities: CAPABILITIES };
        Confinement { rules: Some(rules) }
    }

    /// That of the commands of a container, which takes nothing from them that an image may count on: where a filter
    /// would cost set-user-ID programs their privilege, there is none but the container's own.
    pub fn in_container(allowed: Allowance) -> Self {
        let has_filter = allowed.no_new_privs || allowed.is_admin;
        let rules = Rules {
            filter: if has_filter { seccomp::program() } else { Vec::new() },
            no_new_privs: allowed.no_new_privs,
            ids: allowed.ids,
            capabilities: CAPABILITIES & allowed.capabilities,
        };
        Confinement { rules: Some(rules) }
    }

    /// Put the calling process under the filter, for good, and with it all that it will start. Returns what is left to be
    /// applied in each child.
    ///
    /// The kernel looks at every system call there is when it takes a filter, which costs about a tenth of a short command.
    ///
    /// # Errors
    /// No memory, or the process lacks the right to.
    pub fn impose_filter(&self) -> rustix::io::Result<Self> {
        let Some(rules) = &self.rules else { return Ok(Confinement::none()) };
        rules.impose_filter()?;
        Ok(Confinement { rules: Some(Rules { filter: Vec::new(), ..rules.clone() }) })
    }

    /// Capabilities, seccomp, identity, no_new_privs.
    ///
    /// Called in a child that shares the parent's memory while the parent runs on (`CLONE_VM` without
    /// `CLONE_VFORK`): only raw system calls, never libc's `setuid` family; allocates nothing, takes no lock, writes
    /// nothing but its own stack.
    ///
    /// # Errors
    /// The first system call that failed; the child reports it and exits.
    pub fn apply_in_child(&self, identity: &Identity) -> rustix::io::Result<()> {
        match &self.rules {
            Some(rules) => rules.apply(identity),
            None => Ok(()),
        }
    }
}

impl Rules {
    fn impose_filter(&self) -> rustix::io::Result<()> {
        if self.no_new_privs {
            rustix::thread::set_no_new_privs(true)?;
        }
        if self.filter.is_empty() { Ok(()) } else { install(&self.filter) }
    }

    fn apply(&self, identity: &Identity) -> rustix::io::Result<()> {
        // While the child still has the right to: without no_new_privs a filter needs SYS_ADMIN.
        self.impose_filter()?;
        self.become_user(identity)?;
        // Root keeps what the bounding set leaves; anybody else has lost everything by the change of id.
        let kept = if identity.uid == 0 { self.capabilities } else { CapabilitySet::empty() };
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        rustix::thread::set_capabilities(None, sets)
    }

    fn become_user(&self, identity: &Identity) -> rustix::io::Result<()> {
        if let Ids::Only(own) = &self.ids {
            // Being it already is all that can be done.
            let has = |group: &u32| *group == own.gid || own.groups.contains(group);
            let it_is = identity.uid == own.uid && identity.gid == own.gid && identity.groups.iter().all(has);
            return if it_is { Ok(()) } else { Err(Errno::PERM) };
        }
        set_groups(&identity.groups)?;
        let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    }
}

fn set_groups(groups: &[u32]) -> rustix::io::Result<()> {
    // SAFETY: the pointer and the length are those of one slice of 32-bit group ids, which is what the kernel reads.
    raw::outcome(unsafe { raw::call(libc::SYS_setgroups, [groups.len(), groups.as_ptr() as usize, 0, 0]) }).map(drop)
}

fn install(filter: &[libc::sock_filter]) -> rustix::io::Result<()> {
    let program = libc::sock_fprog {
        len: libc::c_ushort::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, whose length is that of the slice, and does not write to it.
    raw::outcome(unsafe {
        raw::call(libc::SYS_seccomp, [libc::SECCOMP_SET_MODE_FILTER as usize, 0, (&raw const program) as usize, 0])
    })
    .map(drop)
}

/// Take from this process' bounding set, and so from everything it will ever start, what no command may have. The
/// process itself keeps its capabilities.
pub fn bound_capabilities(allowed: CapabilitySet) -> Result<()> {
    for number in 0..CAPABILITY_NUMBERS {
        let Some(capability) = CapabilitySet::from_bits(1 << number) else { continue };
        if (CAPABILITIES & allowed).contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // This kernel does not have it, nor any with a higher number.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(Error::system("drop a capability", errno)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The capabilities that would let a command reach the daemon, the mounts or other namespaces are not given.
    #[test]
    fn dangerous_capabilities_are_not_given() {
        let dangerous = CapabilitySet::SYS_ADMIN
            | CapabilitySet::SYS_PTRACE
            | CapabilitySet::SYS_MODULE
            | CapabilitySet::SYS_RAWIO
            | CapabilitySet::PERFMON
            | CapabilitySet::BPF
            | CapabilitySet::NET_ADMIN
            | CapabilitySet::NET_RAW
            | CapabilitySet::MKNOD
            | CapabilitySet::DAC_READ_SEARCH;
        assert!((CAPABILITIES & dangerous).is_empty());
    }
}
