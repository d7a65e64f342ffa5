//! `changes`: what differs from the image.

use crate::error::Result;
use crate::files;
use crate::message::Transfer;
use crate::serve::Server;
use crate::transfer::Positions;

impl Server {
    /// Acts as root of the sandbox, where there is one: what a user may not read differs all the same.
    pub(super) fn changes(&mut self, link: u64, id: u32, request: &Transfer<'_>) -> Result<()> {
        let path = request.path.to_vec();
        let layout = self.context.hooks.layout()?;
        let widest = self.context.id_maps.widest();
        self.begin_transfer_as((link, id), widest, Positions::Told, move |root, port| {
            let summary = files::changes(root, &path, &layout, port)?;
            super::download::finish(port, &summary)
        })
    }
}
