//! Keepers of commands without a cgroup: what they tell, and their end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Signal;

use super::{Child, Server, Subject};
use crate::process::child::Report;
use crate::process::keeper::{Keeper, News};
use crate::process::reaper::{Death, Ending};
use crate::process::spawn::Spawned;
use crate::process::table;
use crate::process::tree;
use crate::reactor::Interest;

/// All keepers that have somebody to keep, by pid. The others wait with the spawner.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    table: BTreeMap<u32, (Keeper, u32, Arc<Report>)>,
}

impl Keepers {
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl Server {
    /// Listen to the keeper of a new process, if it has one.
    pub(crate) fn add_keeper(&mut self, spawned: Spawned) {
        let Spawned { pid, report, keeper: Some(keeper) } = spawned else { return };
        if let Err(errno) = self.reactor.add(&keeper.line, Subject::Keeper(keeper.pid).token(), Interest::Read) {
            eprintln!("sandlotd: epoll_ctl: {errno}");
        }
        self.children.insert(keeper.pid, Child::Keeper);
        self.keepers.table.insert(keeper.pid, (keeper, pid, report));
    }

    pub(super) fn is_keeper(&self, pid: u32) -> bool {
        self.keepers.table.contains_key(&pid) || self.spawner.has_idle(pid)
    }

    /// A keeper tells of its leader's end or that nobody is left, or closes its line because somebody has killed it: then
    /// the leader, whose parent we are now, tells of itself.
    pub(super) fn keeper_ready(&mut self, pid: u32) {
        let Some((keeper, leader, report)) = self.keepers.table.get(&pid) else { return };
        match keeper.news(*leader, report) {
            News::Nothing => {}
            News::Ended(death, is_free) => {
                if is_free {
                    self.keeper_is_free(pid);
                }
                self.child_died(&death);
            }
            News::Free => {
                self.keeper_is_free(pid);
                self.settle_lingering(Instant::now());
            }
            News::Gone => {
                if let Err(errno) = self.reactor.remove(&keeper.line) {
                    eprintln!("sandlotd: epoll_ctl: {errno}");
                }
            }
        }
    }

    /// Nobody of its tree is left.
    fn keeper_is_free(&mut self, pid: u32) {
        let Some((keeper, ..)) = self.keepers.table.remove(&pid) else { return };
        keeper.charge().end();
        if let Err(errno) = self.reactor.remove(&keeper.line) {
            eprintln!("sandlotd: epoll_ctl: {errno}");
        }
        self.spawner.rest(keeper);
    }

    /// Somebody has killed it, or it was one too many.
    pub(super) fn keeper_died(&mut self, pid: u32) {
        self.spawner.forget_idle(pid);
        let Some((keeper, leader, report)) = self.keepers.table.remove(&pid) else { return };
        keeper.charge().end();
        match keeper.news(leader, &report) {
            News::Ended(death, _) => self.child_died(&death),
            // It has come to us, and its end with it.
            _ if table::read(leader).is_some() => {}
            // Killed together, and reaped by one that could not tell any more. Did it end before, it has been told.
            _ => self.child_died(&Death {
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
        if self.is_keeper(pid)
            && let Some(pid) = tree::pid_of(pid)
            && let Err(errno) = tree::kill(pid, Signal::CONT)
        {
            eprintln!("sandlotd: continue a keeper: {errno}");
        }
    }
}
