//! `attach`: follow a command from given offsets on, or only to its exit.

use crate::commands::{Number, Watcher};
use crate::error::{Code, Error, Result};
use crate::message::{Attach, Mode, Reply};
use crate::serve::Server;

impl Server {
    pub(super) fn attach(&mut self, link: u64, id: u32, request: &Attach<'_>) -> Result<()> {
        let number = self.find_command(request.key)?;
        let from = [request.out_from, request.err_from];
        self.follow(number, Watcher { link, id, output: request.output, sent: from, acknowledged: from })
    }

    /// An exec with a known key: the command goes on, it does not run again.
    pub(super) fn attach_again(&mut self, link: u64, id: u32, number: Number) -> Result<()> {
        let Some(command) = self.commands.get(number) else { return Ok(()) };
        if command.mode == Mode::Job {
            self.reply(link, &Reply::Started { id, pid: command.pid });
            return Ok(());
        }
        self.follow(number, Watcher::from_start(link, id))
    }

    pub(super) fn find_command(&self, key: &str) -> Result<Number> {
        self.commands.find(key).ok_or_else(|| Error::new(Code::NoSuchKey, "no command has this key"))
    }
}
