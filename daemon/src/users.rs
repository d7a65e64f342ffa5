//! Who a command runs as, read from the image's own `/etc/passwd` and `/etc/group`: no NSS, no libc, files untrusted.

use std::io::Read;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::confinement::Identity;
use crate::error::{Code, Error, Result};

/// What is read of either file; the rest is not looked at.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Supplementary groups given to a command (the kernel's own limit is 65,536).
const MAX_GROUPS: usize = 1024;

/// A user of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub identity: Identity,
    /// As in `/etc/passwd`; the number where it has no name.
    pub name: Vec<u8>,
    pub home: Vec<u8>,
}

impl User {
    pub fn is_root(&self) -> bool {
        self.identity.uid == 0 && self.identity.gid == 0
    }
}

/// The ids that exist in this user namespace, from `/proc/self/{uid,gid}_map`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    uids: Vec<(u32, u32)>,
    gids: Vec<(u32, u32)>,
    /// Keeps the groups that it was given, whatever the tables say: who made the container knows better.
    own: Option<Identity>,
}

impl IdMaps {
    /// Those of this process.
    pub fn of_self() -> Self {
        let read = |path| parse_map(&std::fs::read_to_string(path).unwrap_or_default());
        IdMaps { uids: read("/proc/self/uid_map"), gids: read("/proc/self/gid_map"), own: None }
    }

    /// Those of this process, in a container that runs it as `own`.
    pub fn with_own(own: Identity) -> Self {
        IdMaps { own: Some(own), ..Self::of_self() }
    }

    /// `own` and nobody else.
    pub fn only(own: Identity) -> Self {
        IdMaps { uids: vec![(own.uid, 1)], gids: vec![(own.gid, 1)], own: Some(own) }
    }

    /// Who may look at most: root where there is one, else the only user that there is.
    pub fn widest(&self) -> Identity {
        let root = Identity { uid: 0, gid: 0, groups: Vec::new() };
        match &self.own {
            Some(own) if self.check(0, 0, "root").is_err() => own.clone(),
            _ => root,
        }
    }

    fn check(&self, uid: u32, gid: u32, user: &str) -> Result<()> {
        let within = |map: &[(u32, u32)], id: u32| map.iter().any(|(first, count)| id.wrapping_sub(*first) < *count);
        if within(&self.uids, uid) && within(&self.gids, gid) {
            return Ok(());
        }
        Err(Error::new(Code::UserUnsupported, format!("user {user:?} ({uid}:{gid}) does not exist in this id mode")))
    }
}

fn parse_map(text: &str) -> Vec<(u32, u32)> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let first = fields.next()?.parse().ok()?;
            let count = fields.nth(1)?.parse().ok()?;
            Some((first, count))
        })
        .collect()
}

/// Find `user` (`name`, `uid`, `name:group` or `uid:gid`) below `root`.
///
/// # Errors
/// `user_unknown` for a name that the image does not have, `user_unsupported` for an id outside of the namespace.
pub fn resolve(root: BorrowedFd<'_>, user: &str, maps: &IdMaps) -> Result<User> {
    let (name, group) = match user.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (user, None),
    };
    let passwd = read_table(root, "etc/passwd");
    let groups = read_table(root, "etc/group");
    let entry = find_user(&passwd, name);
    let (uid, primary) = match (&entry, parse_id(name)) {
        (Some(entry), _) => (entry.uid, entry.gid),
        (None, Some(uid)) => (uid, 0),
        (None, None) => return Err(Error::new(Code::UserUnknown, format!("no user {name:?} in this image"))),
    };
    let gid = match group {
        Some(group) => find_group(&groups, group)?,
        None => primary,
    };
    maps.check(uid, gid, user)?;
    let supplementary = match (&entry, group) {
        // A group named by the caller is the only one, as container engines have it.
        (Some(entry), None) => member_groups(&groups, entry.name, gid, maps),
        _ => Vec::new(),
    };
    let own = maps.own.as_ref().filter(|own| (own.uid, own.gid) == (uid, gid));
    Ok(User {
        identity: own.cloned().unwrap_or(Identity { uid, gid, groups: supplementary }),
        name: entry.as_ref().map_or_else(|| uid.to_string().into_bytes(), |entry| entry.name.to_vec()),
        home: entry.as_ref().map_or_else(|| b"/".to_vec(), |entry| entry.home.to_vec()),
    })
}

struct PasswdEntry<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
}

fn find_user<'a>(passwd: &'a [u8], wanted: &str) -> Option<PasswdEntry<'a>> {
    let number = parse_id(wanted);
    let entries = || passwd.split(|byte| *byte == b'\n').filter_map(parse_passwd_line);
    let by_name = entries().find(|entry| entry.name == wanted.as_bytes());
    by_name.or_else(|| entries().find(|entry| Some(entry.uid) == number))
}

fn parse_passwd_line(line: &[u8]) -> Option<PasswdEntry<'_>> {
    let mut fields = line.split(|byte| *byte == b':');
    let name = fields.next()?;
    let uid = parse_id(std::str::from_utf8(fields.nth(1)?).ok()?)?;
    let gid = parse_id(std::str::from_utf8(fields.next()?).ok()?)?;
    let home = fields.nth(1).filter(|home| home.starts_with(b"/") && !home.contains(&0)).unwrap_or(b"/");
    (!name.is_empty() && !name.contains(&0)).then_some(PasswdEntry { name, uid, gid, home })
}

struct GroupEntry<'a> {
    name: &'a [u8],
    gid: u32,
    members: &'a [u8],
}

