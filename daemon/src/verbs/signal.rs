//! `signal`: to a command's leader, its process group, or every process it has started. One that has ended is left alone.

use rustix::process::Signal as Number;

use crate::error::{Code, Error, Result};
use crate::message::{Reply, Signal, SignalTo};
use crate::serve::Server;

impl Server {
    pub(super) fn signal(&mut self, link: u64, id: u32, request: &Signal<'_>) -> Result<()> {
        let signal = Number::from_named_raw(i32::from(request.signal))
            .ok_or_else(|| Error::new(Code::BadRequest, format!("no signal {}", request.signal)))?;
        let number = self.find_command(request.key)?;
        if let Some(process) = self.commands.get(number).and_then(|command| command.process()) {
            match request.to {
                SignalTo::Leader => process.signal_leader(signal),
                SignalTo::Group => process.signal_group(signal),
                SignalTo::Tree => process.tree.signal(signal),
            }
            .map_err(|errno| Error::system("signal", errno))?;
        }
        self.reply(link, &Reply::Ok { id });
        Ok(())
    }
}
