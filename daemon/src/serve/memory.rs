//! Which commands were killed for memory, where only the sandbox as a whole counts such kills.

use std::ops::Range;

use crate::process::reaper::Ending;

/// What a shell says of a child that died of SIGKILL.
const SHELL_SAYS_KILLED: u8 = 128 + libc::SIGKILL as u8;

/// Kills that a command has been told of.
#[derive(Debug, Default)]
pub(super) struct MemoryKills {
    claimed: u64,
}

impl MemoryKills {
    /// Whether a command that ended like this, and during which the sandbox's count of kills went through `counted`, was
    /// the victim of one that no other command has claimed.
    pub fn claim(&mut self, counted: Range<u64>, ending: Ending) -> bool {
        let looks_killed = ending == Ending::Signal(libc::SIGKILL as u8) || ending == Ending::Code(SHELL_SAYS_KILLED);
        let unclaimed = counted.end > self.claimed.max(counted.start);
        if looks_killed && unclaimed {
            self.claimed = self.claimed.max(counted.start) + 1;
        }
        looks_killed && unclaimed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Ending = Ending::Signal(9);

    /// Each kill is one command's, and only of one that looks like it.
    #[test]
    fn a_kill_is_claimed_once() {
        let mut kills = MemoryKills::default();
        assert!(!kills.claim(0..1, Ending::Code(0)));
        assert!(!kills.claim(0..1, Ending::Signal(15)));
        assert!(kills.claim(0..1, KILLED));
        assert!(!kills.claim(0..1, KILLED));
        assert!(kills.claim(0..2, Ending::Code(137)));
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
