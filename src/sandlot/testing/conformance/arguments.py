"""What goes in: standard input, terminals, quoting, long things, environment, working directory."""

from __future__ import annotations

import asyncio

import pytest

from sandlot import errors
from sandlot.testing.conformance import MakeBox

ODD = ["", " ", "a b", "'", '"', "$HOME", "`id`", "\\", "a\nb", "*", "-n", "é😀", "\t", "!x", "~", "#", "$(exit 3)", "%s"]


async def test_no_input_is_end_of_file_at_once(make_box: MakeBox) -> None:
    """A reader of standard input that was given none ends immediately."""
    box = await make_box()
    async with asyncio.timeout(20):
        result = await box.exec("cat; read x; echo code $?")
    assert result.stdout == "code 1\n"


async def test_input_larger_than_a_pipe_arrives_whole(make_box: MakeBox) -> None:
    """Standard input of megabytes is streamed under flow control."""
    box = await make_box()
    data = bytes(range(256)) * 20_000
    result = await box.exec("cat", stdin=data)
    assert result.stdout_bytes == data


async def test_command_that_ignores_its_input_still_ends(make_box: MakeBox) -> None:
    """Unread input, also with a closed reader, hangs and breaks nothing."""
    box = await make_box()
    async with asyncio.timeout(30):
        for script in ("exit 3", "exec <&-; exit 3", "head -c 10 >/dev/null; exit 3"):
            assert (await box.exec(script, stdin=bytes(5_000_000))).exit_code == 3


async def test_there_is_no_terminal_unless_asked_for(make_box: MakeBox) -> None:
    """Prompts fail at once: no controlling terminal, nothing to wait for."""
    box = await make_box("debian")
    async with asyncio.timeout(60):
        assert (await box.exec("read x </dev/tty")).exit_code != 0
        assert (await box.exec("test -t 0 || test -t 1 || test -t 2")).exit_code == 1
        script = "cd /tmp && git init -q r && cd r && git -c user.name=a -c user.email=b commit --allow-empty"
        assert (await box.exec(script, timeout=30)).timed_out is False


@pytest.mark.parametrize("argument", ODD)
async def test_arguments_pass_without_any_quoting(make_box: MakeBox, argument: str) -> None:
    """A list is an argument vector: what is in it is what the program gets."""
    box = await make_box()
    result = await box.exec(["printf", "%s|", argument, "end"])
    assert result.stdout == f"{argument}|end|"


async def test_bytes_that_are_no_text_pass_as_arguments_and_environment(make_box: MakeBox) -> None:
    """Surrogate-escaped text is the bytes it stands for."""
    box = await make_box()
    odd = b"\xff\xfe".decode("utf-8", "surrogateescape")
    result = await box.exec(["sh", "-c", 'printf "%s%s" "$1" "$ODD"', "sh", odd], env={"ODD": odd})
    assert result.stdout_bytes == b"\xff\xfe\xff\xfe"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'it'\"'\"'s'", "it's\n"),
        ("printf '%s\\n' \"$(printf 'a\\\\nb')\"", "a\\nb\n"),
        ('awk \'BEGIN { printf "%d %s\\n", 3, "x" }\'', "3 x\n"),
        ("echo a.b | sed -e 's/\\./-/g' -e \"s/a/c/\"", "c-b\n"),
        ("case x in (a) echo 1;; x) echo 2;; esac", "2\n"),
        ("x=$(cat <<'E'\n$not `run` \\\nE\n); echo \"$x\"", "$not `run` \\\n"),
        ("cat <<-E\n\tindented\n\tE\necho after", "indented\nafter\n"),
        ("if true; then\n  echo one\nfi\n\n# comment\necho two", "one\ntwo\n"),
        ("f() { return 4; }; f; echo $?", "4\n"),
        ("set -e; false; echo never", ""),
        ("trap 'echo bye' EXIT; exit 0", "bye\n"),
        ("echo $0", "sh\n"),
        ("echo $#", "0\n"),
        ("exec echo replaced", "replaced\n"),
        ("echo a\\\nb", "ab\n"),
        ("set -f; echo *; IFS=:; x=a:b; echo $x", "*\na b\n"),
        ("\n\n  echo lead", "lead\n"),
        ("echo '\x01\x02\x7f'", "\x01\x02\x7f\n"),
    ],
)
async def test_scripts_mean_what_the_shell_says(make_box: MakeBox, script: str, expected: str) -> None:
    """A string is a script of the image's own shell, unchanged."""
    box = await make_box()
    assert (await box.exec(script)).stdout == expected


async def test_shell_errors_are_the_shells_own(make_box: MakeBox) -> None:
    """A syntax error is reported by the shell, with its code, and the next command runs."""
    box = await make_box()
    result = await box.exec("if true; then echo 'x")
    assert result.exit_code == 2
    assert "yntax" in result.stderr or "nterminated" in result.stderr
    assert (await box.exec("echo next")).stdout == "next\n"


async def test_one_call_leaves_no_shell_state_to_the_next(make_box: MakeBox) -> None:
    """Variables, functions, options, cwd, umask and traps of a call end with it."""
    box = await make_box()
    await box.exec("x=1; export y=2; f() { :; }; cd /tmp; umask 077; set -u; trap 'echo t' EXIT; alias q=w; ulimit -n 64")
    result = await box.exec("echo ${x-none} ${y-none} $(pwd) $(umask) $(f 2>&1 | grep -c 'not found') $(ulimit -n)")
    assert result.stdout.split()[:5] == ["none", "none", "/", "0022", "1"]
    assert result.stdout.split()[5] != "64"


