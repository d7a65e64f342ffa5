//! `upload`: a tree towards the sandbox.

use crate::error::Result;
use crate::files::{self, Item};
use crate::message::{Entry, Transfer};
use crate::serve::Server;
use crate::transfer::Positions;

impl Server {
    pub(super) fn upload(&mut self, link: u64, id: u32, request: &Transfer<'_>) -> Result<()> {
        let path = request.path.to_vec();
        let destination = self.context.destination;
        self.begin_transfer((link, id), request.user, Positions::Told, move |root, port| {
            let summary = files::upload(root, &path, destination, port)?;
            super::download::finish(port, &summary)
        })
    }

    pub(super) fn entry(&mut self, link: u64, id: u32, entry: &Entry<'_>) {
        let entry = files::Entry {
            path: entry.path.to_vec(),
            kind: entry.kind,
            mode: entry.mode,
            mtime_ns: entry.mtime_ns,
            size: entry.size,
            target: entry.target.map(|target| target.to_vec()),
            uid: entry.uid,
            gid: entry.gid,
            opaque: entry.opaque,
        };
        self.feed_transfer(link, id, Item::Entry(entry));
    }
}
