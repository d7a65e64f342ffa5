//! The process table, from `/proc`: names in it are the sandbox's own words.
//!
//! Only what the kernel tells without looking into a process's memory is read here (see [`super::arguments`]).

use std::collections::BTreeMap;

/// Processes told of in one answer, so that it fits its frame with the longest arguments.
pub const MAX_PROCESSES: usize = 400;

/// What `/proc/PID/stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub pid: u32,
    pub ppid: u32,
    pub session: u32,
    pub state: char,
    pub name: Vec<u8>,
    /// Its own CPU time and that of the children it waited for, in clock ticks: user, system.
    pub ticks: (u64, u64),
    /// Clock ticks from the machine's start to its own.
    pub started: u64,
}

/// All processes of this process namespace, this one included, in order of their pids.
pub fn scan() -> Vec<Entry> {
    let Ok(directory) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = directory.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut entries: Vec<Entry> = pids.filter_map(read).collect();
    entries.sort_unstable_by_key(|entry| entry.pid);
    entries
}

/// One process, if it is there.
pub fn read(pid: u32) -> Option<Entry> {
    entry(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// gVisor says 0 of one that is just being reaped: it is gone, and whoever has no parent is no child of it.
fn entry(pid: u32, stat: &[u8]) -> Option<Entry> {
    parse(stat).filter(|entry| entry.pid == pid)
}

/// The name is in parentheses and may hold anything, parentheses and newlines included: the last one ends it.
fn parse(stat: &[u8]) -> Option<Entry> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(&stat[..open]).ok()?.trim().parse().ok()?;
    let name = stat.get(open + 1..close)?.to_vec();
    let rest = std::str::from_utf8(&stat[close + 1..]).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Entry {
        pid,
        name,
        state: fields.first()?.chars().next()?,
        ppid: u32::try_from(number(1)?).ok()?,
        session: u32::try_from(number(3)?).unwrap_or(0),
        ticks: (number(11)? + number(13)?, number(12)? + number(14)?),
        started: number(19)?,
    })
}

/// The descendants of a process among `entries`, itself not.
pub fn descendants(entries: &[Entry], of: u32) -> Vec<&Entry> {
    let mut children: BTreeMap<u32, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.pid != of) {
        children.entry(entry.ppid).or_default().push(entry);
    }
    let mut found = children.remove(&of).unwrap_or_default();
    let mut index = 0;
    while let Some(parent) = found.get(index).map(|entry| entry.pid) {
        found.extend(children.remove(&parent).unwrap_or_default());
        index += 1;
    }
    found
}

/// The moment now in clock ticks since the machine's start, as [`Entry::started`] counts.
pub fn ticks_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    u64::try_from(now.tv_sec).unwrap_or(0) * per_second + nanos * per_second / 1_000_000_000
}

/// Clock ticks as microseconds.
pub fn ticks_to_us(ticks: u64) -> u64 {
    ticks * 1_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// The user that a process acts as.
pub fn uid(pid: u32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).map_or(0, |metadata| metadata.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process may call itself what it likes.
    #[test]
    fn a_hostile_name_confuses_nobody() {
        let stat = b"42 (a) R 7 (\n) S 1 2 3 0 -1 4 5 6 7 8 10 20 30 40 20 0 1 0 99\n";
        let entry = parse(stat).unwrap();
        assert_eq!((entry.pid, entry.ppid, entry.session, entry.state), (42, 1, 3, 'S'));
        assert_eq!((entry.name.as_slice(), entry.ticks, entry.started), (&b"a) R 7 (\n"[..], (40, 60), 99));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b")("), None);
        assert_eq!(parse(b"1 (x) S"), None);
    }

    /// Its children would be those who have no parent, process 1 first of all.
    #[test]
    fn one_that_is_being_reaped_is_gone() {
        let rest = b"(sleep) Z 7 5 5 0 -1 4 5 6 7 8 10 20 30 40 20 0 1 0 99\n";
        assert_eq!(entry(42, &[b"0 ", &rest[..]].concat()), None);
        assert_eq!(entry(42, &[b"42 ", &rest[..]].concat()).map(|entry| entry.ppid), Some(7));
    }
}
