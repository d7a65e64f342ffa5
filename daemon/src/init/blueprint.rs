//! What a host tells an init to build: the first thing on their private link, and the only description the init ever gets.
//!
//! The host writes a [`Blueprint`] into a sealed memory file and sends it with the descriptors that it speaks of, in the
//! order of [`Layout`]. Every path that the host knows stays with the host: the init sees detached mounts only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::cgroup::GroupLayout;
use crate::confinement::Privileges;
use crate::error::{Code, Error, Result};
use crate::message::Network;

/// One sandbox to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Blueprint {
    pub name: String,
    pub mode: String,
    pub privileges: Privileges,
    pub unenforced: Vec<String>,
    /// `KEY=value` each.
    pub env: Vec<ByteBuf>,
    /// Nil = `/`.
    pub workdir: Option<ByteBuf>,
    pub user: Option<String>,
    pub hostname: String,
    pub network: Network,
    pub root: RootPlan,
    pub proc: ProcPlan,
    pub surroundings: Surroundings,
    pub shm_bytes: u64,
    /// The processor limit as asked for, to be told by `usage`.
    pub cpu_limit_millis: Option<u64>,
    /// What `/etc/resolv.conf` shall say.
    pub resolver: ByteBuf,
    pub idle_timeout_ms: Option<u64>,
    pub layout: Layout,
}

/// What is at /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcPlan {
    Own,
    /// Nothing: the container that we are in refuses a new one, and its own would show its processes.
    Absent,
}

/// What the sandbox's root file system is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootPlan {
    /// Overlays over read-only lowers, the first of them at `/`; all share one upper.
    Overlay { targets: Vec<Target>, upper: UpperPlan, read_only: bool },
    /// One directory, written to directly; nothing is mounted in it.
    Bare,
}

/// What stands around the overlays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Surroundings {
    /// `/proc`, `/sys` and `/dev` as container engines make them.
    Made,
    /// Those of a container that others have made, with its volumes.
    Carried(Carried),
}

/// What of a container stays as it is in every episode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Where its mounts are. They lie ready in the outer namespace, each at [`Carried::ready`].
    pub places: Vec<String>,
    /// Names in `/dev`, which is made anew.
    pub devices: Vec<String>,
    /// Where volumes were that had nothing in them: directories of the upper with this mode and owner.
    pub scratch: Vec<(String, u32, (u32, u32))>,
}

impl Carried {
    /// Where in the outer namespace the mount of this number lies ready.
    pub fn ready(number: usize) -> String {
        format!("/carried/{number}")
    }
}

/// One overlay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Where it is mounted: `/`, `/usr`.
    pub path: String,
    /// How many of the lowers of [`Layout`] are its own, lowest first.
    pub lowers: usize,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpperPlan {
    Tmpfs {
        size_bytes: u64,
        inodes: u64,
    },
    /// A directory on disk, whose mount comes with the descriptors. The limit is enforced by the host, or not at all.
    Disk {
        limit_bytes: Option<u64>,
    },
}

/// How many descriptors follow, by kind and in this order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Layout {
    /// Detached mounts of directories: the lowers of each target, or the bare root.
    pub lowers: usize,
    /// Detached mount of the upper's directory on disk.
    pub disk: bool,
    /// A datagram socket of the warden, which drops what is handed to it.
    pub warden: bool,
    /// The lock on the sandbox's ids, to be kept open.
    pub lock: bool,
    pub group: GroupLayout,
}

/// The descriptors of a [`Layout`], told apart.
#[derive(Debug)]
pub struct Parts {
    pub lowers: Vec<OwnedFd>,
    pub disk: Option<OwnedFd>,
    pub warden: Option<OwnedFd>,
    pub lock: Option<OwnedFd>,
    pub group: Vec<OwnedFd>,
}

impl Layout {
    /// Tell the descriptors apart.
    pub fn split(&self, descriptors: Vec<OwnedFd>) -> Result<Parts> {
        let expected = self.total();
        if descriptors.len() != expected {
            let text = format!("{} descriptors came with the blueprint instead of {expected}", descriptors.len());
            return Err(Error::new(Code::Internal, text));
        }
        let mut rest = descriptors.into_iter();
        Ok(Parts {
            lowers: rest.by_ref().take(self.lowers).collect(),
            disk: if self.disk { rest.next() } else { None },
            warden: if self.warden { rest.next() } else { None },
            lock: if self.lock { rest.next() } else { None },
            group: rest.collect(),
        })
    }

    /// How many descriptors follow.
    pub fn total(&self) -> usize {
        self.lowers
            + usize::from(self.disk)
            + usize::from(self.warden)
            + usize::from(self.lock)
            + self.group.descriptors()
    }
}

impl Blueprint {
    /// The blueprint in a memory file that nobody can change any more.
    pub fn seal(&self) -> Result<OwnedFd> {
        let bytes = rmp_serde::to_vec_named(self).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        let write = || {
            let file = rustix::fs::memfd_create(c"blueprint", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let count = rustix::io::write(&file, rest)?;
                rest = rest.get(count..).ok_or(Errno::IO)?;
            }
            rustix::fs::fcntl_add_seals(
                &file,
                SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
            )?;
            Ok(file)
        };
        write().map_err(|errno| Error::system("write the blueprint", errno))
    }

    /// Read back what [`Blueprint::seal`] wrote.
    pub fn open(file: BorrowedFd<'_>) -> Result<Self> {
        let read = || {
            let size = usize::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| Errno::OVERFLOW)?;
            let mut bytes = vec![0; size];
            let mut filled = 0;
            while filled < size {
                match rustix::io::pread(file.as_fd(), &mut bytes[filled..], filled as u64)? {
                    0 => return Err(Errno::IO),
                    count => filled += count,
                }
            }
            Ok(bytes)
        };
        let bytes = read().map_err(|errno| Error::system("read the blueprint", errno))?;
        rmp_serde::from_slice(&bytes).map_err(|error| Error::new(Code::Internal, error.to_string()))
    }
}

/// The init's answer, once: it serves from here on, or it says why it cannot and exits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BootReply {
    /// Microseconds by step.
    Ready {
        spans: Vec<(String, u64)>,
    },
    Failed {
        code: Code,
        message: String,
        errno: Option<i32>,
    },
}
