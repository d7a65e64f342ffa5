"""The command line as a whole: what it lists, what it imports, what it answers to nonsense."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from sandlot.cli.main import VERBS, LazyGroup, cli, main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sandlot.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_help_lists_every_verb_and_exit_code() -> None:
    """On standard output, exit code 0."""
    done = run("--help")
    assert done.returncode == 0
    for name in VERBS:
        assert f"  {name} " in done.stdout
    assert "125" in done.stdout


def test_help_imports_no_verb() -> None:
    """Listing costs what click costs: neither the event loop nor a backend is loaded."""
    script = (
        "import sys\nfrom sandlot.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'asyncio', 'sandlot.backends.local', 'rich', 'sandlot.provider'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", list(VERBS))
def test_every_verb_exists_and_explains_itself(name: str) -> None:
    """Its module holds a command of that name with a help text."""
    assert isinstance(cli, LazyGroup)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help


@pytest.mark.parametrize(
    "arguments", [["nosuch"], ["exec"], ["exec", "host"], ["exec", "host", "--nosuch"], ["ps", "extra"], ["completion", "tcsh"]]
)
def test_nonsense_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    """Nothing on standard output, no traceback."""
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("sandlot: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str) -> None:
    """The script on standard output, how to use it on standard error."""
    done = run("completion", shell)
    assert "_SANDLOT_COMPLETE" in done.stdout
    assert f"completion {shell}" in done.stderr


def test_a_verbs_answer_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """None and 0 are success."""
    with pytest.raises(SystemExit) as caught:
        main(["completion", "bash"])
    assert caught.value.code == 0
