//! `mkdir`: a directory, with those above it.

use crate::error::Result;
use crate::files;
use crate::message::{Mkdir, Reply};
use crate::serve::Server;
use crate::transfer::Positions;

impl Server {
    pub(super) fn mkdir(&mut self, link: u64, id: u32, request: &Mkdir<'_>) -> Result<()> {
        let path = request.path.to_vec();
        let options = files::Mkdir { mode: request.mode, parents: request.parents, exist_ok: request.exist_ok };
        self.begin_transfer((link, id), request.user, Positions::Implied, move |root, port| {
            files::mkdir(root, &path, options)?;
            port.finish(&Reply::Ok { id })
        })
    }
}
