//! Deaths of children, ours and the orphans that PID 1 inherits.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(u8),
    Signal(u8),
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
                return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
            }
            Ok(Reaper { signals: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// Take note of the signals, so that the descriptor is quiet until the next one.
    ///
    /// SIGTERM from outside of the sandbox is the host's request that everything in it shall end: it is passed on to
    /// everybody. From inside it means nothing.
    pub fn acknowledge(&self) {
        const RECORD: usize = size_of::<libc::signalfd_siginfo>();
        let mut buffer = [0_u8; 4 * RECORD];
        // Whatever it says of SIGCHLD, the next step is to look for dead children.
        let count = rustix::io::read(&self.signals, &mut buffer).unwrap_or(0);
        for record in buffer[..count].chunks_exact(RECORD) {
            // SAFETY: the kernel has written a whole record, and any bytes are one.
            let record = unsafe { record.as_ptr().cast::<libc::signalfd_siginfo>().read_unaligned() };
            // Who is in no PID namespace of ours has no number here.
            if record.ssi_signo == libc::SIGTERM.cast_unsigned() && record.ssi_pid == 0 {
                // SAFETY: no memory is involved; to PID 1, -1 is everybody else in the sandbox.
                unsafe { libc::kill(-1, libc::SIGTERM) };
            }
        }
    }

    /// The next dead child, or `None` when no child is dead.
    pub fn next_death(&self) -> Option<Death> {
        wait(libc::WNOHANG)
    }

    /// Wait for the next child to die; `None` when there are no children.
    pub fn wait_for_death(&self) -> Option<Death> {
        wait(0)
    }
}

impl AsFd for Reaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

fn wait(flags: libc::c_int) -> Option<Death> {
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
        let ending = if libc::WIFSIGNALED(status) {
            Ending::Signal(libc::WTERMSIG(status) as u8)
        } else {
            Ending::Code(libc::WEXITSTATUS(status) as u8)
        };
        return Some(Death {
            pid,
            ending,
            user_us: microseconds(usage.ru_utime),
            system_us: microseconds(usage.ru_stime),
            peak_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        });
    }
}

fn microseconds(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
}
