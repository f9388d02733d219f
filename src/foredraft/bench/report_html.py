"""A report as one HTML file: no other file, no script, nothing fetched; light and dark."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment

from foredraft.bench import figures
from foredraft.bench.plots import plots
from foredraft.bench.report import Report

TEMPLATE = "report.html.jinja"


def report_html(report: Report) -> str:
    """The page. Raises MissingDependencyError without matplotlib."""
    source = files("foredraft.bench").joinpath(TEMPLATE).read_text(encoding="utf-8")
    # Everything is escaped but the plots: they are SVG of our own, in which matplotlib escaped every text.
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    return template.render(report=report, figures=figures, plots=plots(report))
