//! Commands while they run: their output, their death, their timeout.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;

use super::memory::Lived;
use super::{Child, Ended, Server, Subject, microseconds};
use crate::cgroup::Leaf;
use crate::commands::{Handed, Number, Outcome, Pipe, Process, State};
use crate::error::{Code, Error};
use crate::message::Kill;
use crate::process::child::Stage;
use crate::process::reaper::{Death, Event};
use crate::process::tree::{self, Tree};
use crate::reactor::Interest;
use crate::sandbox::OnTerminate;

/// The most that is read of one pipe when its command is over: as much as a pipe may hold (`pipe-max-size`).
const DRAIN_BYTES: usize = 1024 * 1024;
/// How long a killed tree may take to be gone before its command is called over anyway (a process in
/// uninterruptible sleep dies later). A machine with no time to spare needs seconds for what takes milliseconds.
const LINGER: Duration = Duration::from_secs(10);
/// When a dying tree is looked at again without a death that says so.
const LINGER_STEP: Duration = Duration::from_millis(20);
/// When one is looked at again that has outlived its command.
const OUTLIVED_STEP: Duration = Duration::from_millis(200);

impl Server {
    pub(super) fn output_ready(&mut self, number: Number, stream: usize) {
        if self.commands.get(number).is_none() {
            return self.dismiss_number(number);
        }
        self.read_output(number, stream);
        self.watch_output(number, stream);
        self.deliver(number);
    }

    /// Read once what there is, as far as there is room for it.
    fn read_output(&mut self, number: Number, stream: usize) -> usize {
        let Some(command) = self.commands.get_mut(number) else { return 0 };
        let output = &mut command.outputs[stream];
        let Some(pipe) = &output.pipe else { return 0 };
        let room = output.store.room().min(self.scratch.len());
        if room == 0 {
            return 0;
        }
        match rustix::io::read(&pipe.fd, &mut self.scratch[..room]) {
            Ok(count) if count > 0 => {
                output.store.append(&self.scratch[..count]);
                count
            }
            Err(Errno::AGAIN | Errno::INTR) => 0,
            // End of file, or a terminal whose last user is gone.
            _ => {
                output.pipe = None;
                0
            }
        }
    }

    /// Watch a pipe exactly while there is room for what it brings.
    pub(crate) fn watch_output(&mut self, number: Number, stream: usize) {
        let Some(command) = self.commands.get_mut(number) else { return };
        let output = &mut command.outputs[stream];
        let Some(pipe) = &mut output.pipe else { return };
        let wanted = output.store.room() > 0;
        if wanted == pipe.watched {
            return;
        }
        // Taken out rather than muted: a hang-up would be reported all the time.
        let result = if wanted {
            self.reactor.add(&pipe.fd, Subject::Output(number, stream).token(), Interest::Read)
        } else {
            self.reactor.remove(&pipe.fd)
        };
        match result {
            Ok(()) => pipe.watched = wanted,
            Err(errno) => eprintln!("sandlotd: epoll_ctl: {errno}"),
        }
    }

    pub(super) fn input_ready(&mut self, number: Number) {
        self.pump_input(number);
    }

    /// Write standard input, tell the client, and watch for more room.
    pub(crate) fn pump_input(&mut self, number: Number) {
        let Some(command) = self.commands.get_mut(number) else { return };
        let Some(input) = &mut command.input else { return };
        input.pump();
        if let (Some(off), Some(watcher)) = (input.acknowledgement(), command.watcher) {
            self.reply(watcher.link, &crate::message::Reply::Ack { id: watcher.id, s: 0, off });
            self.tend_link(watcher.link);
        }
        self.watch_input(number);
    }

    fn watch_input(&mut self, number: Number) {
        let Some(input) = self.commands.get_mut(number).and_then(|command| command.input.as_mut()) else { return };
        let (blocked, watched) = (input.is_blocked(), input.watched);
        let Some(fd) = input.fd() else { return };
        let result = match (blocked, watched) {
            (true, false) => self.reactor.add(fd, Subject::Input(number).token(), Interest::Write),
            (false, true) => self.reactor.remove(fd),
            _ => return,
        };
        match result {
            Ok(()) => input.watched = blocked,
            Err(errno) => eprintln!("sandlotd: epoll_ctl: {errno}"),
        }
    }

