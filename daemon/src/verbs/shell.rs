//! `shell_open`, `shell_run`, `shell_close`: shells whose directory, variables and functions persist.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, MemfdFlags, Mode as FileMode, OFlags};
use serde_bytes::Bytes;

use super::exec::{cap, check_path};
use crate::commands::{Command, Output, Pipe, Process, State, check_key};
use crate::error::{Code, Error, Result};
use crate::limits::MAX_SCRIPT_BYTES;
use crate::message::{Kill, Mode, Reply, ShellClose, ShellOpen, ShellOpened, ShellRun};
use crate::output::Store;
use crate::process::child::Plan;
use crate::process::driver::Numbers;
use crate::process::launch::Launch;
use crate::process::program::{Environment, Program, candidates};
use crate::process::spawn::pipe;
use crate::process::stdio::{self, Wiring};
use crate::serve::{Control, Server, microseconds};

/// Shells that may be open at the same time.
const MAX_SHELLS: usize = 64;

impl Server {
    pub(super) fn shell_open(&mut self, link: u64, id: u32, request: &ShellOpen<'_>) -> Result<()> {
        check_key(request.key)?;
        request.cwd.map_or(Ok(()), |path| check_path(path))?;
        if self.shells.find(request.key).is_none() {
            if self.shells.len() >= MAX_SHELLS {
                return Err(Error::new(Code::TooMany, format!("{MAX_SHELLS} shells are open")));
            }
            self.start_shell_process(request)?;
        }
        if let Some(shell) = self.shells.find(request.key).and_then(|number| self.shells.get(number)) {
            let opened = ShellOpened { id, pid: shell.process.pid, program: Bytes::new(&shell.program) };
            let reply = Reply::OkShell(opened);
            self.links.get_mut(&link).into_iter().for_each(|link| link.send(&reply));
        }
        Ok(())
    }

    fn start_shell_process(&mut self, request: &ShellOpen<'_>) -> Result<()> {
        let user = self.resolve_user(request.user)?;
        let cwd = self.open_directory(request.cwd.map(|path| &**path))?;
        let overlay: Vec<&[u8]> = request.env.iter().map(|entry| &***entry).collect();
        let env = self.environment(&overlay, user.as_ref())?;
        let program = self.find_shell(request.program.map(|program| &**program), &env)?;
        let numbers = Numbers::for_program(&program);
        let identity = user.as_ref().unwrap_or(&self.default_user).identity.clone();
        let wiring = Wiring { input: false, merge: false, terminal: None };
        let (stdio, theirs) = stdio::open(wiring, self.context.null.as_fd(), &identity)?;
        let (control, their_control) = open_control(numbers).map_err(|errno| Error::system("open a shell", errno))?;
        let leaf = self.context.leaves.take();
        let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or(&program).to_vec();
        let launch = Launch {
            plan: Plan {
                program: Program::at_path(&program, &[&name, b"-c", &numbers.text()], &env),
                terminal: false,
                identity,
            },
            stdio: theirs.each_ref().map(AsFd::as_fd),
            extra: &[
                (their_control.script.as_fd(), numbers.script()),
                (their_control.go.as_fd(), numbers.go()),
                (their_control.status.as_fd(), numbers.status()),
            ],
            cwd: cwd.as_fd(),
            leaf: leaf.as_ref(),
        };
        let spawned = match self.spawner.spawn(launch) {
            Ok(spawned) => spawned,
            Err(errno) => {
                leaf.into_iter().for_each(|leaf| self.context.leaves.recycle(leaf));
                return Err(Error::system("start a shell", errno));
            }
        };
        let [Some(out), Some(err)] = stdio.outputs else {
            return Err(Error::new(Code::Internal, "a shell without output"));
        };
        let pipes = [out, err].map(|fd| Pipe { fd, watched: true });
        let process = Process::new(&spawned, leaf);
        self.add_keeper(spawned);
        self.add_shell(request.key, &program, process, control, pipes);
        Ok(())
    }

