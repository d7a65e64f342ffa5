//! Deaths of children, ours and the orphans that PID 1 inherits.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::error::last_errno;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(u8),
    Signal(u8),
}

impl Ending {
    /// From what `wait` says.
    pub fn from_status(status: libc::c_int) -> Self {
        if libc::WIFSIGNALED(status) {
            Ending::Signal(libc::WTERMSIG(status) as u8)
        } else {
            Ending::Code(libc::WEXITSTATUS(status) as u8)
        }
    }

    /// As `wait` says it.
    pub fn to_status(self) -> libc::c_int {
        match self {
            Ending::Code(code) => libc::c_int::from(code) << 8,
            Ending::Signal(signal) => libc::c_int::from(signal),
        }
    }
}

/// A child that has been reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    pub pid: u32,
    pub ending: Ending,
    /// Of it and of those children that it waited for.
    pub user_us: u64,
    pub system_us: u64,
    /// Of the largest of them.
    pub peak_bytes: u64,
}

/// What can happen to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Died(Death),
    /// Somebody has stopped this one.
    Stopped(u32),
}

/// SIGCHLD as a descriptor. Every signal stays blocked in this thread from here on.
#[derive(Debug)]
pub struct Reaper {
    signals: OwnedFd,
}

impl Reaper {
    /// Block all signals, give all of them their default action (commands inherit it), and listen for SIGCHLD.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn new() -> rustix::io::Result<Self> {
        // SAFETY: plain calls on a local set; the descriptor that signalfd returns is ours alone.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
            for signal in 1..=libc::SIGRTMAX() {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
            if fd < 0 {
                return Err(last_errno());
            }
            Ok(Reaper { signals: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// Take note of the signals, so that the descriptor is quiet until the next one.
    ///
    /// True for SIGTERM from outside of the sandbox: somebody there wants everything in it to end. From inside it means
    /// nothing.
    pub fn acknowledge(&self) -> bool {
        const RECORD: usize = size_of::<libc::signalfd_siginfo>();
        let mut buffer = [0_u8; 4 * RECORD];
        // Whatever it says of SIGCHLD, the next step is to look for dead children.
        let count = rustix::io::read(&self.signals, &mut buffer).unwrap_or(0);
        buffer[..count].chunks_exact(RECORD).any(|record| {
            // SAFETY: the kernel has written a whole record, and any bytes are one.
            let record = unsafe { record.as_ptr().cast::<libc::signalfd_siginfo>().read_unaligned() };
            // Who is in no PID namespace of ours has no number here.
            record.ssi_signo == libc::SIGTERM.cast_unsigned() && record.ssi_pid == 0
        })
    }

    /// The next thing that has happened to a child, or `None` when nothing has.
    pub fn next_event(&self) -> Option<Event> {
        wait(libc::WNOHANG | libc::WUNTRACED)
    }

    /// Wait for the next child to die; `None` when there are no children.
    pub fn wait_for_death() -> Option<Death> {
        loop {
            if let Event::Died(death) = wait(0)? {
                return Some(death);
            }
        }
    }

    /// Likewise, for as long as that at most. The signals of deaths must be blocked, as [`Reaper::new`] has them.
    pub fn death_within(time: Duration) -> Passing {
        let end = Instant::now() + time;
        loop {
            if let Some(Event::Died(death)) = wait(libc::WNOHANG) {
                return Passing::Died(death);
            }
            if !has_children() {
                return Passing::Childless;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Passing::NotYet;
            }
            wait_for_news(left);
        }
    }
}

/// What has come of waiting for a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    Died(Death),
    /// Nobody is left who could die.
    Childless,
    /// There are children, and all of them have lived through it.
    NotYet,
}

impl AsFd for Reaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

fn wait(flags: libc::c_int) -> Option<Event> {
    loop {
        let mut status = 0;
        // SAFETY: both results are plain memory of ours.
        let (pid, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::wait4(-1, &raw mut status, flags | libc::__WALL, &raw mut usage), usage)
        };
        if pid < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
            continue;
        }
        let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0)?;
        if libc::WIFSTOPPED(status) {
            return Some(Event::Stopped(pid));
        }
        let (user_us, system_us) = (microseconds(usage.ru_utime), microseconds(usage.ru_stime));
        let peak_bytes = u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024;
        let ending = Ending::from_status(status);
        return Some(Event::Died(Death { pid, ending, user_us, system_us, peak_bytes }));
    }
}

/// Dead ones count, too.
fn has_children() -> bool {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the result is plain memory of ours, and nobody is taken.
    unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &raw mut found, options) == 0
    }
}

/// Take one SIGCHLD, or wait for it. It is taken from the reaper's descriptor; whoever waits looks at all children then.
fn wait_for_news(time: Duration) {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(time.subsec_nanos().cast_signed()),
    };
    // SAFETY: plain calls on a local set; nothing is told of the signal but that it came.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const timeout);
    }
}

fn microseconds(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ending survives the way from a keeper to the daemon.
    #[test]
    fn endings_survive_their_status() {
        for ending in [Ending::Code(0), Ending::Code(255), Ending::Signal(9), Ending::Signal(64)] {
            assert_eq!(Ending::from_status(ending.to_status()), ending);
        }
    }
}
