//! Commands from start to exit: `wire/contract.md`, section 4.
#![allow(clippy::unwrap_used)]

mod support;

use rmpv::Value;
use support::{Sandbox, bin, bins};

/// Standard output, standard error and the exit code are three things, byte for byte.
#[test]
fn output_error_and_code_are_apart() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let exit = client.run("printf 'a\\n\\n\\r\\nb\\377'; printf err >&2; exit 7");
    assert_eq!(exit.end("out").bytes("d"), b"a\n\n\r\nb\xff");
    assert_eq!((exit.err().as_str(), exit.code()), ("err", Some(7)));
    assert_eq!((exit.flag("timed_out"), exit.flag("oom")), (false, false));
    assert_eq!(exit.get("unenforced"), &Value::Array(vec!["memory".into()]));
}

/// An argv reaches its program as it is.
#[test]
fn argv_is_passed_as_it_is() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let argv = ["printf", "%s|", "a b", "'\"$`\\\n", "", "ä"];
    let id = client.begin("exec", &[("key", "k".into()), ("argv", bins(&argv))]);
    assert_eq!(client.finish(id).out(), "a b|'\"$`\\\n||ä|");
}

/// Not found is 127, not executable 126, a signal is a signal.
#[test]
fn endings_are_told_apart() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let mut run = |argv: &[&str]| {
        let key = argv.join(" ");
        let id = client.begin("exec", &[("key", key.into()), ("argv", bins(argv))]);
        client.finish(id)
    };
    let missing = run(&["no-such-program"]);
    assert_eq!((missing.code(), missing.err().as_str()), (Some(127), "sandlotd: no-such-program: not found\n"));
    assert_eq!(run(&["/no/such"]).code(), Some(127));
    let plain = run(&["/etc/passwd"]);
    assert_eq!((plain.code(), plain.err().as_str()), (Some(126), "sandlotd: /etc/passwd: permission denied\n"));
    let killed = run(&["sh", "-c", "kill -9 $$"]);
    assert_eq!((killed.code(), killed.number("signal")), (None, 9));
}

/// Megabytes on both streams come whole, in order, through one window.
#[test]
fn megabytes_come_whole() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let exit = client.run("head -c 5000000 /dev/zero; head -c 3000000 /dev/zero | tr '\\0' x >&2");
    assert_eq!(exit.end("out").bytes("d"), vec![0; 5_000_000]);
    assert_eq!(exit.end("err").bytes("d"), vec![b'x'; 3_000_000]);
    assert_eq!(exit.end("out").number("total"), 5_000_000);
}

/// A cap keeps head, tail or both, and the sizes are told.
#[test]
fn caps_keep_what_they_say() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    for (keep, kept, head) in [("head", "1234", 4), ("tail", "6789", 0), ("both", "1289", 2)] {
        let exit = client.run_with("printf 123456789", &[("cap_out", 4.into()), ("keep", keep.into())]);
        let out = exit.end("out");
        assert_eq!((exit.out().as_str(), out.number("total"), out.number("head")), (kept, 9, head));
    }
}

/// A background child holds neither the call nor what is printed before it, and lives on.
#[test]
fn a_background_child_never_holds_the_call() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let exit = client.run("echo before; (while :; do echo late; sleep 0.01; done) & echo $!");
    let pid = exit.out().lines().find_map(|line| line.parse::<u32>().ok()).unwrap();
    assert!(exit.out().starts_with("before\n"));
    assert_eq!(client.run(&format!("sleep 0.1; kill -0 {pid}")).code(), Some(0), "its output must not kill it");
}

/// No input is an empty one, and there is no terminal to wait for.
#[test]
fn nothing_waits_for_input() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    assert_eq!(client.run("cat; echo done").out(), "done\n");
    assert_ne!(client.run("read x < /dev/tty").code(), Some(0));
}

/// Input comes inline, in pieces, or both.
#[test]
fn input_comes_inline_and_in_pieces() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    assert_eq!(client.run_with("cat", &[("stdin", bin("a\0b"))]).out(), "a\0b");
    let id = client.begin_script("cat", &[("stdin", bin("one ")), ("stdin_open", true.into())]);
    let piece = |off: u64, data: &str, eof: bool| {
        support::map(&[
            ("t", "stdin".into()),
            ("id", id.into()),
            ("key", "?".into()),
            ("off", off.into()),
            ("d", bin(data)),
            ("eof", eof.into()),
        ])
    };
    client.send(piece(4, "two ", false));
    client.send(piece(4, "two three", false));
    client.send(piece(13, "", true));
    assert_eq!(client.finish(id).out(), "one two three");
}

