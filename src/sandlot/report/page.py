"""The report as one self-contained HTML file: styles and plots inside, no script, nothing fetched; jinja2 escapes it."""

from __future__ import annotations

from sandlot.report.figures import Figures, Spread
from sandlot.report.text import plain, reward, seconds, share

# A page that holds hostile text must also not be able to run or load anything, should an escape ever be missed.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_page(figures: Figures, plots: dict[str, str]) -> str:
    """The page. `plots` is SVG made by `plots`, the only markup that is taken as it stands."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("sandlot.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"plain": plain, "seconds": seconds, "share": share, "reward": reward}
    spreads: list[tuple[str, Spread | None]] = [("time to first command", figures.first_command), *figures.phases.items()]
    return environment.get_template("report.html.j2").render(
        figures=figures,
        spreads=[(name, spread) for name, spread in spreads if spread is not None],
        plots=[(title, Markup(svg)) for title, svg in plots.items()],
        policy=POLICY,
    )
