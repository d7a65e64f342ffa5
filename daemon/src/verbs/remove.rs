//! `remove`: a file, or a tree.

use crate::error::Result;
use crate::files;
use crate::message::{Remove, Reply};
use crate::serve::Server;
use crate::transfer::Positions;

impl Server {
    pub(super) fn remove(&mut self, link: u64, id: u32, request: &Remove<'_>) -> Result<()> {
        let path = request.path.to_vec();
        let options = files::Remove { recursive: request.recursive, missing_ok: request.missing_ok };
        self.begin_transfer((link, id), request.user, Positions::Implied, move |root, port| {
            files::remove(root, &path, options)?;
            port.finish(&Reply::Ok { id })
        })
    }
}
