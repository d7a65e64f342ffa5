//! `quiesce`: kill, freeze or thaw everything that commands have left, and say what it was.

use crate::error::{Code, Error, Result};
use crate::message::{Processes, Quiesce, QuiesceHow, Reply};
use crate::process::reaper::Reaper;
use crate::serve::Server;

impl Server {
    pub(super) fn quiesce(&mut self, link: u64, id: u32, request: &Quiesce) -> Result<()> {
        let processes = self.list_processes();
        match request.how {
            QuiesceHow::Kill => drop(self.kill_everything()?),
            QuiesceHow::Freeze => self.context.hooks.freeze(true)?,
            QuiesceHow::Thaw => self.context.hooks.freeze(false)?,
        }
        self.reply(link, &Reply::OkProcesses(Processes { id, processes: &processes }));
        Ok(())
    }

    /// No process is left when this returns but the daemon; the commands that ran have ended. Returns how many died.
    pub(super) fn kill_everything(&mut self) -> Result<u32> {
        let mut killed = 0;
        self.dismiss_waiting();
        // A process that was being made while everything else died is met by the next round.
        for _ in 0..MAX_ROUNDS {
            self.context.hooks.kill_all()?;
            while let Some(death) = Reaper::wait_for_death() {
                killed += 1;
                self.child_died(&death);
            }
            self.settle_all();
            if self.is_alone() {
                return Ok(killed);
            }
        }
        Err(Error::new(Code::Internal, "processes are left that cannot be killed"))
    }
}

const MAX_ROUNDS: u32 = 10;
