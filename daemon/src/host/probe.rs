//! What this machine can do, for `doctor`: facts that were found by trying, and what is missing with a remedy each.

use std::collections::BTreeMap;

use super::plan::Machine;
use super::runtime::Runtime;
use super::trial::Trial;
use super::userns::Realm;
use crate::cgroup::hierarchy::{CONTROLLERS, Hierarchies};
use crate::confinement::Privileges;
use crate::message::Missing;

type Facts = BTreeMap<String, String>;

/// Facts by name, and what is missing.
pub fn probe(machine: &Machine, runtime: &Runtime) -> (Facts, Vec<Missing>) {
    let (mut facts, mut missing) = (Facts::new(), machine.missing.clone());
    let mut fact = |name: &str, value: String| drop(facts.insert(name.to_owned(), value));
    let kernel = rustix::system::uname();
    fact("kernel", kernel.release().to_string_lossy().into_owned());
    fact("mode", machine.mode.name().to_owned());
    fact("root_of", if machine.realm == Realm::Machine { "the machine" } else { "a user namespace" }.to_owned());
    fact("users", if machine.privileges == Privileges::Range { "65536 ids" } else { "one id" }.to_owned());
    fact("runtime_dir", runtime.path.display().to_string());
    fact("disk_dir", machine.disks.display().to_string());
    fact(
        "shared_directories",
        machine.shared.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" "),
    );
    kernel_features(&machine.trial, &mut facts, &mut missing);
    cgroups(&machine.hierarchies, &mut facts, &mut missing);
    (facts, missing)
}

fn kernel_features(trial: &Trial, facts: &mut Facts, missing: &mut Vec<Missing>) {
    let said = |refusal: Option<i32>| match refusal {
        None => "yes".to_owned(),
        Some(number) => format!("no: {}", std::io::Error::from_raw_os_error(number)),
    };
    facts.insert("own_proc".to_owned(), said(trial.proc));
    facts.insert("overlay_in_user_namespace".to_owned(), said(trial.overlay));
    facts.insert("idmapped_mounts".to_owned(), said(trial.idmap));
    facts.insert("tmpfs_attributes".to_owned(), said(trial.attributes));
    facts.insert("network_namespace".to_owned(), said(trial.network));
    if trial.attributes.is_some() {
        missing.push(Missing {
            what: "attributes on tmpfs".to_owned(),
            why:
                "this kernel's tmpfs keeps no user attributes, so a directory of the image that was removed cannot be \
                  made again while files are kept in memory"
                    .to_owned(),
            remedy: "Linux 6.6 with CONFIG_TMPFS_XATTR, or Spec(upper=\"disk\")".to_owned(),
        });
    }
}

fn cgroups(hierarchies: &Hierarchies, facts: &mut Facts, missing: &mut Vec<Missing>) {
    let version = match (hierarchies.unified_controllers, hierarchies.unified.is_some(), hierarchies.bases().count()) {
        (_, _, 0) => "none",
        (true, _, _) => "2",
        (false, true, 1) => "2, without controllers",
        (false, true, _) => "1, with the unified hierarchy beside it",
        (false, false, _) => "1",
    };
    facts.insert("cgroup_version".to_owned(), version.to_owned());
    facts.insert("cgroup_directories".to_owned(), directories(hierarchies));
    let killing = hierarchies.unified.as_ref().is_some_and(|base| base.path.join("cgroup.kill").exists());
    facts.insert("cgroup_kill".to_owned(), if killing { "yes" } else { "no" }.to_owned());
    for controller in CONTROLLERS {
        let enforced = hierarchies.enforces(controller);
        facts.insert(format!("cgroup_{controller}"), if enforced { "enforced" } else { "missing" }.to_owned());
        if !enforced {
            let why = hierarchies.refused.get(controller).cloned();
            missing.push(Missing {
                what: format!("limit: {controller}"),
                why: why.unwrap_or_else(|| "no cgroup with this controller may be made here".to_owned()),
                remedy: delegation(controller),
            });
        }
    }
    if hierarchies.unified.is_none() {
        missing.push(Missing {
            what: "the unified cgroup hierarchy".to_owned(),
            why: hierarchies.refused.get("unified").cloned().unwrap_or_else(|| "it is not mounted".to_owned()),
            remedy: "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified, and delegate a directory of it; without it \
                     nothing can be frozen and trees are killed one process at a time"
                .to_owned(),
        });
    }
}

fn directories(hierarchies: &Hierarchies) -> String {
    hierarchies.bases().map(|base| base.path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// How a user comes by a control group of its own.
fn delegation(controller: &str) -> String {
    format!(
        "run as root, or in a control group that is yours: systemd-run --user --scope -p Delegate=yes COMMAND; \
         without systemd, as root: mkdir /sys/fs/cgroup/{controller}/NAME, give it to the user, put the shell's pid into its cgroup.procs"
    )
}
