//! One file a verb: each checks a decoded request, changes the server's state, and answers now or later.
//!
//! An `Err` is the call's answer; `protocol_error` among them ends the connection.

mod attach;
mod changes;
mod download;
mod exec;
mod list;
mod mkdir;
mod processes;
mod quiesce;
mod read;
mod remove;
mod renew;
mod reset;
mod shell;
mod signal;
mod stat;
mod stdin;
mod upload;
mod usage;
mod write;

use crate::error::{Code, Error, Result};
use crate::files::Item;
use crate::message::Request;
use crate::serve::{Call, Server};

impl Server {
    /// The one match from a call to its verb.
    pub(crate) fn call(&mut self, link: u64, id: u32, request: &Request<'_>) -> Result<()> {
        self.context.hooks.get_ready();
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
            Request::RenewLease(renew) => self.renew(link, id, renew),
            Request::Reset(reset) => self.reset(link, id, reset),
            Request::Read(read) => self.read(link, id, read),
            Request::Write(write) => self.write(link, id, write),
            Request::Stat(stat) => self.stat(link, id, stat),
            Request::List(list) => self.list(link, id, list),
            Request::Mkdir(mkdir) => self.mkdir(link, id, mkdir),
            Request::Remove(remove) => self.remove(link, id, remove),
            Request::Upload(upload) => self.upload(link, id, upload),
            Request::Download(download) => self.download(link, id, download),
            Request::Changes(changes) => self.changes(link, id, changes),
            Request::Data(data) => self.data(link, id, data),
            Request::Entry(entry) => {
                self.entry(link, id, entry);
                Ok(())
            }
            Request::End => {
                self.feed_transfer(link, id, Item::End);
                Ok(())
            }
            _ => Err(Error::new(Code::Unsupported, "not here")),
        }
    }

    fn acknowledge(&mut self, link: u64, id: u32, ack: &crate::message::Ack) -> Result<()> {
        match self.find_call(link, id) {
            Some(Call::Command(number)) => self.acknowledge_output(number, ack),
            Some(Call::Files(ticket)) => self.acknowledge_transfer(ticket, ack),
            // The call's end and this have crossed.
            None => Ok(()),
        }
    }

    fn cancel(&mut self, link: u64, id: u32) -> Result<()> {
        match self.find_call(link, id) {
            Some(Call::Command(number)) => self.cancel_command(number),
            Some(Call::Files(ticket)) => self.halt_transfer(ticket, Code::Cancelled),
            // It is over already.
            None => {}
        }
        Ok(())
    }

    pub(crate) fn find_call(&self, link: u64, id: u32) -> Option<Call> {
        self.links.get(&link)?.calls.get(&id).copied()
    }
}
