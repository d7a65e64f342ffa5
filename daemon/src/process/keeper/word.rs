//! What a keeper tells the daemon, in pieces of one size.

use rustix::io::Errno;

use crate::process::reaper::{Death, Ending};

pub const WORD_BYTES: usize = 48;

/// See [`super::News`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// There is none yet.
    Nothing,
    /// The pid of the leader.
    Started(u32),
    Failed(Errno),
    Ended {
        /// Of the leader.
        death: Death,
        /// See [`crate::process::child::Report::raw`].
        report: (u32, i32),
        is_free: bool,
    },
    Free,
}

const STARTED: u32 = 1;
const FAILED: u32 = 2;
const ENDED: u32 = 3;
const FREE: u32 = 4;

impl Word {
    pub fn encode(self) -> [u8; WORD_BYTES] {
        let mut bytes = [0; WORD_BYTES];
        let mut put = |start: usize, value: &[u8]| bytes[start..start + value.len()].copy_from_slice(value);
        let kind = match self {
            Word::Nothing => 0,
            Word::Started(pid) => {
                put(4, &pid.to_ne_bytes());
                STARTED
            }
            Word::Failed(errno) => {
                put(4, &errno.raw_os_error().to_ne_bytes());
                FAILED
            }
            Word::Ended { death, report: (stage, errno), is_free } => {
                put(4, &death.pid.to_ne_bytes());
                put(8, &death.ending.to_status().to_ne_bytes());
                put(12, &stage.to_ne_bytes());
                put(16, &errno.to_ne_bytes());
                put(20, &u32::from(is_free).to_ne_bytes());
                put(24, &death.user_us.to_ne_bytes());
                put(32, &death.system_us.to_ne_bytes());
                put(40, &death.peak_bytes.to_ne_bytes());
                ENDED
            }
            Word::Free => FREE,
        };
        put(0, &kind.to_ne_bytes());
        bytes
    }

    /// `None` for what is no word.
    pub fn decode(bytes: &[u8; WORD_BYTES]) -> Option<Self> {
        let four = |start: usize| bytes[start..].first_chunk::<4>().copied();
        let number = |start: usize| four(start).map(i32::from_ne_bytes);
        let count = |start: usize| four(start).map(u32::from_ne_bytes);
        let long = |start: usize| bytes[start..].first_chunk::<8>().copied().map(u64::from_ne_bytes);
        Some(match count(0)? {
            0 => Word::Nothing,
            STARTED => Word::Started(count(4)?),
            FAILED => Word::Failed(Errno::from_raw_os_error(number(4)?)),
            ENDED => Word::Ended {
                death: Death {
                    pid: count(4)?,
                    ending: Ending::from_status(number(8)?),
                    user_us: long(24)?,
                    system_us: long(32)?,
                    peak_bytes: long(40)?,
                },
                report: (count(12)?, number(16)?),
                is_free: count(20)? != 0,
            },
            FREE => Word::Free,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word comes back from its bytes.
    #[test]
    fn words_survive_their_bytes() {
        let death = Death { pid: 7, ending: Ending::Signal(9), user_us: 1 << 40, system_us: 2, peak_bytes: 1 << 50 };
        let ended = |is_free| Word::Ended { death, report: (2, -1), is_free };
        for word in
            [Word::Nothing, Word::Started(u32::MAX), Word::Failed(Errno::AGAIN), ended(true), ended(false), Word::Free]
        {
            assert_eq!(Word::decode(&word.encode()), Some(word));
        }
        assert_eq!(Word::decode(&[9; WORD_BYTES]), None);
    }
}
