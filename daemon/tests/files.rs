//! Files over the wire: `wire/contract.md`, section 5, and the flow control of section 3.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rmpv::Value;
use support::{Client, Message, Sandbox, bin, map};

const WINDOW: u64 = 1_048_576;
const CHUNK: usize = 262_144;

/// A directory of this machine, which the sandbox shares.
struct Shared(PathBuf);

impl Shared {
    fn new(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let above = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = above.join(format!("sandlot-wire-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Shared(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.0.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn path(path: &Path) -> Value {
    bin(path.to_str().unwrap())
}

fn data(id: u32, off: u64, bytes: &[u8]) -> Value {
    map(&[("t", "data".into()), ("id", id.into()), ("s", 0.into()), ("off", off.into()), ("d", bin(bytes))])
}

fn end(id: u32) -> Value {
    map(&[("t", "end".into()), ("id", id.into())])
}

fn ack(id: u32, off: u64) -> Value {
    map(&[("t", "ack".into()), ("id", id.into()), ("s", 1.into()), ("off", off.into())])
}

/// Send `content` as the data of call `id` within the window, then the end, and return the answer.
fn stream_up(client: &mut Client, id: u32, content: &[u8]) -> Message {
    let (mut sent, mut acknowledged) = (0, 0);
    while sent < content.len() {
        let room = (acknowledged + WINDOW as usize - sent).min(content.len() - sent).min(CHUNK);
        if room > 0 {
            client.send(data(id, sent as u64, &content[sent..sent + room]));
            sent += room;
            continue;
        }
        let message = client.next_of(id);
        if message.text("t") != "ack" {
            return message;
        }
        acknowledged = message.number("off") as usize;
    }
    client.send(end(id));
    last(client, id)
}

fn last(client: &mut Client, id: u32) -> Message {
    loop {
        let message = client.next_of(id);
        if message.text("t") != "ack" {
            return message;
        }
    }
}

/// Acknowledge every half window, and return the data, the entries and the answer.
fn stream_down(client: &mut Client, id: u32) -> (Vec<u8>, Vec<Message>, Message) {
    let (mut content, mut entries, mut acknowledged) = (Vec::new(), Vec::new(), 0);
    loop {
        let message = client.next_of(id);
        match message.text("t") {
            "data" => {
                assert_eq!((message.number("off"), message.number("s")), (content.len() as u64, 1));
                content.extend_from_slice(message.bytes("d"));
                if content.len() - acknowledged >= WINDOW as usize / 2 {
                    acknowledged = content.len();
                    client.send(ack(id, acknowledged as u64));
                }
            }
            "entry" | "entries" => entries.push(message),
            _ => return (content, entries, message),
        }
    }
}

fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Anonymous memory of a process, in KiB.
fn memory_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Wait for what another process is about to do.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every verb for single files, once each way.
#[test]
fn single_files_over_the_wire() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("single");
    let file = shared.at("a/f");
    let written = client.ask("write", &[("path", path(&file)), ("d", bin("hello")), ("eof", true.into())]);
    assert_eq!((written.text("t"), written.number("size")), ("ok", 5));
    let id = client.begin("read", &[("path", path(&file)), ("offset", 1.into()), ("limit", 3.into())]);
    let (content, _, done) = stream_down(&mut client, id);
    assert_eq!((content, done.number("size"), done.number("mode")), (b"ell".to_vec(), 5, 0o644));
    let facts = client.ask("stat", &[("path", path(&file))]);
    assert_eq!((facts.text("kind"), facts.number("size"), facts.get("target")), ("file", 5, &Value::Nil));
    client.ask("mkdir", &[("path", path(&shared.at("d"))), ("mode", 0o700.into())]);
    let id = client.begin("list", &[("path", path(&shared.0)), ("recursive", true.into()), ("limit", 2.into())]);
    let (_, pages, done) = stream_down(&mut client, id);
    assert_eq!((pages[0].get("entries").as_array().unwrap().len(), done.flag("truncated")), (2, true));
    let gone = client.ask("remove", &[("path", path(&shared.at("a"))), ("recursive", true.into())]);
    assert_eq!((gone.text("t"), shared.names()), ("ok", vec!["d".to_owned()]));
}

/// An error is an error of that call, with code, number and path, and the connection goes on.
#[test]
fn failures_are_typed() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("failures");
    let error = client.ask("read", &[("path", path(&shared.at("none")))]);
    assert_eq!((error.text("t"), error.text("code"), error.number("errno")), ("error", "not_found", 2));
    assert_eq!(error.bytes("path"), shared.at("none").to_str().unwrap().as_bytes());
    assert_eq!(client.ask("read", &[("path", path(&shared.0))]).text("code"), "is_a_directory");
    assert_eq!(client.ask("list", &[("path", bin("/etc/passwd"))]).text("code"), "not_a_directory");
    assert_eq!(client.ask("stat", &[("path", bin("x\0y"))]).text("code"), "bad_request");
    assert_eq!(client.ask("stat", &[("path", bin("/")), ("user", "ghost".into())]).text("code"), "user_unknown");
    assert_eq!(client.ask("changes", &[("path", bin("/"))]).text("code"), "unsupported");
    assert_eq!(client.ask("stat", &[("path", bin("/"))]).text("kind"), "dir");
}

/// 28 MiB go up and come down through one window, exactly, and the daemon's memory does not follow them.
#[test]
fn large_files_go_through_one_window() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("large");
    let before = memory_kib(sandbox.init_pid());
    let content = noise(28 << 20);
    let id = client.begin("write", &[("path", path(&shared.at("f")))]);
    assert_eq!(stream_up(&mut client, id, &content).number("size"), 28 << 20);
    let id = client.begin("read", &[("path", path(&shared.at("f")))]);
    let (back, _, done) = stream_down(&mut client, id);
    assert!(back == content && std::fs::read(shared.at("f")).unwrap() == content);
    assert_eq!(done.number("size"), 28 << 20);
    let memory = memory_kib(sandbox.init_pid()).saturating_sub(before);
    assert!(memory < 8 * 1024, "{memory} KiB");
    let tasks = format!("/proc/{}/task", sandbox.init_pid());
    eventually("the threads are gone", || std::fs::read_dir(&tasks).unwrap().count() == 1);
    eventually("the memory is given back", || memory_kib(sandbox.init_pid()) < before + 1024);
}

