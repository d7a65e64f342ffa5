//! Bytes to frames and back, with no socket and no verb in sight.
//!
//! A frame is a 4-byte big-endian length and one MessagePack map. [`inspect`] walks a frame once, without allocating,
//! and proves its shape (one map, string keys, bounded nesting, nothing after it) before any decoder sees it.

use crate::limits::MAX_DEPTH;

/// Length of the length.
pub const PREFIX_BYTES: usize = 4;

/// A breach of the framing. It ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    #[error("empty frame")]
    Empty,
    #[error("frame of {length} bytes where {limit} are allowed")]
    TooLong { length: usize, limit: usize },
    #[error("frame ends inside a value")]
    Truncated,
    #[error("bytes after the message")]
    Trailing,
    #[error("not a map with string keys")]
    NotAMap,
    #[error("nested too deeply")]
    TooDeep,
    #[error("not MessagePack as the contract uses it")]
    BadMarker,
    #[error("text is not UTF-8")]
    BadText,
    #[error("message without a type")]
    NoType,
    #[error("id is missing or not between 1 and 2^32-1")]
    BadId,
}

/// What every message says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub kind: &'a str,
    /// 0 when absent.
    pub id: u32,
}

/// The payload length that a prefix announces, or why it is refused.
pub fn payload_length(prefix: [u8; PREFIX_BYTES], limit: usize) -> Result<usize, Breach> {
    match u32::from_be_bytes(prefix) as usize {
        0 => Err(Breach::Empty),
        length if length > limit => Err(Breach::TooLong { length, limit }),
        length => Ok(length),
    }
}

/// Check the shape of one payload and return its `t` and `id`.
pub fn inspect(payload: &[u8]) -> Result<Envelope<'_>, Breach> {
    let mut walker = Walker { rest: payload };
    let entries = walker.map_header()?;
    let (mut kind, mut id) = (None, 0);
    for _ in 0..entries {
        match walker.text()? {
            "t" => kind = Some(walker.text().map_err(no_type)?),
            "id" => id = walker.call_id()?,
            _ => walker.skip(1)?,
        }
    }
    if !walker.rest.is_empty() {
        return Err(Breach::Trailing);
    }
    Ok(Envelope { kind: kind.ok_or(Breach::NoType)?, id })
}

fn no_type(breach: Breach) -> Breach {
    match breach {
        Breach::NotAMap => Breach::NoType,
        other => other,
    }
}

/// A cursor over untrusted MessagePack. Never looks past the end and never allocates.
struct Walker<'a> {
    rest: &'a [u8],
}