fn parse_group_line(line: &[u8]) -> Option<GroupEntry<'_>> {
    let mut fields = line.split(|byte| *byte == b':');
    let name = fields.next()?;
    let gid = parse_id(std::str::from_utf8(fields.nth(1)?).ok()?)?;
    Some(GroupEntry { name, gid, members: fields.next().unwrap_or_default() })
}

fn find_group(groups: &[u8], wanted: &str) -> Result<u32> {
    let mut entries = groups.split(|byte| *byte == b'\n').filter_map(parse_group_line);
    let by_name = entries.find(|entry| entry.name == wanted.as_bytes()).map(|entry| entry.gid);
    by_name
        .or_else(|| parse_id(wanted))
        .ok_or_else(|| Error::new(Code::UserUnknown, format!("no group {wanted:?} in this image")))
}

fn member_groups(groups: &[u8], user: &[u8], primary: u32, maps: &IdMaps) -> Vec<u32> {
    let mut found: Vec<u32> = groups
        .split(|byte| *byte == b'\n')
        .filter_map(parse_group_line)
        .filter(|entry| entry.members.split(|byte| *byte == b',').any(|member| member == user))
        .map(|entry| entry.gid)
        .filter(|gid| *gid != primary && maps.check(0, *gid, "").is_ok())
        .take(MAX_GROUPS)
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// A decimal id. 2^32-1 means "no change" to the kernel and is none.
fn parse_id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| digits && *id != u32::MAX)
}

/// A missing or unreadable table is an empty one: many images have none. Never waits on a fifo put in its place.
fn read_table(root: BorrowedFd<'_>, path: &str) -> Vec<u8> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut bytes = Vec::new();
    if let Ok(file) = rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        let is_file = rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG);
        if is_file && std::fs::File::from(file).take(MAX_BYTES).read_to_end(&mut bytes).is_err() {
            bytes.clear();
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:1:1::/:\nann:x:1000:100::/home/ann:/bin/sh\n\
                          1001:x:7:7::/seven:/bin/sh\nfar:x:70000:70000::/far:\nnohome:x:8:8\n";
    const GROUP: &str =
        "root:x:0:\nusers:x:100:ann\nwheel:x:10:root,ann\nvideo:x:44:ann\nbroken:x:y:ann\nbig:x:70000:ann\n";

    fn image(name: &str) -> (std::path::PathBuf, std::fs::File) {
        let path = std::env::temp_dir().join(format!("sandlot-users-{}-{name}", std::process::id()));
        std::fs::create_dir_all(path.join("etc")).unwrap();
        std::fs::write(path.join("etc/passwd"), PASSWD).unwrap();
        std::fs::write(path.join("etc/group"), GROUP).unwrap();
        let root = std::fs::File::open(&path).unwrap();
        (path, root)
    }

    fn maps() -> IdMaps {
        IdMaps { uids: parse_map("         0  100000  65536\n"), gids: parse_map("0 100000 65536"), own: None }
    }

    /// Names, numbers and groups are found as container engines find them.
    #[test]
    fn users_are_found_by_name_number_and_group() {
        let (path, root) = image("found");
        let find = |user: &str| resolve(root.as_fd(), user, &maps()).unwrap();
        let ann = find("ann");
        assert_eq!(ann.identity, Identity { uid: 1000, gid: 100, groups: vec![10, 44] });
        assert_eq!((ann.name.as_slice(), ann.home.as_slice()), (b"ann".as_slice(), b"/home/ann".as_slice()));
        assert_eq!(find("1000").name, b"ann");
        assert_eq!(find("1001").identity.uid, 7, "a name that looks like a number is a name");
        assert_eq!(find("ann:wheel").identity, Identity { uid: 1000, gid: 10, groups: vec![] });
        assert_eq!(find("4242:43").identity, Identity { uid: 4242, gid: 43, groups: vec![] });
        assert_eq!((find("4242").home, find("4242").name), (b"/".to_vec(), b"4242".to_vec()));
        assert_eq!(find("nohome").home, b"/");
        std::fs::remove_dir_all(path).unwrap();
    }

    /// Whoever the container is run as keeps the groups that it has; others have those of the tables.
    #[test]
    fn the_containers_own_user_keeps_its_groups() {
        let (path, root) = image("own");
        let own = Identity { uid: 1000, gid: 100, groups: vec![2000] };
        let with_own = IdMaps { own: Some(own.clone()), ..maps() };
        assert_eq!(resolve(root.as_fd(), "ann", &with_own).unwrap().identity, own);
        assert!(resolve(root.as_fd(), "ann:wheel", &with_own).unwrap().identity.groups.is_empty());
        let only = IdMaps::only(own.clone());
        assert_eq!(resolve(root.as_fd(), "1000:100", &only).unwrap().identity, own);
        assert_eq!(resolve(root.as_fd(), "root", &only).unwrap_err().code, Code::UserUnsupported);
        std::fs::remove_dir_all(path).unwrap();
    }

    /// Unknown names and ids outside of the namespace are told apart.
    #[test]
    fn unknown_and_unsupported_are_told_apart() {
        let (path, root) = image("unknown");
        let code = |user: &str| resolve(root.as_fd(), user, &maps()).unwrap_err().code;
        assert_eq!(code("ghost"), Code::UserUnknown);
        assert_eq!(code(""), Code::UserUnknown);
        assert_eq!(code("ann:ghosts"), Code::UserUnknown);
        assert_eq!(code("far"), Code::UserUnsupported);
        assert_eq!(code("70000"), Code::UserUnsupported);
        assert_eq!(code("4294967295"), Code::UserUnknown);
        assert_eq!(code("-1"), Code::UserUnknown);
        std::fs::remove_dir_all(path).unwrap();
    }
}
