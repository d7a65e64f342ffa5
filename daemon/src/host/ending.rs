//! How a sandbox ends: asked, timed out or dead by itself; and what is removed before anybody is told.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_send_signal, waitid};

use super::clients::Role;
use super::sandbox::{FailedCreation, Remover, Removing, Sandbox, State};
use super::service::{Service, Watched};
use crate::error::{Code, Error, Result};
use crate::init::IDLE;
use crate::init::blueprint::BootReply;
use crate::message::{Destroyed, Gone, Reply, Why};
use crate::reactor::{Interest, Token};

/// Pause between looks at a sandbox that has been asked to end.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long the kernel may hold on to a cgroup whose last process is gone.
const REMOVAL: Duration = Duration::from_secs(5);
/// The ends of sandboxes that are remembered, to say why to those who come back.
const REMEMBERED: usize = 4096;

impl Service {
    /// A message from an init that boots.
    pub(super) fn hear_init(&mut self, token: Token, name: &str) {
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return };
        let mut buffer = [0_u8; 4096];
        let count = match rustix::net::recv(&sandbox.link, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        // One message is all that an init ever says; its end is seen by its process.
        self.watched.remove(&token);
        if let Err(errno) = self.reactor.remove(&sandbox.link) {
            eprintln!("sandlotd host: {errno}");
        }
        let reply = rmp_serde::from_slice::<BootReply>(&buffer[..count]);
        match (reply, &sandbox.state) {
            (Ok(BootReply::Ready { spans }), State::Booting { creator, since }) => {
                let creator = *creator;
                let took_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                sandbox.spans.insert("boot", took_us);
                for (step, name) in [("start", "boot_start"), ("outer", "boot_outer"), ("episode", "boot_episode")] {
                    if let Some((_, us)) = spans.iter().find(|(key, _)| key == step) {
                        sandbox.spans.insert(name, *us);
                    }
                }
                sandbox.state = State::Alive;
                self.announce(name, creator);
            }
            (Ok(BootReply::Failed { code, message, errno }), State::Booting { creator, .. }) => {
                let error = Some(Error { errno, ..Error::new(code, message) });
                sandbox.failed_creation = Some(FailedCreation { creator: *creator, error });
                self.end(name, Why::Exited);
            }
            _ => self.end(name, Why::Exited),
        }
    }

