//! The tier `overlay`: episodes in namespaces of our own inside of the container, dropped whole as an init does it.

use std::sync::Arc;
use std::time::Instant;

use super::hooks::{Watched, kill_all_but_visitors};
use super::pioneer::{self, Made};
use super::survey::Survey;
use crate::cgroup::Whole;
use crate::error::{Code, Error, Result};
use crate::files::Layout;
use crate::init::blueprint::{self, Blueprint, Privileges, ProcPlan, RootPlan, Surroundings, UpperPlan};
use crate::init::renewal::{Kept, Renewal};
use crate::message::{Network, UsageReply};
use crate::sandbox::{Episode, Hooks};

/// A page of a file system in memory, for each of which there may be a file.
const PAGE_BYTES: u64 = 4096;
/// Of the memory there is, what files of an episode may take: the rest is for processes.
const UPPER_SHARE: u64 = 2;

/// A container in which everything can be undone.
#[derive(Debug)]
pub struct Renewed {
    watched: Watched,
    renewal: Renewal,
}

impl Renewed {
    /// Make namespaces of our own, and everything in them.
    ///
    /// # Errors
    /// What was refused; nothing has changed then.
    pub fn prepare(watched: &Watched) -> Result<(Arc<Blueprint>, Made)> {
        let daemon = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let survey = Survey::take(&daemon)?;
        let blueprint = blueprint(&survey, watched.usage().memory_limit_bytes)?;
        let made = pioneer::make(&blueprint, &survey)?;
        Ok((Arc::new(blueprint), made))
    }

    /// Enter what was prepared. There is no way back.
    pub fn enter(watched: Watched, (blueprint, made): (Arc<Blueprint>, Made)) -> Result<Self> {
        let (outer, episode) = made.enter()?;
        let kept = Kept { outer, whole: Whole::default(), warden: None, lock: None };
        Ok(Renewed { watched, renewal: Renewal::new(blueprint, kept, episode)? })
    }
}

fn blueprint(survey: &Survey, memory_limit: Option<u64>) -> Result<Blueprint> {
    let system = |doing: &str, errno| Error::system(doing, errno);
    let shm = rustix::fs::statvfs(c"/dev/shm").map_err(|errno| system("look at /dev/shm", errno))?;
    let size_bytes = memory_limit.unwrap_or_else(machine_bytes) / UPPER_SHARE;
    Ok(Blueprint {
        name: String::new(),
        mode: String::new(),
        privileges: Privileges::Range,
        unenforced: Vec::new(),
        env: Vec::new(),
        workdir: None,
        user: None,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        network: Network::Host,
        root: RootPlan::Overlay {
            targets: survey.targets.clone(),
            upper: UpperPlan::Tmpfs { size_bytes, inodes: (size_bytes / PAGE_BYTES).max(1024) },
            read_only: survey.read_only,
        },
        proc: ProcPlan::Own,
        surroundings: Surroundings::Carried(survey.carried.clone()),
        shm_bytes: (shm.f_blocks * shm.f_frsize).max(1),
        cpu_limit_millis: None,
        resolver: Vec::new().into(),
        idle_timeout_ms: None,
        layout: blueprint::Layout::default(),
    })
}

fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

impl Hooks for Renewed {
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
        self.renewal.reset()
    }

    fn settle(&mut self) -> Result<()> {
        self.renewal.settle()
    }

    fn usage(&self) -> UsageReply {
        let files = self.renewal.usage();
        UsageReply { disk_bytes: files.disk_bytes, disk_limit_bytes: files.disk_limit_bytes, ..self.watched.usage() }
    }

    fn memory_kills(&self) -> u64 {
        self.watched.memory_kills()
    }

    fn next_watch(&self) -> Option<Instant> {
        self.watched.next_watch()
    }

    fn watch(&mut self, now: Instant) {
        self.watched.watch(now);
    }

    fn layout(&self) -> Result<Layout> {
        self.renewal.layout()
    }
}
