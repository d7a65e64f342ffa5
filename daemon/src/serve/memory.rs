//! Which commands were killed for memory, where only the sandbox as a whole counts such kills.

use std::ops::Range;

use crate::process::reaper::Ending;

const SIGKILL: u8 = libc::SIGKILL as u8;
/// What a shell says of a child that died of SIGKILL.
const SHELL_SAYS_KILLED: u8 = 128 + SIGKILL;

/// Kills that a command has been told of.
#[derive(Debug, Default)]
pub(super) struct MemoryKills {
    claimed: u64,
}

/// In whose company a command has lived, and how it has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lived {
    /// No other command lived at the same time: whatever was killed meanwhile was a process of its own.
    Alone,
    /// A kill may have been another's: only what looks like one is taken for one.
    InCompany(Ending),
}

impl MemoryKills {
    /// Whether a command that ended like this, and during which the sandbox's count of kills went through `counted`, was
    /// the victim of one that no other command has claimed.
    pub fn claim(&mut self, counted: Range<u64>, lived: Lived) -> bool {
        let first = self.claimed.max(counted.start);
        if counted.end <= first {
            return false;
        }
        match lived {
            Lived::Alone => self.claimed = counted.end,
            Lived::InCompany(Ending::Signal(SIGKILL) | Ending::Code(SHELL_SAYS_KILLED)) => self.claimed = first + 1,
            Lived::InCompany(_) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Lived = Lived::InCompany(Ending::Signal(9));

    /// Each kill is one command's, and only of one that looks like it.
    #[test]
    fn a_kill_is_claimed_once() {
        let mut kills = MemoryKills::default();
        assert!(!kills.claim(0..1, Lived::InCompany(Ending::Code(0))));
        assert!(!kills.claim(0..1, Lived::InCompany(Ending::Signal(15))));
        assert!(kills.claim(0..1, KILLED));
        assert!(!kills.claim(0..1, KILLED));
        assert!(kills.claim(0..2, Lived::InCompany(Ending::Code(137))));
    }

    /// However it ended: a part of a pipeline was killed, and its shell said that all was well.
    #[test]
    fn every_kill_is_that_of_a_command_that_lived_alone() {
        let mut kills = MemoryKills::default();
        assert!(!kills.claim(0..0, Lived::Alone));
        assert!(kills.claim(0..3, Lived::Alone));
        assert!(!kills.claim(0..3, Lived::Alone));
        assert!(!kills.claim(2..3, KILLED));
        assert!(kills.claim(3..4, KILLED));
    }

    /// Somebody's own `kill -9` is not taken for a kill that came before the command did.
    #[test]
    fn what_came_before_a_command_is_not_its_own() {
        let mut kills = MemoryKills::default();
        assert!(!kills.claim(3..3, KILLED));
        assert!(kills.claim(3..5, KILLED));
        assert!(kills.claim(4..5, KILLED));
        assert!(!kills.claim(4..5, KILLED));
    }
}
