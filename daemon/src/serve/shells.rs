//! Persistent shells between and during their runs.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;

use super::memory::Lived;
use super::{Child, Server, Subject, microseconds};
use crate::cgroup::Leaf;
use crate::commands::{Number, Outcome, Pipe, Process, State};
use crate::error::{Code, Error, Result};
use crate::output::Store;
use crate::process::driver::{self, Numbers};
use crate::process::reaper::{Death, Ending};
use crate::process::script::write_all;
use crate::process::table;
use crate::process::tree::{self, Tree};
use crate::reactor::Interest;

/// Output of background children that comes between two runs; the next run begins with the end of it.
const BETWEEN_BYTES: usize = 64 * 1024;
/// How long what a run has started may take to die before the next look.
const INTERRUPT_STEP: Duration = Duration::from_millis(50);
/// Looks at what a run goes on starting, before its shell is taken for busy itself.
const INTERRUPT_ROUNDS: u32 = 10;
/// The most that is read of one pipe at the end of a run.
const DRAIN_BYTES: usize = 1024 * 1024;

/// A shell, alive or remembered until it is closed.
#[derive(Debug)]
pub(crate) struct Shell {
    pub key: String,
    pub program: Vec<u8>,
    pub process: Process,
    control: Option<Control>,
    outputs: [Option<Pipe>; 2],
    /// What has come since the last run.
    between: [Store; 2],
    run: Option<Run>,
    /// Where it was last seen.
    pub cwd: Vec<u8>,
    /// The client is done with it.
    closed: bool,
}

/// Our ends of the control descriptors.
#[derive(Debug)]
pub(crate) struct Control {
    pub numbers: Numbers,
    /// Holds the script of a run.
    pub script: OwnedFd,
    pub go: OwnedFd,
    pub status: OwnedFd,
    /// What has come of a status.
    pub said: Vec<u8>,
}

/// What a shell is busy with.
#[derive(Debug)]
struct Run {
    number: Number,
    /// Of the machine's clock, and CPU ticks of the shell.
    began: u64,
    ticks: (u64, u64),
    oom_kills: u64,
    /// Times that it was told to stop.
    interrupts: u32,
}

/// All shells, by number.
#[derive(Debug, Default)]
pub(crate) struct Shells {
    table: BTreeMap<u64, Shell>,
    last: u64,
}

impl Shells {
    pub fn find(&self, key: &str) -> Option<u64> {
        self.table.iter().find(|(_, shell)| shell.key == key).map(|(number, _)| *number)
    }

    pub fn get(&self, number: u64) -> Option<&Shell> {
        self.table.get(&number)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn remove(&mut self, number: u64) -> Option<Shell> {
        self.table.remove(&number)
    }
}

impl Shell {
    pub fn is_alive(&self) -> bool {
        self.process.death.is_none()
    }

    pub fn is_busy(&self) -> bool {
        self.run.is_some()
    }

    /// Processes that were started since a moment, or all, the shell itself not among them.
    fn started_since(&self, moment: u64) -> Vec<u32> {
        let entries = table::scan();
        let recent =
            |entry: &table::Entry| entry.started >= moment && entry.pid != self.process.pid && entry.state != 'Z';
        let members = self.process.tree.pids();
        let mine = entries.iter().filter(|entry| members.contains(&entry.pid) && recent(entry));
        mine.map(|entry| entry.pid).collect()
    }
}

impl Server {
    /// Enter a shell that was just started, and watch it.
    pub(crate) fn add_shell(
        &mut self,
        key: &str,
        program: &[u8],
        process: Process,
        control: Control,
        outputs: [Pipe; 2],
    ) {
        self.shells.last += 1;
        let number = self.shells.last;
        for (stream, pipe) in outputs.iter().enumerate() {
            self.watch(&pipe.fd, Subject::ShellOutput(number, stream));
        }
        self.watch(&control.status, Subject::ShellStatus(number));
        self.children.insert(process.pid, Child::Shell(number));
        let between = || Store::new(crate::message::Mode::Collect, crate::message::Keep::Tail, BETWEEN_BYTES);
        let shell = Shell {
            key: key.to_owned(),
            program: program.to_vec(),
            process,
            control: Some(control),
            outputs: outputs.map(Some),
            between: [between(), between()],
            run: None,
            cwd: Vec::new(),
            closed: false,
        };
        self.shells.table.insert(number, shell);
    }

