//! The life of a keeper, in a process of its own: one command's tree after the other.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::birth::Birthplace;
use super::order::Received;
use super::word::Word;
use crate::process::child::{self, Block, Report, Rules, Stack};
use crate::process::reaper::{Passing, Reaper};

/// Start what is ordered and keep its tree, until there will be no more orders.
pub fn keep(line: OwnedFd, birth: &Birthplace, rules: &Rules) -> ! {
    // SAFETY: plain calls on our own process; nothing here uses the descriptors that are closed.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        libc::prctl(libc::PR_SET_NAME, c"sandlotd keeper".as_ptr());
    }
    let line = keep_only(line);
    let rules = imposed(rules);
    let mut stack = None;
    // Nobody to tell is nobody who waits.
    while let Some(served) = serve(&line, birth, &rules, &mut stack)
        && served.is_ok()
    {}
    // SAFETY: always.
    unsafe { libc::_exit(0) }
}

/// What is left of the rules for each command when this process is under the filter of all; all of them where it cannot be.
fn imposed(rules: &Rules) -> Rules {
    match rules.confinement.impose_filter() {
        Ok(left) => Rules { confinement: Arc::new(left), ..rules.clone() },
        Err(_) => rules.clone(),
    }
}

/// Let go of everything of the daemon's but the line.
fn keep_only(line: OwnedFd) -> OwnedFd {
    use std::os::fd::{AsRawFd, FromRawFd};

    const KEPT: c_int = 3;
    // SAFETY: the line is moved to a number that is then owned anew; all others are unused in a keeper.
    unsafe {
        if line.as_raw_fd() != KEPT {
            libc::dup3(line.as_raw_fd(), KEPT, libc::O_CLOEXEC);
        }
        std::mem::forget(line);
        libc::close_range(KEPT as libc::c_uint + 1, libc::c_uint::MAX, 0);
        OwnedFd::from_raw_fd(KEPT)
    }
}

/// One order, from its coming until nobody is left. `None`: no more will come.
fn serve(
    line: &OwnedFd,
    birth: &Birthplace,
    rules: &Rules,
    stack: &mut Option<Stack>,
) -> Option<rustix::io::Result<()>> {
    let report = Arc::new(Report::default());
    let begun = Received::wait(line)?.and_then(|order| begin(order, birth, (rules, Arc::clone(&report)), stack));
    Some(match begun {
        Ok((leader, block)) => {
            let told = say(line, Word::Started(leader)).and_then(|()| attend(line, leader, &report));
            // SAFETY: from `into_raw`; `attend` returns only when the child that read it is dead.
            *stack = told.is_ok().then(|| unsafe { Box::from_raw(block) }.into_stack());
            told
        }
        Err(errno) => say(line, Word::Failed(errno)),
    })
}

/// Make the leader. The block is to be freed when it is dead.
fn begin(
    order: Received,
    birth: &Birthplace,
    (rules, report): (&Rules, Arc<Report>),
    stack: &mut Option<Stack>,
) -> rustix::io::Result<(u32, *mut Block)> {
    let stack = stack.take().map_or_else(Stack::new, Ok)?;
    let (plan, files, descriptors) = order.into_parts();
    let block = Box::into_raw(Box::new(Block::new(plan, files, rules.clone(), report, stack)));
    // SAFETY: from `into_raw`; the caller frees it when the child is dead, and the birthplace outlives it.
    let started = unsafe { child::start(block, birth.as_ptr()) };
    drop(descriptors);
    match started {
        Ok(leader) => Ok((leader, block)),
        Err(errno) => {
            // SAFETY: from `into_raw` above, and no child was made that could know it.
            drop(unsafe { Box::from_raw(block) });
            Err(errno)
        }
    }
}

/// Tell of the leader's end, and of the end of everything that it has left.
fn attend(line: &OwnedFd, leader: u32, report: &Report) -> rustix::io::Result<()> {
    // Later somebody else may have its pid.
    let mut told = false;
    while let Some(death) = Reaper::wait_for_death() {
        if told || death.pid != leader {
            continue;
        }
        told = true;
        let is_free = is_childless();
        say(line, Word::Ended { death, report: report.raw(), is_free })?;
        if is_free {
            return Ok(());
        }
    }
    say(line, Word::Free)
}

/// Reap who is dead already.
fn is_childless() -> bool {
    loop {
        match Reaper::death_within(Duration::ZERO) {
            Passing::Died(_) => {}
            passing => return passing == Passing::Childless,
        }
    }
}

fn say(line: &OwnedFd, word: Word) -> rustix::io::Result<()> {
    let bytes = word.encode();
    // The daemon reads soon; a line that is full of words has room again then.
    match rustix::io::retry_on_intr(|| rustix::io::write(line, &bytes))? {
        count if count == bytes.len() => Ok(()),
        _ => Err(Errno::PIPE),
    }
}
