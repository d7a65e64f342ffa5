//! One episode: what the commands of a sandbox see between two resets. Built from the outer namespace, and dropped whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::base::{self, make_directory};
use super::blueprint::{Blueprint, Carried, ProcPlan, RootPlan, Surroundings, Target, UpperPlan};
use super::mounts::{self, Depth, INERT};
use super::outer::DEVICES;
use crate::error::{Error, Result};
use crate::message::Network;
use crate::namespaces;

/// Bytes and files that /dev itself may hold: links and mount points, and what careless programs put there.
const DEV_OPTIONS: [(&str, &str); 3] = [("size", "1m"), ("nr_inodes", "1k"), ("mode", "0755")];
/// Names in /dev that are links, as on every Linux.
const DEV_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// What can be written on a read-only root.
const WRITABLE: [(&str, u32); 2] = [("tmp", 0o1777), ("run", 0o755)];
/// The group that owns terminals, by custom.
const TTY_GROUP: &str = "5";

/// An episode. The thread that has built it is in it, at its root; another one may [`Episode::enter`] it.
#[derive(Debug)]
pub struct Episode {
    /// Different for each episode of a sandbox.
    pub serial: u64,
    /// Its root directory.
    pub root: OwnedFd,
    /// Root of the file system that all uppers share; none for a bare sandbox.
    pub upper: Option<OwnedFd>,
    /// Where each overlay is mounted, and its upper directory.
    pub uppers: Vec<(String, OwnedFd)>,
    /// Whoever closes the last copy of its mount namespace after the init has left it pays for dropping its files.
    pub spaces: Spaces,
}

/// The namespaces of an episode.
#[derive(Debug)]
pub struct Spaces {
    pub mounts: OwnedFd,
    ipc: OwnedFd,
    uts: OwnedFd,
    /// None where the machine's network is shared.
    network: Option<OwnedFd>,
}

impl Spaces {
    /// Those of an episode that shares its network.
    pub fn shared_network(mounts: OwnedFd, ipc: OwnedFd, uts: OwnedFd) -> Self {
        Spaces { mounts, ipc, uts, network: None }
    }

    /// Mounts, IPC, host name.
    pub fn descriptors(&self) -> [&OwnedFd; 3] {
        [&self.mounts, &self.ipc, &self.uts]
    }

    fn current(proc: BorrowedFd<'_>, network: Network) -> Result<Self> {
        let network = if network == Network::None { Some(namespaces::current(proc, "net")?) } else { None };
        Ok(Spaces {
            mounts: namespaces::current(proc, "mnt")?,
            ipc: namespaces::current(proc, "ipc")?,
            uts: namespaces::current(proc, "uts")?,
            network,
        })
    }
}

impl Episode {
    /// Move the calling process into it, at its root. It has one thread.
    pub fn enter(&self) -> Result<()> {
        if let Some(network) = &self.spaces.network {
            namespaces::enter(network.as_fd(), LinkNameSpaceType::Network)?;
        }
        namespaces::enter(self.spaces.uts.as_fd(), LinkNameSpaceType::HostNameAndNISDomainName)?;
        namespaces::enter(self.spaces.ipc.as_fd(), LinkNameSpaceType::InterProcessCommunication)?;
        namespaces::enter_mounts(self.spaces.mounts.as_fd())
    }
}

/// Build a new episode in new namespaces. The calling thread is in the outer namespace and shares its root with no other.
///
/// `serial` is different for each episode of a sandbox; it names the upper where that is on disk.
pub fn build(blueprint: &Blueprint, proc: BorrowedFd<'_>, serial: u64) -> Result<Episode> {
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    if blueprint.network == Network::None {
        flags |= UnshareFlags::NEWNET;
    }
    namespaces::unshare(flags)?;
    let spaces = Spaces::current(proc, blueprint.network)?;
    if blueprint.network == Network::None {
        namespaces::raise_loopback()?;
    }
    rustix::system::sethostname(blueprint.hostname.as_bytes())
        .map_err(|errno| Error::system("set the host name", errno))?;
    let (upper, uppers) = match &blueprint.root {
        RootPlan::Bare => (None, Vec::new()),
        RootPlan::Overlay { targets, upper, read_only } => {
            let (upper, uppers) = mount_overlays(targets, *upper, serial)?;
            match &blueprint.surroundings {
                Surroundings::Made => place_furniture(blueprint)?,
                Surroundings::Carried(carried) => place_carried(carried, blueprint.shm_bytes)?,
            }
            if *read_only {
                let places = if blueprint.surroundings == Surroundings::Made { &WRITABLE[..] } else { &[] };
                seal_root(targets, places).map_err(|errno| Error::system("make the root read-only", errno))?;
            }
            (Some(upper), uppers)
        }
    };
    if upper.is_none() {
        // Nothing runs in a bare sandbox: the init stays where it is and looks at the directory from outside.
        return Ok(Episode { serial, root: open_directory("/r")?, upper, uppers, spaces });
    }
    rustix::process::chdir(c"/r").map_err(|errno| Error::system("enter the new root", errno))?;
    mounts::become_root()?;
    if let Some(workdir) = &blueprint.workdir {
        make_workdir(workdir)?;
    }
    Ok(Episode { serial, root: open_directory("/")?, upper, uppers, spaces })
}

