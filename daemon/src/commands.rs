//! The commands of a sandbox: running ones, and finished ones whose results wait to be fetched.
//!
//! State only: no process is started and nothing is sent from here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::cgroup::Leaf;
use crate::error::{Code, Error, Result};
use crate::limits::{MAX_COMMANDS, MAX_KEY_CHARS, MAX_RESULT_BYTES, MAX_RESULTS};
use crate::message::{Kill, Mode};
use crate::output::Store;
use crate::process::child::Report;
use crate::process::input::Input;
use crate::process::reaper::{Death, Ending};
use crate::process::spawn::Spawned;
use crate::process::tree::{self, Company, Tree};

/// A command's name inside the daemon, never used twice.
pub type Number = u64;

/// One command: a process of its own, or one run of a persistent shell.
#[derive(Debug)]
pub struct Command {
    pub key: String,
    /// Of its first process, or of its shell.
    pub pid: u32,
    pub mode: Mode,
    pub kill: Kill,
    /// Both streams are the first one.
    pub merge: bool,
    pub state: State,
    /// Standard output and standard error.
    pub outputs: [Output; 2],
    pub input: Option<Input>,
    pub watcher: Option<Watcher>,
    /// When it is to be killed.
    pub deadline: Option<Instant>,
    pub timed_out: bool,
    pub cancelled: bool,
    pub started: Instant,
    pub spawn_us: u64,
    /// The client wants no result: it goes when it is over.
    pub forgotten: bool,
    /// Kept while it is uncertain whether the shell that waited for it has got it.
    pub handed: Option<Handed>,
}

/// A script given to a shell that had waited.
#[derive(Debug)]
pub struct Handed {
    /// Our end of what it went through.
    pub channel: OwnedFd,
    pub script: Vec<u8>,
    pub cwd: OwnedFd,
}

impl Handed {
    /// The shell died before it had read the script, killed for a reason older than the command: nothing was run.
    pub fn was_unread(&self) -> bool {
        matches!(rustix::net::sockopt::socket_error(&self.channel), Ok(Err(Errno::CONNRESET)))
    }
}

#[derive(Debug)]
pub enum State {
    Running(Process),
    /// A run of the shell with this number.
    InShell(u64),
    Ended(Box<Outcome>),
}

/// A command's first process, and what stands for its tree.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub report: Arc<Report>,
    pub tree: Tree,
    /// How many kills for memory the sandbox had counted when it began.
    pub memory_kills: u64,
    /// Which beginning of all it was, where no other command lived then.
    pub alone: Option<u64>,
    /// When its tree was told to die.
    pub killed: Option<Instant>,
    /// It is dead and reaped; its tree may not be.
    pub death: Option<Death>,
}

/// One output stream of a command.
#[derive(Debug)]
pub struct Output {
    pub store: Store,
    /// Our end, until nothing more is taken from it.
    pub pipe: Option<Pipe>,
}

#[derive(Debug)]
pub struct Pipe {
    pub fd: OwnedFd,
    /// The reactor reports when it is readable.
    pub watched: bool,
}

/// The call that follows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watcher {
    pub link: u64,
    pub id: u32,
    /// Output is wanted, not only the exit.
    pub output: bool,
    /// Offsets up to which output was sent, and up to which the client has it.
    pub sent: [u64; 2],
    pub acknowledged: [u64; 2],
}

impl Watcher {
    /// Everything from the first byte on.
    pub fn from_start(link: u64, id: u32) -> Self {
        Watcher { link, id, output: true, sent: [0; 2], acknowledged: [0; 2] }
    }
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// An error when it could not be started, although a process was made.
    pub ending: Result<Ending>,
    pub timed_out: bool,
    pub oom: bool,
    pub wall_us: u64,
    pub user_us: u64,
    pub system_us: u64,
    pub peak_bytes: Option<u64>,
    /// After a run of a shell: its working directory, and whether the shell lives.
    pub shell: Option<(Vec<u8>, bool)>,
}