/// A client that does not acknowledge gets one window and no more, while its other calls are answered.
#[test]
fn a_slow_reader_gets_one_window() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("slow");
    std::fs::write(shared.at("f"), noise(5 << 20)).unwrap();
    let id = client.begin("read", &[("path", path(&shared.at("f")))]);
    let mut received = 0;
    while received < WINDOW {
        received += client.next_of(id).bytes("d").len() as u64;
    }
    assert_eq!(received, WINDOW);
    for _ in 0..20 {
        // Data beyond the window would come in front of one of these.
        let ping = client.begin("stat", &[("path", path(&shared.at("f")))]);
        assert_eq!(client.receive().number("id"), u64::from(ping));
    }
    client.send(ack(id, received));
    assert_eq!(client.next_of(id).number("off"), WINDOW);
}

/// A cancelled write leaves the old file and nothing else, and the call ends with that word.
#[test]
fn a_cancelled_write_leaves_nothing() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("cancel");
    std::fs::write(shared.at("f"), "old").unwrap();
    let id = client.begin("write", &[("path", path(&shared.at("f")))]);
    client.send(data(id, 0, &noise(CHUNK)));
    eventually("the temporary file is there", || shared.names().len() == 2);
    client.send(map(&[("t", "cancel".into()), ("id", id.into())]));
    assert_eq!(last(&mut client, id).text("code"), "cancelled");
    assert_eq!((shared.names(), std::fs::read(shared.at("f")).unwrap()), (vec!["f".to_owned()], b"old".to_vec()));
    // What was under way when the call ended is passed over.
    client.send(data(id, CHUNK as u64, b"late"));
    client.send(end(id));
    assert_eq!(client.ask("stat", &[("path", path(&shared.at("f")))]).number("size"), 3);
}

/// A cancelled download ends, also when it was waiting for an acknowledgement.
#[test]
fn a_cancelled_download_ends() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("cancel-down");
    std::fs::write(shared.at("f"), noise(5 << 20)).unwrap();
    let id = client.begin("download", &[("path", path(&shared.0))]);
    assert_eq!(client.next_of(id).text("t"), "entry");
    client.send(map(&[("t", "cancel".into()), ("id", id.into())]));
    loop {
        let message = client.next_of(id);
        if message.text("t") == "error" {
            assert_eq!(message.text("code"), "cancelled");
            break;
        }
    }
}

