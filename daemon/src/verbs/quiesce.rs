//! `quiesce`: kill, freeze or thaw everything that commands have left, and say what it was.

use std::time::{Duration, Instant};

use crate::error::{Code, Error, Result};
use crate::message::{Processes, Quiesce, QuiesceHow, Reply};
use crate::process::reaper::{Passing, Reaper};
use crate::serve::{Child, Server};

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
        let end = Instant::now() + PATIENCE;
        // A process that was being made while everything else died is met by the next round; it may be a child of ours
        // that was missed, so nobody is waited for without end.
        for _ in 0..MAX_ROUNDS {
            loop {
                self.context.hooks.kill_all()?;
                if self.bury(&mut killed) == Passing::Childless || Instant::now() > end {
                    break;
                }
            }
            self.settle_all();
            if self.is_alone() {
                return Ok(killed);
            }
        }
        Err(Error::new(Code::Internal, "processes are left that cannot be killed"))
    }

    /// Take note of deaths until there is nobody left to die, or nobody has died for a [`STEP`].
    fn bury(&mut self, killed: &mut u32) -> Passing {
        loop {
            match Reaper::death_within(STEP) {
                Passing::Died(death) => {
                    // Nobody has lost what is the daemon's own.
                    let own =
                        matches!(self.children.get(&death.pid), Some(Child::Keeper | Child::Waiting | Child::Proof(_)));
                    *killed += u32::from(!own);
                    self.child_died(&death);
                }
                passing => return passing,
            }
        }
    }
}

const MAX_ROUNDS: u32 = 10;
/// Between two looks at who has not died.
const STEP: Duration = Duration::from_millis(20);
/// Longer than a killed process takes to give back all of its memory.
const PATIENCE: Duration = Duration::from_secs(30);