impl<'a> Walker<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Breach> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(Breach::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// A big-endian unsigned number of `width` bytes, at most 8.
    fn number(&mut self, width: usize) -> Result<u64, Breach> {
        Ok(self.take(width)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn length(&mut self, width: usize) -> Result<usize, Breach> {
        usize::try_from(self.number(width)?).map_err(|_| Breach::Truncated)
    }

    fn marker(&mut self) -> Result<u8, Breach> {
        Ok(self.take(1)?[0])
    }

    fn map_header(&mut self) -> Result<usize, Breach> {
        match self.marker()? {
            marker @ 0x80..=0x8f => Ok(usize::from(marker & 0x0f)),
            0xde => self.length(2),
            0xdf => self.length(4),
            _ => Err(Breach::NotAMap),
        }
    }

    fn text(&mut self) -> Result<&'a str, Breach> {
        let length = match self.marker()? {
            marker @ 0xa0..=0xbf => usize::from(marker & 0x1f),
            0xd9 => self.length(1)?,
            0xda => self.length(2)?,
            0xdb => self.length(4)?,
            _ => return Err(Breach::NotAMap),
        };
        std::str::from_utf8(self.take(length)?).map_err(|_| Breach::BadText)
    }

    fn call_id(&mut self) -> Result<u32, Breach> {
        let value = match self.marker()? {
            marker @ 0x00..=0x7f => u64::from(marker),
            marker @ 0xcc..=0xcf => self.number(1 << (marker - 0xcc))?,
            _ => return Err(Breach::BadId),
        };
        u32::try_from(value).map_err(|_| Breach::BadId)
    }

    /// Step over one value at nesting level `depth` (the frame's own map is level 1).
    fn skip(&mut self, depth: usize) -> Result<(), Breach> {
        match self.marker()? {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => Ok(()),
            marker @ 0xcc..=0xcf => self.take(1 << (marker - 0xcc)).map(drop),
            marker @ 0xd0..=0xd3 => self.take(1 << (marker - 0xd0)).map(drop),
            0xca => self.take(4).map(drop),
            0xcb => self.take(8).map(drop),
            marker @ 0xc4..=0xc6 => {
                let length = self.length(1 << (marker - 0xc4))?;
                self.take(length).map(drop)
            }
            marker @ 0xa0..=0xbf => self.skip_text(usize::from(marker & 0x1f)),
            marker @ 0xd9..=0xdb => {
                let length = self.length(1 << (marker - 0xd9))?;
                self.skip_text(length)
            }
            marker @ 0x90..=0x9f => self.skip_items(usize::from(marker & 0x0f), depth),
            marker @ 0xdc..=0xdd => {
                let count = self.length(2 << (marker - 0xdc))?;
                self.skip_items(count, depth)
            }
            marker @ 0x80..=0x8f => self.skip_entries(usize::from(marker & 0x0f), depth),
            marker @ 0xde..=0xdf => {
                let count = self.length(2 << (marker - 0xde))?;
                self.skip_entries(count, depth)
            }
            // 0xc1 is never used; extension types are not part of the contract.
            _ => Err(Breach::BadMarker),
        }
    }

    fn skip_text(&mut self, length: usize) -> Result<(), Breach> {
        std::str::from_utf8(self.take(length)?).map(drop).map_err(|_| Breach::BadText)
    }

    fn skip_items(&mut self, count: usize, depth: usize) -> Result<(), Breach> {
        if depth >= MAX_DEPTH {
            return Err(Breach::TooDeep);
        }
        (0..count).try_for_each(|_| self.skip(depth + 1))
    }

    fn skip_entries(&mut self, count: usize, depth: usize) -> Result<(), Breach> {
        if depth >= MAX_DEPTH {
            return Err(Breach::TooDeep);
        }
        (0..count).try_for_each(|_| {
            self.text()?;
            self.skip(depth + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The type and the id are found wherever they stand, among values of every shape.
    #[test]
    fn type_and_id_are_found_among_other_fields() {
        let payload = b"\x84\xa1a\x93\x01\xc4\x02\xff\xff\xa1x\xa2id\xcd\x01\x02\xa1f\xcb\0\0\0\0\0\0\0\0\xa1t\xa4ping";
        assert_eq!(inspect(payload), Ok(Envelope { kind: "ping", id: 258 }));
    }

    /// Each way to break a frame is named.
    #[test]
    fn breaches_are_named() {
        assert_eq!(payload_length([0; 4], 10), Err(Breach::Empty));
        assert_eq!(payload_length([0, 0, 0, 11], 10), Err(Breach::TooLong { length: 11, limit: 10 }));
        assert_eq!(inspect(b"\x81\xa1t\xa4pin"), Err(Breach::Truncated));
        assert_eq!(inspect(b"\x81\xa1t\xa4ping\0"), Err(Breach::Trailing));
        assert_eq!(inspect(b"\x91\xa1t"), Err(Breach::NotAMap));
        assert_eq!(inspect(b"\x81\x01\xa4ping"), Err(Breach::NotAMap));
        assert_eq!(inspect(b"\x80"), Err(Breach::NoType));
        assert_eq!(inspect(b"\x81\xa1t\x01"), Err(Breach::NoType));
        assert_eq!(inspect(b"\x81\xa1t\xa1\xff"), Err(Breach::BadText));
        assert_eq!(inspect(b"\x82\xa1t\xa1x\xa2id\xff"), Err(Breach::BadId));
        assert_eq!(inspect(b"\x82\xa1t\xa1x\xa1a\xc1"), Err(Breach::BadMarker));
        assert_eq!(inspect(b"\x82\xa1t\xa1x\xa1a\x91\x91\x91\x90"), Err(Breach::TooDeep));
        assert_eq!(inspect(b"\x82\xa1t\xa1x\xa1a\x91\x91\x91\x01"), Ok(Envelope { kind: "x", id: 0 }));
    }

    /// A header that promises four thousand million items costs no more than the bytes that are there.
    #[test]
    fn promised_lengths_are_not_believed() {
        assert_eq!(inspect(b"\x82\xa1t\xa1x\xa1a\xdd\xff\xff\xff\xff"), Err(Breach::Truncated));
        assert_eq!(inspect(b"\xdf\xff\xff\xff\xff"), Err(Breach::Truncated));
        assert_eq!(inspect(b"\x82\xa1t\xa1x\xa1a\xc6\xff\xff\xff\xff"), Err(Breach::Truncated));
    }
}