/// When the link goes in the middle of a write or an upload, nothing of the unfinished file is left.
#[test]
fn a_lost_link_leaves_nothing() {
    let sandbox = Sandbox::start();
    let shared = Shared::new("lost");
    std::fs::write(shared.at("f"), "old").unwrap();
    let mut client = sandbox.open();
    let id = client.begin("write", &[("path", path(&shared.at("f")))]);
    client.send(data(id, 0, &noise(CHUNK)));
    let id = client.begin("upload", &[("path", path(&shared.0))]);
    client.send(entry(id, "g", "file", &[("size", (10 << 20).into())]));
    client.send(data(id, 0, &noise(CHUNK)));
    eventually("both are under way", || shared.names().len() == 3);
    drop(client);
    eventually("only the old file is left", || shared.names() == ["f"]);
    assert_eq!(std::fs::read(shared.at("f")).unwrap(), b"old");
    assert_eq!(sandbox.open().ask("stat", &[("path", path(&shared.at("f")))]).number("size"), 3);
}

fn entry(id: u32, path: &str, kind: &str, more: &[(&str, Value)]) -> Value {
    let mut fields = vec![("t", Value::from("entry")), ("id", id.into()), ("path", bin(path)), ("kind", kind.into())];
    fields.extend(more.iter().cloned());
    map(&fields)
}

/// Trees go up and come down: content, links of both kinds, holes, counts and what was skipped.
#[test]
fn trees_over_the_wire() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("trees");
    let id = client.begin("upload", &[("path", path(&shared.at("t")))]);
    client.send(entry(id, "", "dir", &[("mode", 0o755.into())]));
    client.send(entry(id, "f", "file", &[("mode", 0o640.into()), ("size", 100_000.into()), ("mtime_ns", 5.into())]));
    let mut piece = data(id, 0, b"tail");
    if let Value::Map(fields) = &mut piece {
        fields.push(("at".into(), 99_996.into()));
    }
    client.send(piece);
    client.send(entry(id, "l", "link", &[("target", bin("../../../etc/passwd"))]));
    client.send(entry(id, "h", "hard", &[("target", bin("f"))]));
    client.send(entry(id, "s", "socket", &[]));
    client.send(end(id));
    let done = last(&mut client, id);
    let counts = ["files", "dirs", "links", "bytes"].map(|name| done.number(name));
    assert_eq!((counts, done.get("skipped")), ([1, 1, 2, 4], &Value::Array(vec![bin("s")])));
    let id = client.begin("download", &[("path", path(&shared.at("t")))]);
    let (content, entries, done) = stream_down(&mut client, id);
    assert_eq!(content.len() as u64, done.number("bytes"));
    assert!(content.len() < 100_000 && content.ends_with(b"tail"));
    let kinds: Vec<&str> = entries.iter().map(|entry| entry.text("kind")).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "hard").count(), 1);
    let file = entries.iter().find(|entry| entry.text("kind") == "file").unwrap();
    assert_eq!((file.number("mode"), file.number("mtime_ns"), file.number("size")), (0o640, 5, 100_000));
    let link = entries.iter().find(|entry| entry.text("kind") == "link").unwrap();
    assert_eq!(link.bytes("target"), b"../../../etc/passwd");
}

/// An upload that is refused ends with the reason; what its client had sent by then is passed over.
#[test]
fn a_refused_upload_ends() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("refused");
    let id = client.begin("upload", &[("path", path(&shared.0))]);
    for number in 0..100 {
        client.send(entry(id, &format!("ok{number}"), "file", &[]));
        client.send(entry(id, "../escape", "file", &[]));
    }
    client.send(end(id));
    let error = last(&mut client, id);
    assert_eq!((error.text("code"), shared.names()), ("bad_request", vec!["ok0".to_owned()]));
    assert_eq!(client.ask("stat", &[("path", path(&shared.0))]).text("kind"), "dir");
}

/// Data out of place, beyond the window or of the wrong stream ends the connection and leaves nothing.
#[test]
fn breaches_end_the_connection() {
    let sandbox = Sandbox::start();
    let shared = Shared::new("breach");
    let wrong_stream =
        map(&[("t", "data".into()), ("id", 1.into()), ("s", 1.into()), ("off", 0.into()), ("d", bin("x"))]);
    let cases: [(&str, Vec<Value>); 4] = [
        ("out of place", vec![data(1, 7, b"x")]),
        ("too long a chunk", vec![data(1, 0, &noise(CHUNK + 1))]),
        ("wrong stream", vec![wrong_stream]),
        ("acknowledged before sent", vec![ack(1, 1)]),
    ];
    for (what, messages) in cases {
        let mut client = sandbox.open();
        client.begin("write", &[("path", path(&shared.at("f")))]);
        messages.into_iter().for_each(|message| client.send(message));
        let error = client.next_of(0);
        assert_eq!((error.text("code"), client.try_receive()), ("protocol_error", None), "{what}");
        eventually("nothing is left", || shared.names().is_empty());
    }
}

