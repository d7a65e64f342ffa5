//! What processes leave in an IPC namespace: shared memory, semaphores and queues outlive whoever made them.

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::error::{Code, Error, Result};

/// The namespace of the machine itself, by its inode (`PROC_IPC_INIT_INO`).
const MACHINES: &str = "ipc:[4026531839]";
const QUEUES: &str = "/dev/mqueue";
const MQUEUE_MAGIC: i64 = 0x1980_0202;

/// The kinds of System V objects, as files of `/proc/sysvipc`.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Memory,
    Semaphores,
    Queue,
}

const KINDS: [(Kind, &str); 3] = [(Kind::Memory, "shm"), (Kind::Semaphores, "sem"), (Kind::Queue, "msg")];

/// Whether the namespace can be cleared: it is not the machine's, its queues can be seen, and nothing is in it yet.
///
/// # Errors
/// `unsupported` with what is in the way.
pub fn check() -> Result<()> {
    let refused = |why: &'static str| Error::new(Code::Unsupported, why);
    let own = std::fs::read_link("/proc/self/ns/ipc").map_err(|_| refused("the IPC namespace cannot be told"))?;
    if own.as_os_str() == MACHINES {
        return Err(refused("the IPC namespace is the machine's"));
    }
    if !rustix::fs::statfs(QUEUES).is_ok_and(|facts| facts.f_type == MQUEUE_MAGIC) {
        return Err(refused("message queues are not to be seen in /dev/mqueue"));
    }
    if is_empty() { Ok(()) } else { Err(refused("somebody else's objects are in the IPC namespace")) }
}

/// Remove everything that may be removed. Says whether nothing is left.
pub fn clear() -> bool {
    for (kind, id) in objects() {
        // SAFETY: no memory is involved in removing an object by its number.
        unsafe {
            match kind {
                Kind::Memory => libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()),
                Kind::Semaphores => libc::semctl(id, 0, libc::IPC_RMID),
                Kind::Queue => libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()),
            };
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(directory) = rustix::fs::open(QUEUES, flags, Mode::empty()) {
        for name in queues() {
            // What stays is seen at the end.
            let _ = rustix::fs::unlinkat(&directory, name.as_os_str(), AtFlags::empty());
        }
    }
    is_empty()
}

fn is_empty() -> bool {
    objects().is_empty() && queues().is_empty()
}

/// Every System V object by its number. Where the kernel has none, there are none.
fn objects() -> Vec<(Kind, i32)> {
    let read = |name| std::fs::read_to_string(format!("/proc/sysvipc/{name}")).unwrap_or_default();
    KINDS.iter().flat_map(|(kind, name)| ids(&read(name)).into_iter().map(|id| (*kind, id))).collect()
}

/// The second column of each line but the first.
fn ids(table: &str) -> Vec<i32> {
    table.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse().ok()).collect()
}

fn queues() -> Vec<std::ffi::OsString> {
    std::fs::read_dir(QUEUES).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers stand in the second column, below a line of headings.
    #[test]
    fn objects_are_read_from_the_kernels_tables() {
        assert_eq!(ids("       key      shmid perms\n         0          7  1600\n   -5 32768 666\n"), [7, 32_768]);
        assert_eq!(ids("       key      semid\n"), Vec::<i32>::new());
        assert_eq!(ids(""), Vec::<i32>::new());
    }
}
