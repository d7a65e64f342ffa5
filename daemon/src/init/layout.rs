//! What an episode's root is made of, for telling what was changed in it.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};

use super::blueprint::{Blueprint, RootPlan, Surroundings, Target};
use super::episode::Episode;
use super::outer::Outer;
use crate::descriptors::duplicate;
use crate::error::{Error, Result};
use crate::files::{Layer, Layout};

/// Mounts that every overlay sandbox has beside its overlays.
const FURNITURE: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Mounts that it has when its root is read-only.
const WRITABLE: [&str; 2] = ["/tmp", "/run"];

/// The overlays with their upper and lower directories, and the other mounts. A bare sandbox has none of either.
pub fn layout(outer: &Outer, blueprint: &Blueprint, episode: &Episode) -> Result<Layout> {
    let RootPlan::Overlay { targets, read_only, .. } = &blueprint.root else { return Ok(Layout::default()) };
    let mut overlays = Vec::with_capacity(targets.len());
    for (number, (target, (path, upper))) in targets.iter().zip(&episode.uppers).enumerate() {
        overlays.push(Layer {
            target: path.as_bytes().to_vec(),
            upper: duplicate(upper)?,
            lowers: lowers(outer, number, target)?,
        });
    }
    let others = match &blueprint.surroundings {
        Surroundings::Made => {
            let writable = if *read_only { &WRITABLE[..] } else { &[] };
            FURNITURE.iter().chain(writable).map(|path| path.as_bytes().to_vec()).collect()
        }
        Surroundings::Carried(carried) => {
            let scratch = carried.scratch.iter().map(|(place, ..)| place);
            let places = carried.places.iter().chain(scratch).map(|place| place.as_bytes().to_vec());
            places.chain([b"/dev".to_vec()]).collect()
        }
    };
    Ok(Layout { overlays, others, record: None })
}

/// Topmost first, as the overlay was mounted.
fn lowers(outer: &Outer, number: usize, target: &Target) -> Result<Vec<OwnedFd>> {
    let base = (target.path == "/").then(|| "l/base".to_owned());
    let layers = (0..target.lowers).rev().map(|layer| format!("l/{number}/{layer}"));
    let open = |path: String| {
        openat(&outer.root, path.as_str(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Error::system("open a layer", errno))
    };
    base.into_iter().chain(layers).map(open).collect()
}
