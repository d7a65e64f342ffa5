//! From a `create` message to what must be made: checked against what this machine can do, before anything is made.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_bytes::ByteBuf;

use super::ids::Mode;
use super::trial::Trial;
use super::userns::Realm;
use crate::cgroup::hierarchy::Hierarchies;
use crate::confinement::Privileges;
use crate::error::{Code, Error, Result};
use crate::init::blueprint::{Blueprint, Layout, ProcPlan, RootPlan, Surroundings, Target, UpperPlan};
use crate::limits::{MAX_ENV_BYTES, MAX_PATH_BYTES};
use crate::message::{Create, Image, ImageKind, Limits, LimitsMode, Missing, Network, Owner, Upper, UpperKind};

/// Size of an upper for which the caller names none: what `sandlot.Spec` has as its default.
const DEFAULT_UPPER_BYTES: u64 = 1 << 30;
/// Size of /dev/shm for which the caller names none: what container engines give.
const DEFAULT_SHM_BYTES: u64 = 64 << 20;
/// Inodes of an upper for which the caller names none: one for each page of it, within bounds.
const INODES: (u64, u64) = (16 << 10, 1 << 20);
/// The kernel mounts an overlay of at most 500 layers; one is the sandbox's own.
const MAX_LAYERS: usize = 499;
const MAX_NAME_CHARS: usize = 128;
const MAX_LABELS_BYTES: usize = 16 << 10;
/// HOST_NAME_MAX of Linux.
const MAX_HOSTNAME_BYTES: usize = 64;

/// What this machine offers to every sandbox.
#[derive(Debug)]
pub struct Machine {
    pub mode: Mode,
    pub privileges: Privileges,
    pub realm: Realm,
    pub trial: Trial,
    /// Why it is not a better mode.
    pub missing: Vec<Missing>,
    pub hierarchies: Hierarchies,
    /// The skeleton of the `host` image and the directories that are shared beside it.
    pub skeleton: PathBuf,
    pub shared: Vec<PathBuf>,
    /// Where uppers on disk are made.
    pub disks: PathBuf,
    /// What a sandbox on this machine's network asks for names.
    pub resolver: Vec<u8>,
}

/// One sandbox to be made.
#[derive(Debug)]
pub struct Plan {
    pub blueprint: Blueprint,
    /// Directories of the lowers, in the order of the blueprint.
    pub lowers: Vec<PathBuf>,
    pub limits: Limits,
    pub terms: Terms,
    pub labels: BTreeMap<String, String>,
    /// The image as a listing shows it.
    pub image: String,
}

/// How long a sandbox may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub owner: Owner,
    pub lease_ms: Option<u64>,
    pub max_lifetime_ms: Option<u64>,
}

/// Check `create` and decide everything about the sandbox. Pure.
///
/// # Errors
/// `bad_request` for what can never be, `limit_unenforceable` for a limit that this machine cannot hold.
pub fn plan(create: &Create<'_>, machine: &Machine) -> Result<Plan> {
    check_text(create)?;
    let terms = terms(create)?;
    let unenforced = unenforced(create, machine)?;
    let (root, lowers) = root(create, machine)?;
    let layout = Layout {
        lowers: lowers.len(),
        disk: matches!(root, RootPlan::Overlay { upper: UpperPlan::Disk { .. }, .. }),
        ..Layout::default()
    };
    let blueprint = Blueprint {
        name: create.name.to_owned(),
        mode: machine.mode.name().to_owned(),
        privileges: machine.privileges,
        proc: if machine.trial.proc.is_none() { ProcPlan::Own } else { ProcPlan::Absent },
        unenforced,
        env: environment(create)?,
        workdir: workdir(create)?,
        user: create.user.map(str::to_owned),
        hostname: hostname(create)?,
        network: create.network,
        root,
        surroundings: Surroundings::Made,
        shm_bytes: create.shm_bytes.unwrap_or(DEFAULT_SHM_BYTES).max(1),
        cpu_limit_millis: create.limits.cpu_millis,
        resolver: resolver(create.network, machine),
        idle_timeout_ms: create.idle_timeout_ms,
        layout,
    };
    let labels = create.labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Ok(Plan { blueprint, lowers, limits: create.limits, terms, labels, image: image_text(&create.image) })
}

