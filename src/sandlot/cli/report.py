"""`sandlot report`: make a run's report anew from its results and events, and show it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sandlot.cli.output import json_option, print_json, say
from sandlot.report import make_report
from sandlot.rollout import write_whole


@click.command("report")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def command(folder: Path, as_json: bool) -> int:
    """Report on the run in DIR, finished or not: text here; report.json, report.txt and report.html in DIR."""
    report = make_report(folder)
    for name, data in report.files.items():
        write_whole(folder / name, data)
    if report.missing:
        say(report.missing)
    if as_json:
        print_json({"out": str(folder), "report": report.figures})
    else:
        sys.stdout.write(report.text)
    return 0