fn open_directory(path: &str) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::at_path("open a directory", errno, path.as_bytes()))
}

/// Mount the upper at /u and each overlay below /r. Gives the upper's root and each overlay's upper directory.
fn mount_overlays(targets: &[Target], plan: UpperPlan, serial: u64) -> Result<(OwnedFd, Vec<(String, OwnedFd)>)> {
    let upper = mount_upper(plan, serial)?;
    let mut uppers = Vec::with_capacity(targets.len());
    for (number, target) in targets.iter().enumerate() {
        let failed = |errno| Error::at_path("mount the overlay", errno, target.path.as_bytes());
        for part in ["", "/u", "/w"] {
            rustix::fs::mkdir(format!("/u/{number}{part}"), Mode::from_raw_mode(0o755)).map_err(failed)?;
        }
        // The root of an overlay has the attributes of its upper.
        let top = rustix::fs::stat(top_of(number, target).as_str()).map_err(failed)?;
        base::apply(&top, &format!("/u/{number}/u")).map_err(failed)?;
        let at = format!("/r{}", target.path);
        rustix::mount::mount(
            c"overlay",
            at.as_str(),
            c"overlay",
            MountFlags::empty(),
            Some(options(number, target).as_c_str()),
        )
        .map_err(failed)?;
        uppers.push((target.path.clone(), open_directory(&format!("/u/{number}/u"))?));
    }
    Ok((upper, uppers))
}

/// The topmost lower of target `number`.
fn top_of(number: usize, target: &Target) -> String {
    if target.path == "/" { "/l/base".to_owned() } else { format!("/l/{number}/{}", target.lowers.saturating_sub(1)) }
}

/// Options of the overlay of target `number`. `userxattr`, since the overlay belongs to a user namespace.
fn options(number: usize, target: &Target) -> std::ffi::CString {
    let base = (target.path == "/").then(|| "/l/base".to_owned());
    let layers = (0..target.lowers).rev().map(|layer| format!("/l/{number}/{layer}"));
    let lowers: Vec<String> = base.into_iter().chain(layers).collect();
    let text = format!("userxattr,lowerdir={},upperdir=/u/{number}/u,workdir=/u/{number}/w", lowers.join(":"));
    std::ffi::CString::new(text).unwrap_or_default()
}

fn mount_upper(plan: UpperPlan, serial: u64) -> Result<OwnedFd> {
    let mount = match plan {
        UpperPlan::Tmpfs { size_bytes, inodes } => mounts::new_filesystem(
            "tmpfs",
            &[("size", &size_bytes.to_string()), ("nr_inodes", &inodes.to_string()), ("mode", "0755")],
            MountAttrFlags::MOUNT_ATTR_NODEV,
        )?,
        UpperPlan::Disk { .. } => {
            let path = format!("/disk/{serial}");
            rustix::fs::mkdir(path.as_str(), Mode::from_raw_mode(0o755))
                .and_then(|()| mounts::clone_tree(CWD, path.as_str(), Depth::Single))
                .map_err(|errno| Error::system("make the upper's directory", errno))?
        }
    };
    mounts::attach(&mount, c"/u").map_err(|errno| Error::system("attach the upper", errno))?;
    Ok(mount)
}

/// /proc and /sys from the outer namespace, and a /dev of the episode's own.
fn place_furniture(blueprint: &Blueprint) -> Result<()> {
    let failed = |errno| Error::system("place /proc, /sys and /dev", errno);
    if blueprint.proc == ProcPlan::Own {
        mounts::relocate(c"/proc", c"/r/proc").map_err(failed)?;
    }
    mounts::relocate(c"/sys", c"/r/sys").map_err(failed)?;
    place_devices(DEVICES)?;
    place_dev_filesystems(blueprint.shm_bytes)
}

