//! The arguments of processes, read so that no process can hold up who asks.
//!
//! The kernel takes them from the memory of the process itself and waits for whoever is changing that memory. Processes
//! that fork without end at their memory limit are always changing it: one such read can take minutes.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::UnshareFlags;
use serde_bytes::ByteBuf;

/// Arguments told of one process.
const MAX_ARGV_BYTES: u64 = 4096;
/// What all reads of one call may take together: a hundred times what those of a full table take on a busy machine.
const PATIENCE: Duration = Duration::from_millis(500);
const STACK_BYTES: usize = 64 * 1024;

/// Reads arguments on a thread for the call, of which there is at most one: while it is held up, none are told.
#[derive(Debug, Default)]
pub struct Arguments {
    thread: Option<JoinHandle<()>>,
}

impl Arguments {
    /// The arguments of each process, cut to what is told of them; none where they could not be read in time.
    pub fn read(&mut self, pids: impl IntoIterator<Item = u32>) -> Vec<Vec<ByteBuf>> {
        self.read_files(pids.into_iter().map(|pid| format!("/proc/{pid}/cmdline").into()).collect(), PATIENCE)
    }

    /// Wait for the thread. It is held up by living processes only: call this when there are none.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic was told when it happened.
            let _ = thread.join();
        }
    }

    fn read_files(&mut self, paths: Vec<PathBuf>, patience: Duration) -> Vec<Vec<ByteBuf>> {
        let mut found = vec![Vec::new(); paths.len()];
        if paths.is_empty() || self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return found;
        }
        let (sender, answers) = channel();
        let thread = std::thread::Builder::new().name("argv".to_owned()).stack_size(STACK_BYTES);
        match thread.spawn(move || read_all(&paths, &sender)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => eprintln!("sandlotd: no thread for arguments: {error}"),
        }
        collect(&mut found, &answers, Instant::now() + patience);
        found
    }
}

fn collect(found: &mut [Vec<ByteBuf>], answers: &Receiver<Vec<ByteBuf>>, until: Instant) {
    for place in found {
        match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(argv) => *place = argv,
            Err(_) => break,
        }
    }
}

fn read_all(paths: &[PathBuf], answers: &Sender<Vec<ByteBuf>>) {
    // As for all threads here: the main thread changes its mount namespace, which needs a root that is its alone.
    if let Err(error) = crate::namespaces::unshare(UnshareFlags::FS) {
        eprintln!("sandlotd: a thread for arguments: {error}");
    }
    for path in paths {
        // Nobody waits any more: the answer would be of no use.
        if answers.send(read_one(path).unwrap_or_default()).is_err() {
            break;
        }
    }
}

fn read_one(path: &PathBuf) -> std::io::Result<Vec<ByteBuf>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_ARGV_BYTES).read_to_end(&mut bytes)?;
    let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    Ok(text.split(|byte| *byte == 0).map(|item| ByteBuf::from(item.to_vec())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is gone has none.
    #[test]
    fn arguments_come_in_the_order_of_the_question() {
        let own: Vec<ByteBuf> = std::env::args().map(|item| ByteBuf::from(item.into_bytes())).collect();
        let mut arguments = Arguments::default();
        let found = arguments.read([u32::MAX, std::process::id()]);
        assert_eq!(found, [Vec::<ByteBuf>::new(), own]);
        arguments.join();
        assert_eq!(arguments.read([]).len(), 0);
    }

    /// What was read before is told; until the read ends there is no second thread.
    #[test]
    fn a_read_that_hangs_holds_up_nobody() {
        let directory = std::env::temp_dir().join(format!("sandlot-arguments-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let (plain, hanging) = (directory.join("plain"), directory.join("hanging"));
        std::fs::write(&plain, "a\0b\0").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &hanging, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();

        let mut arguments = Arguments::default();
        let short = Duration::from_millis(50);
        let both = vec![ByteBuf::from("a"), ByteBuf::from("b")];
        let paths = vec![plain.clone(), hanging.clone(), plain.clone()];
        let patience = Duration::from_secs(1);
        assert_eq!(arguments.read_files(paths, patience), [both.clone(), vec![], vec![]]);
        assert_eq!(arguments.read_files(vec![plain.clone()], short), [Vec::<ByteBuf>::new()]);

        drop(File::options().write(true).open(&hanging).unwrap());
        arguments.join();
        assert_eq!(arguments.read_files(vec![plain], Duration::from_secs(30)), [both]);
        arguments.join();
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
