//! The cgroup of the container, as it is seen from inside: read, and never written.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::cgroup::hierarchy::{Place, Places, places};
use crate::cgroup::{GroupLayout, GroupUsage, Whole, read_key, read_number, read_text};
use crate::descriptors::duplicate;
use crate::error::{Error, Result};

/// What of it can be seen here.
#[derive(Debug)]
pub struct Container {
    whole: Whole,
    memory: Option<Memory>,
    /// Kept open: opening it takes memory, which is what a crowd has used up.
    pids: Option<OwnedFd>,
    pub cpu_limit_millis: Option<u64>,
}

/// The group that counts the container's memory.
#[derive(Debug)]
pub struct Memory {
    pub group: OwnedFd,
    pub version: Version,
}

/// Which cgroup interface a hierarchy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

impl Container {
    /// The one that this process is in. What cannot be seen is not there.
    pub fn find() -> Result<Self> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self::at(&places(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup")))
    }

    fn at(places: &Places) -> Result<Self> {
        let open = |controller: &str| places.get(controller).and_then(|place| open(&place.own));
        let unified = places.get("").filter(|place| counts_memory(place)).and_then(open_place);
        let layout = GroupLayout {
            unified: unified.is_some(),
            unified_controllers: unified.is_some(),
            memory: unified.is_none() && open("memory").is_some(),
            pids: unified.is_none() && open("pids").is_some(),
            cpu: false,
        };
        let version_1 = |wanted: bool, controller| if wanted { open(controller) } else { None };
        let memory = match (&unified, layout.memory) {
            (Some(group), _) => Some((duplicate(group)?, Version::Two)),
            (None, true) => open("memory").map(|group| (group, Version::One)),
            (None, false) => None,
        };
        let cpu_limit_millis = match &unified {
            Some(group) => read_text(group, "cpu.max").and_then(|text| quota_millis(&text)),
            None => open("cpu").and_then(|group| {
                let quota = read_text(&group, "cpu.cfs_quota_us")?;
                quota_millis(&format!("{} {}", quota.trim(), read_number(&group, "cpu.cfs_period_us")?))
            }),
        };
        let directories: Vec<OwnedFd> = [unified, version_1(layout.memory, "memory"), version_1(layout.pids, "pids")]
            .into_iter()
            .flatten()
            .collect();
        let pids = directories.iter().find_map(|group| {
            rustix::fs::openat(group, "pids.current", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
        });
        let whole = Whole::new(layout, &directories).map_err(|errno| Error::system("open the cgroups", errno))?;
        let memory = memory.map(|(group, version)| Memory { group, version });
        let container = Container { whole, memory, pids, cpu_limit_millis };
        container.processes(); // the kernel's own memory for it is there from now on
        Ok(container)
    }

    pub fn usage(&self) -> GroupUsage {
        self.whole.usage()
    }

    /// Threads, too. Takes no memory.
    pub fn processes(&self) -> Option<u64> {
        let mut text = [0; 24];
        let count = rustix::io::pread(self.pids.as_ref()?, &mut text, 0).ok()?;
        std::str::from_utf8(&text[..count]).ok()?.trim().parse().ok()
    }

    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// Processes of the container that the kernel has killed for memory.
    pub fn oom_kills(&self) -> u64 {
        self.memory.as_ref().map_or(0, Memory::oom_kills)
    }
}

impl Memory {
    fn oom_kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        read_key(&self.group, file, "oom_kill").unwrap_or(0)
    }
}

/// The root of a machine's hierarchy limits nothing and has no such file.
fn counts_memory(place: &Place) -> bool {
    place.own.join("memory.current").exists()
}

fn open_place(place: &Place) -> Option<OwnedFd> {
    open(&place.own)
}

fn open(path: &Path) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Thousandths of a processor in `quota period`, the form of `cpu.max`. None for "max" and -1.
fn quota_millis(text: &str) -> Option<u64> {
    let mut fields = text.split_ascii_whitespace();
    let quota: u64 = fields.next()?.parse().ok()?;
    let period: u64 = fields.next()?.parse().ok()?;
    (period > 0).then(|| quota.saturating_mul(1000) / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quota is a share of its period; none is no limit.
    #[test]
    fn quotas_are_thousandths_of_a_processor() {
        assert_eq!(quota_millis("20000 100000\n"), Some(200));
        assert_eq!(quota_millis("max 100000\n"), None);
        assert_eq!(quota_millis("-1 100000"), None);
        assert_eq!(quota_millis("5 0"), None);
        assert_eq!(quota_millis(""), None);
    }

    /// Where nothing can be seen, nothing is told.
    #[test]
    fn a_container_without_cgroups_counts_nothing() {
        let none = Container::at(&Places::new()).unwrap();
        assert_eq!((none.oom_kills(), none.cpu_limit_millis), (0, None));
        assert_eq!(none.usage().memory_bytes, None);
    }
}
