//! Extended attributes: whether a file has more about it than owner, mode and times.

use rustix::io::Errno;

/// What every file has where a node labels files; a new one gets the same.
const LABEL: &[u8] = b"security.selinux";

/// Whether there are any but the node's label; `list` is one of the calls that list them.
///
/// # Errors
/// Those of the call, but for a file system that has none.
pub fn has_attributes(list: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<bool> {
    let mut names = [0_u8; 256];
    match list(&mut names) {
        Ok(length) => Ok(names[..length].split(|byte| *byte == 0).any(|name| !name.is_empty() && name != LABEL)),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(Errno::RANGE) => Ok(true),
        Err(errno) => Err(errno),
    }
}
