//! What a network source is told at its start.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::seal::{Key, Secret};

/// The abstract socket that `sandlotd connect` looks for.
pub const LOCAL_NAME: &[u8] = b"sandlotd";

/// How a daemon and its provider find and know each other.
#[derive(Debug)]
pub struct LinkSettings {
    /// The sandbox's name, as the provider knows it.
    pub name: String,
    /// The one-time secret of the first link.
    pub enrol: Secret,
    /// Whoever has the other half of this key is the provider.
    pub provider_key: Key,
    /// Addresses of one provider: tried in turn, and one link is kept. Empty: nobody is dialled.
    pub dial: Vec<SocketAddr>,
    /// TCP port to listen on, on all addresses; 0 = any that is free.
    pub listen: Option<u16>,
    /// Name of an abstract socket to listen on, usually [`LOCAL_NAME`].
    pub local: Option<Vec<u8>>,
    /// How long the daemon lives without any authenticated link, from its start on. `None` = for ever.
    pub grace: Option<Duration>,
    /// How long it lives unless renewed. `None` = there is no lease.
    pub lease: Option<Duration>,
}

/// `host:port[,host:port]`. Hosts are numeric: a static binary has no resolver, and needs none.
///
/// # Errors
/// `bad_request` naming what is no such address.
pub fn parse_addresses(text: &str) -> Result<Vec<SocketAddr>> {
    text.split(',')
        .map(|item| {
            item.trim()
                .parse()
                .map_err(|_| Error::new(Code::BadRequest, format!("{item:?} is no numeric address with a port")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of both families, several of them; a name is refused by name.
    #[test]
    fn addresses_are_numeric() {
        let expected: Vec<SocketAddr> = vec!["10.0.0.1:9".parse().unwrap(), "[fd00::1]:443".parse().unwrap()];
        assert_eq!(parse_addresses("10.0.0.1:9, [fd00::1]:443").unwrap(), expected);
        for wrong in ["", "provider:443", "10.0.0.1", "10.0.0.1:70000", "10.0.0.1:9,"] {
            assert_eq!(parse_addresses(wrong).unwrap_err().code, Code::BadRequest, "{wrong}");
        }
    }
}
