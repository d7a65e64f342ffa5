"""Options become a `Spec`."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from sandlot.cli.wanted import parse_env, spec_options
from sandlot.errors import BadRequest
from sandlot.spec import Spec


def spec_of(*arguments: str) -> Spec:
    seen: list[Spec] = []

    @click.command()
    @click.argument("image")
    @spec_options
    def command(spec: Spec) -> None:
        seen.append(spec)

    CliRunner().invoke(command, ["host", *arguments], catch_exceptions=False, standalone_mode=False)
    return seen[0]


def test_no_options_are_the_defaults() -> None:
    """The command line adds no limits of its own."""
    assert spec_of() == Spec(image="host")


def test_every_option_reaches_its_field() -> None:
    """All of them at once."""
    given = spec_of(
        "-e", "A=1", "--env", "B=x=y", "-w", "/app", "-u", "1000:1000", "-m", "512MiB", "--cpu", "1.5", "--pids", "99",
        "--disk", "2GiB", "--upper", "disk", "--network", "host", "--read-only", "--best-effort",
    )  # fmt: skip
    assert given == Spec(
        image="host", env={"A": "1", "B": "x=y"}, workdir="/app", user="1000:1000", memory="512MiB", cpu=1.5, pids=99,
        disk="2GiB", upper="disk", network="host", read_only=True, limits="best-effort",
    )  # fmt: skip


def test_a_variable_of_this_process_is_passed_only_when_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that does not exist is an error, not an empty value."""
    monkeypatch.setenv("SECRET", "s")
    assert parse_env(()) == {}
    assert parse_env(("SECRET", "EMPTY=")) == {"SECRET": "s", "EMPTY": ""}
    with pytest.raises(BadRequest, match="NOSUCH"):
        parse_env(("NOSUCH",))


@pytest.mark.parametrize("arguments", [["--memory", "lots"], ["--cpu", "0"], ["--pids", "0"]])
def test_impossible_values_are_the_callers_fault(arguments: list[str]) -> None:
    """Said by the `Spec` itself."""
    with pytest.raises(BadRequest):
        spec_of(*arguments)
