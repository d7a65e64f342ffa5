//! Reset: one episode dropped whole, the next one put in its place, and the result looked at.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Dir, Mode, OFlags, StatVfs, openat};
use rustix::io::Errno;

use super::blueprint::{Blueprint, RootPlan, UpperPlan};
use super::episode::{self, Episode};
use super::outer::Outer;
use super::spare::Spare;
use super::{boot, handover, mounts, namespaces};
use crate::cgroup::{Freezer, Whole};
use crate::error::{Code, Error, Result};
use crate::files::Layout;
use crate::message::{Network, UsageReply, Verified};
use crate::removal;
use crate::sandbox::{self, Hooks};

/// Begin of a message to the warden: a namespace to be dropped comes with it, and perhaps the directory of an upper on
/// disk, whose name in it is the rest of the text.
pub const DROP_UPPER: &[u8] = b"u";

/// What only the init can do to the sandbox as a whole.
#[derive(Debug)]
pub struct Renewal {
    blueprint: Arc<Blueprint>,
    kept: Kept,
    episode: Episode,
    /// The former episode, until everybody has let go of it.
    former: Option<Episode>,
    /// The next one. The first reset does without: most sandboxes are never reset, and a spare costs memory.
    spare: Option<Spare>,
    serial: u64,
    /// How the first episode looked before anything ran in it.
    fresh: Look,
}

/// What outlives every episode.
#[derive(Debug)]
pub struct Kept {
    pub outer: Outer,
    pub whole: Whole,
    /// Takes what is to be dropped, so that dropping costs us no time.
    pub warden: Option<OwnedFd>,
    /// Held open: nobody else gets our ids while we live.
    pub lock: Option<OwnedFd>,
}

/// What can be seen of an episode that nothing has run in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    /// Names at the top of each upper, and what the upper's file system holds where it is the sandbox's own.
    uppers: Vec<Vec<Vec<u8>>>,
    inodes: Option<u64>,
    /// Mount points with their kinds and options.
    mounts: Vec<String>,
    hostname: Vec<u8>,
}

/// Namespaces of this process by inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spaces {
    ipc: u64,
    net: u64,
}

impl Renewal {
    /// For the sandbox whose first episode is `first`.
    pub fn new(blueprint: Blueprint, kept: Kept, first: Episode) -> Result<Self> {
        let fresh = Look::at(&blueprint, &first)?;
        let blueprint = Arc::new(blueprint);
        Ok(Renewal { blueprint, kept, episode: first, former: None, spare: None, serial: 0, fresh })
    }

    /// Bytes in the upper now, where its file system is the sandbox's own.
    fn upper_bytes(&self) -> Option<u64> {
        let usage = self.own_upper()?;
        Some((usage.f_blocks - usage.f_bfree) * usage.f_frsize)
    }

    fn own_upper(&self) -> Option<StatVfs> {
        own_upper(&self.blueprint, &self.episode)
    }

    /// Hand the old episode to the warden. Without one, or when it is overwhelmed, we drop it ourselves: what waits to
    /// be dropped is bounded by what its socket holds.
    fn drop_later(&self, old: Episode) -> Result<()> {
        let Episode { serial, root, upper, uppers, spaces } = old;
        drop((root, upper, uppers));
        let namespace = spaces.mounts;
        let disk = if self.on_disk() { Some(open_disk(&self.kept.outer)?) } else { None };
        let mut descriptors = vec![namespace.as_fd()];
        descriptors.extend(disk.iter().map(AsFd::as_fd));
        let text = [DROP_UPPER, serial.to_string().as_bytes()].concat();
        let warden = self.kept.warden.as_ref();
        if warden.is_some_and(|warden| handover::send_text(warden, &text, &descriptors).is_ok()) {
            return Ok(());
        }
        drop(namespace);
        let Some(disk) = disk else { return Ok(()) };
        let name = CString::new(serial.to_string()).unwrap_or_default();
        removal::remove_in(&disk, name).map_err(|errno| Error::system("remove the old upper", errno))
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn on_disk(&self) -> bool {
        matches!(self.blueprint.root, RootPlan::Overlay { upper: UpperPlan::Disk { .. }, .. })
    }
}

impl Hooks for Renewal {
    fn kill_all(&mut self) -> Result<()> {
        // SAFETY: no memory is involved; to PID 1, -1 means everybody else in the sandbox.
        if unsafe { libc::kill(-1, libc::SIGKILL) } != 0 {
            match mounts::last_errno() {
                Errno::SRCH => {}
                errno => return Err(Error::system("kill everything", errno)),
            }
        }
        // The frozen die all the same; but what is born into a frozen group later would never run.
        self.kept.whole.freeze(Freezer::Running).map(drop).map_err(|errno| Error::system("thaw", errno))
    }

