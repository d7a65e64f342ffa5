//! The seal of a link that crosses a network: a Noise handshake as its initiator, then bytes to sealed messages and back.
//!
//! `wire/contract.md` section 9 has the format and `docs/decisions/0006-encrypted-links.md` the reasons. Nothing here
//! touches a socket.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_bytes::{ByteArray, Bytes};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use zeroize::Zeroize;

use crate::error::{Code, Error, Result};
use crate::limits::{MAX_HANDSHAKE_BYTES, MAX_SEALED_BYTES};

pub const PATTERN: &str = "Noise_NKpsk2_25519_ChaChaPoly_BLAKE2s";
pub const PROLOGUE: &[u8] = b"sandlot-link-1";
/// Length of a message's length.
pub const LENGTH_BYTES: usize = 2;
/// What sealing adds to a message, beside its length.
pub const TAG_BYTES: usize = 16;
/// Length of keys and secrets.
const KEY_BYTES: usize = 32;

/// The provider's static public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub [u8; KEY_BYTES]);

impl Key {
    /// From base64url without padding.
    ///
    /// # Errors
    /// `bad_request` for anything but 32 bytes of it.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Key(decode_base64url(text)?))
    }
}

/// A pre-shared secret: wiped when dropped, compared with nothing, printed by nobody.
pub struct Secret([u8; KEY_BYTES]);

impl Secret {
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Secret(bytes)
    }

    /// From base64url without padding.
    ///
    /// # Errors
    /// As [`Key::parse`].
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Secret(decode_base64url(text)?))
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// Which kind of secret a handshake uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    Enrol,
    Resume,
}

/// What the daemon says of itself in the first message.
#[derive(Debug, Serialize)]
pub struct Opening<'a> {
    pub name: &'a str,
    #[serde(rename = "use")]
    pub using: Use,
    pub boot: &'a Bytes,
}

#[derive(Deserialize)]
struct Granted {
    resume: ByteArray<KEY_BYTES>,
}

/// A handshake whose first message has been written.
pub struct Handshake {
    state: snow::HandshakeState,
}

impl Handshake {
    /// The handshake and its first message, length included.
    ///
    /// # Errors
    /// `internal` when the machine has no random numbers, `bad_request` for a name too long to be said.
    pub fn begin(provider: &Key, secret: &Secret, opening: &Opening<'_>) -> Result<(Self, Vec<u8>)> {
        Self::begin_from(builder()?, provider, secret, opening)
    }

    /// As [`Handshake::begin`], with an ephemeral key that is known beforehand: only for vectors.
    #[doc(hidden)]
    pub fn begin_with_ephemeral(
        ephemeral: &[u8; KEY_BYTES],
        provider: &Key,
        secret: &Secret,
        opening: &Opening<'_>,
    ) -> Result<(Self, Vec<u8>)> {
        Self::begin_from(builder()?.fixed_ephemeral_key_for_testing_only(ephemeral), provider, secret, opening)
    }

    fn begin_from(
        builder: snow::Builder<'_>,
        provider: &Key,
        secret: &Secret,
        opening: &Opening<'_>,
    ) -> Result<(Self, Vec<u8>)> {
        let mut state = builder
            .prologue(PROLOGUE)
            .and_then(|builder| builder.remote_public_key(&provider.0))
            .and_then(|builder| builder.psk(2, &secret.0))
            .and_then(snow::Builder::build_initiator)
            .map_err(|error| noise_error(Code::Internal, &error))?;
        let payload =
            rmp_serde::to_vec_named(opening).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        let mut message = [0; MAX_HANDSHAKE_BYTES];
        let length = state
            .write_message(&payload, &mut message[LENGTH_BYTES..])
            .map_err(|error| noise_error(Code::BadRequest, &error))?;
        message[..LENGTH_BYTES].copy_from_slice(&prefix(length));
        Ok((Handshake { state }, message[..LENGTH_BYTES + length].to_vec()))
    }