    fn watch(&self, fd: &OwnedFd, subject: Subject) {
        if let Err(errno) = self.reactor.add(fd, subject.token(), Interest::Read) {
            eprintln!("sandlotd: epoll_ctl: {errno}");
        }
    }

    /// Let a shell run a script under a command's number.
    ///
    /// # Errors
    /// `gone` when it is dead.
    pub(crate) fn run_in_shell(&mut self, number: u64, run: (Number, bool), script: &[u8]) -> Result<()> {
        let dead = || Error::new(Code::NoSuchKey, "the shell has ended");
        let shell = self.shells.table.get_mut(&number).ok_or_else(dead)?;
        let control = shell.control.as_ref().ok_or_else(dead)?;
        let pid = shell.process.pid;
        let (command, merge) = run;
        shell.run = Some(Run {
            number: command,
            began: table::ticks_now(),
            ticks: table::read(pid).map_or((0, 0), |entry| entry.ticks),
            oom_kills: shell.process.tree.leaf().map_or(self.context.hooks.memory_kills(), Leaf::oom_kills),
            interrupts: 0,
        });
        let begin = || {
            rustix::fs::ftruncate(&control.script, 0)?;
            rustix::fs::seek(&control.script, rustix::fs::SeekFrom::Start(0))?;
            write_all(&control.script, &control.numbers.prologue())?;
            write_all(&control.script, script)?;
            write_all(&control.go, driver::go_line(merge))
        };
        if let Err(errno) = begin() {
            shell.run = None;
            return Err(match errno {
                Errno::PIPE => dead(),
                errno => Error::system("hand a script to a shell", errno),
            });
        }
        Ok(())
    }

    /// What came between runs is the beginning of this one.
    pub(crate) fn take_between(&mut self, number: u64) -> [Vec<u8>; 2] {
        let Some(shell) = self.shells.table.get_mut(&number) else { return [Vec::new(), Vec::new()] };
        shell.between.each_mut().map(Store::take)
    }

    pub(super) fn shell_output_ready(&mut self, number: u64, stream: usize) {
        self.read_shell(number, stream, self.scratch.len());
    }

    /// Read at most about `limit` bytes that are there now.
    fn read_shell(&mut self, number: u64, stream: usize, limit: usize) {
        let Some(shell) = self.shells.table.get_mut(&number) else { return };
        let mut left = limit;
        while let Some(pipe) = &shell.outputs[stream]
            && left > 0
        {
            let count = match rustix::io::read(&pipe.fd, &mut self.scratch[..]) {
                Ok(count) if count > 0 => count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                _ => {
                    shell.outputs[stream] = None;
                    return;
                }
            };
            left = left.saturating_sub(count);
            let command = shell.run.as_ref().and_then(|run| self.commands.get_mut(run.number));
            let store = match command {
                // A merged run has one stream.
                Some(command) if stream == 1 && command.merge => &mut command.outputs[0].store,
                Some(command) => &mut command.outputs[stream].store,
                None => &mut shell.between[stream],
            };
            store.append(&self.scratch[..count]);
        }
    }

