//! The pods that run, as standard input tells of them, with the secrets of each.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};

use sandlotd::seal::{Key, Secret, Use};

/// What a line has changed.
pub enum Told {
    Runs(String),
    Gone(String),
}

/// One pod's daemon.
pub struct Pod {
    pub name: String,
    pub address: IpAddr,
    pub port: Option<u16>,
    pub targets: Vec<SocketAddr>,
    pub links: Vec<u64>,
    pub key: Key,
    pub boot: [u8; 8],
    /// What may be valid at the other side, newest first.
    secrets: Vec<(Use, Secret)>,
    /// Which of them the next handshake uses, and which address the next dial.
    turn: usize,
}

impl Pod {
    pub fn secret(&self) -> &(Use, Secret) {
        &self.secrets[self.turn % self.secrets.len()]
    }

    pub fn next_target(&mut self) -> Option<SocketAddr> {
        self.targets.get(self.turn % self.targets.len().max(1)).copied()
    }

    /// A handshake has brought the secret of the next one. Until it is proven, the older may be the valid one.
    pub fn granted(&mut self, secret: Secret) {
        self.secrets.truncate(1);
        self.secrets.insert(0, (Use::Resume, secret));
        self.turn = 0;
    }

    /// The other side has shown that it knows our first message.
    pub fn proven(&mut self) {
        self.secrets.truncate(1);
    }

    pub fn lost(&mut self, link: u64) {
        self.links.retain(|one| *one != link);
        self.turn = self.turn.wrapping_add(1);
    }
}

/// All of them, by name and by address.
#[derive(Default)]
pub struct Pods {
    unread: Vec<u8>,
    by_name: HashMap<String, Pod>,
    by_address: HashMap<IpAddr, String>,
}

impl Pods {
    pub fn get(&self, name: &str) -> Option<&Pod> {
        self.by_name.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Pod> {
        self.by_name.get_mut(name)
    }

    pub fn at(&self, address: IpAddr) -> Option<&str> {
        self.by_address.get(&address).map(String::as_str)
    }

    /// Forget a pod; its links are to be closed. Its address may already be another's.
    pub fn remove(&mut self, name: &str) -> Vec<u64> {
        let Some(pod) = self.by_name.remove(name) else { return Vec::new() };
        if self.at(pod.address) == Some(name) {
            self.by_address.remove(&pod.address);
        }
        pod.links
    }

    /// Read what is there; [`Pods::next_told`] gives what it says.
    pub fn read(&mut self, mut from: impl Read) -> std::io::Result<usize> {
        let mut bytes = [0; 64 * 1024];
        let count = from.read(&mut bytes)?;
        self.unread.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Take in one line.
    pub fn next_told(&mut self) -> std::io::Result<Option<Told>> {
        let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.unread.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line[..end]).into_owned();
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["gone", name] => Ok(Some(Told::Gone(name.to_owned()))),
            ["runs", name, address, enrol, key, dial, listen] => {
                let pod = pod(name, address, [enrol, key, dial, listen]).ok_or_else(|| {
                    Error::new(ErrorKind::InvalidData, format!("pod {name} has no usable environment"))
                })?;
                self.by_address.insert(pod.address, name.to_owned());
                self.by_name.insert(name.to_owned(), pod);
                Ok(Some(Told::Runs(name.to_owned())))
            }
            _ => Err(Error::new(ErrorKind::InvalidData, format!("no line of ours: {line}"))),
        }
    }
}

fn pod(name: &str, address: &str, [enrol, key, dial, listen]: [&str; 4]) -> Option<Pod> {
    let mut boot = [0; 8];
    sandlotd::seal::fill_random(&mut boot).ok()?;
    Some(Pod {
        name: name.to_owned(),
        address: address.parse().ok()?,
        port: if listen.is_empty() { None } else { Some(listen.parse().ok()?) },
        targets: dial.split(',').filter(|one| !one.is_empty()).map(str::parse).collect::<Result<_, _>>().ok()?,
        links: Vec::new(),
        key: Key::parse(key).ok()?,
        boot,
        secrets: vec![(Use::Enrol, Secret::parse(enrol).ok()?)],
        turn: 0,
    })
}
