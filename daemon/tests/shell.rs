//! Persistent shells: `wire/contract.md`, section 4.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use rmpv::Value;
use support::{Client, Message, Sandbox, bin};

const PROGRAMS: [&str; 2] = ["bash", "dash"];

fn open(client: &mut Client, program: &str) {
    let opened = client.ask("shell_open", &[("key", "shell".into()), ("program", bin(program))]);
    assert_eq!(opened.text("t"), "ok", "{opened:?}");
    assert!(opened.bytes("program").ends_with(program.as_bytes()));
}

fn begin(client: &mut Client, script: &str, fields: &[(&str, Value)]) -> u32 {
    let key = format!("{} {}", client.count(), script.chars().take(40).collect::<String>());
    let mut all = vec![("shell", Value::from("shell")), ("key", key.into()), ("script", bin(script))];
    all.extend(fields.iter().cloned());
    client.begin("shell_run", &all)
}

fn run(client: &mut Client, script: &str) -> Message {
    let id = begin(client, script, &[]);
    client.finish(id)
}

/// Directory, variables, functions and options stay; each run has its own output and code.
#[test]
fn state_persists_from_run_to_run() {
    for program in PROGRAMS {
        let sandbox = Sandbox::start();
        let mut client = sandbox.open();
        open(&mut client, program);
        assert_eq!(run(&mut client, "cd /usr; A='x y'; f() { echo \"f:$1:$A\"; }; export B=2").code(), Some(0));
        let exit = run(&mut client, "f 1; echo err >&2; sh -c 'echo $B'; exec 5>&1; (exit 7)");
        assert_eq!((exit.out().as_str(), exit.err().as_str(), exit.code()), ("f:1:x y\n2\n", "err\n", Some(7)));
        assert_eq!((exit.bytes("cwd"), exit.flag("alive")), (&b"/usr"[..], true));
        assert_eq!(run(&mut client, "pwd").out(), "/usr\n", "{program}");
    }
}

/// Long here-documents, indented ends, and scripts that are never closed end the run, not the shell.
#[test]
fn here_documents_and_syntax_errors_leave_the_shell_usable() {
    for program in PROGRAMS {
        let sandbox = Sandbox::start();
        let mut client = sandbox.open();
        open(&mut client, program);
        let body = "a line of text with 'quotes\" and $dollars\n".repeat(5000);
        let exit = run(&mut client, &format!("cat <<'EOF' | wc -l\n{body}EOF\n"));
        assert_eq!(exit.out().trim(), "5000", "{program}");
        assert_eq!(run(&mut client, "cat <<-EOF\n\tx\n\tEOF\necho y").out(), "x\ny\n");
        assert_eq!(
            run(&mut client, "cat <<EOF\nnever closed").out(),
            "never closed\n".trim_end_matches('\n').to_owned() + if program == "bash" { "\n" } else { "" }
        );
        for broken in ["if", "echo 'open", "echo a; )", "cat <<X; (", "for", "${"] {
            let exit = run(&mut client, broken);
            assert_ne!(exit.code(), Some(0), "{program}: {broken}");
            assert!(exit.flag("alive") && !exit.err().is_empty(), "{program}: {broken}");
        }
        assert_eq!(run(&mut client, "echo fine").out(), "fine\n", "{program}");
    }
}

/// Nothing of the daemon's is open in a run, and its input is empty.
#[test]
fn a_run_sees_no_control_descriptor() {
    for program in PROGRAMS {
        let sandbox = Sandbox::start();
        let mut client = sandbox.open();
        open(&mut client, program);
        assert_eq!(run(&mut client, "cat; ls /proc/self/fd").out(), "0\n1\n2\n3\n", "{program}");
        assert_eq!(run(&mut client, "cat; ls /proc/self/fd").out(), "0\n1\n2\n3\n", "{program}");
    }
}

/// `exit`, `exec` and `set -e` end the shell with their code, and the next run is told so.
#[test]
fn a_shell_that_ends_itself_says_so() {
    for (script, code) in
        [("echo x; exit 3", 3), ("echo x; exec sh -c 'exit 4'", 4), ("set -e; echo x; false; echo no", 1)]
    {
        for program in PROGRAMS {
            let sandbox = Sandbox::start();
            let mut client = sandbox.open();
            open(&mut client, program);
            let exit = run(&mut client, script);
            assert_eq!((exit.out().as_str(), exit.code(), exit.flag("alive")), ("x\n", Some(code), false), "{program}");
            assert_eq!(run(&mut client, "echo again").text("code"), "no_such_key");
            assert_eq!(client.ask("shell_close", &[("shell", "shell".into())]).text("t"), "ok");
            open(&mut client, program);
            assert_eq!(run(&mut client, "echo again").out(), "again\n");
        }
    }
}

