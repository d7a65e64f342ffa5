//! What of a container's root may be copied into a layer of our own: little enough, and nothing that a copy would change.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::files::has_attributes;

/// Bytes and files of our own layer.
pub const MOST_BYTES: u64 = 8 << 20;
pub const MOST_FILES: u64 = 4096;

/// What may still be copied.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    bytes: u64,
    files: u64,
}

/// Everything in a directory, itself included. Parents come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    pub directories: Vec<String>,
    /// Files and links.
    pub others: Vec<String>,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { bytes: MOST_BYTES, files: MOST_FILES }
    }
}

impl Budget {
    /// One more file, directory or link. None, and nothing is spent, where it is too much.
    pub fn spend(&mut self, facts: &Metadata) -> Option<()> {
        let size = if facts.is_file() { facts.size() } else { 0 };
        *self = Budget { bytes: self.bytes.checked_sub(size)?, files: self.files.checked_sub(1)? };
        Some(())
    }

    /// The directory `top` whole. None, and nothing is spent, where it is too much or holds what a copy would change.
    pub fn spend_tree(&mut self, top: &str) -> Option<Tree> {
        let mut left = *self;
        let mut tree = Tree::default();
        let mut waiting = vec![PathBuf::from(top)];
        while let Some(path) = waiting.pop() {
            let facts = std::fs::symlink_metadata(&path).ok()?;
            left.spend(&facts)?;
            let name = path.to_str()?.to_owned();
            if has_attributes(|list| rustix::fs::llistxattr(&path, list)).unwrap_or(true) {
                return None;
            }
            if facts.is_dir() {
                for entry in std::fs::read_dir(&path).ok()? {
                    waiting.push(entry.ok()?.path());
                }
                tree.directories.push(name);
            } else if facts.is_symlink() || (facts.is_file() && facts.nlink() == 1) {
                tree.others.push(name);
            } else {
                return None;
            }
        }
        *self = left;
        Some(tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::Scratch;

    /// A tree comes whole, parents first; what is too much or of another kind leaves the budget as it was.
    #[test]
    fn a_tree_is_taken_whole_or_not_at_all() {
        let scratch = Scratch::new();
        let top = scratch.path().join("top");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/file"), b"12345").unwrap();
        std::os::unix::fs::symlink("nowhere", top.join("link")).unwrap();
        let name = |below: &str| top.join(below).to_str().unwrap().to_owned();
        let whole = name("").trim_end_matches('/').to_owned();
        let mut budget = Budget { bytes: 6, files: 6 };
        let tree = budget.spend_tree(&whole).unwrap();
        assert_eq!(tree.directories, [whole.clone(), name("a"), name("a/b")]);
        assert_eq!(tree.others.len(), 2);
        assert_eq!((budget.bytes, budget.files), (1, 1));
        assert_eq!(budget.spend_tree(&whole), None);
        assert_eq!((budget.bytes, budget.files), (1, 1));
        std::fs::hard_link(top.join("a/b/file"), top.join("second")).unwrap();
        assert_eq!(Budget::default().spend_tree(&whole), None);
    }
}
