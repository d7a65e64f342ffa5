//! `list`: what is in a directory.

use crate::error::Result;
use crate::files::{self, Extent};
use crate::message::{List, ListDone, Reply};
use crate::serve::Server;
use crate::transfer::Positions;

impl Server {
    pub(super) fn list(&mut self, link: u64, id: u32, request: &List<'_>) -> Result<()> {
        let path = request.path.to_vec();
        let extent = Extent { recursive: request.recursive, limit: request.limit };
        self.begin_transfer((link, id), request.user, Positions::Implied, move |root, port| {
            let truncated = files::list(root, &path, extent, port)?;
            port.finish(&Reply::OkList(ListDone { id, truncated }))
        })
    }
}
