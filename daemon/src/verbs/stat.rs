//! `stat`: facts about one path.

use serde_bytes::Bytes;

use crate::error::Result;
use crate::files::{self, Follow};
use crate::message::{Reply, Stat, StatReply};
use crate::serve::Server;
use crate::transfer::Positions;

impl Server {
    pub(super) fn stat(&mut self, link: u64, id: u32, request: &Stat<'_>) -> Result<()> {
        let path = request.path.to_vec();
        let follow = if request.follow { Follow::Yes } else { Follow::No };
        self.begin_transfer((link, id), request.user, Positions::Implied, move |root, port| {
            let facts = files::stat(root, &path, follow)?;
            port.finish(&Reply::OkStat(StatReply {
                id,
                kind: facts.kind,
                size: facts.size,
                mode: facts.mode,
                uid: facts.uid,
                gid: facts.gid,
                mtime_ns: facts.mtime_ns,
                target: facts.target.as_deref().map(Bytes::new),
            }))
        })
    }
}