    /// Collect every child that is dead: ours, and the orphans that came to us.
    pub(super) fn reap(&mut self) -> Option<Ended> {
        if self.reaper.acknowledge() {
            match self.context.on_terminate {
                OnTerminate::End => return Some(Ended::Terminated),
                OnTerminate::PassOn => {
                    if let Err(error) = tree::signal_everybody(Signal::TERM) {
                        eprintln!("sandlotd: pass SIGTERM on: {error}");
                    }
                }
            }
        }
        while let Some(event) = self.reaper.next_event() {
            match event {
                Event::Died(death) => self.child_died(&death),
                Event::Stopped(pid) => self.child_stopped(pid),
            }
        }
        self.settle_lingering(Instant::now());
        None
    }

    pub(crate) fn child_died(&mut self, death: &Death) {
        match self.children.remove(&death.pid) {
            Some(Child::Command(number)) => self.leader_died(number, death),
            Some(Child::Keeper) => self.keeper_died(death.pid),
            Some(Child::Shell(shell)) => self.shell_died(shell, death),
            Some(Child::Waiting) => self.waiting_died(death.pid),
            Some(Child::Proof(leaf)) => {
                self.proof_ended(death);
                leaf.into_iter().for_each(|leaf| self.context.leaves.recycle(leaf));
            }
            None => {}
        }
    }

    fn leader_died(&mut self, number: Number, death: &Death) {
        let handed = self.commands.get_mut(number).and_then(|command| command.handed.take());
        if let Some(handed) = handed.filter(Handed::was_unread) {
            match self.start_again(number, &handed) {
                Ok(()) => return,
                Err(error) => eprintln!("sandlotd: run again what a shell has not read: {error}"),
            }
        }
        let Some(process) = self.commands.get_mut(number).and_then(|command| command.process_mut()) else { return };
        process.death = Some(*death);
        if process.is_tree_dying() {
            self.lingering.push(number);
        } else {
            self.finish(number);
        }
    }

    /// End the commands whose killed trees are gone, or take too long.
    pub(super) fn settle_lingering(&mut self, now: Instant) {
        let lingering = std::mem::take(&mut self.lingering);
        for number in lingering {
            let Some(process) = self.commands.get(number).and_then(|command| command.process()) else { continue };
            let patient = process.killed.is_some_and(|since| now < since + LINGER);
            if patient && process.is_tree_dying() {
                // What a keeper has got meanwhile.
                if let Err(errno) = process.tree.kill(self.context.hooks.company()) {
                    eprintln!("sandlotd: kill of {}: {errno}", process.pid);
                }
                self.lingering.push(number);
            } else {
                if let (true, Tree::Kept { charge, .. }) = (process.is_tree_dying(), &process.tree) {
                    self.outlived.push(Arc::clone(charge));
                }
                self.finish(number);
            }
        }
        self.kill_outlived();
    }

    /// A command that was called over in spite of its tree is not done with it: what a cgroup holds is dying already, what
    /// a keeper keeps is killed until the keeper has nobody left.
    fn kill_outlived(&mut self) {
        for charge in std::mem::take(&mut self.outlived) {
            if tree::is_kept(&charge) {
                if let Err(errno) = tree::kill_kept(&charge, self.context.hooks.company()) {
                    eprintln!("sandlotd: kill what {} keeps: {errno}", charge.keeper);
                }
                self.outlived.push(charge);
            }
        }
    }

    /// After everything was killed and reaped nothing lingers.
    pub(crate) fn settle_all(&mut self) {
        self.outlived.clear();
        for number in std::mem::take(&mut self.lingering) {
            self.finish(number);
        }
    }

    pub(super) fn linger_deadline(&self) -> Option<Instant> {
        let step = match (self.lingering.is_empty(), self.outlived.is_empty()) {
            (false, _) => LINGER_STEP,
            (true, false) => OUTLIVED_STEP,
            (true, true) => return None,
        };
        Some(Instant::now() + step)
    }