/// A client that pours out entries faster than they can be made is held back; memory stays flat and others are served.
#[test]
fn a_flood_of_entries_is_held_back() {
    let sandbox = Sandbox::start();
    let shared = Shared::new("flood");
    let mut client = sandbox.open();
    let mut other = sandbox.open();
    let id = client.begin("upload", &[("path", path(&shared.0))]);
    let target = "x".repeat(3000);
    for number in 0..30_000 {
        client.send(entry(id, &format!("l{}", number % 100), "link", &[("target", bin(&target))]));
        if number % 5000 == 0 {
            assert_eq!(other.ask("stat", &[("path", path(&shared.0))]).text("kind"), "dir");
        }
    }
    client.send(end(id));
    assert_eq!(last(&mut client, id).number("links"), 30_000);
    let memory = memory_kib(sandbox.init_pid());
    assert!(memory < 32 * 1024, "{memory} KiB");
}

/// A thousand small calls at once are all answered, and their threads go away again.
#[test]
fn many_calls_at_once() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("many");
    let descriptors = format!("/proc/{}/fd", sandbox.init_pid());
    let before = std::fs::read_dir(&descriptors).unwrap().count();
    let ids: Vec<u32> = (0..1000)
        .map(|number| {
            let file = path(&shared.at(&format!("{number}")));
            client.begin("write", &[("path", file), ("d", bin("x")), ("eof", true.into())])
        })
        .collect();
    let mut open: std::collections::HashSet<u64> = ids.into_iter().map(u64::from).collect();
    while !open.is_empty() {
        let message = client.receive();
        assert_eq!(message.text("t"), "ok");
        open.remove(&message.number("id"));
    }
    assert_eq!(shared.names().len(), 1000);
    let tasks = format!("/proc/{}/task", sandbox.init_pid());
    eventually("one thread is left", || std::fs::read_dir(&tasks).unwrap().count() == 1);
    assert_eq!(std::fs::read_dir(&descriptors).unwrap().count(), before);
}

/// Writes that are begun and never fed hold up nobody, and cost nothing any more once they are cancelled.
#[test]
fn many_operations_may_wait() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("waiting");
    let before = memory_kib(sandbox.init_pid());
    let ids: Vec<u32> =
        (0..600).map(|number| client.begin("write", &[("path", path(&shared.at(&format!("{number}"))))])).collect();
    assert_eq!(client.ask("stat", &[("path", path(&shared.0))]).text("kind"), "dir");
    for id in &ids {
        client.send(map(&[("t", "cancel".into()), ("id", (*id).into())]));
    }
    for _ in &ids {
        assert_eq!(client.receive().text("code"), "cancelled");
    }
    assert!(shared.names().is_empty());
    eventually("the memory is given back", || memory_kib(sandbox.init_pid()) < before + 3072);
}

/// A reset ends running operations as cancelled and goes through.
#[test]
fn a_reset_ends_operations() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let shared = Shared::new("reset");
    std::fs::write(shared.at("f"), noise(5 << 20)).unwrap();
    let read = client.begin("read", &[("path", path(&shared.at("f")))]);
    let write = client.begin("write", &[("path", path(&shared.at("g")))]);
    assert_eq!(client.next_of(read).text("t"), "data");
    let reset = client.begin("reset", &[]);
    let mut ended = std::collections::BTreeMap::new();
    while ended.len() < 3 {
        let message = client.receive();
        match message.text("t") {
            "error" => ended.insert(message.number("id") as u32, message.text("code").to_owned()),
            "ok" => ended.insert(message.number("id") as u32, "ok".to_owned()),
            _ => None,
        };
    }
    let expected = [(read, "cancelled"), (write, "cancelled"), (reset, "ok")].map(|(id, word)| (id, word.to_owned()));
    assert_eq!(ended, expected.into());
    assert_eq!(shared.names(), ["f"]);
    assert_eq!(client.ask("stat", &[("path", path(&shared.at("f")))]).number("size"), 5 << 20);
}
