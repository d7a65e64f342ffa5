//! Cgroups: what limits a sandbox's commands together, and what counts and kills each of them.
//!
//! The host makes one [`group::Group`] per sandbox in each hierarchy it has ([`hierarchy`]), with the sandbox's limits, and
//! gives the init descriptors of its directories. The init makes a leaf per command below them ([`leaf`]). The init itself
//! stays outside of the limits, so a sandbox that has used them up still answers.

pub mod group;
pub mod hierarchy;
pub mod leaf;
pub mod whole;

use serde::{Deserialize, Serialize};

pub use leaf::{Leaf, Leaves};
pub use whole::{Freezer, GroupUsage, Whole};

/// Into which a process that has one thread writes `0` to enter a group of version 1.
///
/// Not `cgroup.procs`: moving a whole process waits for a grace period of RCU (5 to 30 ms) whenever none was moved shortly
/// before, and that is before nearly every command of an agent. Moving only the writing thread takes no such lock (since
/// Linux 5.15), and a process between clone and exec has no other.
const ENTER: &str = "tasks";

/// Which directories of a group come to the init, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLayout {
    /// The unified hierarchy: leaves are entered at birth, killed and frozen by the kernel.
    pub unified: bool,
    /// Whether the unified hierarchy also counts memory, processor time and processes (version 2), or version 1 does.
    pub unified_controllers: bool,
    /// Memory of version 1: leaves count their own peak.
    pub memory: bool,
    /// Processes, version 1: entered, without leaves.
    pub pids: bool,
    /// Processor time, version 1: entered, without leaves.
    pub cpu: bool,
}

impl GroupLayout {
    /// How many descriptors there are.
    pub fn descriptors(&self) -> usize {
        [self.unified, self.memory, self.pids, self.cpu].into_iter().filter(|there| *there).count()
    }
}

/// A number in a file of a group, and nothing where there is none ("max").
pub fn read_number(directory: impl std::os::fd::AsFd, name: &str) -> Option<u64> {
    read_text(directory, name)?.trim().parse().ok()
}

/// The value of `key` in a file of `key value` lines.
pub fn read_key(directory: impl std::os::fd::AsFd, name: &str, key: &str) -> Option<u64> {
    let text = read_text(directory, name)?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

/// A small file of a group.
pub fn read_text(directory: impl std::os::fd::AsFd, name: &str) -> Option<String> {
    use rustix::fs::{Mode, OFlags, openat};

    read_open(openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?)
}

/// The same of an open file, from its start.
fn read_open(file: impl std::os::fd::AsFd) -> Option<String> {
    let mut buffer = [0_u8; 4096];
    let count = rustix::io::pread(file, &mut buffer, 0).ok()?;
    String::from_utf8(buffer.get(..count)?.to_vec()).ok()
}

/// Write `value` to a file of a group.
pub fn write_text(directory: impl std::os::fd::AsFd, name: &str, value: &str) -> rustix::io::Result<()> {
    use rustix::fs::{Mode, OFlags, openat};

    let file = openat(directory, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value.as_bytes()).map(drop)
}
