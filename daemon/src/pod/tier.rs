//! How an episode can be undone in this container: what is wanted, and what can be had.

use super::environment::Environment;
use super::hooks::{InContainer, Undoing, Watched};
use super::renewed::{self, Sizes};
use super::standing::Standing;
use super::tracked::Tracking;
use crate::error::{Code, Error, Result};
use crate::sandbox::Hooks;

/// What the pod's spec wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub way: Way,
    /// What the files of an episode may take, where they can be given a limit of their own.
    pub disk_bytes: Option<u64>,
    /// The size of /dev/shm, where it can be given one.
    pub shm_bytes: Option<u64>,
    /// What is put back where there is no overlay, as far as it is little: where commands work and live.
    pub places: Vec<Vec<u8>>,
}

/// A tier, or the best one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The best that takes nothing from commands.
    Auto,
    Overlay,
    Tracked,
    None,
}

impl Wanted {
    /// From `SANDLOT_RESET`, `SANDLOT_DISK_BYTES` and `SANDLOT_SHM_BYTES`.
    ///
    /// # Errors
    /// `bad_request` for a tier that nobody knows, and for a size that is no number.
    pub fn of(environment: &Environment, places: Vec<Vec<u8>>) -> Result<Self> {
        let way = match environment.setting("RESET").unwrap_or("auto") {
            "auto" => Way::Auto,
            "overlay" => Way::Overlay,
            "tracked" => Way::Tracked,
            "none" => Way::None,
            other => return Err(Error::new(Code::BadRequest, format!("SANDLOT_RESET={other:?} is not known"))),
        };
        let (disk_bytes, shm_bytes) = (environment.number("DISK_BYTES")?, environment.number("SHM_BYTES")?);
        Ok(Wanted { way, disk_bytes, shm_bytes, places })
    }
}

/// What was had.
#[derive(Debug)]
pub struct Tier {
    pub features: &'static [&'static str],
    pub hooks: Box<dyn Hooks>,
}

/// Enter the best tier that can be had. The process has one thread, no children, and can still be looked into.
///
/// With `overlay` the standing becomes that of root in a user namespace.
///
/// # Errors
/// Only what left the process half in and half out.
pub fn enter(wanted: Wanted, watched: Watched, standing: &mut Standing) -> Result<Tier> {
    let may_have_overlay = match wanted.way {
        Way::None | Way::Tracked => false,
        Way::Overlay => standing.may_change_user(),
        Way::Auto => standing.may_change_user() && low_ports_are_free(),
    };
    if !may_have_overlay {
        return Ok(in_place(&wanted, watched, standing));
    }
    let memory = watched.usage().memory_limit_bytes;
    match renewed::prepare(Sizes { disk: wanted.disk_bytes, shm: wanted.shm_bytes, memory }) {
        Ok(prepared) => {
            let undoing = Undoing::Overlay(Box::new(renewed::enter(prepared)?));
            standing.is_admin = true;
            Ok(Tier { features: &["reset-overlay"], hooks: Box::new(InContainer { watched, undoing }) })
        }
        Err(error) => {
            eprintln!("sandlotd: no episodes in namespaces of their own: {error}");
            Ok(in_place(&wanted, watched, standing))
        }
    }
}

/// In the container as it is: what is changed is put back, or nothing can be undone.
fn in_place(wanted: &Wanted, watched: Watched, standing: &Standing) -> Tier {
    let tracking = match wanted.way {
        Way::Auto | Way::Tracked => Tracking::begin(&wanted.places, watched.usage().memory_limit_bytes, standing),
        Way::Overlay | Way::None => Err(Error::new(Code::Unsupported, "it is not wanted")),
    };
    let (features, undoing): (&[_], _) = match tracking {
        Ok(tracking) => (&["reset-tracked"], Undoing::Tracked(Box::new(tracking))),
        Err(error) => {
            eprintln!("sandlotd: this container cannot be reset: {error}");
            (&[], Undoing::Nothing)
        }
    };
    Tier { features, hooks: Box::new(InContainer { watched, undoing }) }
}

/// Root of a user namespace has no say over the pod's network, and needs none where everybody may listen on low ports. A
/// kernel that knows user namespaces and not this number is gVisor's, which keeps no ports back.
fn low_ports_are_free() -> bool {
    match std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start") {
        Ok(text) => text.trim() == "0",
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}
