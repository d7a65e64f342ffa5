//! The tier `tracked`: no namespaces of our own, but a record of what commands work with, and the proof that nothing else
//! was changed. See [`crate::files::record`].

use std::borrow::Cow;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::thread::CapabilitySet;

use super::ipc;
use super::standing::Standing;
use super::survey::parse;
use crate::descriptors::open_root;
use crate::error::{Code, Error, Result};
use crate::files::Layout;
use crate::files::record::{Budget, ClockWatch, Moment, Record};
use crate::message::Verified;
use crate::process::table;
use crate::sandbox::Episode;

/// Names and bytes that are kept. The first call waits for them, so they bound what a start may cost.
const MOST_NAMES: u64 = 20_000;
const MOST_BYTES: u64 = 32 << 20;
/// What is kept is memory of the container; the most of its limit that may be.
const MEMORY_SHARE: u64 = 16;

/// What undoes an episode in a container as it is.
#[derive(Debug)]
pub struct Tracking {
    recording: Recording,
    clock: ClockWatch,
    fresh: Look,
}

#[derive(Debug)]
enum Recording {
    /// On a thread, so that nobody waits for it who does not have to.
    UnderWay(JoinHandle<Result<Record>>),
    Done(Arc<Record>),
    /// Why there is none.
    Failed(String),
}

/// What root without the right to would have to change.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    mounts: String,
    hostname: Vec<u8>,
}

impl Look {
    fn now() -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo");
        let mounts = mounts.map_err(|error| refused(format!("the mounts cannot be listed: {error}")))?;
        Ok(Look { mounts, hostname: rustix::system::uname().nodename().to_bytes().to_vec() })
    }
}

impl Tracking {
    /// Begin the record of `places`. No command has run yet.
    ///
    /// # Errors
    /// `unsupported` with what makes a proof impossible here.
    pub fn begin(places: &[Vec<u8>], memory_limit: Option<u64>, standing: &Standing) -> Result<Self> {
        if !standing.no_new_privs && !standing.capabilities.contains(CapabilitySet::DAC_OVERRIDE) {
            // With a program like sudo a command might write where we cannot look.
            return Err(refused("programs may gain rights that the daemon has not (allowPrivilegeEscalation)"));
        }
        ipc::check()?;
        let clock = ClockWatch::start().map_err(|errno| Error::system("watch the clock", errno))?;
        let root = open_root()?;
        let bytes = memory_limit.map_or(MOST_BYTES, |limit| (limit / MEMORY_SHARE).min(MOST_BYTES));
        let (places, budget, fresh) = (places.to_vec(), Budget { names: MOST_NAMES, bytes }, Look::now()?);
        let mounts = parse(&fresh.mounts).into_iter().map(|mount| mount.at.into_bytes()).collect();
        let thread = std::thread::Builder::new().name("record".to_owned());
        let recording = thread.spawn(move || Record::take(root.as_fd(), &places, mounts, budget));
        let recording = recording.map_err(|error| refused(format!("no thread: {error}")))?;
        Ok(Tracking { recording: Recording::UnderWay(recording), clock, fresh })
    }

    /// Wait for the record.
    pub fn finish_record(&mut self) {
        if !matches!(self.recording, Recording::UnderWay(_)) {
            return;
        }
        let nobody = Recording::Failed(String::new());
        if let Recording::UnderWay(thread) = std::mem::replace(&mut self.recording, nobody) {
            self.recording = match thread.join() {
                Ok(Ok(record)) => Recording::Done(Arc::new(record)),
                Ok(Err(error)) => Recording::Failed(error.to_string()),
                Err(_) => Recording::Failed("its thread has failed".to_owned()),
            };
        }
    }

    /// Put everything back that is kept, and prove the rest unchanged. Nobody runs but this process.
    ///
    /// # Errors
    /// `unsupported` with what was changed and cannot be put back, or cannot be known.
    pub fn reset(&mut self) -> Result<Episode> {
        self.finish_record();
        let mut record = self.record()?;
        self.recording = Recording::Failed("a reset has failed".to_owned());
        check_visitors()?;
        let root = open_root()?;
        record.check_elsewhere(root.as_fd(), b"/")?;
        let files = record.restore(root.as_fd())?;
        let look = Look::now()?;
        let verified = Verified {
            // What runs is the main loop's to say.
            processes: false,
            files,
            mounts: look.mounts == self.fresh.mounts,
            ipc: ipc::clear(),
            hostname: look.hostname == self.fresh.hostname,
            // The pod's, as long as it lives; nobody in it may change how it is set up.
            network: true,
        };
        let in_use = || Error::new(Code::Internal, "the record is in use");
        Arc::get_mut(&mut record).ok_or_else(in_use)?.begin_anew(Moment::now());
        // It may have been set since the record was asked for.
        self.check_clock()?;
        self.recording = Recording::Done(record);
        Ok(Episode { root, changed_bytes: None, verified })
    }

    /// What `changes` needs.
    ///
    /// # Errors
    /// `unsupported` where there is no record, or it proves nothing.
    pub fn layout(&self) -> Result<Layout> {
        Ok(Layout { record: Some(self.record()?), ..Layout::default() })
    }

    fn record(&self) -> Result<Arc<Record>> {
        self.check_clock()?;
        match &self.recording {
            Recording::Done(record) => Ok(Arc::clone(record)),
            Recording::Failed(why) => Err(refused(format!("nothing is kept: {why}"))),
            Recording::UnderWay(_) => Err(refused("nothing is kept yet")),
        }
    }

    fn check_clock(&self) -> Result<()> {
        if self.clock.was_set() { Err(refused("the machine's clock was set, so times prove nothing")) } else { Ok(()) }
    }
}

/// Those who have entered the container from outside are spared, and may go on to change it, unless they only carry bytes
/// to us.
fn check_visitors() -> Result<()> {
    let program = |pid: &str| std::fs::metadata(format!("/proc/{pid}/exe")).map(|facts| (facts.dev(), facts.ino()));
    let own = program("self").map_err(|error| refused(format!("our own program cannot be told: {error}")))?;
    let (me, entries) = (std::process::id(), table::scan());
    for visitor in entries.iter().filter(|entry| entry.ppid == 0 && entry.pid != me && entry.state != 'Z') {
        match program(&visitor.pid.to_string()) {
            Ok(theirs) if theirs == own => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            _ => return Err(refused("somebody has entered the container from outside, and is still in it")),
        }
    }
    Ok(())
}

fn refused(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Code::Unsupported, why)
}
