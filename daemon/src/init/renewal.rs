//! Reset: one episode dropped whole, the next one put in its place, and the result looked at.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, StatVfs, openat};
use rustix::process::Signal;

use super::blueprint::{Blueprint, RootPlan, UpperPlan};
use super::episode::{self, Episode};
use super::handover;
use super::look::{Inodes, Look, own_upper};
use super::outer::Outer;
use super::spare::Spare;
use crate::cgroup::{Freezer, GroupUsage, Whole};
use crate::descriptors;
use crate::error::{Code, Error, Result};
use crate::files::Layout;
use crate::message::UsageReply;
use crate::namespaces;
use crate::process::{table, tree};
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

impl Renewal {
    /// For the sandbox whose first episode is `first`.
    pub fn new(blueprint: Arc<Blueprint>, kept: Kept, first: Episode) -> Result<Self> {
        let fresh = Look::at(&blueprint, &first, kept.outer.proc.as_fd())?;
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
        kill_everybody()?;
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
        let proc = self.kept.outer.proc.as_fd();
        let before = Inodes::current(proc)?;
        let fresh = match self.spare.take() {
            Some(spare) => {
                let fresh = spare.finish()?;
                fresh.enter()?;
                fresh
            }
            None => {
                namespaces::enter_mounts(self.kept.outer.namespace.as_fd())?;
                let serial = self.next_serial();
                episode::build(&self.blueprint, self.kept.outer.proc.as_fd(), serial)?
            }
        };
        self.former = Some(std::mem::replace(&mut self.episode, fresh));
        let (proc, network) = (self.kept.outer.proc.as_fd(), self.blueprint.network);
        let look = Look::at(&self.blueprint, &self.episode, proc)?;
        let verified = look.compare(&self.fresh, before, Inodes::current(proc)?, network);
        Ok(sandbox::Episode { root: descriptors::duplicate(&self.episode.root)?, changed_bytes, verified })
    }

    fn settle(&mut self) -> Result<()> {
        let serial = self.next_serial();
        self.spare = Some(Spare::start(&self.blueprint, &self.kept.outer, serial)?);
        self.former.take().map_or(Ok(()), |former| self.drop_later(former))
    }

    fn usage(&self) -> UsageReply {
        UsageReply {
            disk_bytes: self.upper_bytes(),
            disk_limit_bytes: self.own_upper().map(|usage| usage.f_blocks * usage.f_frsize),
            cpu_limit_millis: self.blueprint.cpu_limit_millis,
            ..usage_of(&self.kept.whole.usage())
        }
    }

    fn layout(&self) -> Result<Layout> {
        super::layout::layout(&self.kept.outer, &self.blueprint, &self.episode)
    }
}

/// The directory that holds the uppers on disk.
fn open_disk(outer: &Outer) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(&outer.root, "disk", flags, Mode::empty()).map_err(|errno| Error::system("open the disk", errno))
}

/// Send SIGKILL to every process of the sandbox but this one, which is its PID 1.
pub fn kill_everybody() -> Result<()> {
    tree::signal_everybody(Signal::KILL).map_err(|errno| Error::system("kill everybody", errno))
}

/// What a group counts; the disk and the processor's limit are no group's to tell.
pub fn usage_of(group: &GroupUsage) -> UsageReply {
    UsageReply {
        id: 0,
        cpu_us: Some(group.cpu_us.unwrap_or_else(processor_us)),
        memory_bytes: group.memory_bytes,
        memory_peak_bytes: group.memory_peak_bytes,
        memory_limit_bytes: group.memory_limit_bytes,
        pids: group.pids,
        pids_limit: group.pids_limit,
        disk_bytes: None,
        disk_limit_bytes: None,
        oom_kills: group.oom_kills,
        cpu_limit_millis: None,
    }
}

/// Processor time of everything that ran or runs in the sandbox but the init itself: every orphan becomes its child, so
/// nothing that has died is missing.
fn processor_us() -> u64 {
    const TICK_US: u64 = 10_000; // USER_HZ is 100 on every Linux
    let alive = table::scan().into_iter().filter(|entry| entry.pid != 1).map(|entry| entry.ticks.0 + entry.ticks.1);
    dead_children_us() + alive.sum::<u64>() * TICK_US
}

fn dead_children_us() -> u64 {
    // SAFETY: all zeroes is a valid `rusage`, which the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap_or(0);
    us(usage.ru_utime) + us(usage.ru_stime)
}
