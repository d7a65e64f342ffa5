//! A sandbox's main loop as PID 1 of a process namespace of its own, on this machine's files, and a client of it.
//!
//! Needs the right to make namespaces: root, or user namespaces for everybody.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

pub mod network;
pub mod noise;

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rmpv::Value;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType};
use sandlotd::cgroup::Leaves;
use sandlotd::confinement::Confinement;
use sandlotd::error::{Code, Error, Result};
use sandlotd::files::{Destination, Layout};
use sandlotd::message::UsageReply;
use sandlotd::sandbox::{Episode, Hooks, OnTerminate, SandboxContext};
use sandlotd::source::{HostSource, Source};
use sandlotd::users::IdMaps;

/// Longer than any answer takes on a slow machine; reached only by a bug.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct PlainHooks;

impl Hooks for PlainHooks {
    fn kill_all(&mut self) -> Result<()> {
        assert_eq!(std::process::id(), 1, "would kill the whole machine");
        // SAFETY: in a process namespace of our own this is every process but us.
        unsafe { libc::kill(-1, libc::SIGKILL) };
        Ok(())
    }

    fn freeze(&mut self, _frozen: bool) -> Result<()> {
        Err(Error::new(Code::Unsupported, "no freezer here"))
    }

    fn reset(&mut self) -> Result<Episode> {
        let verified = sandlotd::message::Verified {
            processes: false,
            files: true,
            mounts: true,
            ipc: true,
            hostname: true,
            network: true,
        };
        Ok(Episode { root: root(), changed_bytes: None, verified })
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn layout(&self) -> Result<Layout> {
        Ok(Layout::default())
    }

    fn usage(&self) -> UsageReply {
        UsageReply { pids: Some(1), ..UsageReply::default() }
    }
}

fn root() -> OwnedFd {
    std::fs::File::open("/").unwrap().into()
}

fn context() -> SandboxContext {
    SandboxContext {
        name: "plain".to_owned(),
        mode: "range-root".to_owned(),
        features: &[],
        unenforced: vec!["memory".to_owned()],
        env: vec![
            b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec(),
            b"HOME=/root".to_vec(),
        ],
        workdir: b"/tmp".to_vec(),
        user: None,
        id_maps: IdMaps::of_self(),
        null: std::fs::File::options().read(true).write(true).open("/dev/null").unwrap().into(),
        root: root(),
        destination: Destination::Files,
        confinement: Confinement::none(),
        leaves: Leaves::unavailable(),
        score: None,
        on_terminate: OnTerminate::PassOn,
        hooks: Box::new(PlainHooks),
        idle_timeout: None,
    }
}

/// A running main loop.
#[derive(Debug)]
pub struct Sandbox {
    source: Option<OwnedFd>,
    /// The process that waits for PID 1 of the namespace.
    waiter: libc::pid_t,
}

impl Sandbox {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub fn start_with(change: impl FnOnce(&mut SandboxContext)) -> Self {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // SAFETY: the child keeps to this thread, and leaves by _exit.
        let waiter = unsafe { libc::fork() };
        if waiter == 0 {
            drop(ours);
            let theirs = keep_only(theirs);
            // SAFETY: the child of a fork; nothing of the parent runs in it.
            let code = unsafe { enter_namespace(|| serve(theirs, change)) };
            // SAFETY: always.
            unsafe { libc::_exit(code) };
        }
        Sandbox { source: Some(ours), waiter }
    }

    pub fn connect(&self) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let fds = [theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let source = self.source.as_ref().unwrap();
        rustix::net::sendmsg(source, &[std::io::IoSlice::new(b"s")], &mut ancillary, SendFlags::empty()).unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        ours.set_write_timeout(Some(PATIENCE)).unwrap();
        Client::new(ours)
    }

    /// Connect and say hello.
    pub fn open(&self) -> Client {
        let mut client = self.connect();
        assert_eq!(client.hello().text("t"), "hello");
        client
    }

