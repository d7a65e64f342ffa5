//! Which cgroup hierarchies this process may use, and where.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

/// The controllers that limits need.
pub const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// One hierarchy, and a directory in it in which groups may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    pub path: PathBuf,
}

/// What can be had here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    pub unified: Option<Base>,
    /// Whether the unified hierarchy has all of [`CONTROLLERS`]; else version 1 has those that are below.
    pub unified_controllers: bool,
    pub memory: Option<Base>,
    pub pids: Option<Base>,
    pub cpu: Option<Base>,
    /// What could not be had, and why, for people.
    pub refused: BTreeMap<String, String>,
}

/// A mounted hierarchy and the caller's own directory in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Mount point.
    pub top: PathBuf,
    /// Directory of the caller's own cgroup.
    pub own: PathBuf,
}

/// Hierarchies by controller name; the unified one is "".
pub type Places = BTreeMap<String, Place>;

/// Where the caller is, from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`. Pure.
pub fn places(mountinfo: &str, cgroups: &str) -> Places {
    let mounts: Vec<CgroupMount> = mountinfo.lines().filter_map(CgroupMount::parse).collect();
    let mut places = Places::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        for controller in controllers.split(',') {
            let mount = mounts.iter().find(|mount| mount.serves(controller));
            if let Some(place) = mount.and_then(|mount| mount.place(path)) {
                places.insert(controller.to_owned(), place);
            }
        }
    }
    places
}

struct CgroupMount<'a> {
    /// Directory of the hierarchy that is mounted.
    root: &'a str,
    point: &'a str,
    /// Nothing for the unified hierarchy.
    controllers: Vec<&'a str>,
}

impl<'a> CgroupMount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1).unwrap_or_default();
        match kind {
            "cgroup2" => Some(CgroupMount { root, point, controllers: Vec::new() }),
            "cgroup" => Some(CgroupMount { root, point, controllers: options.split(',').collect() }),
            _ => None,
        }
    }

    fn serves(&self, controller: &str) -> bool {
        if controller.is_empty() { self.controllers.is_empty() } else { self.controllers.contains(&controller) }
    }

    /// The directory of the cgroup `path`, if this mount shows it.
    fn place(&self, path: &str) -> Option<Place> {
        let below = Path::new(path).strip_prefix(self.root).ok()?;
        if below.components().any(|part| part == std::path::Component::ParentDir) {
            return None;
        }
        Some(Place { top: PathBuf::from(self.point), own: Path::new(self.point).join(below) })
    }
}

impl Hierarchies {
    /// Make the directories of the host `id` wherever that can be done.
    pub fn claim(id: &str) -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let places = places(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let mut found = Hierarchies::default();
        if let Some(place) = places.get("") {
            found.claim_unified(place, id);
        }
        if found.unified_controllers {
            return found;
        }
        for controller in CONTROLLERS {
            let base = match places.get(controller) {
                Some(place) => claim_below(&place.own, id),
                None => Err("no hierarchy has this controller".to_owned()),
            };
            match base {
                Ok(base) => *found.slot(controller) = Some(base),
                Err(why) => drop(found.refused.insert(controller.to_owned(), why)),
            }
        }
        found
    }

    fn slot(&mut self, controller: &str) -> &mut Option<Base> {
        match controller {
            "memory" => &mut self.memory,
            "pids" => &mut self.pids,
            _ => &mut self.cpu,
        }
    }

    /// Version 2 with controllers where some directory above us lets us give them to groups; else without.
    fn claim_unified(&mut self, place: &Place, id: &str) {
        let mut above: Vec<&Path> = place.own.ancestors().take_while(|path| path.starts_with(&place.top)).collect();
        above.retain(|path| has_controllers(path));
        for directory in above {
            if enable_controllers(directory).is_ok()
                && let Ok(base) = claim_below(directory, id)
            {
                if enable_controllers(&base.path).is_ok() {
                    self.unified = Some(base);
                    self.unified_controllers = true;
                    return;
                }
                remove_claim(&base);
            }
        }
        match claim_below(&place.own, id) {
            Ok(base) => self.unified = Some(base),
            Err(why) => drop(self.refused.insert("unified".to_owned(), why)),
        }
    }

    /// Every directory that was made.
    pub fn bases(&self) -> impl Iterator<Item = &Base> {
        [&self.unified, &self.memory, &self.pids, &self.cpu].into_iter().flatten()
    }

    /// Whether a limit of this name can be enforced.
    pub fn enforces(&self, controller: &str) -> bool {
        self.unified_controllers
            || match controller {
                "memory" => self.memory.is_some(),
                "pids" => self.pids.is_some(),
                "cpu" => self.cpu.is_some(),
                _ => false,
            }
    }
}

fn has_controllers(directory: &Path) -> bool {
    let text = std::fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    CONTROLLERS.iter().all(|controller| text.split_whitespace().any(|word| word == *controller))
}

/// Give the children of `directory` all controllers. It fails where processes live in `directory` itself, except at the
/// very root, and where the caller has no right to.
fn enable_controllers(directory: &Path) -> std::io::Result<()> {
    let file = directory.join("cgroup.subtree_control");
    let enabled = std::fs::read_to_string(&file)?;
    for controller in CONTROLLERS {
        if !enabled.split_whitespace().any(|word| word == controller) {
            std::fs::write(&file, format!("+{controller}"))?;
        }
    }
    Ok(())
}

fn claim_below(directory: &Path, id: &str) -> Result<Base, String> {
    let path = directory.join(format!("sandlot-{id}"));
    match rustix::fs::mkdir(&path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(Base { path }),
        Err(errno) => Err(format!("{}: {errno}", directory.display())),
    }
}

fn remove_claim(base: &Base) {
    if let Err(error) = std::fs::remove_dir(&base.path) {
        eprintln!("sandlotd: remove {}: {error}", base.path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 29 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 29 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    /// Version 1 beside the unified hierarchy: each controller is found where the process is in it.
    #[test]
    fn hybrid_places_are_found() {
        let found = places(HYBRID, "4:memory:/a/b\n2:cpu,cpuacct:/\n0::/user\n");
        assert_eq!(found["memory"].own, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(found["cpu"].own, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(found[""].own, Path::new("/sys/fs/cgroup/unified/user"));
        assert!(!found.contains_key("pids"));
    }

    /// A container sees only its own part of a hierarchy: the path is taken relative to what is mounted.
    #[test]
    fn a_mounted_part_of_a_hierarchy_is_understood() {
        let mountinfo = "30 29 0:26 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(places(mountinfo, "0::/docker/x/y\n")[""].own, Path::new("/sys/fs/cgroup/y"));
        assert!(places(mountinfo, "0::/elsewhere\n").is_empty());
        assert!(places(mountinfo, "0::/../z\n").is_empty());
    }

    /// Lines that are not as expected are passed over.
    #[test]
    fn strange_lines_are_passed_over() {
        assert!(places("nonsense\n1 2 3\n - cgroup2\n", "nonsense\n0::\n::").is_empty());
    }
}
