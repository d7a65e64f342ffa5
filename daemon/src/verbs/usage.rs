//! `usage`: the sandbox's numbers.

use crate::error::Result;
use crate::message::{Reply, UsageReply};
use crate::serve::Server;

impl Server {
    pub(super) fn usage(&mut self, link: u64, id: u32) -> Result<()> {
        let usage = UsageReply { id, ..self.context.hooks.usage() };
        self.reply(link, &Reply::OkUsage(usage));
        Ok(())
    }
}