    /// Pid of the main loop as this test sees it.
    pub fn init_pid(&self) -> i32 {
        let path = format!("/proc/{0}/task/{0}/children", self.waiter);
        loop {
            if let Ok(pid) = std::fs::read_to_string(&path).unwrap().trim().parse() {
                return pid;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.source = None;
        let mut status = 0;
        // SAFETY: our own child, waited for once.
        unsafe { libc::waitpid(self.waiter, &raw mut status, 0) };
        if !std::thread::panicking() {
            assert_eq!(status, 0, "the main loop ended badly");
        }
    }
}

/// Run `body` as PID 1 of a new process namespace with its own /proc, and wait for it.
unsafe fn enter_namespace(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: plain system calls in a single-threaded child.
    unsafe {
        let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS;
        if libc::unshare(flags) != 0 && !unshare_as_user(flags) {
            return 90;
        }
        let pid = libc::fork();
        if pid == 0 {
            let none = std::ptr::null();
            let private = libc::MS_REC | libc::MS_PRIVATE;
            if libc::mount(none, c"/".as_ptr(), none, private, none.cast()) != 0 {
                libc::_exit(91);
            }
            if libc::mount(c"proc".as_ptr(), c"/proc".as_ptr(), c"proc".as_ptr(), 0, none.cast()) != 0 {
                libc::_exit(92);
            }
            libc::_exit(body());
        }
        let mut status = 0;
        libc::waitpid(pid, &raw mut status, 0);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
    }
}

fn unshare_as_user(flags: libc::c_int) -> bool {
    // SAFETY: plain system calls.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    // SAFETY: as above.
    if unsafe { libc::unshare(flags | libc::CLONE_NEWUSER) } != 0 {
        return false;
    }
    std::fs::write("/proc/self/setgroups", "deny").is_ok()
        && std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).is_ok()
        && std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).is_ok()
}

/// Keep nothing of the test runner and of other sandboxes, as an init that was executed would.
fn keep_only(source: OwnedFd) -> OwnedFd {
    const KEPT: libc::c_int = 9;
    // SAFETY: a duplicate at a fixed number, and all others closed; nothing here uses the closed ones.
    unsafe {
        if source.as_raw_fd() != KEPT {
            assert_eq!(libc::dup3(source.as_raw_fd(), KEPT, libc::O_CLOEXEC), KEPT);
        }
        std::mem::forget(source);
        libc::close_range(3, KEPT as libc::c_uint - 1, 0);
        libc::close_range(KEPT as libc::c_uint + 1, libc::c_uint::MAX, 0);
        OwnedFd::from_raw_fd(KEPT)
    }
}

fn serve(source: OwnedFd, change: impl FnOnce(&mut SandboxContext)) -> i32 {
    let mut context = context();
    change(&mut context);
    match sandlotd::serve::serve(Source::Host(HostSource::new(source)), context) {
        Ok(_) => 0,
        Err(error) => {
            eprintln!("{error}");
            93
        }
    }
}

/// One connection, as a client sees it.
#[derive(Debug)]
pub struct Client<S = UnixStream> {
    pub stream: S,
    last_id: u32,
    /// Messages of calls that nobody has asked for yet.
    aside: Vec<Message>,
}

impl<S: Read + Write> Client<S> {
    /// Nothing is said yet.
    pub fn new(stream: S) -> Self {
        Client { stream, last_id: 0, aside: Vec::new() }
    }

    /// Say hello and hear the answer.
    pub fn hello(&mut self) -> Message {
        self.send(map(&[("t", "hello".into()), ("versions", Value::Array(vec![1.into()]))]));
        self.receive()
    }

    pub fn send(&mut self, message: Value) {
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &message).unwrap();
        self.send_payload(&payload);
    }

