//! Whom this container lets its commands be.

use rustix::thread::{CapabilitySet, capabilities};

use crate::confinement::{Allowance, Identity, Ids};
use crate::error::{Error, Result};
use crate::users::IdMaps;

/// What it takes to become somebody else.
const CHANGE: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

/// Who the container runtime has made this process, and what it may do.
#[derive(Clone, Debug)]
pub struct Standing {
    pub own: Identity,
    pub capabilities: CapabilitySet,
    pub no_new_privs: bool,
    /// Whether we may install a filter although programs may gain privileges.
    pub is_admin: bool,
}

impl Standing {
    /// That of this process now.
    pub fn current() -> Result<Self> {
        let failed = |errno| Error::system("look at our own rights", errno);
        let groups = rustix::process::getgroups().map_err(failed)?;
        let held = capabilities(None).map_err(failed)?.permitted;
        Ok(Standing {
            own: Identity {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
            },
            capabilities: held,
            is_admin: held.contains(CapabilitySet::SYS_ADMIN),
            no_new_privs: rustix::thread::no_new_privs().map_err(failed)?,
        })
    }

    /// Root that the container has not taken the rights of root from.
    pub fn may_change_user(&self) -> bool {
        self.own.uid == 0 && self.capabilities.contains(CHANGE)
    }

    pub fn id_maps(&self) -> IdMaps {
        if self.may_change_user() { IdMaps::with_own(self.own.clone()) } else { IdMaps::only(self.own.clone()) }
    }

    pub fn allowance(&self) -> Allowance {
        Allowance {
            ids: if self.may_change_user() { Ids::Any } else { Ids::Only(self.own.clone()) },
            capabilities: self.capabilities,
            no_new_privs: self.no_new_privs,
            is_admin: self.is_admin,
        }
    }

    /// In the form of `exec.user`.
    pub fn user(&self) -> String {
        format!("{}:{}", self.own.uid, self.own.gid)
    }
}
