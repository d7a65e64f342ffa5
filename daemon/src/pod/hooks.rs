//! What the main loop can do to a container as a whole, where there are no namespaces of our own.

use std::time::Instant;

use super::container::Container;
use super::tracked::Tracking;
use super::watchdog::Watchdog;
use crate::error::{Code, Error, Result};
use crate::files::Layout;
use crate::init::renewal::{Renewal, kill_everybody, usage_of};
use crate::message::UsageReply;
use crate::process::table::{self, Entry};
use crate::process::tree::{self, Company};
use crate::sandbox::{Episode, Hooks};

/// Processes and threads, more than a build or its tests usually have.
const CROWD: u64 = 512;

/// The container's numbers, and what keeps it from being killed as a whole.
#[derive(Debug)]
pub struct Watched {
    container: Container,
    watchdog: Option<Watchdog>,
}

impl Watched {
    pub fn new(container: Container) -> Result<Self> {
        let watchdog = container.memory().map_or(Ok(None), Watchdog::start);
        let watchdog = watchdog.map_err(|errno| Error::system("watch the memory", errno))?;
        Ok(Watched { container, watchdog })
    }

    /// The kernel's and our own.
    pub fn memory_kills(&self) -> u64 {
        self.container.oom_kills() + self.watchdog.as_ref().map_or(0, Watchdog::kills)
    }

    pub fn next_watch(&self) -> Option<Instant> {
        self.watchdog.as_ref().map(Watchdog::next)
    }

    pub fn watch(&mut self, now: Instant) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.look(now);
        }
    }

    /// Numbers of the container, without those of its disk, which nobody counts.
    pub fn usage(&self) -> UsageReply {
        let group = usage_of(&self.container.usage());
        UsageReply {
            oom_kills: group.oom_kills.map(|_| self.memory_kills()),
            cpu_limit_millis: self.container.cpu_limit_millis,
            ..group
        }
    }
}

/// A container, with what undoes everything in it where that could be had.
#[derive(Debug)]
pub struct InContainer {
    pub watched: Watched,
    pub undoing: Undoing,
}

/// How an episode is undone.
#[derive(Debug)]
pub enum Undoing {
    Nothing,
    /// By new namespaces.
    Overlay(Box<Renewal>),
    /// By putting back what was changed.
    Tracked(Box<Tracking>),
}

impl Hooks for InContainer {
    fn kill_all(&mut self) -> Result<()> {
        kill_all_but_visitors()
    }

    fn freeze(&mut self, _frozen: bool) -> Result<()> {
        Err(Error::new(
            Code::Unsupported,
            "freezing needs a cgroup that may be written, which a container does not have",
        ))
    }

    fn reset(&mut self) -> Result<Episode> {
        match &mut self.undoing {
            Undoing::Overlay(renewal) => renewal.reset(),
            Undoing::Tracked(tracking) => tracking.reset(),
            Undoing::Nothing => {
                Err(Error::new(Code::Unsupported, "nothing in this container can be undone: delete it"))
            }
        }
    }

    fn settle(&mut self) -> Result<()> {
        if let Undoing::Overlay(renewal) = &mut self.undoing { renewal.settle() } else { Ok(()) }
    }

    fn usage(&self) -> UsageReply {
        let container = self.watched.usage();
        let Undoing::Overlay(renewal) = &self.undoing else { return container };
        let files = renewal.usage();
        UsageReply { disk_bytes: files.disk_bytes, disk_limit_bytes: files.disk_limit_bytes, ..container }
    }

    fn memory_kills(&self) -> u64 {
        self.watched.memory_kills()
    }

    fn company(&self) -> Company {
        match self.watched.container.processes() {
            Some(count) if count > CROWD => Company::Crowd,
            _ => Company::Few,
        }
    }

    fn next_watch(&self) -> Option<Instant> {
        self.watched.next_watch()
    }

    fn watch(&mut self, now: Instant) {
        self.watched.watch(now);
    }

    fn layout(&self) -> Result<Layout> {
        match &self.undoing {
            Undoing::Overlay(renewal) => renewal.layout(),
            Undoing::Tracked(tracking) => tracking.layout(),
            Undoing::Nothing => Ok(Layout::default()),
        }
    }

    fn get_ready(&mut self) {
        if let Undoing::Tracked(tracking) = &mut self.undoing {
            tracking.finish_record();
        }
    }
}

/// Kill everybody but those who have entered the container from outside, who have no parent in it: a relay of ours may be
/// among them, and with it the link on which this was asked for.
///
/// All are stopped first, so that they have no more children while they are looked for.
fn kill_all_but_visitors() -> Result<()> {
    let own = std::process::id();
    let is_visitor = |entry: &Entry| entry.ppid == 0 && entry.pid != own;
    if !table::scan().iter().any(is_visitor) {
        return kill_everybody();
    }
    tree::kill_while_all_stand_still(|entries| {
        entries.iter().filter(|entry| entry.pid != own && !is_visitor(entry)).collect()
    })
    .map_err(|errno| Error::system("kill everything", errno))
}
