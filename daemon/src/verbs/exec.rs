//! `exec`: check the request, make the process, answer `started` where the mode says so.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::commands::{Command, Handed, Number, Output, Pipe, Process, State};
use crate::confinement::Identity;
use crate::error::{Code, Error, Result};
use crate::limits::{DEFAULT_CAP_BYTES, MAX_CAP_BYTES, MAX_CHUNK_BYTES, MAX_PATH_BYTES, MAX_SCRIPT_BYTES};
use crate::message::{Exec, Mode, Reply};
use crate::output::Store;
use crate::process::child::Plan;
use crate::process::input::Input;
use crate::process::launch::{Launch, SCRIPT_FD};
use crate::process::program::{Environment, Program};
use crate::process::script;
use crate::process::stdio::{self, Stdio, Wiring};
use crate::serve::{Child, Server, Taken, microseconds};
use crate::users::{self, User};

impl Server {
    pub(super) fn exec(&mut self, link: u64, id: u32, request: &Exec<'_>) -> Result<()> {
        let received = Instant::now();
        request.done.iter().for_each(|key| self.commands.forget(key));
        if let Some(number) = self.commands.find(request.key) {
            return self.attach_again(link, id, number);
        }
        check(request)?;
        self.commands.admit(request.key)?;
        self.links.get(&link).map_or(Ok(()), |link| link.check_call(id))?;
        let number = self.start(request, received)?;
        if request.mode != Mode::Collect {
            let pid = self.commands.get(number).map_or(0, |command| command.pid);
            self.reply(link, &Reply::Started { id, pid });
        }
        if request.mode != Mode::Job {
            self.follow_new(number, link, id);
        }
        Ok(())
    }

    /// Make the process of a checked request, or use one that waits.
    fn start(&mut self, request: &Exec<'_>, received: Instant) -> Result<Number> {
        let cwd = self.open_directory(request.cwd.map(|path| &**path))?;
        let (memory_kills, alone) = (self.context.hooks.memory_kills(), self.commands.alone());
        if let Some(Taken { number, mut process, stdio, channel }) = self.take_waiting(request, cwd.as_fd()) {
            (process.memory_kills, process.alone) = (memory_kills, alone);
            let clock = Clock { received, started: Instant::now() };
            let mut command = new_command(request, process, stdio, clock);
            let pipes = command.outputs.iter_mut().filter_map(|output| output.pipe.as_mut());
            pipes.for_each(|pipe| pipe.watched = true);
            let script = request.script.map(|script| script.to_vec()).unwrap_or_default();
            command.handed = Some(Handed { channel, script, cwd });
            self.install(number, command);
            return Ok(number);
        }
        let (mut process, stdio) = self.spawn_request(request, cwd.as_fd())?;
        (process.memory_kills, process.alone) = (memory_kills, alone);
        let clock = Clock { received, started: Instant::now() };
        let number = self.commands.reserve();
        self.install(number, new_command(request, process, stdio, clock));
        Ok(number)
    }

    fn spawn_request(&mut self, request: &Exec<'_>, cwd: BorrowedFd<'_>) -> Result<(Process, Stdio)> {
        let user = self.resolve_user(request.user)?;
        let overlay: Vec<&[u8]> = request.env.iter().map(|entry| &***entry).collect();
        let mut env = self.environment(&overlay, user.as_ref())?;
        if request.pty.is_some() && env.get(b"TERM").is_none() {
            env.set(b"TERM", b"xterm");
        }
        let program = program(request, &env)?;
        let identity = user.as_ref().unwrap_or(&self.default_user).identity.clone();
        self.spawn_command(program, Wiring::of(request), (identity, cwd))
    }

    /// Run a script that was handed to a shell which never got it, under the number of its command.
    pub(crate) fn start_again(&mut self, number: Number, handed: &Handed) -> Result<()> {
        let program = script::program(&handed.script, false, &self.default_env)?;
        let wiring = Wiring { input: false, merge: false, terminal: None };
        let identity = self.default_user.identity.clone();
        let (process, stdio) = self.spawn_command(program, wiring, (identity, handed.cwd.as_fd()))?;
        let Some(command) = self.commands.get_mut(number) else { return Ok(()) };
        for (output, fd) in command.outputs.iter_mut().zip(stdio.outputs) {
            output.pipe = fd.map(|fd| Pipe { fd, watched: false });
        }
        command.pid = process.pid;
        self.children.insert(process.pid, Child::Command(number));
        let former = std::mem::replace(&mut command.state, State::Running(process));
        if let State::Running(former) = former
            && let Some(leaf) = former.tree.into_leaf()
        {
            self.context.leaves.recycle(leaf);
        }
        (0..2).for_each(|stream| self.watch_output(number, stream));
        Ok(())
    }

