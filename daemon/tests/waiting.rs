//! Shells that wait for a script do what a new `sh -c` does.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use support::{Client, Message, Sandbox, bin, bins};

/// Prints `sh` and no more in a shell that has waited: its arguments were there before the script.
const REVEAL: &str = "tr '\\0' ' ' </proc/$$/cmdline";

/// Run short commands until one has been run by a shell that had waited.
fn warm_up(client: &mut Client) {
    let began = Instant::now();
    while client.run(REVEAL).out() != "sh " {
        assert!(began.elapsed() < Duration::from_secs(30), "no shell has waited");
    }
}

/// What a caller sees, in one value.
fn seen(exit: &Message) -> (String, String, Option<u64>, Option<u64>) {
    (exit.out(), exit.err(), exit.code(), exit.get("signal").as_u64())
}

/// Output, messages, line numbers, codes and signals are those of a new shell.
#[test]
fn a_waiting_shell_is_the_same_as_a_new_one() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    for script in [
        "",
        "true",
        "false",
        "exit 77",
        "if",
        "echo a; )",
        "echo 'unterminated",
        "nosuch\nnosuch 2",
        "cat; echo $0 $# \"$@\"",
        "cat <<X\nline 1\n  X\nX\nfalse",
        "cat <<X\nunterminated",
        "set -u; echo $undefined; echo no",
        "set -e; false; echo no",
        "echo ${x:?oops}; echo no",
        "trap 'echo bye' EXIT; exit 4",
        "kill -9 $$",
        "kill -TERM $$",
        "printf 'a\\n\\377\\0b' ; printf err >&2",
        "x=1; f() { echo $x; }; f; unset x; echo \"[$x]\"",
        "ls /proc/self/fd",
        "pwd; umask; env | sort",
        "case a in a) echo yes;; esac\n\n# comment\necho 'two\nlines'",
        "sleep 0 & wait; echo $?",
        "read x; echo $? \"[$x]\"",
        "(exit 3); echo $?; ! true; echo $?",
        "echo $((1+1)) `echo sub` $(echo sub 2)",
    ] {
        let key = format!("new {script}");
        let id = client.begin("exec", &[("key", key.into()), ("argv", bins(&["sh", "-c", script]))]);
        let new = client.finish(id);
        warm_up(&mut client);
        assert_eq!(seen(&client.run(script)), seen(&new), "{script}");
    }
}

/// A shell that somebody has stopped or killed is passed over, and no command is lost.
#[test]
fn a_spoilt_shell_is_passed_over() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    for spoil in ["kill -STOP -1", "kill -KILL -1; true"] {
        warm_up(&mut client);
        client.run(spoil);
        assert_eq!(client.run("echo fine").out(), "fine\n", "{spoil}");
    }
}

/// A directory that was replaced is the new one, and another `/bin/sh` is the one that runs.
#[test]
fn what_has_changed_meanwhile_is_seen() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    let directory = format!("/tmp/sandlot-waiting-{}", std::process::id());
    std::fs::create_dir(&directory).unwrap();
    for _ in 0..20 {
        client.run_with("true", &[("cwd", bin(&directory))]);
    }
    std::fs::rename(&directory, format!("{directory}.old")).unwrap();
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(format!("{directory}/new"), "").unwrap();
    assert_eq!(client.run_with("ls", &[("cwd", bin(&directory))]).out(), "new\n");
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::remove_dir_all(format!("{directory}.old")).unwrap();

    warm_up(&mut client);
    assert_eq!(client.run("mount --bind /bin/true /bin/sh").code(), Some(0));
    assert_eq!(client.run("exit 9").code(), Some(0), "true ignores its arguments");
}

/// Waiting shells are nobody's processes, and are gone after a quiesce.
#[test]
fn waiting_shells_are_not_listed_and_do_not_survive() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.open();
    warm_up(&mut client);
    assert_eq!(client.ask("processes", &[]).get("processes").as_array().unwrap().len(), 0);
    client.ask("quiesce", &[("how", "kill".into())]);
    let children = format!("/proc/{0}/task/{0}/children", sandbox.init_pid());
    assert_eq!(std::fs::read_to_string(children).unwrap(), "");
    assert_eq!(client.run("echo fine").out(), "fine\n");
}
