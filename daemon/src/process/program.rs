//! What to execute, laid out as `execve` wants it.

use std::ffi::c_char;

use crate::error::{Code, Error, Result};
use crate::limits::{MAX_ARGV_BYTES, MAX_ENV_BYTES};

/// The kernel's limit of one argument or environment entry, its terminator included (`MAX_ARG_STRLEN`).
pub const MAX_ARGUMENT_BYTES: usize = 128 * 1024;
/// Where programs are looked for when the command's environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Directories of one PATH that are tried.
const MAX_PATH_DIRECTORIES: usize = 256;

/// A null-terminated array of NUL-terminated strings.
#[derive(Debug)]
pub struct StringArray {
    /// Never changed after `pointers` was made.
    bytes: Box<[u8]>,
    pointers: Box<[*const c_char]>,
}

// SAFETY: the pointers lead into `bytes`, which is owned and never changes.
unsafe impl Send for StringArray {}
// SAFETY: as above.
unsafe impl Sync for StringArray {}

impl StringArray {
    pub fn new<'a>(items: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut bytes = Vec::new();
        for item in items {
            bytes.extend_from_slice(item);
            bytes.push(0);
        }
        Self::from_bytes(bytes)
    }

    /// Of strings one after the other, each with its NUL, as [`StringArray::bytes`] gives them.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let bytes = bytes.into_boxed_slice();
        let strings = bytes.split_inclusive(|byte| *byte == 0).filter(|string| string.ends_with(&[0]));
        let pointers = strings.map(|string| string.as_ptr().cast()).chain([std::ptr::null()]).collect();
        StringArray { bytes, pointers }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }

    /// The strings, without the terminating null.
    pub fn pointers(&self) -> &[*const c_char] {
        &self.pointers[..self.pointers.len() - 1]
    }
}

/// A program with its arguments and environment.
#[derive(Debug)]
pub struct Program {
    /// Paths to try, in order.
    pub candidates: StringArray,
    pub argv: StringArray,
    pub env: StringArray,
    /// What standard error says when none of the candidates can be executed: `NAME: `.
    pub complaint: Vec<u8>,
}

impl Program {
    /// `argv[0]` looked up as a shell would: as it is when it has a slash, else in the PATH of `env`.
    ///
    /// # Errors
    /// `bad_request` for an empty argv or a NUL byte, `argument_too_long` beyond the kernel's or the wire's limits.
    pub fn from_argv(argv: &[&[u8]], env: &Environment) -> Result<Self> {
        let name = *argv.first().ok_or_else(|| Error::new(Code::BadRequest, "argv is empty"))?;
        check_items(argv, MAX_ARGV_BYTES, "argv")?;
        Ok(Program {
            candidates: StringArray::new(candidates(name, env).iter().map(Vec::as_slice)),
            argv: StringArray::new(argv.iter().copied()),
            env: env.to_array(),
            complaint: complaint(name),
        })
    }

    /// The image's own shell, as `argv` of which the first item is only its `$0`.
    pub fn shell(argv: &[&[u8]], env: &Environment) -> Self {
        let mut paths = vec![b"/bin/sh".to_vec()];
        paths.extend(candidates(b"sh", env));
        Program {
            candidates: StringArray::new(paths.iter().map(Vec::as_slice)),
            argv: StringArray::new(argv.iter().copied()),
            env: env.to_array(),
            complaint: complaint(b"sh"),
        }
    }
}

impl Program {
    /// One program by its path.
    pub fn at_path(path: &[u8], argv: &[&[u8]], env: &Environment) -> Self {
        Program {
            candidates: StringArray::new([path]),
            argv: StringArray::new(argv.iter().copied()),
            env: env.to_array(),
            complaint: complaint(path),
        }
    }
}

fn complaint(name: &[u8]) -> Vec<u8> {
    let mut text = b"sandlotd: ".to_vec();
    text.extend_from_slice(&name[..name.len().min(256)]);
    text.extend_from_slice(b": ");
    text
}

/// Paths to try for a program's name, in order.
pub fn candidates(name: &[u8], env: &Environment) -> Vec<Vec<u8>> {
    if name.is_empty() || name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let path = env.get(b"PATH").unwrap_or(DEFAULT_PATH);
    path.split(|byte| *byte == b':')
        .take(MAX_PATH_DIRECTORIES)
        .map(|directory| if directory.is_empty() { b".".as_slice() } else { directory })
        .map(|directory| [directory, b"/", name].concat())
        .collect()
}