    pub fn send_payload(&mut self, payload: &[u8]) {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes().to_vec();
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).unwrap();
    }

    pub fn receive(&mut self) -> Message {
        self.try_receive().expect("the daemon closed the connection")
    }

    /// `None` at end of file.
    pub fn try_receive(&mut self) -> Option<Message> {
        let mut prefix = [0; 4];
        match self.stream.read_exact(&mut prefix) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
            Err(_) => return None,
        }
        let mut payload = vec![0; u32::from_be_bytes(prefix) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        Some(Message(rmpv::decode::read_value(&mut payload.as_slice()).unwrap()))
    }

    /// Send a request under a new id, which is returned.
    pub fn begin(&mut self, kind: &str, fields: &[(&str, Value)]) -> u32 {
        self.last_id += 1;
        let mut all = vec![("t", Value::from(kind)), ("id", self.last_id.into())];
        all.extend(fields.iter().cloned());
        self.send(map(&all));
        self.last_id
    }

    /// Requests sent under ids of their own, hello not counted.
    pub fn count(&self) -> u32 {
        self.last_id
    }

    /// Send a request and return its first answer.
    pub fn ask(&mut self, kind: &str, fields: &[(&str, Value)]) -> Message {
        let id = self.begin(kind, fields);
        self.next_of(id)
    }

    /// The next message of a call; those of other calls are kept for later.
    pub fn next_of(&mut self, id: u32) -> Message {
        let of_call = |message: &Message| message.number("id") == u64::from(id);
        if let Some(index) = self.aside.iter().position(of_call) {
            return self.aside.remove(index);
        }
        loop {
            let message = self.receive();
            if of_call(&message) {
                return message;
            }
            self.aside.push(message);
        }
    }

    /// Run a script under its own text as key, and return its exit.
    pub fn run(&mut self, script: &str) -> Message {
        self.run_with(script, &[])
    }

    pub fn run_with(&mut self, script: &str, fields: &[(&str, Value)]) -> Message {
        let id = self.begin_script(script, fields);
        self.finish(id)
    }

    pub fn begin_script(&mut self, script: &str, fields: &[(&str, Value)]) -> u32 {
        let key = format!("run {}", self.last_id + 1);
        let mut all = vec![("key", Value::from(key)), ("script", bin(script))];
        all.extend(fields.iter().cloned());
        self.begin("exec", &all)
    }

    /// Acknowledge what comes until the exit (or error) of a call. Output sent before is put in front of its own.
    pub fn finish(&mut self, id: u32) -> Message {
        let mut output = [Vec::new(), Vec::new()];
        loop {
            let message = self.next_of(id);
            match message.text("t") {
                "out" => {
                    let stream = message.number("s");
                    let data = &mut output[stream as usize - 1];
                    assert_eq!(message.number("off"), data.len() as u64);
                    data.extend_from_slice(message.bytes("d"));
                    let off = data.len() as u64;
                    self.send(map(&[
                        ("t", "ack".into()),
                        ("id", id.into()),
                        ("s", stream.into()),
                        ("off", off.into()),
                    ]));
                }
                "exit" => return message.with_output(output),
                "started" | "ack" => {}
                _ => return message,
            }
        }
    }
}

/// A decoded message.
#[derive(Clone, PartialEq)]
pub struct Message(pub Value);

impl std::fmt::Debug for Message {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:.2000}", self.0.to_string())
    }
}

impl Message {
    pub fn get(&self, name: &str) -> &Value {
        let entries = self.0.as_map().unwrap();
        entries.iter().find(|(key, _)| key.as_str() == Some(name)).map_or(&Value::Nil, |(_, value)| value)
    }

    pub fn text(&self, name: &str) -> &str {
        self.get(name).as_str().unwrap_or_else(|| panic!("{name} in {self:?}"))
    }

    pub fn number(&self, name: &str) -> u64 {
        self.get(name).as_u64().unwrap_or_else(|| panic!("{name} in {self:?}"))
    }

    pub fn flag(&self, name: &str) -> bool {
        self.get(name).as_bool().unwrap_or_else(|| panic!("{name} in {self:?}"))
    }

    pub fn bytes(&self, name: &str) -> &[u8] {
        match self.get(name) {
            Value::Binary(bytes) => bytes,
            _ => panic!("{name} in {self:?}"),
        }
    }

    /// `out` or `err` of an exit.
    pub fn end(&self, name: &str) -> Message {
        Message(self.get(name).clone())
    }

    /// Standard output of an exit.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(self.end("out").bytes("d")).into_owned()
    }

    /// Standard error of an exit.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(self.end("err").bytes("d")).into_owned()
    }

    /// The exit code, or nothing after a signal.
    pub fn code(&self) -> Option<u64> {
        self.get("code").as_u64()
    }

    fn with_output(mut self, output: [Vec<u8>; 2]) -> Self {
        for (name, before) in ["out", "err"].into_iter().zip(output) {
            let all = [before.as_slice(), self.end(name).bytes("d")].concat();
            let entries = self.field_mut(name);
            *Self::entry_mut(entries, "d") = Value::Binary(all);
        }
        self
    }

    fn field_mut(&mut self, name: &str) -> &mut Value {
        Self::entry_mut(&mut self.0, name)
    }

    fn entry_mut<'a>(value: &'a mut Value, name: &str) -> &'a mut Value {
        let Value::Map(entries) = value else { panic!("not a map") };
        &mut entries.iter_mut().find(|(key, _)| key.as_str() == Some(name)).unwrap().1
    }
}

pub fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(fields.iter().map(|(name, value)| (Value::from(*name), value.clone())).collect())
}

pub fn bin(text: impl AsRef<[u8]>) -> Value {
    Value::Binary(text.as_ref().to_vec())
}

pub fn bins(items: &[&str]) -> Value {
    Value::Array(items.iter().map(bin).collect())
}

/// Resident memory of a process.
pub fn resident_kib(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