/// A background job holds no run; what it prints later comes with the next one.
#[test]
fn background_jobs_hold_nobody() {
    for program in PROGRAMS {
        let sandbox = Sandbox::start();
        let mut client = sandbox.open();
        open(&mut client, program);
        let began = Instant::now();
        assert_eq!(run(&mut client, "(sleep 0.2; echo late) & echo now").out(), "now\n");
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(run(&mut client, "echo next").out(), "late\nnext\n", "{program}");
    }
}

/// A timeout kills what the run started and keeps the shell; a shell that is busy itself goes.
#[test]
fn a_timeout_kills_the_run_or_the_shell() {
    for program in PROGRAMS {
        let sandbox = Sandbox::start();
        let mut client = sandbox.open();
        open(&mut client, program);
        run(&mut client, "A=kept");
        let timeout = [("timeout_ms", Value::from(300))];
        let id = begin(&mut client, "echo part; sleep 60", &timeout);
        let exit = client.finish(id);
        assert_eq!(
            (exit.out().as_str(), exit.flag("timed_out"), exit.flag("alive")),
            ("part\n", true, true),
            "{program}"
        );
        assert_eq!(run(&mut client, "echo $A").out(), "kept\n");
        let id = begin(&mut client, "while :; do :; done", &timeout);
        let exit = client.finish(id);
        assert_eq!((exit.flag("timed_out"), exit.flag("alive")), (true, false), "{program}");
    }
}

/// One run at a time; a run's result comes again under its key.
#[test]
fn runs_are_one_at_a_time_and_idempotent() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    open(&mut client, "bash");
    let id = begin(&mut client, "sleep 0.5; echo done", &[]);
    assert_eq!(run(&mut client, "echo too early").text("code"), "busy");
    let first = client.finish(id);
    let key = "1 sleep 0.5; echo done".to_owned();
    let again = client.begin("shell_run", &[("shell", "shell".into()), ("key", key.into()), ("script", bin("x"))]);
    let again = client.finish(again);
    assert_eq!((again.out(), again.bytes("cwd")), (first.out(), first.bytes("cwd")));
}

/// Merged output keeps its order, and only for the run that asked for it.
#[test]
fn a_run_may_merge_its_streams() {
    for program in PROGRAMS {
        let sandbox = Sandbox::start();
        let mut client = sandbox.open();
        open(&mut client, program);
        let id = begin(&mut client, "echo 1; echo 2 >&2; echo 3", &[("merge", true.into())]);
        let exit = client.finish(id);
        assert_eq!((exit.out().as_str(), exit.err().as_str()), ("1\n2\n3\n", ""), "{program}");
        let exit = run(&mut client, "echo 1; echo 2 >&2");
        assert_eq!((exit.out().as_str(), exit.err().as_str()), ("1\n", "2\n"), "{program}");
    }
}

/// Megabytes of script and of output pass through a run.
#[test]
fn a_run_may_be_large() {
    for program in PROGRAMS {
        let sandbox = Sandbox::start();
        let mut client = sandbox.open();
        open(&mut client, program);
        let script = format!("x='{}'\necho ${{#x}}; head -c 3000000 /dev/zero", "y".repeat(900_000));
        let exit = run(&mut client, &script);
        assert_eq!(exit.end("out").bytes("d").len(), 7 + 3_000_000, "{program}");
    }
}

/// Without a wish it is the image's bash; a program that is not there is an error of the call.
#[test]
fn the_program_is_found_or_missing() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let opened = client.ask("shell_open", &[("key", "a".into())]);
    assert!(opened.bytes("program").ends_with(b"/bash"));
    let missing = client.ask("shell_open", &[("key", "b".into()), ("program", bin("no-such-shell"))]);
    assert_eq!(missing.text("code"), "not_found");
}

/// Killing everything ends shells and their runs.
#[test]
fn a_quiesce_ends_shells() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    open(&mut client, "bash");
    let id = begin(&mut client, "echo part; sleep 60", &[]);
    std::thread::sleep(Duration::from_millis(200));
    let found = client.ask("quiesce", &[("how", "kill".into())]);
    assert_eq!(found.get("processes").as_array().unwrap().len(), 2);
    let exit = client.finish(id);
    assert_eq!((exit.out().as_str(), exit.flag("alive")), ("part\n", false));
}
