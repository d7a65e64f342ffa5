//! Keepers of commands without a cgroup: what they tell, and their end.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::process::Signal;

use super::{Child, Server, Subject};
use crate::process::keeper::Keeper;
use crate::process::reaper::{Death, Ending};
use crate::process::spawn::{Report, Spawned};
use crate::process::table;
use crate::process::tree;
use crate::reactor::Interest;

/// All keepers, by pid.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    table: BTreeMap<u32, (Keeper, u32, Arc<Report>)>,
}

impl Keepers {
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn contains(&self, pid: u32) -> bool {
        self.table.contains_key(&pid)
    }
}

impl Server {
    /// Listen to the keeper of a new process, if it has one.
    pub(crate) fn add_keeper(&mut self, spawned: Spawned) {
        let Spawned { pid, report, keeper: Some(keeper) } = spawned else { return };
        if let Err(errno) = self.reactor.add(&keeper.news, Subject::Keeper(keeper.pid).token(), Interest::Read) {
            eprintln!("sandlotd: epoll_ctl: {errno}");
        }
        self.children.insert(keeper.pid, Child::Keeper);
        self.keepers.table.insert(keeper.pid, (keeper, pid, report));
    }

    /// A keeper tells of its leader's end, or closes its pipe because somebody has killed it: then the leader, whose
    /// parent we are now, tells of itself.
    pub(super) fn keeper_ready(&mut self, pid: u32) {
        let Some((keeper, leader, report)) = self.keepers.table.get(&pid) else { return };
        let news = keeper.news(*leader, report);
        if let Err(errno) = self.reactor.remove(&keeper.news) {
            eprintln!("sandlotd: epoll_ctl: {errno}");
        }
        if let Some(death) = news {
            self.child_died(&death);
        }
    }

    /// Nobody of its tree is left, or somebody has killed it.
    pub(super) fn keeper_died(&mut self, pid: u32) {
        let Some((keeper, leader, report)) = self.keepers.table.remove(&pid) else { return };
        match keeper.news(leader, &report) {
            Some(death) => self.child_died(&death),
            // It has come to us, and its end with it.
            None if table::read(leader).is_some() => {}
            // Killed together, and reaped by one that could not tell any more. Did it end before, it has been told.
            None => self.child_died(&Death {
                pid: leader,
                ending: Ending::Signal(libc::SIGKILL as u8),
                user_us: 0,
                system_us: 0,
                peak_bytes: 0,
            }),
        }
    }

    /// Commands may stop each other; a keeper that is stopped would keep its news for ever.
    pub(super) fn child_stopped(&self, pid: u32) {
        if self.keepers.contains(pid)
            && let Some(pid) = tree::pid_of(pid)
            && let Err(errno) = tree::kill(pid, Signal::CONT)
        {
            eprintln!("sandlotd: continue a keeper: {errno}");
        }
    }
}
