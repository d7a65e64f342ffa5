//! One file a verb: each checks a decoded request, changes the server's state, and answers now or later.
//!
//! An `Err` is the call's answer; `protocol_error` among them ends the connection.

mod attach;
mod exec;
mod processes;
mod quiesce;
mod reset;
mod shell;
mod signal;
mod stdin;
mod usage;

use crate::error::{Code, Error, Result};
use crate::message::Request;
use crate::serve::{Call, Server};

impl Server {
    /// The one match from a call to its verb.
    pub(crate) fn call(&mut self, link: u64, id: u32, request: &Request<'_>) -> Result<()> {
        match request {
            Request::Exec(exec) => self.exec(link, id, exec),
            Request::Attach(attach) => self.attach(link, id, attach),
            Request::Ack(ack) => self.acknowledge(link, id, ack),
            Request::Stdin(stdin) => self.stdin(link, id, stdin),
            Request::Resize(resize) => self.resize(link, id, resize),
            Request::Signal(signal) => self.signal(link, id, signal),
            Request::ShellOpen(open) => self.shell_open(link, id, open),
            Request::ShellRun(run) => self.shell_run(link, id, run),
            Request::ShellClose(close) => self.shell_close(link, id, close),
            Request::Cancel => self.cancel(link, id),
            Request::Usage => self.usage(link, id),
            Request::Processes => self.processes(link, id),
            Request::Quiesce(quiesce) => self.quiesce(link, id, quiesce),
            Request::Reset(reset) => self.reset(link, id, reset),
            _ => Err(Error::new(Code::Unsupported, "not here")),
        }
    }

    fn acknowledge(&mut self, link: u64, id: u32, ack: &crate::message::Ack) -> Result<()> {
        match self.find_call(link, id) {
            Some(Call::Command(number)) => self.acknowledge_output(number, ack),
            // The call's end and this have crossed.
            None => Ok(()),
        }
    }

    fn cancel(&mut self, link: u64, id: u32) -> Result<()> {
        if let Some(Call::Command(number)) = self.find_call(link, id) {
            self.cancel_command(number);
        }
        Ok(())
    }

    pub(crate) fn find_call(&self, link: u64, id: u32) -> Option<Call> {
        self.links.get(&link)?.calls.get(&id).copied()
    }
}
