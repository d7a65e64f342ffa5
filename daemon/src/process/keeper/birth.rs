//! Where the kernel writes the pid of a leader before it runs, so that it is known even if its maker is killed then.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// The least that can be mapped.
const PAGE_BYTES: usize = 4096;

/// A word that a keeper shares with the daemon.
#[derive(Debug)]
pub struct Birthplace {
    page: *mut c_void,
}

impl Birthplace {
    /// # Errors
    /// No memory.
    pub fn new() -> rustix::io::Result<Self> {
        // SAFETY: a new anonymous mapping of our own; nothing else knows of it.
        let page = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::SHARED)?
        };
        Ok(Birthplace { page })
    }

    /// For [`crate::process::child::start`].
    pub fn as_ptr(&self) -> *mut u32 {
        self.page.cast()
    }

    /// Nobody has been born.
    pub fn clear(&self) {
        self.word().store(0, Ordering::SeqCst);
    }

    /// Who was born since.
    pub fn pid(&self) -> Option<u32> {
        Some(self.word().load(Ordering::SeqCst)).filter(|pid| *pid != 0)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped for as long as `self` lives, is zero at first, and is written as whole words only.
        unsafe { AtomicU32::from_ptr(self.as_ptr()) }
    }
}

impl Drop for Birthplace {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nobody else in this process knows of it.
        if let Err(errno) = unsafe { rustix::mm::munmap(self.page, PAGE_BYTES) } {
            eprintln!("sandlotd: munmap of a birthplace: {errno}");
        }
    }
}