    /// Ask everything in the sandbox to end, and kill what is left after `grace`.
    pub(super) fn terminate(&mut self, name: &str, grace: Duration) -> Result<()> {
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return Ok(()) };
        if grace.is_zero() || !sandbox.is_alive() {
            self.end(name, Why::Killed);
            return Ok(());
        }
        match pidfd_send_signal(&sandbox.pidfd, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(Error::system("ask the sandbox to end", errno)),
        }
        let now = Instant::now();
        let until = now.checked_add(grace).unwrap_or(now);
        sandbox.state = State::Terminating { until, look: now + LOOK_AGAIN };
        Ok(())
    }

    /// Kill the sandbox. What it leaves is removed when its init has been collected.
    pub(super) fn end(&mut self, name: &str, why: Why) {
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return };
        sandbox.life.why.get_or_insert(why);
        if matches!(sandbox.state, State::Dying | State::Removing(_)) {
            return;
        }
        match pidfd_send_signal(&sandbox.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => eprintln!("sandlotd host: kill `{name}`: {errno}"),
        }
        sandbox.begin_to_die(State::Dying);
    }

    /// A deadline of the sandbox has passed.
    pub(super) fn act_on_time(&mut self, name: &str, now: Instant) {
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return };
        match &mut sandbox.state {
            State::Booting { .. } | State::Alive => {
                if let Some(why) = sandbox.life.due(now) {
                    self.end(name, why);
                }
            }
            State::Terminating { until, .. } if *until <= now || is_alone(sandbox.pid) => self.end(name, Why::Killed),
            State::Terminating { look, .. } => *look = now + LOOK_AGAIN,
            State::Dying => {}
            State::Removing(_) => self.clear_away(name),
        }
    }

    /// The init is dead, and with it every process of the sandbox: collect it and begin to remove what is left.
    pub(super) fn collect(&mut self, token: Token, name: &str) {
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return };
        let status = match waitid(WaitId::PidFd(sandbox.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(status)) => status,
            Ok(None) | Err(Errno::INTR) => return,
            Err(errno) => {
                eprintln!("sandlotd host: collect `{name}`: {errno}");
                return;
            }
        };
        self.watched.remove(&token);
        if let Err(errno) = self.reactor.remove(&sandbox.pidfd) {
            eprintln!("sandlotd host: {errno}");
        }
        let oom = sandbox.group.as_ref().is_some_and(|group| group.init_oom_kills() > 0);
        sandbox.life.why.get_or_insert_with(|| why_of(&status, oom));
        sandbox.detail = describe(&status);
        let give_up = Instant::now() + REMOVAL;
        sandbox.begin_to_die(State::Removing(Removing { retry: None, give_up, remover: None }));
        self.remove_disk(name);
        self.clear_away(name);
    }

    /// Start removing the directory on disk beside the loop.
    fn remove_disk(&mut self, name: &str) {
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return };
        let Some((parent, last)) = sandbox.disk.as_deref().and_then(|path| Some((path.parent()?, path.file_name()?)))
        else {
            return;
        };
        let started = Remover::start(parent.to_owned(), last.to_owned());
        match started {
            Ok(remover) => {
                let token = self.name(Watched::Remover(name.to_owned()));
                if let Err(errno) = self.reactor.add(&remover.done, token, Interest::Read) {
                    eprintln!("sandlotd host: {errno}");
                }
                if let Some(Sandbox { state: State::Removing(removing), .. }) = self.sandboxes.get_mut(name) {
                    removing.remover = Some(remover);
                }
            }
            Err(error) => eprintln!("sandlotd host: remove the disk of `{name}`: {error}"),
        }
    }

    pub(super) fn finish_remover(&mut self, token: Token, name: &str) {
        self.watched.remove(&token);
        let Some(Sandbox { state: State::Removing(removing), .. }) = self.sandboxes.get_mut(name) else { return };
        if let Some(remover) = removing.remover.take() {
            match remover.thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("sandlotd host: remove the disk of `{name}`: {error}"),
                Err(_) => eprintln!("sandlotd host: remove the disk of `{name}`: the thread failed"),
            }
        }
        self.clear_away(name);
    }

    /// Remove what can be removed now; when all is gone, say so.
    fn clear_away(&mut self, name: &str) {
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return };
        let State::Removing(removing) = &mut sandbox.state else { return };
        if let Some(group) = &sandbox.group {
            match group.remove() {
                Ok(()) => sandbox.group = None,
                Err(error) if Instant::now() >= removing.give_up => {
                    eprintln!("sandlotd host: `{name}` leaves a cgroup: {error}");
                    sandbox.group = None;
                }
                Err(_) => {
                    removing.retry = Some(Instant::now() + LOOK_AGAIN);
                    return;
                }
            }
        }
        removing.retry = None;
        if removing.remover.is_none() {
            self.bury(name);
        }
    }

    /// Nothing is left: free the ids and tell everybody who waits.
    fn bury(&mut self, name: &str) {
        let Some(sandbox) = self.sandboxes.remove(name) else { return };
        self.station.ids.give_back(&sandbox.hold);
        let why = sandbox.life.why.unwrap_or(Why::Exited);
        let was_made = sandbox.failed_creation.is_none();
        if let Some(failed) = sandbox.failed_creation {
            let detail = format!("the sandbox ended while it was made: {}", sandbox.detail);
            let error = failed.error.unwrap_or_else(|| Error::new(Code::Internal, detail));
            if let Some(client) = self.clients.get_mut(&failed.creator.client) {
                client.role = Role::Host;
            }
            self.reply(failed.creator.client, &Reply::error(failed.creator.id, &error));
            self.settle_client(failed.creator.client);
        }
        for waiter in &sandbox.life.waiters {
            self.reply(waiter.client, &Reply::OkDestroy(Destroyed { id: waiter.id, existed: true }));
            self.settle_client(waiter.client);
        }
        if sandbox.life.waiters.is_empty() && was_made {
            self.tell_watchers(name, why, &sandbox.detail);
        }
        self.remember(name, why);
    }

    fn tell_watchers(&mut self, name: &str, why: Why, detail: &str) {
        let watches: Vec<(Token, u32)> =
            self.clients.iter().flat_map(|(token, client)| client.watches.iter().map(|id| (*token, *id))).collect();
        for (token, id) in watches {
            self.reply(token, &Reply::Gone(Gone { id, name, why, detail }));
            self.settle_client(token);
        }
    }

    fn remember(&mut self, name: &str, why: Why) {
        if self.gone.len() >= REMEMBERED {
            self.gone.pop_front();
        }
        self.gone.push_back((name.to_owned(), why));
    }
}

/// Whether the init is the only process of its sandbox: every other one is its child in the end.
fn is_alone(pid: u32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    // A kernel without this file never says so; then the whole grace is waited for.
    children.is_ok_and(|list| list.trim().is_empty())
}

fn why_of(status: &WaitIdStatus, oom: bool) -> Why {
    match status.exit_status() {
        Some(code) if code == i32::from(IDLE) => Why::Idle,
        Some(_) => Why::Exited,
        None if oom => Why::Oom,
        None => Why::Killed,
    }
}

fn describe(status: &WaitIdStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("its init exited with code {code}"),
        (_, Some(signal)) => format!("its init was killed by signal {signal}"),
        _ => "its init is gone".to_owned(),
    }
}
