//! What the main loop holds of the current episode, and how it lets go of it.

use super::Server;
use crate::error::{Code, Error};
use crate::message::Reply;
use crate::process::table::{self, Entry};

impl Server {
    /// Whether no process but the daemon is left.
    pub(crate) fn is_alone(&self) -> bool {
        let own = std::process::id();
        // A zombie is dead; it goes with its parent, or by the next look at dead children.
        table::scan().iter().all(|entry| entry.pid == own || entry.ppid == 0)
    }

    /// A process of the daemon's own, not of a command.
    pub(crate) fn is_own(&self, entry: &Entry) -> bool {
        // Those who entered the namespace from outside have no parent in it.
        entry.ppid == 0
            // A shell that is being proved has children: they are in its session.
            || self.is_parked(entry.pid)
            || self.is_parked(entry.session)
            || self.is_keeper(entry.pid)
    }

    /// Everything that could keep the old root busy or leak into the next episode goes; results only by choice.
    pub(crate) fn forget_episode(&mut self, keep_results: bool) {
        self.end_transfers();
        self.arguments.join();
        self.sinks.clear();
        self.forget_shells();
        self.spawner.dismiss_idle();
        self.spawner.sweep();
        if !keep_results {
            self.drop_results();
        }
    }

    fn drop_results(&mut self) {
        for watcher in self.commands.drop_results() {
            let Some(link) = self.links.get_mut(&watcher.link) else { continue };
            link.calls.remove(&watcher.id);
            let error = Error::new(Code::Cancelled, "a reset has dropped the rest of the output");
            link.send(&Reply::error(watcher.id, &error));
        }
    }

    /// Look at the new root. False when it is not as it was after creation.
    pub(crate) fn begin_episode(&mut self) -> bool {
        match self.context.default_user() {
            Ok(user) => {
                let same = user == self.default_user;
                self.default_env = super::default_environment(&self.context, &user);
                self.default_user = user;
                same
            }
            Err(error) => {
                eprintln!("sandlotd: a fresh episode without its user: {error:?}");
                false
            }
        }
    }
}
