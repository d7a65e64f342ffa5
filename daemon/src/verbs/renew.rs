//! `renew`: a leased sandbox lives on.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::message::{RenewLease, Reply};
use crate::serve::Server;

impl Server {
    pub(super) fn renew(&mut self, link: u64, id: u32, renew: &RenewLease) -> Result<()> {
        self.source.renew(Duration::from_millis(renew.lease_ms), Instant::now())?;
        self.reply(link, &Reply::Ok { id });
        Ok(())
    }
}
