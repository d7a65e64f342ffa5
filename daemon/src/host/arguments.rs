//! The command line of a host.

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::path::PathBuf;

use rustix::process::Pid;

use super::ids::Mode;
use crate::error::{Code, Error, Result};

#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    pub runtime_dir: PathBuf,
    /// Nothing: below the runtime directory.
    pub disk_dir: Option<PathBuf>,
    pub control_fd: RawFd,
    pub client: Pid,
    /// Nothing: the best there is.
    pub mode: Option<Mode>,
}

impl Arguments {
    pub fn parse(arguments: &[OsString]) -> Result<Self> {
        let (mut runtime_dir, mut disk_dir, mut control_fd, mut client, mut mode) = (None, None, None, None, None);
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let value = rest.next().ok_or_else(|| refuse(name, "needs a value"))?;
            match name.to_str() {
                Some("--runtime-dir") => runtime_dir = Some(absolute(name, value)?),
                Some("--disk-dir") => disk_dir = Some(absolute(name, value)?),
                Some("--control-fd") => control_fd = Some(descriptor(name, value)?),
                Some("--client-pid") => client = Some(process(name, value)?),
                Some("--mode") => {
                    let known = value.to_str().and_then(Mode::parse);
                    mode = Some(known.ok_or_else(|| refuse(name, "is range-root, range-rootless, single or nested"))?);
                }
                _ => return Err(refuse(name, "is not an option of sandlotd host")),
            }
        }
        let missing = |name: &str| refuse(OsStr::new(name), "is missing");
        Ok(Arguments {
            runtime_dir: runtime_dir.ok_or_else(|| missing("--runtime-dir"))?,
            disk_dir,
            control_fd: control_fd.ok_or_else(|| missing("--control-fd"))?,
            client: client.ok_or_else(|| missing("--client-pid"))?,
            mode,
        })
    }

    /// The control descriptor alone, so that an error in the other arguments can be told on it.
    pub fn control_fd(arguments: &[OsString]) -> Option<RawFd> {
        let mut pairs = arguments.windows(2);
        pairs.find_map(|pair| if pair[0] == "--control-fd" { descriptor(&pair[0], &pair[1]).ok() } else { None })
    }
}

fn refuse(name: &OsStr, why: &str) -> Error {
    Error::new(Code::BadRequest, format!("{} {why}", name.display()))
}

fn absolute(name: &OsStr, value: &OsStr) -> Result<PathBuf> {
    let path = PathBuf::from(value);
    if path.is_absolute() { Ok(path) } else { Err(refuse(name, "needs an absolute path")) }
}

fn descriptor(name: &OsStr, value: &OsStr) -> Result<RawFd> {
    let number = value.to_str().and_then(|text| text.parse().ok()).filter(|number| *number > 2);
    number.ok_or_else(|| refuse(name, "needs the number of an open descriptor above 2"))
}

fn process(name: &OsStr, value: &OsStr) -> Result<Pid> {
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.and_then(Pid::from_raw).ok_or_else(|| refuse(name, "needs the number of a process"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Arguments::parse(&words)
    }

    /// All options in any order.
    #[test]
    fn a_whole_line_is_understood() {
        let parsed = parse("--mode single --client-pid 7 --control-fd 5 --disk-dir /d --runtime-dir /run/x").unwrap();
        assert_eq!(parsed.disk_dir, Some(PathBuf::from("/d")));
        assert_eq!(parsed.mode, Some(Mode::Single));
        assert_eq!(parsed.client.as_raw_nonzero().get(), 7);
        assert_eq!((parsed.control_fd, parsed.runtime_dir), (5, PathBuf::from("/run/x")));
    }

    /// What is missing, unknown or impossible is refused by name.
    #[test]
    fn bad_lines_are_refused_by_name() {
        let whole = "--client-pid 7 --control-fd 5 --runtime-dir /run/x";
        for (line, name) in [
            ("--client-pid 7 --control-fd 5".to_owned(), "--runtime-dir"),
            (whole.replace("/run/x", "run/x"), "--runtime-dir"),
            (format!("{whole} --disk-dir d"), "--disk-dir"),
            (whole.replace(" 5", " 1"), "--control-fd"),
            (whole.replace(" 7", " 0"), "--client-pid"),
            (format!("{whole} --mode best"), "--mode"),
            (format!("{whole} --colour red"), "--colour"),
            (format!("{whole} --mode"), "--mode"),
        ] {
            let error = parse(&line).unwrap_err();
            assert_eq!(error.code, Code::BadRequest);
            assert!(error.message.contains(name), "{line}: {error}");
        }
    }
}