/// A timeout keeps what was written.
#[test]
fn a_timeout_keeps_partial_output() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let exit = client.run_with("echo part; sleep 60", &[("timeout_ms", 300.into())]);
    assert_eq!((exit.out().as_str(), exit.flag("timed_out"), exit.number("signal")), ("part\n", true, 9));
    assert!(exit.number("wall_us") >= 300_000);
}

/// The environment is the sandbox's own and what the call changes of it.
#[test]
fn the_environment_is_exact() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let env = bins(&["A=l1\nl2'\"$d", "C=", "HOME"]);
    let id = client.begin("exec", &[("key", "e".into()), ("argv", bins(&["env", "-0"])), ("env", env)]);
    let exit = client.finish(id);
    let mut entries: Vec<String> =
        exit.out().split('\0').map(str::to_owned).filter(|entry| !entry.is_empty()).collect();
    entries.sort();
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(entries, ["A=l1\nl2'\"$d", "C=", path]);
}

/// A working directory is absolute or relative to the sandbox's; a missing one is the call's error.
#[test]
fn the_working_directory_is_the_callers() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    assert_eq!(client.run("pwd").out(), "/tmp\n");
    assert_eq!(client.run_with("pwd", &[("cwd", bin("/usr/bin"))]).out(), "/usr/bin\n");
    assert_eq!(client.run_with("pwd", &[("cwd", bin("../usr"))]).out(), "/usr\n");
    let error = client.run_with("pwd", &[("cwd", bin("/no/such"))]);
    assert_eq!((error.text("t"), error.text("code"), error.bytes("path")), ("error", "not_found", &b"/no/such"[..]));
}

/// A script longer than one argument may be runs the same, `$0` included, and its descriptor is nobody else's.
#[test]
fn a_long_script_is_the_same_script() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let tail = "echo $0 $#; ls /proc/self/fd | wc -l; exit 5";
    let short = client.run(&format!("\n{tail}"));
    let long = client.run(&format!("x='{}'\n{tail}", "y".repeat(900_000)));
    assert_eq!((long.code(), long.err().as_str()), (Some(5), ""));
    assert_eq!(long.out(), short.out());
    assert!(short.out().starts_with("sh 0\n"));
}

/// A command runs once whatever happens to its connection, and its output comes again from the offset asked for.
#[test]
fn a_known_key_does_not_run_again() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let script = [("key", Value::from("once")), ("script", bin("echo $$; sleep 0.2; echo end"))];
    client.begin("exec", &script);
    drop(client);
    let mut client = sandbox.open();
    let id = client.begin("exec", &script);
    assert_eq!(client.next_of(id).text("t"), "ack");
    let first = client.finish(id);
    assert!(first.out().ends_with("end\n"));
    let id = client.begin("exec", &script);
    let again = client.finish(id);
    assert_eq!((again.out(), again.number("wall_us")), (first.out(), first.number("wall_us")));
    let id = client.begin("attach", &[("key", "once".into()), ("out_from", (first.out().len() - 4).into())]);
    client.next_of(id);
    assert_eq!(client.next_of(id).out(), "end\n");
    client.send(support::map(&[("t", "forget".into()), ("keys", Value::Array(vec!["once".into()]))]));
    assert_eq!(client.ask("attach", &[("key", "once".into())]).text("code"), "no_such_key");
}

/// A streamed command whose client does not acknowledge waits, and loses nothing.
#[test]
fn a_stream_waits_for_its_reader() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let id = client.begin_script("head -c 3000000 /dev/zero; echo end >&2", &[("mode", "stream".into())]);
    assert_eq!(client.next_of(id).text("t"), "started");
    let mut received = 0;
    while received < 1_048_576 {
        let message = client.next_of(id);
        assert_eq!((message.text("t"), message.number("off")), ("out", received));
        received += message.bytes("d").len() as u64;
    }
    assert_eq!(received, 1_048_576, "one window and not a byte more");
    assert_eq!(client.ask("ping", &[]).text("t"), "pong", "the connection itself is not held up");
    drop(client);
    let mut client = sandbox.open();
    let from = [("key", Value::from("run 1")), ("out_from", 1_000_000.into())];
    let id = client.begin("attach", &from);
    let (mut offset, mut error) = (1_000_000, Vec::new());
    loop {
        let message = client.next_of(id);
        match message.text("t") {
            "out" if message.number("s") == 1 => {
                assert_eq!(message.number("off"), offset);
                offset += message.bytes("d").len() as u64;
                let ack = [("t", "ack".into()), ("id", id.into()), ("s", 1.into()), ("off", offset.into())];
                client.send(support::map(&ack));
            }
            "out" => error.extend_from_slice(message.bytes("d")),
            "exit" => break,
            kind => assert_eq!(kind, "ack"),
        }
    }
    assert_eq!((offset, error.as_slice()), (3_000_000, b"end\n".as_slice()));
}

