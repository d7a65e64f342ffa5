//! `reset`: end the episode, and begin the next one as after creation.

use std::time::Instant;

use crate::error::Result;
use crate::message::{Reply, Reset, ResetDone, Verified};
use crate::serve::{Server, microseconds};

impl Server {
    pub(super) fn reset(&mut self, link: u64, id: u32, request: &Reset) -> Result<()> {
        let began = Instant::now();
        // Some that die are buried by who dies with them, so that we see nothing of it.
        let there = self.count_processes();
        let killed = self.kill_everything()?.max(there);
        self.forget_episode(request.keep_results);
        let episode = self.context.hooks.reset()?;
        self.context.root = episode.root;
        let is_fresh = self.begin_episode();
        let verified =
            Verified { processes: self.is_alone(), files: episode.verified.files && is_fresh, ..episode.verified };
        let took_us = microseconds(began.elapsed());
        let done = ResetDone { id, killed, changed_bytes: episode.changed_bytes, took_us, verified };
        self.reply(link, &Reply::OkReset(done));
        if let Err(error) = self.context.hooks.settle() {
            eprintln!("sandlotd: after a reset: {error}");
        }
        Ok(())
    }
}
