"""Reports of a run, from its results and events alone: text, `report.json` and a self-contained `report.html`.

Nothing here looks at live objects, and nothing above is imported: a report can be made while a run goes on, after it, or on
another machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec

from sandlot.report.figures import Figures, make_figures
from sandlot.report.page import render_page
from sandlot.report.reading import read_run
from sandlot.report.text import render_text

__all__ = ["Figures", "Report", "make_report"]


@dataclass(frozen=True, slots=True)
class Report:
    """A finished report: its figures, its text, and its files by name."""

    figures: Figures
    text: str
    files: dict[str, bytes]
    missing: str = ""
    """What is not among the files and how to get it, or empty."""


def make_report(folder: str | os.PathLike[str]) -> Report:
    """The report of the run in `folder`; writing the files is the caller's.

    Raises:
        BadRequest: there is no run in the folder.
    """
    figures = make_figures(read_run(Path(folder)))
    text = render_text(figures)
    files = {"report.txt": text.encode(), "report.json": msgspec.json.format(msgspec.json.encode(figures)) + b"\n"}
    if find_spec("jinja2") is None or find_spec("matplotlib") is None:
        return Report(figures, text, files, "report.html: install sandlot[report]")
    from sandlot.report.plots import make_plots

    files["report.html"] = render_page(figures, make_plots(figures)).encode()
    return Report(figures, text, files)