fn refuse<T>(message: impl Into<std::borrow::Cow<'static, str>>) -> Result<T> {
    Err(Error::new(Code::BadRequest, message))
}

fn check_text(create: &Create<'_>) -> Result<()> {
    let name = create.name;
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS || name.chars().any(char::is_control) {
        return refuse(format!("a name has 1 to {MAX_NAME_CHARS} characters, none of them a control character"));
    }
    let labels: usize = create.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    if labels > MAX_LABELS_BYTES {
        return refuse(format!("labels have at most {MAX_LABELS_BYTES} bytes in all"));
    }
    Ok(())
}

fn terms(create: &Create<'_>) -> Result<Terms> {
    match (create.owner, create.lease_ms) {
        (Owner::Leased, None) => refuse("a leased sandbox needs lease_ms"),
        (Owner::Attached, Some(_)) => refuse("an attached sandbox has no lease"),
        (owner, lease_ms) => Ok(Terms { owner, lease_ms, max_lifetime_ms: create.max_lifetime_ms }),
    }
}

/// The limits that were asked for and cannot be held here; with `require` there may be none.
fn unenforced(create: &Create<'_>, machine: &Machine) -> Result<Vec<String>> {
    let limits = &create.limits;
    let on_disk = create.upper.kind == UpperKind::Disk && create.image.kind != ImageKind::Bare;
    let asked = [
        ("memory", limits.memory_bytes.is_some() && !machine.hierarchies.enforces("memory")),
        ("cpu", limits.cpu_millis.is_some() && !machine.hierarchies.enforces("cpu")),
        ("pids", limits.pids.is_some() && !machine.hierarchies.enforces("pids")),
        // A directory on disk is bounded by its file system alone.
        ("disk", on_disk && create.upper.size_bytes.is_some()),
    ];
    let missing: Vec<String> =
        asked.into_iter().filter(|(_, missing)| *missing).map(|(name, _)| name.to_owned()).collect();
    if create.limits_mode == LimitsMode::Require && !missing.is_empty() {
        let text = format!("this machine cannot enforce: {}", missing.join(", "));
        return Err(Error::new(Code::LimitUnenforceable, text));
    }
    Ok(missing)
}

fn root(create: &Create<'_>, machine: &Machine) -> Result<(RootPlan, Vec<PathBuf>)> {
    let overlay = |targets| RootPlan::Overlay { targets, upper: upper(create.upper), read_only: create.read_only };
    match create.image.kind {
        ImageKind::Host => {
            let over = layers(&create.image)?;
            let mut targets = vec![Target { path: "/".to_owned(), lowers: 1 + over.len() }];
            let mut lowers = vec![machine.skeleton.clone()];
            lowers.extend_from_slice(&over);
            for shared in &machine.shared {
                // What a layer has below a directory with an overlay of its own belongs into that overlay.
                let below = over.iter().filter_map(|layer| directory_in(layer, shared)).collect::<Vec<_>>();
                targets.push(Target { path: shared.to_string_lossy().into_owned(), lowers: 1 + below.len() });
                lowers.push(shared.clone());
                lowers.extend(below);
            }
            Ok((overlay(targets), lowers))
        }
        ImageKind::Layers => {
            let lowers = layers(&create.image)?;
            if lowers.is_empty() {
                return refuse("an image has at least one layer");
            }
            Ok((overlay(vec![Target { path: "/".to_owned(), lowers: lowers.len() }]), lowers))
        }
        ImageKind::Bare => match create.image.path {
            Some(path) => Ok((RootPlan::Bare, vec![directory(path)?])),
            None => refuse("a bare image needs a path"),
        },
    }
}

