"""The command line, as a shell calls it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandlot.backends.local.runtime import hosts, runtime_dir

SANDLOT = [sys.executable, "-m", "sandlot.cli.main"]


def sandlot(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*SANDLOT, *arguments], capture_output=True, check=False, timeout=100, **options)  # type: ignore[call-overload, no-any-return]


def execute(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return sandlot("exec", "--best-effort", *arguments, **options)


def test_exec_passes_bytes_and_the_exit_code_on() -> None:
    """Standard output and standard error apart, byte for byte, nothing added."""
    done = execute("-c", r"printf 'out\000\377'; printf err >&2; exit 7", "host")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\0\xff", b"err")


def test_exec_runs_an_argument_vector_as_it_is() -> None:
    """Options after the image are the command's own; `--` is optional."""
    for arguments in (["host", "--", "printf", "%s|", "a b", "", "--json"], ["host", "printf", "%s|", "a b", "", "--json"]):
        assert execute(*arguments).stdout == b"a b||--json|"


def test_options_after_the_image_are_refused_not_run() -> None:
    """The two orders cannot be told apart otherwise: what follows IMAGE is the command."""
    done = execute("host", "-c", "echo a")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"before IMAGE" in done.stderr


def test_exec_in_json_tells_everything() -> None:
    """One object on standard output; the exit code is still the command's."""
    done = execute("--json", "-c", "echo a; echo b >&2; exit 3", "host")
    found = json.loads(done.stdout)
    assert done.returncode == 3
    assert (found["exit_code"], found["stdout"], found["stderr"], found["timed_out"]) == (3, "a\n", "b\n", False)


def test_exec_takes_environment_directory_user_and_input() -> None:
    """Each option reaches the command, and nothing of this process's environment does."""
    done = execute(
        "-e", "A=x y", "-w", "/tmp", "-i", "-c", "echo $A; pwd; cat; echo ${SECRET:-none}", "host",
        input=b"from outside\n", env={**os.environ, "SECRET": "s"},
    )  # fmt: skip
    assert done.stdout == b"x y\n/tmp\nfrom outside\nnone\n"


def test_exec_without_input_reads_nothing() -> None:
    """A command that reads sees the end of file at once, whatever this process's input is."""
    assert execute("host", "cat", input=b"not for you").stdout == b""


def test_exec_timeout_is_124_with_partial_output() -> None:
    """As the `timeout` command does it."""
    done = execute("-t", "0.5", "-c", "echo part; sleep 60", "host")
    assert (done.returncode, done.stdout) == (124, b"part\n")
    assert b"timed out" in done.stderr


