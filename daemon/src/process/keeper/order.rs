//! What a keeper is told to start: a child's [`Plan`] and its descriptors, in one message.
//!
//! Both sides are one program: numbers are native 32-bit words, first of all how many bytes there are.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::confinement::Identity;
use crate::descriptors;
use crate::process::child::{Files, Plan};
use crate::process::launch::Launch;
use crate::process::program::{Program, StringArray};

/// Bytes of one number.
const NUMBER_BYTES: usize = 4;
/// What is asked for in one go; most orders are shorter.
const READ_BYTES: usize = 16 * 1024;

/// Bytes and descriptors, as they go to a keeper.
#[derive(Debug)]
pub struct Order<'a> {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<BorrowedFd<'a>>,
}

/// An order as its keeper has it. The child gets copies of the descriptors.
#[derive(Debug)]
pub struct Received {
    plan: Plan,
    targets: Vec<c_int>,
    descriptors: Vec<OwnedFd>,
}

impl<'a> Order<'a> {
    /// # Errors
    /// `2BIG` for more than a message holds, which no program can be told anyway.
    pub fn new(launch: &Launch<'a>) -> rustix::io::Result<Self> {
        let (descriptors, targets) = launch.descriptors();
        if descriptors.len() > descriptors::BATCH {
            return Err(Errno::TOOBIG);
        }
        let Plan { program, terminal, identity } = &launch.plan;
        let mut writer = Writer::default();
        writer.number(descriptors.len())?;
        writer.number(usize::from(*terminal))?;
        writer.words([identity.uid, identity.gid].into_iter())?;
        writer.words(identity.groups.iter().copied())?;
        writer.words(targets.iter().map(|target| target.cast_unsigned()))?;
        for text in [program.candidates.bytes(), program.argv.bytes(), program.env.bytes(), &program.complaint] {
            writer.text(text)?;
        }
        Ok(Order { bytes: writer.finish()?, descriptors })
    }
}

impl Received {
    /// Wait for an order. `None` when there will be none; an error when one has come that cannot be followed, `MFILE` if
    /// its descriptors do not fit.
    pub fn wait(line: &OwnedFd) -> Option<rustix::io::Result<Self>> {
        let (mut bytes, mut filled, mut descriptors) = (vec![0; READ_BYTES], 0, Vec::new());
        loop {
            match descriptors::receive(line, &mut bytes[filled..], &mut descriptors, RecvFlags::empty()) {
                Ok(count) if count > 0 => filled += count,
                _ => return None,
            }
            let Some(length) = bytes[..filled].first_chunk::<NUMBER_BYTES>() else { continue };
            let whole = NUMBER_BYTES + u32::from_ne_bytes(*length) as usize;
            if filled >= whole {
                return Some(Self::decode(&bytes[NUMBER_BYTES..whole], descriptors));
            }
            bytes.resize(whole, 0);
        }
    }

    fn decode(bytes: &[u8], descriptors: Vec<OwnedFd>) -> rustix::io::Result<Self> {
        let mut reader = Reader { rest: bytes };
        if reader.number()? as usize != descriptors.len() {
            return Err(Errno::MFILE);
        }
        let terminal = reader.number()? != 0;
        let ids = reader.words()?;
        let &[uid, gid] = ids.as_slice() else { return Err(Errno::PROTO) };
        let groups = reader.words()?;
        let targets = reader.words()?.into_iter().map(u32::cast_signed).collect();
        let mut strings = || reader.text().map(StringArray::from_bytes);
        let (candidates, argv, env) = (strings()?, strings()?, strings()?);
        let program = Program { candidates, argv, env, complaint: reader.text()? };
        let plan = Plan { program, terminal, identity: Identity { uid, gid, groups } };
        Ok(Received { plan, targets, descriptors })
    }

