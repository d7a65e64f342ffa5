"""How numbers and names are shown."""

from __future__ import annotations

import pytest

from sandlot.cli.output import duration, print_table, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d"), (10**6, "12 d")],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    """The unit grows before the number gets long."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1000 * 2**10, "1000 KiB"),
        (2**40 * 5, "5 TiB"),
    ],
)
def test_sizes_read_well(count: int | None, text: str) -> None:
    """Powers of 1024."""
    assert size(count) == text


def test_a_table_shows_hostile_names_without_obeying_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither escape sequences nor the markup of the table's own library."""
    print_table(("NAME",), [("\x1b[31mred\x1b[0m [bold]x[/bold]",)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]x[/bold]" in out


def test_a_row_is_one_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """So that others can read it; the long column stands where it stood."""
    image = "registry.example/" + "x" * 200
    print_table(("NAME", "IMAGE", "NODE"), [("box-1", image, "n1"), ("box-2", "host", "n2")], long="IMAGE")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["NAME", "IMAGE", "NODE"], ["box-1", image, "n1"], ["box-2", "host", "n2"]]


@pytest.mark.parametrize(("columns", "lines"), [(60, 2), (200, 1)])
def test_only_the_long_column_is_folded_on_a_terminal(
    columns: int, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none where that would leave a pillar of fragments: the terminal wraps the row by itself."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(("NAME", "IMAGE"), [("box-1", "y" * 80)], long="IMAGE")
    assert len(capsys.readouterr().out.splitlines()) == 1 + lines
    print_table(("NAME", "IMAGE"), [("n" * 50, "y" * 80)], long="IMAGE")
    assert len(capsys.readouterr().out.splitlines()) == 2
