//! `read`: a range of a file.

use crate::error::Result;
use crate::files::{self, Range};
use crate::message::{Read, ReadDone, Reply};
use crate::serve::Server;
use crate::transfer::Positions;

impl Server {
    pub(super) fn read(&mut self, link: u64, id: u32, request: &Read<'_>) -> Result<()> {
        let path = request.path.to_vec();
        let range = Range { offset: request.offset, limit: request.limit };
        self.begin_transfer((link, id), request.user, Positions::Implied, move |root, port| {
            let facts = files::read(root, &path, range, port)?;
            port.finish(&Reply::OkRead(ReadDone { id, size: facts.size, mode: facts.mode, mtime_ns: facts.mtime_ns }))
        })
    }
}