    /// Read the second message, without its length. What it grants is the secret of the next link.
    ///
    /// # Errors
    /// `protocol_error`: whoever sent it does not have the provider's key and the secret, or it is not what it should be.
    pub fn finish(mut self, message: &[u8]) -> Result<(Seal, Secret)> {
        let mut payload = [0; MAX_HANDSHAKE_BYTES];
        let length =
            self.state.read_message(message, &mut payload).map_err(|error| noise_error(Code::ProtocolError, &error))?;
        let granted: Granted = rmp_serde::from_slice(&payload[..length])
            .map_err(|error| Error::new(Code::ProtocolError, error.to_string()))?;
        let state = self.state.into_transport_mode().map_err(|error| noise_error(Code::ProtocolError, &error))?;
        payload.zeroize();
        Ok((Seal { state }, Secret(granted.resume.into_array())))
    }
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Handshake(..)")
    }
}

/// Both directions of an authenticated link.
#[derive(Debug)]
pub struct Seal {
    state: snow::TransportState,
}

impl Seal {
    /// Append `plain` to `wire` as whole messages.
    ///
    /// # Errors
    /// As [`Seal::seal_message`].
    pub fn seal(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> Result<()> {
        plain.chunks(MAX_SEALED_BYTES).try_for_each(|piece| self.seal_message(piece, wire))
    }

    /// Append `plain`, at most [`MAX_SEALED_BYTES`], to `wire` as one message.
    ///
    /// # Errors
    /// `gone` when the link has come to the end of its numbers.
    pub fn seal_message(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> Result<()> {
        let sealed = plain.len() + TAG_BYTES;
        wire.extend_from_slice(&prefix(sealed));
        let start = wire.len();
        wire.resize(start + sealed, 0);
        let written = self.state.write_message(plain, &mut wire[start..]);
        written.map(drop).map_err(|error| noise_error(Code::Gone, &error))
    }

    /// Append what one message holds, given without its length, to `plain`.
    ///
    /// # Errors
    /// `gone` when somebody else has written it or has changed the order of messages: the link is over.
    pub fn open(&mut self, message: &[u8], plain: &mut Vec<u8>) -> Result<()> {
        let start = plain.len();
        plain.resize(start + message.len().saturating_sub(TAG_BYTES), 0);
        self.state.read_message(message, &mut plain[start..]).map(drop).map_err(|error| {
            plain.truncate(start);
            noise_error(Code::Gone, &error)
        })
    }
}

/// The length that stands before a message.
pub fn message_length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk::<LENGTH_BYTES>().map(|prefix| usize::from(u16::from_be_bytes(*prefix)))
}

fn prefix(length: usize) -> [u8; LENGTH_BYTES] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

fn noise_error(code: Code, error: &snow::Error) -> Error {
    Error::new(code, Cow::Owned(format!("sealing: {error:?}")))
}

fn builder<'a>() -> Result<snow::Builder<'a>> {
    let params = PATTERN.parse().map_err(|error| noise_error(Code::Internal, &error))?;
    Ok(snow::Builder::with_resolver(params, resolver()))
}

/// Where Noise gets its algorithms from; public for tests that play the provider.
#[doc(hidden)]
pub fn resolver() -> Box<dyn CryptoResolver + Send> {
    Box::new(Resolver)
}

/// The pure Rust algorithms, with the kernel's random numbers.
struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Kernel))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Kernel;

impl Random for Kernel {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> std::result::Result<(), snow::Error> {
        fill_random(bytes).map_err(|_| snow::Error::Rng)
    }
}

/// Random bytes of the kernel's.
///
/// # Errors
/// `internal` when it has none to give.
pub fn fill_random(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error { code: Code::Internal, ..Error::system("getrandom", errno) }),
        }
    }
    Ok(())
}