    fn spawn_command(
        &mut self,
        (program, script_file): (Program, Option<OwnedFd>),
        wiring: Wiring,
        (identity, cwd): (Identity, BorrowedFd<'_>),
    ) -> Result<(Process, Stdio)> {
        let (stdio, theirs) = stdio::open(wiring, self.context.null.as_fd(), &identity)?;
        let leaf = self.context.leaves.take();
        let extra: Vec<_> = script_file.iter().map(|file| (file.as_fd(), SCRIPT_FD)).collect();
        let launch = Launch {
            plan: Plan { program, terminal: wiring.terminal.is_some(), identity },
            stdio: theirs.each_ref().map(AsFd::as_fd),
            extra: &extra,
            cwd,
            leaf: leaf.as_ref(),
        };
        match self.spawner.spawn(launch) {
            Ok(spawned) => {
                let process = Process::new(&spawned, leaf);
                self.add_keeper(spawned);
                Ok((process, stdio))
            }
            Err(errno) => {
                leaf.into_iter().for_each(|leaf| self.context.leaves.recycle(leaf));
                Err(Error::system("start a process", errno))
            }
        }
    }

    /// Enter a command into the tables, and watch what it writes.
    fn install(&mut self, number: Number, command: Command) {
        self.children.insert(command.pid, Child::Command(number));
        self.commands.insert(number, command);
        (0..2).for_each(|stream| self.watch_output(number, stream));
        self.pump_input(number);
    }

    /// `None` is the sandbox's own user.
    pub(super) fn resolve_user(&self, user: Option<&str>) -> Result<Option<User>> {
        user.map(|user| users::resolve(self.context.root.as_fd(), user, &self.context.id_maps)).transpose()
    }

    /// The sandbox's environment, then what a named user brings, then the call's own entries.
    pub(super) fn environment(&self, overlay: &[&[u8]], user: Option<&User>) -> Result<Environment> {
        let mut env = self.default_env.clone();
        if let Some(user) = user {
            env.set(b"HOME", &user.home);
            env.set(b"USER", &user.name);
            env.set(b"LOGNAME", &user.name);
        }
        env.with_overlay(overlay)
    }
}

fn check(request: &Exec<'_>) -> Result<()> {
    let bad = |message: &'static str| Err(Error::new(Code::BadRequest, message));
    match (&request.argv, request.script) {
        (Some(_), None) if request.login => return bad("a login shell runs a script"),
        (Some(_), None) => {}
        (None, Some(script)) if script.len() > MAX_SCRIPT_BYTES => {
            return Err(Error::new(Code::ArgumentTooLong, "a script longer than max_script_bytes"));
        }
        (None, Some(script)) if script.contains(&0) => return bad("NUL byte in script"),
        (None, Some(_)) => {}
        _ => return bad("exactly one of argv and script"),
    }
    if request.stdin.is_some_and(|data| data.len() > MAX_CHUNK_BYTES) {
        return Err(Error::new(Code::ProtocolError, "a chunk longer than max_chunk_bytes"));
    }
    request.cwd.map_or(Ok(()), |path| check_path(path))
}

/// # Errors
/// `name_too_long`, or `bad_request` for a path with a NUL byte.
pub(super) fn check_path(path: &[u8]) -> Result<()> {
    if path.len() >= MAX_PATH_BYTES {
        return Err(Error::new(Code::NameTooLong, "a path longer than max_path_bytes"));
    }
    if path.contains(&0) {
        return Err(Error::new(Code::BadRequest, "NUL byte in a path"));
    }
    Ok(())
}

/// What to execute, and what its script comes in when it is no argument.
fn program(request: &Exec<'_>, env: &Environment) -> Result<(Program, Option<OwnedFd>)> {
    match (&request.argv, request.script) {
        (Some(argv), _) => {
            let argv: Vec<&[u8]> = argv.iter().map(|item| &***item).collect();
            Ok((Program::from_argv(&argv, env)?, None))
        }
        (None, script) => script::program(script.map_or(&[][..], |script| script), request.login, env),
    }
}

pub(super) fn cap(requested: Option<u64>) -> usize {
    usize::try_from(requested.unwrap_or(DEFAULT_CAP_BYTES).min(MAX_CAP_BYTES)).unwrap_or(usize::MAX)
}

fn new_command(request: &Exec<'_>, process: Process, stdio: Stdio, clock: Clock) -> Command {
    let [out, err] = stdio.outputs;
    let output = |pipe: Option<OwnedFd>, cap_bytes| Output {
        store: Store::new(request.mode, request.keep, cap(cap_bytes)),
        pipe: pipe.map(|fd| Pipe { fd, watched: false }),
    };
    let mut input = stdio.input.map(|fd| Input::new(fd, stdio.is_terminal));
    if let (Some(input), Some(data)) = (&mut input, request.stdin) {
        input.preload(data);
    }
    if let (Some(input), false) = (&mut input, request.stdin_open) {
        input.announce_end();
    }
    Command {
        key: request.key.to_owned(),
        pid: process.pid,
        mode: request.mode,
        kill: request.kill,
        merge: request.merge,
        outputs: [output(out, request.cap_out), output(err, request.cap_err)],
        input,
        watcher: None,
        deadline: request.timeout_ms.and_then(|limit| clock.started.checked_add(Duration::from_millis(limit))),
        timed_out: false,
        cancelled: false,
        started: clock.started,
        spawn_us: microseconds(clock.started - clock.received),
        forgotten: false,
        handed: None,
        state: State::Running(process),
    }
}

/// The moments from which times are counted.
#[derive(Clone, Copy, Debug)]
struct Clock {
    received: Instant,
    started: Instant,
}