impl Command {
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    pub fn process(&self) -> Option<&Process> {
        match &self.state {
            State::Running(process) => Some(process),
            _ => None,
        }
    }

    pub fn process_mut(&mut self) -> Option<&mut Process> {
        match &mut self.state {
            State::Running(process) => Some(process),
            _ => None,
        }
    }

    /// Its controlling terminal, while it runs.
    pub fn terminal(&self) -> Option<BorrowedFd<'_>> {
        let input = self.input.as_ref().filter(|input| input.is_terminal());
        input.and_then(Input::fd)
    }

    fn held(&self) -> u64 {
        self.outputs.iter().map(|output| output.store.held() as u64).sum()
    }
}

impl Process {
    pub fn new(spawned: &Spawned, leaf: Option<Leaf>) -> Self {
        let tree = match (&spawned.keeper, leaf) {
            (Some(keeper), leaf) => Tree::Kept { charge: Arc::clone(keeper.charge()), leaf },
            (None, Some(leaf)) if leaf.holds_tree() => Tree::Leaf(leaf),
            (None, leaf) => Tree::Nobody { leaf },
        };
        let report = Arc::clone(&spawned.report);
        Process { pid: spawned.pid, report, tree, memory_kills: 0, alone: None, killed: None, death: None }
    }

    pub fn signal_leader(&self, signal: Signal) -> rustix::io::Result<()> {
        // While it is not reaped, its pid is nobody else's.
        match (self.death, tree::pid_of(self.pid)) {
            (None, Some(pid)) => tree::kill(pid, signal),
            _ => Ok(()),
        }
    }

    /// The leader leads a session and a group of its own.
    pub fn signal_group(&self, signal: Signal) -> rustix::io::Result<()> {
        match (self.death, tree::pid_of(self.pid)) {
            (None, Some(pid)) => tree::kill_group(pid, signal),
            _ => Ok(()),
        }
    }

    pub fn kill_tree(&mut self, company: Company) -> rustix::io::Result<()> {
        self.killed.get_or_insert_with(Instant::now);
        // What has grown until the memory is used up is mostly one group. That needs no look around, which takes memory.
        let group = if self.tree.kills_at_once() { Ok(()) } else { self.signal_group(Signal::KILL) };
        self.tree.kill(company).and(group)
    }

    /// Its tree was killed, and something of it is still there.
    pub fn is_tree_dying(&self) -> bool {
        self.killed.is_some() && self.tree.is_populated()
    }
}

/// All commands, by number and by key.
#[derive(Debug, Default)]
pub struct Commands {
    table: BTreeMap<Number, Command>,
    by_key: HashMap<String, Number>,
    deadlines: BTreeSet<(Instant, Number)>,
    last: Number,
    /// How many have begun.
    begun: u64,
    live: usize,
}

impl Commands {
    pub fn get(&self, number: Number) -> Option<&Command> {
        self.table.get(&number)
    }

    pub fn get_mut(&mut self, number: Number) -> Option<&mut Command> {
        self.table.get_mut(&number)
    }

    pub fn find(&self, key: &str) -> Option<Number> {
        self.by_key.get(key).copied()
    }

    pub fn numbers(&self) -> Vec<Number> {
        self.table.keys().copied().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Number, &Command)> {
        self.table.iter().map(|(number, command)| (*number, command))
    }

    pub fn live(&self) -> usize {
        self.live
    }

    /// Which beginning the next one will be, if no other command lives now.
    pub fn alone(&self) -> Option<u64> {
        (self.live == 0).then_some(self.begun + 1)
    }

    /// Whether no other command has lived at any time since a beginning that was [`Commands::alone`].
    pub fn was_alone(&self, beginning: Option<u64>) -> bool {
        beginning == Some(self.begun)
    }

