//! What this machine can do, for `doctor`.

use std::collections::BTreeMap;

use super::plan::Machine;
use super::runtime::Runtime;
use crate::cgroup::hierarchy::CONTROLLERS;
use crate::message::Missing;

/// Facts by name, and what is missing with a remedy each.
pub fn probe(machine: &Machine, runtime: &Runtime) -> (BTreeMap<String, String>, Vec<Missing>) {
    let mut facts = BTreeMap::new();
    let mut missing = machine.missing.clone();
    let kernel = rustix::system::uname();
    facts.insert("kernel".to_owned(), kernel.release().to_string_lossy().into_owned());
    facts.insert("runtime_dir".to_owned(), runtime.path.display().to_string());
    facts.insert("mode".to_owned(), machine.mode.name().to_owned());
    for controller in CONTROLLERS {
        let enforced = machine.hierarchies.enforces(controller);
        facts.insert(format!("cgroup_{controller}"), if enforced { "enforced" } else { "missing" }.to_owned());
        if !enforced {
            let why = machine.hierarchies.refused.get(controller).cloned().unwrap_or_default();
            missing.push(Missing { what: format!("limit: {controller}"), why, remedy: delegation(controller) });
        }
    }
    (facts, missing)
}

/// How a user comes by a control group of its own.
fn delegation(controller: &str) -> String {
    format!(
        "run as root, or in a control group that is yours: systemd-run --user --scope -p Delegate=yes COMMAND; \
         without systemd, as root: mkdir /sys/fs/cgroup/{controller}/NAME, give it to the user, put the shell's pid into its cgroup.procs"
    )
}