    fn freeze(&mut self, frozen: bool) -> Result<()> {
        let state = if frozen { Freezer::Frozen } else { Freezer::Running };
        match self.kept.whole.freeze(state) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::new(
                Code::Unsupported,
                "freezing needs the unified cgroup hierarchy, which is not to be had here",
            )),
            Err(errno) => Err(Error::system("freeze", errno)),
        }
    }

    fn reset(&mut self) -> Result<sandbox::Episode> {
        if matches!(self.blueprint.root, RootPlan::Bare) {
            return Err(Error::new(Code::Unsupported, "a bare sandbox has nothing to go back to"));
        }
        let changed_bytes = self.upper_bytes();
        let before = Spaces::current()?;
        let fresh = match self.spare.take() {
            Some(spare) => {
                let fresh = spare.finish()?;
                fresh.enter()?;
                fresh
            }
            None => {
                namespaces::enter_mounts(self.kept.outer.namespace.as_fd())?;
                let serial = self.next_serial();
                episode::build(&self.blueprint, serial)?
            }
        };
        self.former = Some(std::mem::replace(&mut self.episode, fresh));
        let verified = self.verify(before)?;
        Ok(sandbox::Episode { root: boot::duplicate(&self.episode.root)?, changed_bytes, verified })
    }

    fn settle(&mut self) -> Result<()> {
        let serial = self.next_serial();
        self.spare = Some(Spare::start(&self.blueprint, &self.kept.outer, serial)?);
        self.former.take().map_or(Ok(()), |former| self.drop_later(former))
    }

    fn usage(&self) -> UsageReply {
        let group = self.kept.whole.usage();
        let limit = self.own_upper().map(|usage| usage.f_blocks * usage.f_frsize);
        UsageReply {
            id: 0,
            cpu_us: None,
            memory_bytes: group.memory_bytes,
            memory_peak_bytes: group.memory_peak_bytes,
            memory_limit_bytes: group.memory_limit_bytes,
            pids: group.pids,
            pids_limit: group.pids_limit,
            disk_bytes: self.upper_bytes(),
            disk_limit_bytes: limit,
            oom_kills: group.oom_kills,
            cpu_limit_millis: self.blueprint.cpu_limit_millis,
        }
    }

    fn layout(&self) -> Result<Layout> {
        super::layout::layout(&self.kept.outer, &self.blueprint, &self.episode)
    }
}

impl Renewal {
    fn verify(&self, before: Spaces) -> Result<Verified> {
        let look = Look::at(&self.blueprint, &self.episode)?;
        let now = Spaces::current()?;
        Ok(Verified {
            processes: false,
            files: look.uppers == self.fresh.uppers && look.inodes == self.fresh.inodes,
            mounts: look.mounts == self.fresh.mounts,
            ipc: now.ipc != before.ipc,
            hostname: look.hostname == self.fresh.hostname,
            network: self.blueprint.network == Network::Host || now.net != before.net,
        })
    }
}

impl Look {
    fn at(blueprint: &Blueprint, episode: &Episode) -> Result<Self> {
        let failed = |errno| Error::system("look at the episode", errno);
        let mut uppers = Vec::with_capacity(episode.uppers.len());
        for (_, upper) in &episode.uppers {
            uppers.push(names(upper).map_err(failed)?);
        }
        let mounts = if episode.upper.is_some() { mount_lines()? } else { Vec::new() };
        let hostname = rustix::system::uname().nodename().to_bytes().to_vec();
        let inodes = own_upper(blueprint, episode).map(|usage| usage.f_files - usage.f_ffree);
        Ok(Look { uppers, inodes, mounts, hostname })
    }
}

impl Spaces {
    fn current() -> Result<Self> {
        let inode = |kind: &str| {
            rustix::fs::stat(format!("/proc/self/ns/{kind}"))
                .map(|space| space.st_ino)
                .map_err(|errno| Error::system("look at a namespace", errno))
        };
        Ok(Spaces { ipc: inode("ipc")?, net: inode("net")? })
    }
}

/// The directory that holds the uppers on disk.
fn open_disk(outer: &Outer) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(&outer.root, "disk", flags, Mode::empty()).map_err(|errno| Error::system("open the disk", errno))
}

/// Numbers of the upper's file system, where that is the sandbox's own.
fn own_upper(blueprint: &Blueprint, episode: &Episode) -> Option<StatVfs> {
    match blueprint.root {
        RootPlan::Overlay { upper: UpperPlan::Tmpfs { .. }, .. } => rustix::fs::fstatvfs(episode.upper.as_ref()?).ok(),
        _ => None,
    }
}

fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// What is mounted, without the numbers that differ from mount to mount.
fn mount_lines() -> Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::system("list the mounts", Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    Ok(text.lines().map(|line| line.split(' ').skip(3).collect::<Vec<_>>().join(" ")).collect())
}