    /// Whether one more may begin.
    ///
    /// # Errors
    /// `bad_request` for an impossible key, `too_many` when results must be fetched or commands must end first.
    pub fn admit(&self, key: &str) -> Result<()> {
        check_key(key)?;
        if self.live >= MAX_COMMANDS {
            return Err(Error::new(Code::TooMany, format!("{MAX_COMMANDS} commands are running")));
        }
        if self.table.len() - self.live >= MAX_RESULTS {
            return Err(Error::new(Code::TooMany, format!("{MAX_RESULTS} results wait to be fetched and forgotten")));
        }
        // Walking the table is cheap beside a process, and no counter can go wrong.
        if self.table.values().map(Command::held).sum::<u64>() >= MAX_RESULT_BYTES {
            return Err(Error::new(Code::TooMany, "too much output waits to be fetched and forgotten"));
        }
        Ok(())
    }

    /// A number for a command to come.
    pub fn reserve(&mut self) -> Number {
        self.last += 1;
        self.last
    }

    /// Enter a command under a reserved number.
    pub fn insert(&mut self, number: Number, command: Command) {
        self.by_key.insert(command.key.clone(), number);
        if let Some(deadline) = command.deadline {
            self.deadlines.insert((deadline, number));
        }
        self.live += 1;
        self.begun += 1;
        self.table.insert(number, command);
    }

    /// A command is over; what it held of the system comes back.
    pub fn end(&mut self, number: Number, outcome: Outcome) -> Option<State> {
        let command = self.table.get_mut(&number).filter(|command| !command.is_over())?;
        if let Some(deadline) = command.deadline.take() {
            self.deadlines.remove(&(deadline, number));
        }
        self.live -= 1;
        command.outputs.iter_mut().for_each(|output| output.store.finish());
        Some(std::mem::replace(&mut command.state, State::Ended(Box::new(outcome))))
    }

    /// Replace the moment at which a running command is looked at again.
    pub fn set_deadline(&mut self, number: Number, deadline: Option<Instant>) {
        let Some(command) = self.table.get_mut(&number) else { return };
        if let Some(old) = command.deadline.take() {
            self.deadlines.remove(&(old, number));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, number));
        }
        command.deadline = deadline;
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// A command whose deadline has passed; it has none from here on.
    pub fn take_expired(&mut self, now: Instant) -> Option<Number> {
        let (deadline, number) = *self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        self.deadlines.remove(&(deadline, number));
        if let Some(command) = self.table.get_mut(&number) {
            command.deadline = None;
        }
        Some(number)
    }

    /// The client has the result of `key`, or wants none.
    pub fn forget(&mut self, key: &str) {
        let Some(number) = self.find(key) else { return };
        if let Some(command) = self.table.get_mut(&number) {
            command.forgotten = true;
        }
        self.drop_if_done(number);
    }

    /// Drop a command that is over, forgotten and followed by nobody.
    pub fn drop_if_done(&mut self, number: Number) {
        let done = |command: &&Command| command.forgotten && command.is_over() && command.watcher.is_none();
        if self.table.get(&number).filter(done).is_some()
            && let Some(command) = self.table.remove(&number)
        {
            self.by_key.remove(&command.key);
        }
    }

    /// Drop every result. Commands that still run stay. Returns who still waited for one of them.
    pub fn drop_results(&mut self) -> Vec<Watcher> {
        let over: Vec<Number> =
            self.iter().filter(|(_, command)| command.is_over()).map(|(number, _)| number).collect();
        let dropped = over.into_iter().filter_map(|number| self.table.remove(&number));
        dropped
            .filter_map(|command| {
                self.by_key.remove(&command.key);
                command.watcher
            })
            .collect()
    }
}

/// # Errors
/// `bad_request` for a key that is empty or longer than `max_key_chars`.
pub fn check_key(key: &str) -> Result<()> {
    if key.is_empty() || key.chars().count() > MAX_KEY_CHARS {
        return Err(Error::new(Code::BadRequest, format!("a key has 1 to {MAX_KEY_CHARS} characters")));
    }
    Ok(())
}