fn layers(image: &Image<'_>) -> Result<Vec<PathBuf>> {
    // One more lower stands below the layers of the `host` image.
    if image.layers.len() >= MAX_LAYERS {
        return refuse(format!("an image has fewer than {MAX_LAYERS} layers, not {}", image.layers.len()));
    }
    image.layers.iter().map(|layer| directory(layer)).collect()
}

/// The directory of a layer that lies where `shared` does on this machine, if the layer has one.
fn directory_in(layer: &Path, shared: &Path) -> Option<PathBuf> {
    let path = layer.join(shared.strip_prefix("/").ok()?);
    std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()).then_some(path)
}

fn directory(path: &[u8]) -> Result<PathBuf> {
    if path.first() != Some(&b'/') || path.contains(&0) || path.len() > MAX_PATH_BYTES {
        return refuse("a directory of an image is an absolute path").map_err(|error: Error| error.with_path(path));
    }
    Ok(PathBuf::from(OsStr::from_bytes(path)))
}

fn upper(upper: Upper) -> UpperPlan {
    match upper.kind {
        UpperKind::Disk => UpperPlan::Disk { limit_bytes: upper.size_bytes },
        UpperKind::Tmpfs => {
            // A size of 0 would mean "no limit" to the kernel.
            let size_bytes = upper.size_bytes.unwrap_or(DEFAULT_UPPER_BYTES).max(1);
            let inodes = upper.inodes.unwrap_or_else(|| (size_bytes / 4096).clamp(INODES.0, INODES.1)).max(1);
            UpperPlan::Tmpfs { size_bytes, inodes }
        }
    }
}

fn environment(create: &Create<'_>) -> Result<Vec<ByteBuf>> {
    let bytes: usize = create.env.iter().map(|entry| entry.len()).sum();
    if bytes > MAX_ENV_BYTES {
        return Err(Error::new(Code::ArgumentTooLong, format!("the environment has more than {MAX_ENV_BYTES} bytes")));
    }
    let is_entry =
        |entry: &[u8]| !entry.contains(&0) && entry.iter().position(|byte| *byte == b'=').is_some_and(|at| at > 0);
    if !create.env.iter().all(|entry| is_entry(entry)) {
        return refuse("an environment entry is KEY=value without a NUL byte");
    }
    Ok(create.env.iter().map(|entry| ByteBuf::from(entry.to_vec())).collect())
}

fn workdir(create: &Create<'_>) -> Result<Option<ByteBuf>> {
    match create.workdir {
        Some(path) if path.first() != Some(&b'/') || path.contains(&0) || path.len() >= MAX_PATH_BYTES => {
            refuse("the working directory is an absolute path").map_err(|error: Error| error.with_path(path))
        }
        Some(path) => Ok(Some(ByteBuf::from(path.to_vec()))),
        None => Ok(None),
    }
}

fn hostname(create: &Create<'_>) -> Result<String> {
    let name = create.hostname.unwrap_or("sandbox");
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if name.is_empty() || name.len() > MAX_HOSTNAME_BYTES || !name.bytes().all(fits) {
        return refuse(format!("a host name has 1 to {MAX_HOSTNAME_BYTES} letters, digits, hyphens and dots"));
    }
    Ok(name.to_owned())
}

fn resolver(network: Network, machine: &Machine) -> ByteBuf {
    match network {
        Network::Host => ByteBuf::from(machine.resolver.clone()),
        Network::None => ByteBuf::from(b"# no network\n".to_vec()),
    }
}

fn image_text(image: &Image<'_>) -> String {
    let last = |path: &[u8]| Path::new(OsStr::from_bytes(path)).display().to_string();
    match image.kind {
        ImageKind::Host => "host".to_owned(),
        ImageKind::Layers => format!("layers:{}", image.layers.last().map_or_else(String::new, |path| last(path))),
        ImageKind::Bare => format!("bare:{}", image.path.map_or_else(String::new, |path| last(path))),
    }
}
