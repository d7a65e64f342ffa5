//! The tier `overlay`: episodes in namespaces of our own inside of the container, dropped whole as an init does it.

use std::sync::Arc;

use super::pioneer::{self, Made};
use super::survey::Survey;
use crate::cgroup::Whole;
use crate::confinement::Privileges;
use crate::error::{Error, Result};
use crate::init::blueprint::{self, Blueprint, ProcPlan, RootPlan, Surroundings, UpperPlan};
use crate::init::renewal::{Kept, Renewal};
use crate::message::Network;

/// A page of a file system in memory, for each of which there may be a file.
const PAGE_BYTES: u64 = 4096;
/// Of the memory there is, what files of an episode may take: the rest is for processes.
const UPPER_SHARE: u64 = 2;

/// What the files of an episode may take, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// As the spec wants it.
    pub disk: Option<u64>,
    /// Of /dev/shm, likewise.
    pub shm: Option<u64>,
    /// What the container may have of memory, of which files are a part here.
    pub memory: Option<u64>,
}

impl Sizes {
    /// What was asked for, and never so much that no memory would be left for processes.
    fn upper(self) -> u64 {
        let most = self.memory.unwrap_or_else(machine_bytes) / UPPER_SHARE;
        self.disk.map_or(most, |disk| disk.min(most))
    }

    /// What was asked for, and never more than the container's own has; not every runtime gives that the size it was told.
    fn shm(self, own: u64) -> u64 {
        self.shm.map_or(own, |shm| shm.min(own)).max(1)
    }
}

/// Make namespaces of our own, and everything in them.
///
/// # Errors
/// What was refused; nothing has changed then.
pub fn prepare(sizes: Sizes) -> Result<(Arc<Blueprint>, Made)> {
    let daemon = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let survey = Survey::take(&daemon)?;
    let blueprint = blueprint(&survey, sizes)?;
    let made = pioneer::make(&blueprint, &survey)?;
    Ok((Arc::new(blueprint), made))
}

/// Enter what was prepared. There is no way back.
pub fn enter((blueprint, made): (Arc<Blueprint>, Made)) -> Result<Renewal> {
    let (outer, episode) = made.enter()?;
    Renewal::new(blueprint, Kept { outer, whole: Whole::default(), warden: None, lock: None }, episode)
}

fn blueprint(survey: &Survey, sizes: Sizes) -> Result<Blueprint> {
    let size_bytes = sizes.upper();
    let system = |doing: &str, errno| Error::system(doing, errno);
    let shm = rustix::fs::statvfs(c"/dev/shm").map_err(|errno| system("look at /dev/shm", errno))?;
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
        shm_bytes: sizes.shm(shm.f_blocks * shm.f_frsize),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The smaller of what was asked for and half of the memory; that half where nothing was.
    #[test]
    fn files_leave_memory_for_processes() {
        let upper = |disk, memory| Sizes { disk, memory, shm: None }.upper();
        assert_eq!(upper(Some(16), Some(100)), 16);
        assert_eq!(upper(Some(80), Some(100)), 50);
        assert_eq!(upper(None, Some(100)), 50);
        assert_eq!(upper(Some(16), None), 16);
        assert_eq!(upper(None, None), machine_bytes() / 2);
    }

    /// The smaller of what was asked for and what the runtime has given.
    #[test]
    fn shared_memory_is_what_was_asked_for() {
        let shm = |shm, own| Sizes { disk: None, memory: None, shm }.shm(own);
        assert_eq!(shm(Some(16), 100), 16);
        assert_eq!(shm(Some(160), 100), 100);
        assert_eq!(shm(None, 100), 100);
    }
}
