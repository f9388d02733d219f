"""A report in files: JSON with everything, CSV with a line for each sample, HTML, and the plot alone."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from foredraft.bench import figures
from foredraft.bench.plots import main_plot, plots
from foredraft.bench.report import Report, report_dict, row_dict
from foredraft.errors import ConfigError
from foredraft.files import write_output

TEMPLATE = "report.html.jinja"

READABLE = 0o644
"""A report is for others too."""


def json_text(report: Report) -> str:
    """The whole report as one JSON object."""
    return json.dumps(report_dict(report), ensure_ascii=False, indent=2) + "\n"


def csv_text(report: Report) -> str:
    """A line for each sample; a replay has no samples, and gets one for each prompt and setting."""
    rows = [row_dict(row) for row in report.rows] or report_dict(report)["prompts"]
    rows = [{key: value for key, value in row.items() if not isinstance(value, Mapping)} for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def report_html(report: Report) -> str:
    """One HTML file: no other file, no script, nothing fetched; light and dark. Raises MissingDependencyError
    without matplotlib.
    """
    source = files("foredraft.bench").joinpath(TEMPLATE).read_text(encoding="utf-8")
    # Everything is escaped but the plots: they are SVG of our own, in which matplotlib escaped every text.
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    return template.render(report=report, figures=figures, plots=plots(report))


WRITERS: Mapping[str, Callable[[Report], str]] = {
    "json": json_text,
    "csv": csv_text,
    "html": report_html,
    "plot": main_plot,
}
"""What makes the text of each kind of file."""


def check_file(path: Path) -> None:
    """Raises ConfigError for a path that cannot become a file: before measuring rather than after."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder.", hint="Name the file to write.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ConfigError(f"{path} cannot be written: {folder} is not a folder.")
    place = path if path.exists() else folder
    if not os.access(place, os.W_OK):
        raise ConfigError(f"{path} cannot be written: you may not write to {place}.")


def write_report(report: Report, kind: str, path: Path) -> None:
    """Write one kind of file, a key of `WRITERS`. Raises ConfigError, MissingDependencyError."""
    text = WRITERS[kind](report)
    try:
        write_output(path, text.encode(), mode=READABLE)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
