//! A set of files by inode, small for files that were made one after the other.

use std::collections::BTreeMap;

/// Ranges of inode numbers: file systems give them out nearly in order, so a million new files are a few ranges.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    /// Last number of each range, by device and first number. Ranges neither touch nor overlap.
    ranges: BTreeMap<(u64, u64), u64>,
}

impl Inodes {
    pub fn contains(&self, (device, inode): (u64, u64)) -> bool {
        self.range_before((device, inode)).is_some_and(|(_, last)| inode <= last)
    }

    pub fn insert(&mut self, (device, inode): (u64, u64)) {
        if self.contains((device, inode)) {
            return;
        }
        let before = self.range_before((device, inode)).filter(|(_, last)| last + 1 == inode);
        let after = inode.checked_add(1).and_then(|next| self.ranges.remove(&(device, next)));
        let first = before.map_or(inode, |(first, _)| first);
        self.ranges.insert((device, first), after.unwrap_or(inode));
    }

    /// First and last number of the last range of the device that begins at the inode or before.
    fn range_before(&self, (device, inode): (u64, u64)) -> Option<(u64, u64)> {
        let (&(_, first), &last) = self.ranges.range((device, 0)..=(device, inode)).next_back()?;
        Some((first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Random;
    use super::*;

    /// It has what was put in and nothing else, in whatever order that was.
    #[test]
    fn it_has_what_was_put_in() {
        let mut random = Random(3);
        let (mut inodes, mut expected) = (Inodes::default(), std::collections::BTreeSet::new());
        for _ in 0..3000 {
            let file = (random.below(2), random.below(2000));
            inodes.insert(file);
            expected.insert(file);
        }
        for file in (0..3).flat_map(|device| (0..2001).map(move |inode| (device, inode))) {
            assert_eq!(inodes.contains(file), expected.contains(&file), "{file:?}");
        }
        inodes.insert((9, u64::MAX));
        assert!(inodes.contains((9, u64::MAX)) && !inodes.contains((9, u64::MAX - 1)));
    }

    /// Files made in order are one range, from whichever side it grew.
    #[test]
    fn neighbours_are_one_range() {
        let mut inodes = Inodes::default();
        for inode in (1000..2000).chain((500..1000).rev()).chain([2001, 2000]) {
            inodes.insert((1, inode));
        }
        assert_eq!(inodes.ranges, BTreeMap::from([((1, 500), 2001)]));
    }
}
