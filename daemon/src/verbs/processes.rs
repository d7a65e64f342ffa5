//! `processes`: who lives in the sandbox, without the daemon's own.

use std::collections::HashMap;

use crate::error::Result;
use crate::message::{ProcessEntry, Processes, Reply};
use crate::process::table::{self, Entry, MAX_PROCESSES};
use crate::serve::Server;

impl Server {
    pub(super) fn processes(&mut self, link: u64, id: u32) -> Result<()> {
        let processes = self.list_processes();
        self.reply(link, &Reply::OkProcesses(Processes { id, processes: &processes }));
        Ok(())
    }

    /// Every process but the daemon's own, each with the command it came from where that can be told.
    pub(crate) fn list_processes(&mut self) -> Vec<ProcessEntry> {
        let entries = table::scan();
        let own = std::process::id();
        let foreign = entries.iter().filter(|entry| entry.pid != own && !self.is_own(entry));
        let told: Vec<&Entry> = foreign.take(MAX_PROCESSES).collect();
        let arguments = self.arguments.read(told.iter().map(|entry| entry.pid));
        let keys = self.keys_by_pid();
        let process = |(entry, argv): (&Entry, _)| ProcessEntry {
            pid: entry.pid,
            ppid: entry.ppid,
            uid: table::uid(entry.pid),
            state: entry.state.to_string(),
            name: entry.name.clone(),
            argv,
            key: find_key(entry, &entries, &keys).map(str::to_owned),
        };
        told.into_iter().zip(arguments).map(process).collect()
    }

    /// How many there are of those that a reset ends: not the daemon's own, and not who has come in from outside.
    pub(super) fn count_processes(&self) -> u32 {
        let own = std::process::id();
        let entries = table::scan();
        let ends = |entry: &&Entry| entry.pid != own && entry.ppid != 0 && entry.state != 'Z' && !self.is_own(entry);
        u32::try_from(entries.iter().filter(ends).count()).unwrap_or(u32::MAX)
    }

    fn keys_by_pid(&self) -> HashMap<u32, &str> {
        self.commands.iter().map(|(_, command)| (command.pid, command.key.as_str())).collect()
    }
}

/// A command leads a session: its processes are in it, or have an ancestor that is.
fn find_key<'a>(entry: &Entry, entries: &[Entry], keys: &HashMap<u32, &'a str>) -> Option<&'a str> {
    let mut current = entry;
    // Pids can be used again while we look: no chain is followed for ever.
    for _ in 0..entries.len() {
        if let Some(key) = keys.get(&current.pid).or_else(|| keys.get(&current.session)) {
            return Some(key);
        }
        let parent = entries.binary_search_by_key(&current.ppid, |entry| entry.pid).ok()?;
        current = &entries[parent];
    }
    None
}