    pub(super) fn shell_status_ready(&mut self, number: u64) {
        let Some(shell) = self.shells.table.get_mut(&number) else { return };
        let Some(control) = &mut shell.control else { return };
        match rustix::io::read(&control.status, &mut self.scratch[..driver::MAX_STATUS_BYTES]) {
            Ok(count) if count > 0 => control.said.extend_from_slice(&self.scratch[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            // Its death will say the rest.
            _ => {
                if let Err(errno) = self.reactor.remove(&control.status) {
                    eprintln!("sandlotd: epoll_ctl: {errno}");
                }
                return;
            }
        }
        let status = driver::parse_status(&mut control.said);
        match (status, shell.run.is_some()) {
            (Ok(None), _) => {}
            (Ok(Some(status)), true) => {
                shell.cwd = status.cwd;
                self.end_run(number, Ok(Ending::Code(status.code)), true);
            }
            _ => self.kill_shell(number),
        }
    }

    /// The shell's run is over; make its result.
    fn end_run(&mut self, number: u64, ending: Result<Ending>, alive: bool) {
        for stream in 0..2 {
            self.read_shell(number, stream, DRAIN_BYTES);
        }
        let Some(shell) = self.shells.table.get_mut(&number) else { return };
        let Some(run) = shell.run.take() else { return };
        let Some(command) = self.commands.get(run.number) else { return };
        let leaf = shell.process.tree.leaf();
        let death = shell.process.death.as_ref();
        let now = table::read(shell.process.pid).map(|entry| entry.ticks);
        let since = |now: u64, then: u64| table::ticks_to_us(now.saturating_sub(then));
        let (user_us, system_us) = match (now, death) {
            (Some(now), _) => (since(now.0, run.ticks.0), since(now.1, run.ticks.1)),
            (None, Some(death)) => (
                death.user_us.saturating_sub(table::ticks_to_us(run.ticks.0)),
                death.system_us.saturating_sub(table::ticks_to_us(run.ticks.1)),
            ),
            (None, None) => (0, 0),
        };
        let oom = match (leaf, &ending) {
            (Some(leaf), _) => leaf.oom_kills() > run.oom_kills,
            (None, Ok(ending)) => {
                let since = run.oom_kills..self.context.hooks.memory_kills();
                self.memory_kills.claim(since, Lived::InCompany(*ending))
            }
            (None, Err(_)) => false,
        };
        let outcome = Outcome {
            ending,
            timed_out: command.timed_out,
            oom,
            wall_us: microseconds(command.started.elapsed()),
            user_us,
            system_us,
            peak_bytes: leaf.and_then(Leaf::peak_bytes),
            shell: Some((shell.cwd.clone(), alive)),
        };
        self.commands.end(run.number, outcome);
        self.deliver(run.number);
        self.commands.drop_if_done(run.number);
    }

    /// Stop what a run has started; if that is the shell itself, or goes on for ever, stop the shell.
    pub(super) fn interrupt_run(&mut self, number: u64) {
        let Some(shell) = self.shells.table.get_mut(&number) else { return };
        let Some(run) = &mut shell.run else { return };
        run.interrupts += 1;
        let (rounds, command, began) = (run.interrupts, run.number, run.began);
        // A tick earlier: the clock of processes is coarse.
        let victims = shell.started_since(began.saturating_sub(1));
        if rounds > INTERRUPT_ROUNDS || (victims.is_empty() && rounds > 1) {
            return self.kill_shell(number);
        }
        for pid in victims.into_iter().filter_map(tree::pid_of) {
            if let Err(errno) = tree::kill(pid, Signal::KILL) {
                eprintln!("sandlotd: kill: {errno}");
            }
        }
        self.commands.set_deadline(command, Some(Instant::now() + INTERRUPT_STEP));
    }

    /// Kill a shell and everything it has started.
    pub(crate) fn kill_shell(&mut self, number: u64) {
        let Some(shell) = self.shells.table.get_mut(&number) else { return };
        if let Err(errno) = shell.process.kill_tree(self.context.hooks.company()) {
            eprintln!("sandlotd: kill of a shell: {errno}");
        }
    }

    pub(super) fn shell_died(&mut self, number: u64, death: &Death) {
        let Some(shell) = self.shells.table.get_mut(&number) else { return };
        shell.process.death = Some(*death);
        shell.control = None;
        let ending = match shell.process.report.failure() {
            Some((stage, errno)) => Err(super::running::launch_error(stage, errno)),
            None => Ok(death.ending),
        };
        self.end_run(number, ending, false);
        let Some(shell) = self.shells.table.get_mut(&number) else { return };
        let pipes = shell.outputs.each_mut().map(Option::take);
        let rest = Tree::Nobody { leaf: None };
        if let Some(leaf) = std::mem::replace(&mut shell.process.tree, rest).into_leaf() {
            self.context.leaves.recycle(leaf);
        }
        let closed = shell.closed;
        pipes.into_iter().flatten().for_each(|pipe| self.retire(pipe));
        if closed {
            self.shells.remove(number);
        }
    }

    /// Which shell a run belongs to, while it runs.
    pub(super) fn shell_of(&self, number: Number) -> Option<u64> {
        match self.commands.get(number)?.state {
            State::InShell(shell) => Some(shell),
            _ => None,
        }
    }

    /// The client has closed a shell: its death ends its run, and then nothing remembers it.
    pub(crate) fn close_shell_when_dead(&mut self, number: u64) {
        if let Some(shell) = self.shells.table.get_mut(&number) {
            shell.closed = true;
            shell.key = String::new();
        }
    }

    pub(crate) fn forget_shells(&mut self) {
        self.shells.table.clear();
    }
}