/// A job never waits for a reader: its ring keeps the last bytes, and what it has dropped is named.
#[test]
fn a_job_keeps_the_last_bytes() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let id =
        client.begin_script("head -c 500000 /dev/zero; printf tail", &[("mode", "job".into()), ("cap_out", 8.into())]);
    assert_eq!(client.next_of(id).text("t"), "started");
    let exit = loop {
        let id = client.begin("attach", &[("key", "run 1".into()), ("output", false.into())]);
        let message = client.finish(id);
        if message.text("t") == "exit" {
            break message;
        }
    };
    assert_eq!(exit.end("out").number("total"), 500_004);
    let id = client.begin("attach", &[("key", "run 1".into())]);
    assert_eq!(client.next_of(id).text("t"), "ack");
    let gap = client.next_of(id);
    assert_eq!((gap.text("t"), gap.number("from"), gap.number("to")), ("gap", 0, 499_996));
    let mut rest = Vec::new();
    let exit = loop {
        let message = client.next_of(id);
        if message.text("t") == "exit" {
            break message;
        }
        assert_eq!(message.number("off"), 499_996 + rest.len() as u64);
        rest.extend_from_slice(message.bytes("d"));
    };
    assert_eq!((rest.as_slice(), exit.code()), (&b"\0\0\0\0tail"[..], Some(0)));
}

/// Standard error can be merged into standard output, in true order.
#[test]
fn merged_streams_keep_their_order() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let exit = client.run_with("echo 1; echo 2 >&2; echo 3", &[("merge", true.into())]);
    assert_eq!((exit.out().as_str(), exit.err().as_str()), ("1\n2\n3\n", ""));
}

/// A terminal is one when asked for, with its size and its control characters.
#[test]
fn a_terminal_is_had_for_the_asking() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let pty = Value::Array(vec![24.into(), 80.into()]);
    let fields = [("pty", pty), ("stdin_open", true.into()), ("mode", "stream".into())];
    let id = client.begin_script("stty size; tty >/dev/null && read x && stty size && echo got $x", &fields);
    client.next_of(id);
    assert_eq!(
        client.ask("resize", &[("key", "run 1".into()), ("rows", 50.into()), ("cols", 99.into())]).text("t"),
        "ok"
    );
    let stdin =
        [("t", "stdin".into()), ("id", id.into()), ("key", "run 1".into()), ("off", 0.into()), ("d", bin("w\n"))];
    client.send(support::map(&stdin));
    let exit = client.finish(id);
    assert!(exit.out().ends_with("50 99\r\ngot w\r\n"), "{:?}", exit.out());
}

/// Signals reach whom they are for; to one that has ended they are nothing.
#[test]
fn signals_reach_whom_they_are_for() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let fields = [("mode", Value::from("stream"))];
    let id = client.begin_script("trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done", &fields);
    while client.next_of(id).text("t") != "out" {}
    let signal = [("key", Value::from("run 1")), ("signal", 15.into()), ("to", "leader".into())];
    assert_eq!(client.ask("signal", &signal).text("t"), "ok");
    let out = client.next_of(id);
    assert_eq!(out.bytes("d"), b"term\n");
    assert_eq!(client.next_of(id).code(), Some(3));
    assert_eq!(client.ask("signal", &signal).text("t"), "ok", "one that has ended is left alone");
}

/// Cancelling a call kills its command, whose exit still comes.
#[test]
fn cancel_ends_with_an_exit() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let id = client.begin_script("echo part; sleep 60", &[("mode", "stream".into())]);
    while client.next_of(id).text("t") != "out" {}
    client.send(support::map(&[("t", "cancel".into()), ("id", id.into())]));
    let exit = client.next_of(id);
    assert_eq!((exit.number("signal"), exit.flag("timed_out")), (9, false));
}

/// Killing everything from inside ends the commands, not the daemon.
#[test]
fn the_daemon_survives_kill_all() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    client.run("kill -9 -1; sleep 1");
    assert_eq!(client.run("kill -TERM 1; echo alive").out(), "alive\n");
}

/// Orphans are reaped at once and leave no zombies.
#[test]
fn orphans_leave_no_zombies() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    client.run("i=0; while [ $i -lt 50 ]; do (sh -c 'sleep 0.01 &'); i=$((i+1)); done");
    let count = "sleep 0.2; cat /proc/[0-9]*/stat | grep -c ' Z ' || true";
    assert_eq!(client.run(count).out(), "0\n");
}

