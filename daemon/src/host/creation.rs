//! Making one sandbox: everything that the host itself does, up to the point where the init builds the rest.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Gid, Mode as FileMode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::birth::{self, Binary, Newborn};
use super::ids::{Hold, Ids};
use super::plan::Plan;
use super::userns::Realm;
use crate::cgroup::group::Group;
use crate::cgroup::hierarchy::Hierarchies;
use crate::error::{Code, Error, Result};
use crate::init::blueprint::{Blueprint, RootPlan};
use crate::init::handover;
use crate::init::mounts::{self, Depth};

/// What every creation uses.
#[derive(Debug)]
pub struct Workshop<'a> {
    pub binary: &'a Binary,
    pub ids: &'a mut Ids,
    pub realm: Realm,
    pub hierarchies: &'a Hierarchies,
    /// Where uppers on disk are.
    pub disks: &'a Path,
    pub warden: Option<BorrowedFd<'a>>,
}

/// A sandbox whose init is at work.
#[derive(Debug)]
pub struct Made {
    pub newborn: Newborn,
    pub hold: Hold,
    pub group: Option<Group>,
    pub disk: Option<PathBuf>,
    /// Microseconds by step.
    pub spans: BTreeMap<&'static str, u64>,
}

impl Workshop<'_> {
    /// Make the sandbox `serial` after `plan`. A failure leaves nothing behind.
    pub fn make(&mut self, mut plan: Plan, serial: u64) -> Result<Made> {
        let mut clock = Clock::new();
        // Opened before anything is made: a missing layer is the commonest failure.
        let lowers = open_lowers(&plan)?;
        self.give_bare(&plan)?;
        let hold = self.ids.take()?;
        let result = self.make_with(&mut plan, serial, &hold, &lowers, &mut clock);
        match result {
            Ok((newborn, group, disk)) => Ok(Made { newborn, hold, group, disk, spans: clock.spans }),
            Err(error) => {
                self.ids.give_back(&hold);
                Err(error)
            }
        }
    }

    fn make_with(
        &self,
        plan: &mut Plan,
        serial: u64,
        hold: &Hold,
        lowers: &[OwnedFd],
        clock: &mut Clock,
    ) -> Result<(Newborn, Option<Group>, Option<PathBuf>)> {
        let root = (hold.map.first, hold.map.first);
        let name = format!("s{serial}");
        let group = Group::make(self.hierarchies, &name, &plan.limits, root)?;
        clock.mark("cgroup");
        let disk = if plan.blueprint.layout.disk { Some(make_disk(self.disks, &name, root)) } else { None };
        let made = disk.transpose().and_then(|disk| {
            let newborn = birth::give_birth(self.binary, hold.map, group.daemon())?;
            clock.mark("clone");
            match self.equip(&newborn, plan, hold, lowers, &group, disk.as_deref()) {
                Ok(()) => Ok((newborn, disk)),
                Err(error) => {
                    birth::reap(&newborn.pidfd);
                    Err(error)
                }
            }
        });
        clock.mark("mounts");
        match made {
            Ok((newborn, disk)) => Ok((newborn, Some(group), disk)),
            Err(error) => {
                group.remove()?;
                crate::removal::remove_tree(self.disks, name.as_ref())?;
                Err(error)
            }
        }
    }

    /// A directory that is written to directly belongs to root of the sandbox, where ids are not mapped by the mount.
    fn give_bare(&self, plan: &Plan) -> Result<()> {
        let (RootPlan::Bare, Some(root), Some(path)) =
            (&plan.blueprint.root, self.ids.shared_root(), plan.lowers.first())
        else {
            return Ok(());
        };
        rustix::fs::chown(path, Some(Uid::from_raw(root)), Some(Gid::from_raw(root))).map_err(|errno| {
            Error::at_path("give the directory to the sandbox", errno, path.as_os_str().as_encoded_bytes())
        })
    }

    /// Send the blueprint and everything that it speaks of.
    fn equip(
        &self,
        newborn: &Newborn,
        plan: &mut Plan,
        hold: &Hold,
        lowers: &[OwnedFd],
        group: &Group,
        disk: Option<&Path>,
    ) -> Result<()> {
        let lowers = self.detach_lowers(newborn, &plan.blueprint, lowers)?;
        let disk =
            disk.map(|path| detach(&open_directory(path.as_os_str().as_encoded_bytes())?, self.depth())).transpose()?;
        let lock = self.ids.lock(hold);
        let layout = &mut plan.blueprint.layout;
        layout.warden = self.warden.is_some();
        layout.lock = lock.is_some();
        layout.group = group.layout();
        let blueprint = plan.blueprint.seal()?;
        let mut descriptors = vec![blueprint.as_fd()];
        descriptors.extend(lowers.iter().map(AsFd::as_fd));
        descriptors.extend(disk.iter().map(AsFd::as_fd));
        descriptors.extend(self.warden);
        descriptors.extend(lock);
        descriptors.extend(group.directories());
        handover::send(&newborn.link, &descriptors)
    }

    /// Detached mounts of the lowers, read-only, with the ids that the sandbox gives them.
    fn detach_lowers(&self, newborn: &Newborn, blueprint: &Blueprint, lowers: &[OwnedFd]) -> Result<Vec<OwnedFd>> {
        let space = self.ids.need_mapped_layers().then(|| birth::user_namespace(newborn.pid)).transpose()?;
        let mut mounts = Vec::with_capacity(lowers.len());
        for lower in lowers {
            let mount = detach(lower, self.depth())?;
            let restrictions = match blueprint.root {
                RootPlan::Bare => MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID,
                RootPlan::Overlay { .. } => MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_RDONLY,
            };
            mounts::restrict(&mount, restrictions).map_err(|errno| Error::system("restrict a layer", errno))?;
            if let Some(space) = &space {
                mounts::map_ids(&mount, space.as_fd())
                    .map_err(|errno| Error::system("map the ids of a layer", errno))?;
            }
            mounts.push(mount);
        }
        Ok(mounts)
    }

    /// Mounts below a directory are locked to it where we are root in a namespace of our own only.
    fn depth(&self) -> Depth {
        if self.realm == Realm::Machine { Depth::Single } else { Depth::Whole }
    }
}

