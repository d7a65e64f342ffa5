//! The role `pause`: hold the namespaces of a pod open.

use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::process::reaper::Reaper;

/// Sleep until SIGTERM or SIGINT from outside, and reap what comes.
pub fn pause() -> ExitCode {
    match wait() {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => {
            eprintln!("sandlotd pause: {errno}");
            ExitCode::FAILURE
        }
    }
}

fn wait() -> rustix::io::Result<()> {
    let reaper = Reaper::new()?;
    loop {
        match rustix::event::poll(&mut [PollFd::new(&reaper, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if reaper.acknowledge() {
            return Ok(());
        }
        while reaper.next_event().is_some() {}
    }
}