    /// The first process is dead: take what its pipes still hold, and make the result.
    fn finish(&mut self, number: Number) {
        for stream in 0..2 {
            self.drain(number, stream);
        }
        let Some(command) = self.commands.get_mut(number) else { return };
        if let Some(input) = &mut command.input {
            input.close();
        }
        let (started, timed_out) = (command.started, command.timed_out);
        let Some(process) = command.process_mut() else { return };
        let beginning = process.alone;
        let mut outcome = outcome(process, started, timed_out);
        if let (Ok(ending), None, None) = (&outcome.ending, process.tree.leaf(), process.killed) {
            let since = process.memory_kills..self.context.hooks.memory_kills();
            let lived = if self.commands.was_alone(beginning) { Lived::Alone } else { Lived::InCompany(*ending) };
            outcome.oom = self.memory_kills.claim(since, lived);
        }
        if let Some(State::Running(process)) = self.commands.end(number, outcome)
            && let Some(leaf) = process.tree.into_leaf()
        {
            self.context.leaves.recycle(leaf);
        }
        self.deliver(number);
        self.commands.drop_if_done(number);
        self.resume_parking();
    }

    /// Read what a pipe holds now and no more; a background child that keeps it open holds nobody up.
    fn drain(&mut self, number: Number, stream: usize) {
        let Some(command) = self.commands.get_mut(number) else { return };
        let output = &mut command.outputs[stream];
        let mut left = DRAIN_BYTES;
        while let Some(pipe) = &output.pipe
            && left > 0
        {
            match rustix::io::read(&pipe.fd, &mut self.scratch[..]) {
                Ok(count) if count > 0 => {
                    output.store.append(&self.scratch[..count]);
                    left = left.saturating_sub(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                _ => output.pipe = None,
            }
        }
        if let Some(pipe) = output.pipe.take() {
            self.retire(pipe);
        }
    }

    /// Somebody may still write to this pipe: go on reading it, for nobody.
    pub(super) fn retire(&mut self, pipe: Pipe) {
        if pipe.watched && self.reactor.remove(&pipe.fd).is_err() {
            return;
        }
        self.sinks.add(pipe.fd, &self.reactor);
    }

    /// A command's deadline has passed: its timeout, or the moment to see whether it has stopped since.
    pub(super) fn time_out(&mut self, number: Number) {
        if let Some(command) = self.commands.get_mut(number) {
            command.timed_out |= !command.cancelled;
        }
        self.kill(number);
    }

    /// The client wants no more of a command.
    pub(crate) fn cancel_command(&mut self, number: Number) {
        if let Some(command) = self.commands.get_mut(number) {
            command.cancelled |= !command.timed_out;
        }
        self.kill(number);
    }

    /// Kill a command as its `kill` says.
    fn kill(&mut self, number: Number) {
        if let Some(shell) = self.shell_of(number) {
            return self.interrupt_run(shell);
        }
        let company = self.context.hooks.company();
        let Some(command) = self.commands.get_mut(number) else { return };
        let scope = command.kill;
        let Some(process) = command.process_mut() else { return };
        let result = match scope {
            Kill::Leader => process.signal_leader(Signal::KILL),
            Kill::Tree => process.kill_tree(company),
        };
        if let Err(errno) = result {
            eprintln!("sandlotd: kill of {}: {errno}", process.pid);
        }
    }
}

fn outcome(process: &Process, started: Instant, timed_out: bool) -> Outcome {
    let death = process.death.as_ref();
    let leaf = process.tree.leaf();
    Outcome {
        ending: match (process.report.failure(), death) {
            (Some((stage, errno)), _) => Err(launch_error(stage, errno)),
            (None, Some(death)) => Ok(death.ending),
            (None, None) => Err(Error::new(Code::Internal, "the process is gone and nobody knows how")),
        },
        timed_out,
        oom: leaf.is_some_and(|leaf| leaf.oom_kills() > 0),
        wall_us: microseconds(started.elapsed()),
        user_us: death.map_or(0, |death| death.user_us),
        system_us: death.map_or(0, |death| death.system_us),
        // A leaf counts what is charged to it, in steps: of a very short command that is less than its own pages.
        peak_bytes: leaf.and_then(Leaf::peak_bytes).max(death.map(|death| death.peak_bytes)),
        shell: None,
    }
}

/// What a process that never executed its program stands for.
pub(super) fn launch_error(stage: Stage, errno: Errno) -> Error {
    match (stage, errno) {
        (Stage::Directory, errno) => Error::system("enter the working directory", errno),
        (Stage::Setup, Errno::PERM) => Error::new(Code::UserUnsupported, "this user cannot be had in this id mode"),
        (Stage::Setup, errno) => Error::system("prepare the process", errno),
        (Stage::Execute, errno) => Error::system("execute", errno),
    }
}