fn open_lowers(plan: &Plan) -> Result<Vec<OwnedFd>> {
    plan.lowers.iter().map(|path| open_directory(path.as_os_str().as_encoded_bytes())).collect()
}

fn open_directory(path: &[u8]) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, FileMode::empty()).map_err(|errno| {
        let mut error = Error::at_path("open a directory of the image", errno, path);
        if matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) {
            error.code = Code::Image;
        }
        error
    })
}

fn detach(directory: &OwnedFd, depth: Depth) -> Result<OwnedFd> {
    mounts::clone_tree(directory, c"", depth).map_err(|errno| Error::system("take a directory", errno))
}

/// A directory for an upper on disk, which belongs to root of the sandbox.
fn make_disk(disks: &Path, name: &str, root: (u32, u32)) -> Result<PathBuf> {
    let path = disks.join(name);
    let make = || {
        match rustix::fs::mkdir(disks, FileMode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        rustix::fs::mkdir(&path, FileMode::RWXU)?;
        rustix::fs::chown(&path, Some(Uid::from_raw(root.0)), Some(Gid::from_raw(root.1)))
    };
    make().map_err(|errno| Error::at_path("make the upper's directory", errno, path.as_os_str().as_encoded_bytes()))?;
    Ok(path)
}

struct Clock {
    last: Instant,
    spans: BTreeMap<&'static str, u64>,
}

impl Clock {
    fn new() -> Self {
        Clock { last: Instant::now(), spans: BTreeMap::new() }
    }

    fn mark(&mut self, step: &'static str) {
        let now = Instant::now();
        self.spans.insert(step, u64::try_from((now - self.last).as_micros()).unwrap_or(u64::MAX));
        self.last = now;
    }
}