    /// The program asked for, or the image's bash, or its sh.
    fn find_shell(&self, program: Option<&[u8]>, env: &Environment) -> Result<Vec<u8>> {
        let names: Vec<&[u8]> = program.map_or(vec![b"bash", b"/bin/sh", b"sh"], |program| vec![program]);
        for name in &names {
            check_path(name)?;
        }
        let is_executable = |path: &Vec<u8>| {
            let stat = rustix::fs::statat(&self.context.root, path.as_slice(), AtFlags::empty());
            path.starts_with(b"/")
                && stat.is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_mode & 0o111 != 0)
        };
        names.iter().flat_map(|name| candidates(name, env)).find(is_executable).ok_or_else(|| {
            let name = names.first().copied().unwrap_or_default();
            Error::new(Code::NotFound, "no such shell in this image").with_path(name)
        })
    }

    pub(super) fn shell_run(&mut self, link: u64, id: u32, request: &ShellRun<'_>) -> Result<()> {
        let received = Instant::now();
        if let Some(number) = self.commands.find(request.key) {
            return self.attach_again(link, id, number);
        }
        if request.script.len() > MAX_SCRIPT_BYTES {
            return Err(Error::new(Code::ArgumentTooLong, "a script longer than max_script_bytes"));
        }
        if request.script.contains(&0) {
            return Err(Error::new(Code::BadRequest, "NUL byte in script"));
        }
        let shell = self.find_open_shell(request.shell)?;
        if self.shells.get(shell).is_some_and(|shell| shell.is_busy()) {
            return Err(Error::new(Code::Busy, "the shell is busy with another run"));
        }
        self.commands.admit(request.key)?;
        self.links.get(&link).map_or(Ok(()), |link| link.check_call(id))?;
        let number = self.commands.reserve();
        self.run_in_shell(shell, (number, request.merge), request.script)?;
        let command = self.new_run(shell, request, received);
        self.commands.insert(number, command);
        self.follow_new(number, link, id);
        Ok(())
    }

    fn new_run(&mut self, shell: u64, request: &ShellRun<'_>, received: Instant) -> Command {
        let started = Instant::now();
        let output = |requested, before: &[u8]| {
            let mut store = Store::new(Mode::Collect, request.keep, cap(requested));
            store.append(before);
            Output { store, pipe: None }
        };
        let [out, err] = self.take_between(shell);
        let mut outputs = [output(request.cap_out, &out), output(request.cap_err, &[])];
        outputs[usize::from(!request.merge)].store.append(&err);
        Command {
            key: request.key.to_owned(),
            pid: self.shells.get(shell).map_or(0, |shell| shell.process.pid),
            mode: Mode::Collect,
            kill: Kill::Tree,
            merge: request.merge,
            state: State::InShell(shell),
            outputs,
            input: None,
            watcher: None,
            deadline: request.timeout_ms.and_then(|limit| started.checked_add(Duration::from_millis(limit))),
            timed_out: false,
            cancelled: false,
            started,
            spawn_us: microseconds(started - received),
            forgotten: false,
            handed: None,
        }
    }

    pub(super) fn shell_close(&mut self, link: u64, id: u32, request: &ShellClose<'_>) -> Result<()> {
        let number = self.shells.find(request.shell).ok_or_else(no_such_shell)?;
        let alive = self.shells.get(number).is_some_and(|shell| shell.is_alive());
        if alive {
            self.kill_shell(number);
            self.close_shell_when_dead(number);
        } else {
            self.shells.remove(number);
        }
        self.reply(link, &Reply::Ok { id });
        Ok(())
    }

    fn find_open_shell(&self, key: &str) -> Result<u64> {
        let number = self.shells.find(key).ok_or_else(no_such_shell)?;
        match self.shells.get(number).is_some_and(|shell| shell.is_alive()) {
            true => Ok(number),
            false => Err(Error::new(Code::NoSuchKey, "the shell has ended")),
        }
    }
}

fn no_such_shell() -> Error {
    Error::new(Code::NoSuchKey, "no shell has this key")
}

/// The shell's ends of the control descriptors.
struct TheirControl {
    script: OwnedFd,
    go: OwnedFd,
    status: OwnedFd,
}

fn open_control(numbers: Numbers) -> rustix::io::Result<(Control, TheirControl)> {
    let script = rustix::fs::memfd_create("run", MemfdFlags::CLOEXEC)?;
    // Whoever the shell runs as opens it by its name in /proc.
    rustix::fs::fchmod(&script, FileMode::from_raw_mode(0o444))?;
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&script));
    let readable = rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, FileMode::empty())?;
    let (their_go, go) = pipe()?;
    let (status, their_status) = pipe()?;
    rustix::io::ioctl_fionbio(&status, true)?;
    rustix::io::ioctl_fionbio(&go, true)?;
    let control = Control { numbers, script, go, status, said: Vec::new() };
    Ok((control, TheirControl { script: readable, go: their_go, status: their_status }))
}
