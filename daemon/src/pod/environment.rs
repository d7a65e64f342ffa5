//! The environment that the daemon was started with: its own settings, and what its commands get.
//!
//! ```text
//! SANDLOT_NAME         of the sandbox
//! SANDLOT_ENROL        the secret that enrols once, base64url
//! SANDLOT_KEY          the provider's public key, base64url
//! SANDLOT_DIAL         addresses to dial, HOST:PORT[,HOST:PORT]
//! SANDLOT_LISTEN       the TCP port to listen on
//! SANDLOT_GRACE_MS     end without an authenticated link for so long
//! SANDLOT_LEASE_MS     end unless renewed within
//! SANDLOT_IDLE_MS      end unless used within
//! SANDLOT_USER         whom commands run as; without it, as whom the daemon was started
//! SANDLOT_UNENFORCED   limits that nobody enforces, comma-separated
//! SANDLOT_RESET        auto, overlay, tracked, none: see [`super::tier`]
//! SANDLOT_DISK_BYTES   what the files of an episode may take, where that can be limited
//! SANDLOT_SHM_BYTES    the size of /dev/shm, likewise
//! ```

use std::collections::BTreeMap;
use std::ffi::c_char;

use crate::error::{Code, Error, Result};

/// Begin of the names that are the daemon's own.
const OWN: &[u8] = b"SANDLOT_";
/// What a kubelet adds to every container although nobody has asked for it.
const CLUSTER: [&[u8]; 4] =
    [b"KUBERNETES_SERVICE_HOST", b"KUBERNETES_SERVICE_PORT", b"KUBERNETES_SERVICE_PORT_", b"KUBERNETES_PORT"];

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// An environment, told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Settings of the daemon by name, without the common beginning.
    pub settings: BTreeMap<String, String>,
    /// `KEY=value` each, for commands.
    pub commands: Vec<Vec<u8>>,
}

impl Environment {
    /// Take the environment of this process and leave none: neither in our memory nor in `/proc/1/environ` is a secret
    /// left when the first command starts. The process has one thread.
    ///
    /// # Errors
    /// `bad_request` for a setting that is no text.
    pub fn take() -> Result<Self> {
        let mut entries = Vec::new();
        // SAFETY: a list of C strings that ends with a null pointer, or none; no other thread runs, and nothing of ours
        // keeps a pointer into it. The strings are overwritten where the kernel has put them.
        unsafe {
            let mut at = environ;
            while !at.is_null() && !(*at).is_null() {
                let text = std::ffi::CStr::from_ptr(*at).to_bytes().to_vec();
                std::ptr::write_bytes(*at, 0, text.len());
                entries.push(text);
                at = at.add(1);
            }
            libc::clearenv();
        }
        Self::sort(entries)
    }

    fn sort(entries: Vec<Vec<u8>>) -> Result<Self> {
        let mut sorted = Environment::default();
        for entry in entries {
            let Some(equals) = entry.iter().position(|byte| *byte == b'=') else { continue };
            let (name, value) = (&entry[..equals], &entry[equals + 1..]);
            if let Some(name) = name.strip_prefix(OWN) {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| not_text(name));
                sorted.settings.insert(text(name)?, text(value)?);
            } else if !is_clusters(name) {
                sorted.commands.push(entry);
            }
        }
        Ok(sorted)
    }

    /// A setting; one that is empty is none.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A setting that is a whole number.
    ///
    /// # Errors
    /// `bad_request` for anything else.
    pub fn number(&self, name: &str) -> Result<Option<u64>> {
        let parse = |value: &str| value.parse().map_err(|_| bad(format!("SANDLOT_{name} is no whole number")));
        self.setting(name).map(parse).transpose()
    }
}

fn is_clusters(name: &[u8]) -> bool {
    CLUSTER.iter().any(|known| name == *known || (known.ends_with(b"_") && name.starts_with(known)))
        || name.starts_with(b"KUBERNETES_PORT_")
}

fn not_text(name: &[u8]) -> Error {
    bad(format!("SANDLOT_{} is not UTF-8", String::from_utf8_lossy(name)))
}

fn bad(message: String) -> Error {
    Error::new(Code::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sort(entries: &[&str]) -> Environment {
        Environment::sort(entries.iter().map(|entry| entry.as_bytes().to_vec()).collect()).unwrap()
    }

    /// Commands get what the image and the pod's spec say, and nothing of the daemon's or the cluster's.
    #[test]
    fn commands_do_not_get_the_daemons_and_the_clusters_variables() {
        let sorted = sort(&[
            "PATH=/bin",
            "SANDLOT_ENROL=secret",
            "KUBERNETES_SERVICE_HOST=10.0.0.1",
            "KUBERNETES_SERVICE_PORT_HTTPS=443",
            "KUBERNETES_PORT=tcp://10.0.0.1:443",
            "KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1",
            "KUBERNETES_CHOICE=mine",
            "EMPTY=",
            "WITH=a=b",
            "broken",
        ]);
        let expected: [&[u8]; 4] = [b"PATH=/bin", b"KUBERNETES_CHOICE=mine", b"EMPTY=", b"WITH=a=b"];
        assert_eq!(sorted.commands, expected);
        assert_eq!(sorted.setting("ENROL"), Some("secret"));
    }

    /// Settings are text and whole numbers; anything else is said to be wrong.
    #[test]
    fn bad_settings_are_refused() {
        let sorted = sort(&["SANDLOT_IDLE_MS=12", "SANDLOT_GRACE_MS=soon", "SANDLOT_LEASE_MS="]);
        assert_eq!(sorted.number("IDLE_MS").unwrap(), Some(12));
        assert_eq!(sorted.number("GRACE_MS").unwrap_err().code, Code::BadRequest);
        assert_eq!(sorted.number("LEASE_MS").unwrap(), None);
        assert!(Environment::sort(vec![b"SANDLOT_NAME=\xff".to_vec()]).is_err());
    }
}