fn decode_base64url(text: &str) -> Result<[u8; KEY_BYTES]> {
    let refused = || Error::new(Code::BadRequest, "not 32 bytes of base64url without padding");
    let (mut bytes, mut filled) = ([0; KEY_BYTES], 0);
    let (mut held, mut bits) = (0_u32, 0);
    for character in text.bytes() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return Err(refused()),
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            *bytes.get_mut(filled).ok_or_else(refused)? = (held >> bits) as u8;
            held &= (1 << bits) - 1;
            filled += 1;
        }
    }
    // 43 characters leave two bits over, which are zero.
    if filled == KEY_BYTES && bits < 6 && held == 0 { Ok(bytes) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sealed pair, made without a provider's side of the handshake: what one seals the other opens.
    fn pair() -> (Seal, snow::TransportState) {
        let private = [3; KEY_BYTES];
        let mut dh = resolver().resolve_dh(&DHChoice::Curve25519).unwrap();
        dh.set(&private);
        let public = Key(dh.pubkey().try_into().unwrap());
        let opening = Opening { name: "pod", using: Use::Enrol, boot: Bytes::new(&[0; 8]) };
        let (handshake, first) = Handshake::begin(&public, &Secret::new([4; KEY_BYTES]), &opening).unwrap();
        let mut responder = builder().unwrap().prologue(PROLOGUE).unwrap().local_private_key(&private).unwrap();
        responder = responder.psk(2, &[4; KEY_BYTES]).unwrap();
        let mut responder = responder.build_responder().unwrap();
        let mut buffer = vec![0; MAX_HANDSHAKE_BYTES];
        responder.read_message(&first[LENGTH_BYTES..], &mut buffer).unwrap();
        let granted = [b"\x81\xa6resume\xc4\x20".as_slice(), &[5; KEY_BYTES]].concat();
        let length = responder.write_message(&granted, &mut buffer).unwrap();
        let (seal, secret) = handshake.finish(&buffer[..length]).unwrap();
        assert_eq!(secret.0, [5; KEY_BYTES]);
        (seal, responder.into_transport_mode().unwrap())
    }

    /// What is longer than a message may be goes in several, each as long as its length says, and comes out whole.
    #[test]
    fn long_text_is_cut_into_messages() {
        let (mut seal, mut provider) = pair();
        for length in [1, MAX_SEALED_BYTES - 1, MAX_SEALED_BYTES, MAX_SEALED_BYTES + 1, 3 * MAX_SEALED_BYTES + 7] {
            let plain: Vec<u8> = (0..length).map(|index| index as u8).collect();
            let (mut wire, mut opened) = (Vec::new(), Vec::new());
            seal.seal(&plain, &mut wire).unwrap();
            let (mut rest, mut buffer, mut count) = (wire.as_slice(), vec![0; MAX_SEALED_BYTES], 0);
            while let Some(sealed) = message_length(rest) {
                let (message, after) = rest[LENGTH_BYTES..].split_at(sealed);
                let taken = provider.read_message(message, &mut buffer).unwrap();
                opened.extend_from_slice(&buffer[..taken]);
                (rest, count) = (after, count + 1);
            }
            assert_eq!((opened == plain, rest.len(), count), (true, 0, length.div_ceil(MAX_SEALED_BYTES)));
        }
    }

    /// Whatever is put before it, a handshake ends with an error and nothing worse.
    #[test]
    fn nonsense_never_ends_a_handshake_well() {
        let opening = Opening { name: "pod", using: Use::Resume, boot: Bytes::new(&[0; 8]) };
        for length in (0..MAX_HANDSHAKE_BYTES).step_by(7) {
            let (handshake, _) =
                Handshake::begin(&Key([9; KEY_BYTES]), &Secret::new([4; KEY_BYTES]), &opening).unwrap();
            let mut nonsense = vec![0; length];
            fill_random(&mut nonsense).unwrap();
            assert_eq!(handshake.finish(&nonsense).unwrap_err().code, Code::ProtocolError);
        }
    }

    /// A name that does not fit into the first message is refused when it is said, not cut.
    #[test]
    fn a_name_too_long_is_refused() {
        let name = "n".repeat(MAX_HANDSHAKE_BYTES);
        let opening = Opening { name: &name, using: Use::Enrol, boot: Bytes::new(&[0; 8]) };
        let refused = Handshake::begin(&Key([9; KEY_BYTES]), &Secret::new([4; KEY_BYTES]), &opening);
        assert_eq!(refused.unwrap_err().code, Code::BadRequest);
    }

    /// Keys are 43 characters of base64url; padding, other alphabets, other lengths and stray bits are refused.
    #[test]
    fn keys_are_read_from_base64url() {
        assert_eq!(Key::parse(&"A".repeat(43)).unwrap().0, [0; KEY_BYTES]);
        assert_eq!(Key::parse(&format!("{}8", "_".repeat(42))).unwrap().0, [0xff; KEY_BYTES]);
        let counted = Key::parse("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8").unwrap();
        assert_eq!(counted.0.to_vec(), (0..32).collect::<Vec<u8>>());
        let one_short = "A".repeat(42);
        for wrong in
            ["", &one_short, &format!("{one_short}A="), &"A".repeat(44), &format!("{one_short}B"), &"+".repeat(43)]
        {
            assert_eq!(Key::parse(wrong).unwrap_err().code, Code::BadRequest, "{wrong}");
        }
    }
}