/// The mounts of somebody else's container, with a /dev of the episode's own.
fn place_carried(carried: &Carried, shm_bytes: u64) -> Result<()> {
    for (number, place) in carried.places.iter().enumerate() {
        let failed = |errno| Error::at_path("place a mount of the container", errno, place.as_bytes());
        mounts::relocate(Carried::ready(number), format!("/r{place}")).map_err(failed)?;
    }
    for (number, (place, mode, (uid, gid))) in carried.scratch.iter().enumerate() {
        let failed = |errno| Error::at_path("place an empty volume", errno, place.as_bytes());
        let from = format!("/u/scratch-{number}");
        make_directory(&from, *mode).map_err(failed)?;
        let owner = (rustix::fs::Uid::from_raw(*uid), rustix::fs::Gid::from_raw(*gid));
        rustix::fs::chown(from.as_str(), Some(owner.0), Some(owner.1)).map_err(failed)?;
        let tree = mounts::clone_tree(CWD, from.as_str(), Depth::Single).map_err(failed)?;
        mounts::attach(&tree, format!("/r{place}")).map_err(failed)?;
    }
    place_devices(carried.devices.iter().map(String::as_str))?;
    place_dev_filesystems(shm_bytes)
}

/// A /dev with nothing but these devices, and the usual links.
fn place_devices<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let failed = |errno| Error::system("place the devices", errno);
    let dev = mounts::new_filesystem("tmpfs", &DEV_OPTIONS, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    mounts::attach(&dev, c"/r/dev").map_err(failed)?;
    for name in names {
        let path = format!("/r/dev/{name}");
        make_parents_of(&path, "/r/dev").map_err(failed)?;
        mounts::make_mount_point(path.as_str()).map_err(failed)?;
        mounts::bind(format!("/dev/{name}"), path.as_str(), Depth::Single).map_err(failed)?;
    }
    for (name, target) in DEV_LINKS {
        rustix::fs::symlinkat(target, &dev, name).map_err(failed)?;
    }
    Ok(())
}

/// The directories between `top` and `path`.
pub fn make_parents_of(path: &str, top: &str) -> rustix::io::Result<()> {
    for (end, _) in path.match_indices('/').skip_while(|(end, _)| *end <= top.len()) {
        match make_directory(&path[..end], 0o755) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn place_dev_filesystems(shm_bytes: u64) -> Result<()> {
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let shm_size = shm_bytes.to_string();
    // A mapped page and its file need an inode only once; a page each is more than any program uses.
    let shm_inodes = (shm_bytes / 4096).clamp(16, 1 << 20).to_string();
    let shm = [("size", shm_size.as_str()), ("nr_inodes", shm_inodes.as_str()), ("mode", "1777")];
    let filesystems = [
        ("pts", terminals(quiet)?),
        ("shm", mounts::new_filesystem("tmpfs", &shm, INERT)?),
        ("mqueue", mounts::new_filesystem("mqueue", &[], INERT)?),
    ];
    for (name, filesystem) in &filesystems {
        let path = format!("/r/dev/{name}");
        make_directory(&path, 0o755)
            .and_then(|()| mounts::attach(filesystem, path.as_str()))
            .map_err(|errno| Error::at_path("place a file system of /dev", errno, name.as_bytes()))?;
    }
    // gVisor takes the mode that was asked for terminals for that of their directory.
    rustix::fs::chmod(c"/r/dev/pts", Mode::from_raw_mode(0o755))
        .map_err(|errno| Error::system("open the directory of terminals", errno))
}

/// Terminals of the episode's own. Where only one id is mapped there is no group of terminals to give them to.
fn terminals(attributes: MountAttrFlags) -> Result<OwnedFd> {
    let options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("gid", TTY_GROUP)];
    mounts::new_filesystem("devpts", &options, attributes).or_else(|error| match error.errno {
        Some(libc::EINVAL) => mounts::new_filesystem("devpts", &options[..3], attributes),
        _ => Err(error),
    })
}

/// Every overlay read-only; `writable` directories come from the same sized upper.
fn seal_root(targets: &[Target], writable: &[(&str, u32)]) -> rustix::io::Result<()> {
    for (name, mode) in writable.iter().copied() {
        let from = format!("/u/{name}");
        make_directory(&from, mode)?;
        let tree = mounts::clone_tree(CWD, from.as_str(), Depth::Single)?;
        mounts::attach(&tree, format!("/r/{name}"))?;
    }
    for target in targets {
        mounts::make_read_only(format!("/r{}", target.path))?;
    }
    Ok(())
}

/// Make the working directory, and those above it, where the image has none. On a read-only root it stays missing.
fn make_workdir(workdir: &[u8]) -> Result<()> {
    let mut end = 0;
    while end < workdir.len() {
        end = workdir[end + 1..].iter().position(|byte| *byte == b'/').map_or(workdir.len(), |next| end + 1 + next);
        match rustix::fs::mkdir(&workdir[..end], Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST | Errno::ROFS) => {}
            Err(errno) => return Err(Error::at_path("make the working directory", errno, &workdir[..end])),
        }
    }
    Ok(())
}
