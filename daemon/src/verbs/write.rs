//! `write`: one file, whole or not at all.

use crate::error::{Code, Error, Result};
use crate::files::{self, Item};
use crate::message::{Data, Reply, Write, WriteDone};
use crate::serve::Server;
use crate::transfer::Positions;

impl Server {
    pub(super) fn write(&mut self, link: u64, id: u32, request: &Write<'_>) -> Result<()> {
        let path = request.path.to_vec();
        let options = files::Write { mode: request.mode, parents: request.parents };
        self.begin_transfer((link, id), request.user, Positions::Implied, move |root, port| {
            let size = files::write(root, &path, options, port)?;
            port.finish(&Reply::OkWrite(WriteDone { id, size }))
        })?;
        if let Some(first) = request.d.filter(|first| !first.is_empty()) {
            self.feed_data(link, id, &Data { s: 0, off: 0, d: first, at: None })?;
        }
        if request.eof {
            self.feed_transfer(link, id, Item::End);
        }
        Ok(())
    }

    /// More of a `write` or an `upload`.
    pub(super) fn data(&mut self, link: u64, id: u32, data: &Data<'_>) -> Result<()> {
        if data.s != 0 {
            return Err(Error::new(Code::ProtocolError, "file data of a stream that goes the other way"));
        }
        self.feed_data(link, id, data)
    }
}
