//! User and group ids of sandboxes: which mode this machine allows, and who has which ids.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode as FileMode, OFlags};
use rustix::io::Errno;

use crate::error::{Code, Error, Result};

/// Ids that a sandbox has where it may have many: all that an image may name.
pub const RANGE: u32 = 65_536;

/// First id of the sandboxes of root hosts. Above what systemd gives to containers and below 2^31, where some
/// programs take ids for negative numbers; the customary ranges of `/etc/subuid` are far below.
pub const FIRST_ID: u32 = 0x7000_0000;
/// Ranges are locked by the block, so that a host pays for a lock once in a while and not per sandbox.
const RANGES_PER_BLOCK: u32 = 16;
/// 4,080 sandboxes at once on one machine.
const BLOCKS: u32 = 255;

/// Who may be whom (see the table in the design).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    RangeRoot,
    RangeRootless,
    Single,
    Nested,
}

impl Mode {
    pub fn parse(text: &str) -> Option<Self> {
        [Mode::RangeRoot, Mode::RangeRootless, Mode::Single, Mode::Nested].into_iter().find(|mode| mode.name() == text)
    }

    pub fn name(self) -> &'static str {
        match self {
            Mode::RangeRoot => "range-root",
            Mode::RangeRootless => "range-rootless",
            Mode::Single => "single",
            Mode::Nested => "nested",
        }
    }
}

/// The ids of one sandbox: `0..count` inside are `first..first + count` outside, for users and groups alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap {
    pub first: u32,
    pub count: u32,
}

impl IdMap {
    /// As `/proc/PID/uid_map` takes it.
    pub fn line(self) -> String {
        format!("0 {} {}\n", self.first, self.count)
    }
}

/// Where a host's sandboxes get their ids from.
#[derive(Debug)]
pub enum Ids {
    /// A range of its own for each.
    Leased(Leases),
    /// The same for all: there is only one range, or one id. Namespaces still keep them apart.
    Shared(IdMap),
}

/// A sandbox's hold on its ids.
#[derive(Debug)]
pub struct Hold {
    pub map: IdMap,
    block: Option<usize>,
}

impl Ids {
    /// Ids for one more sandbox.
    ///
    /// # Errors
    /// `capacity` when every range of the machine is taken.
    pub fn take(&mut self) -> Result<Hold> {
        match self {
            Ids::Shared(map) => Ok(Hold { map: *map, block: None }),
            Ids::Leased(leases) => leases.take(),
        }
    }

    /// Whether layers must be mounted with the ids of their sandbox. Else they belong to them as they are.
    pub fn need_mapped_layers(&self) -> bool {
        matches!(self, Ids::Leased(_))
    }

    /// The id outside of root of every sandbox, where they share it and files are not idmapped.
    pub fn shared_root(&self) -> Option<u32> {
        match self {
            Ids::Shared(map) => Some(map.first),
            Ids::Leased(_) => None,
        }
    }

    /// The ids of a sandbox of which nothing is left.
    pub fn give_back(&mut self, hold: &Hold) {
        if let (Ids::Leased(leases), Some(block)) = (self, hold.block) {
            leases.blocks[block].free.push(hold.map.first);
        }
    }

    /// What keeps the ids of `hold` locked as long as anybody has it open.
    pub fn lock(&self, hold: &Hold) -> Option<BorrowedFd<'_>> {
        match (self, hold.block) {
            (Ids::Leased(leases), Some(block)) => Some(leases.blocks[block].lock.as_fd()),
            _ => None,
        }
    }
}

/// Ranges that no other host of this machine uses.
///
/// A block is ours while its file is locked. The inits hold the same lock: should the host be killed, its ranges are
/// free when the last process that could use them is gone, and there is nothing to clean up.
#[derive(Debug)]
pub struct Leases {
    directory: PathBuf,
    blocks: Vec<Block>,
    /// Where to look for the next free block.
    next: u32,
}

#[derive(Debug)]
struct Block {
    lock: OwnedFd,
    /// First ids of the ranges that nobody has.
    free: Vec<u32>,
}

impl Leases {
    /// Leases by lock files in `directory`, which exists.
    pub fn new(directory: &Path) -> Self {
        Leases { directory: directory.to_owned(), blocks: Vec::new(), next: 0 }
    }

    fn take(&mut self) -> Result<Hold> {
        loop {
            let found = self.blocks.iter_mut().enumerate().find_map(|(index, block)| Some((index, block.free.pop()?)));
            if let Some((index, first)) = found {
                return Ok(Hold { map: IdMap { first, count: RANGE }, block: Some(index) });
            }
            self.lock_block()?;
        }
    }

    fn lock_block(&mut self) -> Result<()> {
        while self.next < BLOCKS {
            let number = self.next;
            self.next += 1;
            let path = self.directory.join(number.to_string());
            let failed = |errno| Error::at_path("lock ids", errno, path.as_os_str().as_encoded_bytes());
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock = rustix::fs::open(&path, flags, FileMode::from_raw_mode(0o600)).map_err(failed)?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let start = FIRST_ID + number * RANGES_PER_BLOCK * RANGE;
                    let free = (0..RANGES_PER_BLOCK).rev().map(|index| start + index * RANGE).collect();
                    self.blocks.push(Block { lock, free });
                    return Ok(());
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        // Others may have let go since: the next call looks again.
        self.next = 0;
        Err(Error::new(Code::Capacity, "every range of ids on this machine is in use"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sandlot-ids-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Two hosts on one directory never share a range, and what one gives back it gets again.
    #[test]
    fn hosts_never_share_a_range() {
        let directory = scratch("share");
        let (mut one, mut two) = (Ids::Leased(Leases::new(&directory)), Ids::Leased(Leases::new(&directory)));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..40 {
            assert!(seen.insert(one.take().unwrap().map.first));
            assert!(seen.insert(two.take().unwrap().map.first));
        }
        let hold = one.take().unwrap();
        one.give_back(&hold);
        assert_eq!(one.take().unwrap().map, hold.map);
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// When all is taken the error says so, and a range that comes back is found.
    #[test]
    fn running_out_is_capacity() {
        let directory = scratch("all");
        let mut one = Ids::Leased(Leases::new(&directory));
        let holds: Vec<Hold> = (0..BLOCKS * RANGES_PER_BLOCK).map(|_| one.take().unwrap()).collect();
        assert!(holds.iter().all(|hold| hold.map.first >= FIRST_ID && hold.map.first < u32::MAX / 2 + 1));
        assert_eq!(one.take().unwrap_err().code, Code::Capacity);
        let mut two = Ids::Leased(Leases::new(&directory));
        assert_eq!(two.take().unwrap_err().code, Code::Capacity);
        drop(one);
        assert!(two.take().is_ok());
        std::fs::remove_dir_all(directory).unwrap();
    }
}