async def test_heredoc_of_five_thousand_lines(make_box: MakeBox) -> None:
    """Long scripts arrive whole."""
    box = await make_box()
    lines = "".join(f"line {i} $HOME `x` \\ '\n" for i in range(5000))
    result = await box.exec(f"cat <<'END OF IT'\n{lines}END OF IT\necho done")
    assert result.stdout == lines + "done\n"


async def test_script_longer_than_an_argument_may_be(make_box: MakeBox) -> None:
    """A megabyte of script works (no E2BIG), with the same $0."""
    box = await make_box()
    script = "x=0\n" + "x=$((x+1)) # padding padding padding padding\n" * 20_000 + "echo $x $0\n"
    assert 900_000 < len(script) <= 2**20
    assert (await box.exec(script)).stdout == "20000 sh\n"


async def test_argument_too_long_for_the_kernel_is_a_typed_error(make_box: MakeBox) -> None:
    """One argument of 200 KiB cannot work on Linux: a typed error, not a broken link; the next call works."""
    box = await make_box()
    with pytest.raises(errors.ArgumentTooLong):
        await box.exec(["true", "x" * 200_000])
    with pytest.raises(errors.ArgumentTooLong):
        await box.exec("#" * (2**20 + 1))
    assert (await box.exec(["echo", "x" * 100_000])).stdout == "x" * 100_000 + "\n"


async def test_nul_bytes_are_refused_by_name(make_box: MakeBox) -> None:
    """A NUL in an argument, script, variable or path is the caller's mistake."""
    box = await make_box()
    for call in (
        box.exec(["echo", "a\0b"]),
        box.exec("echo a\0b"),
        box.exec("true", env={"A": "\0"}),
        box.exec("true", cwd="/\0"),
    ):
        with pytest.raises(errors.BadRequest):
            await call


async def test_environment_values_are_exact_also_in_grandchildren(make_box: MakeBox) -> None:
    """Newlines, quotes and empty values arrive as given."""
    box = await make_box()
    values = {"A": "l1\nl2", "B": "a'b\"c$d`e\\", "C": "", "D": " lead and trail ", "E_1": "ü"}
    script = 'for k in A B C D E_1; do eval "printf \\"%s\\n\\n\\" \\"\\$$k\\""; done | cat'
    direct = await box.exec(script, env=values)
    below = await box.exec(["sh", "-c", 'sh -c "$1"', "sh", script], env=values)
    expected = "".join(f"{value}\n\n" for value in values.values())
    assert direct.stdout == expected
    assert below.stdout == expected


async def test_environment_is_the_images_plus_the_calls_never_the_clients(
    make_box: MakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the client's environment gets in; the spec's is there; a call adds and removes for itself only."""
    monkeypatch.setenv("CLIENT_SECRET", "s3cret")
    box = await make_box("debian", env={"FROM_SPEC": "1"})
    names = "env | cut -d= -f1 | sort | tr '\\n' ' '"
    plain = (await box.exec(names)).stdout.split()
    assert "CLIENT_SECRET" not in plain
    assert {"FROM_IMAGE", "FROM_SPEC", "PATH"} <= set(plain)
    assert set(plain) <= {"FROM_IMAGE", "FROM_SPEC", "PATH", "HOME", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "LANG"}
    changed = (await box.exec(names, env={"FROM_SPEC": None, "NEW": "x"})).stdout.split()
    assert "NEW" in changed
    assert "FROM_SPEC" not in changed
    assert "FROM_SPEC" in (await box.exec(names)).stdout.split()


async def test_image_path_finds_the_images_tools(make_box: MakeBox) -> None:
    """PATH of the image counts for scripts and for argument vectors."""
    box = await make_box("debian")
    await box.write("/opt/x/bin/thing", b"#!/bin/sh\necho found $1\n", mode=0o755)
    assert (await box.exec("thing a")).stdout == "found a\n"
    assert (await box.exec(["thing", "b"])).stdout == "found b\n"
    assert (await box.exec(["thing"], env={"PATH": "/nowhere"})).exit_code == 127


async def test_secrets_in_the_environment_are_in_no_command_line(make_box: MakeBox) -> None:
    """Variables of a call are not to be read from any process's arguments."""
    box = await make_box()
    result = await box.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; echo; echo $TOKEN", env={"TOKEN": "tok-5f3a"})
    assert result.stdout.count("tok-5f3a") == 1


async def test_login_shell_reads_profiles_and_plain_does_not(make_box: MakeBox) -> None:
    """login=True reads /etc/profile; the default does not."""
    box = await make_box()
    await box.write("/etc/profile", b"export FROM_PROFILE=1\n")
    script = "echo ${FROM_PROFILE-none}"
    assert (await box.exec(script)).stdout == "none\n"
    assert (await box.exec(script, login=True)).stdout == "1\n"


async def test_working_directory_default_relative_and_missing(make_box: MakeBox) -> None:
    """Default: the image's WORKDIR, made if need be; relative to it; a missing one is a typed error and nothing runs."""
    box = await make_box("workdir")
    home = "/app/not there yet/deep"
    assert (await box.exec("pwd")).stdout == f"{home}\n"
    await box.exec("mkdir sub", check=True)
    assert (await box.exec("pwd; echo $PWD", cwd="sub")).stdout == f"{home}/sub\n" * 2
    assert (await box.exec(["pwd"], cwd="/tmp")).stdout == "/tmp\n"
    with pytest.raises(FileNotFoundError):
        await box.exec("touch /tmp/ran", cwd="/none")
    with pytest.raises(NotADirectoryError):
        await box.exec("touch /tmp/ran", cwd="/etc/passwd")
    assert not await box.exists("/tmp/ran")