/// Items that the kernel will take: no NUL, none longer than it allows, not too much in all.
pub fn check_items(items: &[&[u8]], limit: usize, what: &'static str) -> Result<()> {
    let mut bytes = 0;
    for item in items {
        if item.contains(&0) {
            return Err(Error::new(Code::BadRequest, format!("NUL byte in {what}")));
        }
        bytes += item.len() + 1;
        if item.len() >= MAX_ARGUMENT_BYTES || bytes > limit {
            return Err(Error::new(Code::ArgumentTooLong, format!("{what} is longer than the kernel takes")));
        }
    }
    Ok(())
}

/// `KEY=value` entries, later ones over earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    entries: Vec<Vec<u8>>,
}

impl Environment {
    pub fn new(entries: &[Vec<u8>]) -> Self {
        let mut environment = Environment::default();
        entries.iter().for_each(|entry| environment.apply(entry));
        environment
    }

    /// Entries of a call over this environment; a bare `KEY` removes it.
    ///
    /// # Errors
    /// `bad_request` for a NUL byte or an entry without a name, `argument_too_long` beyond `max_env_bytes`.
    pub fn with_overlay(&self, overlay: &[&[u8]]) -> Result<Self> {
        check_items(overlay, MAX_ENV_BYTES, "env")?;
        if overlay.iter().any(|entry| entry.is_empty() || entry.starts_with(b"=")) {
            return Err(Error::new(Code::BadRequest, "an entry of env has no name"));
        }
        let mut environment = self.clone();
        overlay.iter().for_each(|entry| environment.apply(entry));
        Ok(environment)
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.position(key).map(|index| &self.entries[index][key.len() + 1..])
    }

    pub fn set(&mut self, key: &[u8], value: &[u8]) {
        self.apply(&[key, b"=", value].concat());
    }

    fn apply(&mut self, entry: &[u8]) {
        let key = entry.split(|byte| *byte == b'=').next().unwrap_or(entry);
        let place = self.position(key);
        match (place, key.len() < entry.len()) {
            (Some(index), true) => self.entries[index] = entry.to_vec(),
            (None, true) => self.entries.push(entry.to_vec()),
            (Some(index), false) => drop(self.entries.remove(index)),
            (None, false) => {}
        }
    }

    fn position(&self, key: &[u8]) -> Option<usize> {
        self.entries.iter().position(|entry| entry.strip_prefix(key).is_some_and(|rest| rest.starts_with(b"=")))
    }

    fn to_array(&self) -> StringArray {
        StringArray::new(self.entries.iter().map(Vec::as_slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(entries: &[&str]) -> Environment {
        Environment::new(&entries.iter().map(|entry| entry.as_bytes().to_vec()).collect::<Vec<_>>())
    }

    /// A call adds, replaces and removes entries, values kept byte for byte.
    #[test]
    fn an_overlay_adds_replaces_and_removes() {
        let base = environment(&["PATH=/bin", "A=1", "B=2"]);
        let result = base.with_overlay(&[b"A=l1\nl2'\"$", b"B", b"C=", b"ABSENT"]).unwrap();
        assert_eq!(result, environment(&["PATH=/bin", "A=l1\nl2'\"$", "C="]));
        assert_eq!(base.with_overlay(&[b"=x"]).unwrap_err().code, Code::BadRequest);
        assert_eq!(base.with_overlay(&[b"A=\0"]).unwrap_err().code, Code::BadRequest);
    }

    /// A name is looked for in the command's own PATH, a path is taken as it is.
    #[test]
    fn names_are_looked_up_in_the_commands_path() {
        let env = environment(&["PATH=/a::/b"]);
        assert_eq!(candidates(b"x", &env), [b"/a/x".to_vec(), b"./x".to_vec(), b"/b/x".to_vec()]);
        assert_eq!(candidates(b"./x", &env), [b"./x".to_vec()]);
        assert_eq!(candidates(b"x", &environment(&[])).len(), 6);
    }

    /// What the kernel would refuse is refused before a process exists.
    #[test]
    fn arguments_are_bounded() {
        let env = environment(&[]);
        let long = vec![b'a'; MAX_ARGUMENT_BYTES];
        assert_eq!(Program::from_argv(&[b"x", &long], &env).unwrap_err().code, Code::ArgumentTooLong);
        assert_eq!(Program::from_argv(&[b"x", b"a\0b"], &env).unwrap_err().code, Code::BadRequest);
        assert_eq!(Program::from_argv(&[], &env).unwrap_err().code, Code::BadRequest);
        assert!(Program::from_argv(&[b"x", &long[1..], b""], &env).is_ok());
    }
}