def test_exec_of_a_killed_command_is_128_and_its_signal() -> None:
    """As a shell says it."""
    assert execute("-c", "kill -9 $$", "host").returncode == 137


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["/no/such/image", "--", "true"], "no such file"),
        (["dir:/etc/passwd", "--", "true"], "not a directory"),
        (["oci:/tmp", "--", "true"], "oci-layout"),
    ],
)
def test_failures_of_ours_are_125_and_one_line(arguments: list[str], text: str) -> None:
    """Never to be taken for the command's own exit code."""
    done = execute(*arguments)
    assert (done.returncode, done.stdout) == (125, b"")
    assert text in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_exec_and_leaves_nothing(number: signal.Signals) -> None:
    """The sandbox and its host are gone when the process is."""
    command = [*SANDLOT, "exec", "--best-effort", "-c", "echo up; sleep 600", "host"]
    before = {host.id for host in hosts(runtime_dir())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert {host.id for host in hosts(runtime_dir())} <= before


def test_a_reader_that_leaves_ends_exec() -> None:
    """As it ends any other command: quietly, by SIGPIPE's number, with nothing left."""
    before = {host.id for host in hosts(runtime_dir())}
    with subprocess.Popen(
        [*SANDLOT, "exec", "--best-effort", "host", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(timeout=60)
    assert process.returncode == 128 + signal.SIGPIPE
    assert {host.id for host in hosts(runtime_dir())} <= before


def test_ps_and_gc_see_leased_sandboxes() -> None:
    """Listed while they live, removed by name, and then listed no more."""
    script = (
        "import asyncio, sandlot\n"
        "async def main():\n"
        "    async with sandlot.local() as p:\n"
        "        box = await p.create(sandlot.Spec(image='host', limits='best-effort'), owner='leased', lease_s=120)\n"
        "        print(box.name)\n"
        "asyncio.run(main())\n"
    )
    name = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    listed = json.loads(sandlot("ps", "--json").stdout)
    found = {box["name"]: box for host in listed["hosts"] for box in host["sandboxes"]}
    assert (found[name]["owner"], found[name]["image"]) == ("leased", "host")
    assert 0 < found[name]["lease_left_s"] <= 120
    assert name in sandlot("ps").stdout.decode()
    assert json.loads(sandlot("gc", "--json", name).stdout)["sandbox"] == [name]
    assert name not in sandlot("ps").stdout.decode()
    done = sandlot("gc", name)
    assert done.returncode == 4
    assert name in done.stderr.decode()


def test_doctor_tries_a_sandbox() -> None:
    """Facts and what is missing in a table or as JSON; exit code 0 when a sandbox works."""
    done = sandlot("doctor", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["works"]) == (0, True)
    assert found["mode"] in ("range-root", "range-rootless", "single", "nested")
    assert found["facts"]
    assert all(item["remedy"] for item in found["missing"])
    assert b"id mode" in sandlot("doctor").stdout


def test_doctor_without_a_daemon_says_what_to_do() -> None:
    """Exit code 3."""
    done = sandlot("doctor", env={**os.environ, "SANDLOT_DAEMON": "/no/such"})
    assert done.returncode == 3
    assert b"/no/such" in done.stdout


class Terminal:
    """A process on a pseudo-terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.pid, self._number = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self._number, text.encode())

    def until(self, text: str, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen
            try:
                self.seen += os.read(self._number, 4096)
            except OSError:  # the other side has ended
                assert text.encode() in self.seen, self.seen

    def resize(self, rows: int, columns: int) -> None:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self._number, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self) -> int:
        while True:
            try:
                self.seen += os.read(self._number, 4096)
            except OSError:
                break
        os.close(self._number)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_shell_is_a_terminal(tmp_path: Path) -> None:
    """Echo, job control keys, the window's size and its changes, and the shell's exit code."""
    terminal = Terminal(*SANDLOT, "shell", "host", "--best-effort")
    terminal.resize(33, 77)
    terminal.type("stty size; tty; echo $((6*7))\n")
    terminal.until("\r\n42\r\n")
    assert b"/dev/pts/" in terminal.seen
    terminal.resize(44, 99)
    terminal.type("sleep 0.3; stty size\n")
    terminal.until("44 99")
    terminal.type("sleep 600\n")
    time.sleep(0.3)
    terminal.type("\x03")
    terminal.type("echo interrupted=$?\n")
    terminal.until("interrupted=130")
    terminal.type("exit 9\n")
    assert terminal.end() == 9


def test_shell_needs_a_terminal() -> None:
    """In a script it says what to use."""
    done = sandlot("shell", stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert b"sandlot exec" in done.stderr


def test_a_leased_shell_is_found_again() -> None:
    """Files are still there when another shell attaches by name."""
    terminal = Terminal(*SANDLOT, "shell", "host", "--best-effort", "--leased", "60", "--name", f"test-{os.getpid()}")
    terminal.type("echo kept > /tmp/f; exit 0\n")
    assert terminal.end() == 0
    terminal = Terminal(*SANDLOT, "shell", "--attach", f"test-{os.getpid()}")
    terminal.type("cat /tmp/f; exit 0\n")
    assert terminal.end() == 0
    assert b"kept\r\nexit" in terminal.seen
    assert sandlot("gc", f"test-{os.getpid()}").returncode == 0