/// A command that leaves three busy processes: a child, one in a session of its own, one whose parents are gone.
const THREE: &str = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &); echo ready; wait";

fn sleepers(client: &mut support::Client) -> usize {
    let processes = client.ask("processes", &[]);
    let is_sleeper = |process: &&Value| support::Message((*process).clone()).bytes("name") == b"sleep";
    processes.get("processes").as_array().unwrap().iter().filter(is_sleeper).count()
}

/// A timeout leaves nothing of the tree alive when its result comes; by choice it kills the first process alone.
#[test]
fn a_timeout_kills_the_tree_or_the_leader() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let timeout = ("timeout_ms", Value::from(500));
    let exit = client.run_with(THREE, std::slice::from_ref(&timeout));
    assert_eq!((exit.flag("timed_out"), exit.out().as_str(), sleepers(&mut client)), (true, "ready\n", 0));
    let exit = client.run_with(THREE, &[timeout, ("kill", "leader".into())]);
    assert_eq!((exit.flag("timed_out"), sleepers(&mut client)), (true, 4));
}

/// A signal to the tree reaches every process of it.
#[test]
fn a_signal_to_the_tree_reaches_all() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let id = client.begin_script(THREE, &[("mode", "stream".into())]);
    while client.next_of(id).text("t") != "out" {}
    while sleepers(&mut client) != 4 {}
    let signal = [("key", Value::from("run 1")), ("signal", 15.into()), ("to", "tree".into())];
    assert_eq!(client.ask("signal", &signal).text("t"), "ok");
    assert_eq!(client.finish(id).number("signal"), 15);
    while sleepers(&mut client) != 0 {}
}

/// Processes are told with the command they came from, and none of the daemon's own among them.
#[test]
fn processes_have_the_key_of_their_command() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    client.begin_script("sleep 1000 & setsid sleep 1000", &[("mode", "job".into())]);
    while sleepers(&mut client) != 2 {}
    let answer = client.ask("processes", &[]);
    let processes = answer.get("processes").as_array().unwrap();
    for process in processes {
        let process = support::Message(process.clone());
        assert_eq!(process.text("key"), "run 1", "{process:?}");
        assert!(!process.bytes("name").starts_with(b"exec"), "{process:?}");
    }
    assert_eq!(processes.len(), 2 + usize::from(processes.len() == 3), "the shell may have become its last command");
}

/// After a quiesce nothing is left, and the commands that ran have ended with a signal.
#[test]
fn a_quiesce_leaves_nothing() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let id = client.begin_script(THREE, &[("mode", "stream".into())]);
    while client.next_of(id).text("t") != "out" {}
    while sleepers(&mut client) != 4 {}
    let found = client.ask("quiesce", &[("how", "kill".into())]);
    assert!(found.get("processes").as_array().unwrap().len() >= 4);
    assert_eq!((client.finish(id).number("signal"), sleepers(&mut client)), (9, 0));
}

fn has_state(client: &mut support::Client, name: &[u8], state: &str) -> bool {
    let answer = client.ask("processes", &[]);
    let mut processes = answer.get("processes").as_array().unwrap().iter().cloned().map(support::Message);
    processes.any(|process| process.bytes("name") == name && process.text("state") == state)
}

/// A reset ends what runs, forgets results unless told to keep them, and the sandbox serves on.
#[test]
fn a_reset_begins_anew() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let stuck = client.begin_script("head -c 3000000 /dev/zero; sleep 1000", &[("mode", "stream".into())]);
    assert_eq!(client.next_of(stuck).text("t"), "started");
    let mut received = 0;
    while received < 1_048_576 {
        received += client.next_of(stuck).bytes("d").len();
    }
    // With its window and its pipe full it sleeps.
    while !has_state(&mut client, b"head", "S") {}
    let kept = client.begin("exec", &[("key", "kept".into()), ("script", bin("exit 5"))]);
    assert_eq!(client.finish(kept).code(), Some(5));
    let done = client.ask("reset", &[("keep_results", true.into())]);
    assert!(Value::from(true) == done.end("verified").get("processes").clone(), "{done:?}");
    let again = client.begin("attach", &[("key", "kept".into())]);
    assert_eq!(client.finish(again).code(), Some(5));
    let done = client.ask("reset", &[]);
    assert_eq!(done.text("t"), "ok");
    assert_eq!(client.ask("attach", &[("key", "kept".into())]).text("code"), "no_such_key");
    let end = client.finish(stuck);
    assert_eq!((end.text("t"), end.text("code")), ("error", "cancelled"), "its output is gone, and so it is said");
    assert_eq!(client.run("echo fine").out(), "fine\n");
}