    /// The plan, what the child gets, and what must stay open until it is made.
    pub fn into_parts(self) -> (Plan, Files, Vec<OwnedFd>) {
        let sources: Vec<BorrowedFd<'_>> = self.descriptors.iter().map(AsFd::as_fd).collect();
        // Only who has a cgroup of its own is born in it, and needs no keeper.
        let files = Files::new(&sources, &self.targets, None);
        (self.plan, files, self.descriptors)
    }
}

#[derive(Debug)]
struct Writer {
    bytes: Vec<u8>,
}

impl Default for Writer {
    /// With room for the length.
    fn default() -> Self {
        Writer { bytes: vec![0; NUMBER_BYTES] }
    }
}

impl Writer {
    fn number(&mut self, number: usize) -> rustix::io::Result<()> {
        let number = u32::try_from(number).map_err(|_| Errno::TOOBIG)?;
        self.bytes.extend_from_slice(&number.to_ne_bytes());
        Ok(())
    }

    fn words(&mut self, words: impl ExactSizeIterator<Item = u32>) -> rustix::io::Result<()> {
        self.number(words.len())?;
        words.for_each(|word| self.bytes.extend_from_slice(&word.to_ne_bytes()));
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> rustix::io::Result<()> {
        self.number(text.len())?;
        self.bytes.extend_from_slice(text);
        Ok(())
    }

    fn finish(mut self) -> rustix::io::Result<Vec<u8>> {
        let length = u32::try_from(self.bytes.len() - NUMBER_BYTES).map_err(|_| Errno::TOOBIG)?;
        self.bytes[..NUMBER_BYTES].copy_from_slice(&length.to_ne_bytes());
        Ok(self.bytes)
    }
}

#[derive(Debug)]
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn number(&mut self) -> rustix::io::Result<u32> {
        let (number, rest) = self.rest.split_first_chunk().ok_or(Errno::PROTO)?;
        self.rest = rest;
        Ok(u32::from_ne_bytes(*number))
    }

    fn words(&mut self) -> rustix::io::Result<Vec<u32>> {
        (0..self.number()?).map(|_| self.number()).collect()
    }

    fn text(&mut self) -> rustix::io::Result<Vec<u8>> {
        let length = self.number()? as usize;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(Errno::PROTO)?;
        self.rest = rest;
        Ok(text.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::program::Environment;

    /// What a keeper makes of an order is what was ordered, however long it is and however it arrives.
    #[test]
    fn an_order_arrives_as_it_was_given() {
        let (reader, writer) = crate::process::spawn::pipe().unwrap();
        let long = vec![b'x'; 100_000];
        let argv: Vec<&[u8]> = [b"sh".as_slice(), b"", b"a b"].into_iter().chain((0..9).map(|_| &*long)).collect();
        let program = Program::from_argv(&argv, &Environment::new(&[b"A=1".to_vec()])).unwrap();
        let identity = Identity { uid: 1, gid: u32::MAX, groups: vec![3, 4] };
        let launch = Launch {
            plan: Plan { program, terminal: true, identity: identity.clone() },
            stdio: [reader.as_fd(), writer.as_fd(), writer.as_fd()],
            extra: &[(reader.as_fd(), 7)],
            cwd: reader.as_fd(),
            leaf: None,
        };
        let order = Order::new(&launch).unwrap();
        let copies = order.descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let received = Received::decode(&order.bytes[NUMBER_BYTES..], copies).unwrap();
        assert_eq!((received.plan.identity, received.plan.terminal), (identity, true));
        assert_eq!((received.targets, received.descriptors.len()), (vec![0, 1, 2, 7], 5));
        assert_eq!(received.plan.program.argv.bytes(), launch.plan.program.argv.bytes());
        assert_eq!(received.plan.program.argv.pointers().len(), argv.len());
        assert_eq!(received.plan.program.env.bytes(), b"A=1\0");
        for length in 0..64 {
            assert!(Received::decode(&order.bytes[NUMBER_BYTES..NUMBER_BYTES + length], Vec::new()).is_err());
        }
    }
}
