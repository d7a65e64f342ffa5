//! `download`: a tree from the sandbox.

use serde_bytes::ByteBuf;

use crate::error::Result;
use crate::files::{self, Summary};
use crate::message::{Reply, Transfer, TransferDone};
use crate::serve::Server;
use crate::transfer::{Port, Positions};

impl Server {
    pub(super) fn download(&mut self, link: u64, id: u32, request: &Transfer<'_>) -> Result<()> {
        let path = request.path.to_vec();
        self.begin_transfer((link, id), request.user, Positions::Told, move |root, port| {
            let summary = files::download(root, &path, port)?;
            finish(port, &summary)
        })
    }
}

/// The answer that every transfer ends with.
pub(super) fn finish(port: &mut Port, summary: &Summary) -> Result<()> {
    let skipped: Vec<ByteBuf> = summary.skipped.iter().cloned().map(ByteBuf::from).collect();
    port.finish(&Reply::OkTransfer(TransferDone {
        id: port.id(),
        files: summary.files,
        dirs: summary.dirs,
        links: summary.links,
        bytes: summary.bytes,
        skipped: &skipped,
    }))
}
