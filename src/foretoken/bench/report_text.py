"""A report for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from foretoken.bench import figures
from foretoken.bench.report import Report
from foretoken.bench.results import Summary


def report_text(report: Report) -> Group:
    """Everything a terminal can show of a report: what was run, the tables, the notes."""
    return Group(*_parts(report))


def _parts(report: Report) -> Iterator[RenderableType]:
    yield Text(report.title, style="bold")
    yield _about(report)
    if report.sweeps:
        for template in report.sweeps:
            yield Text(f"\n{template}", style="bold")
            yield _sweep(report, template)
    else:
        if categories := figures.by_category(report):
            yield Text()
            yield _summaries(report, categories, "category")
        yield Text()
        yield _summaries(report, figures.overall(report), "")
        yield Text("\n" + "; ".join(figures.explanations(report)) + ".", style="dim")
    if report.facts:
        yield Text()
        yield _facts(report)
    for setting, bins in report.reliability.items():
        yield Text(f"\nexpected and observed acceptance, {setting}", style="bold")
        table = _table(["expected", "accepted", "tokens"])
        for bin_ in bins:
            row = [figures.percent(bin_.predicted), figures.percent(bin_.observed), f"{bin_.count:,}"]
            table.add_row(*row)
        yield table
    for score in report.broken:
        yield Text(f"Not the same tokens as {report.baseline}: {score.prompt}, {score.setting}", style="red")
    for note in report.notes:
        yield Text(f"Note: {note}", style="yellow")


def _about(report: Report) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in report.about.items():
        table.add_row(label, escape(value))
    return table


def _summaries(report: Report, found: Sequence[Summary], first: str) -> Table:
    """A row for each summary, with its category in front if `first` is that column's name."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    if first:
        table.add_column(first, no_wrap=True)
    table.add_column("setting" if first else "all prompts", overflow="fold")
    for header in figures.columns(report):
        table.add_column(header, justify="left" if header == "worst prompt" else "right", no_wrap=True)
    before = ""
    for summary in found:
        start = [escape(summary.category) if summary.category != before else ""] if first else []
        table.add_row(*start, escape(summary.setting), *map(escape, figures.cells(report, summary)))
        before = summary.category
    return table


def _sweep(report: Report, template: str) -> Table:
    table = _table(figures.sweep_headers(report))
    for row in figures.sweep_rows(report, template):
        table.add_row(*map(escape, row))
    return table


def _facts(report: Report) -> Table:
    names = figures.fact_names(report.facts)
    table = _table(["", *names])
    for setting, facts in report.facts.items():
        table.add_row(escape(setting), *(escape(facts.get(name, figures.NONE)) for name in names))
    return table


def _table(headers: Sequence[str]) -> Table:
    """The first column is left, the others right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, header in enumerate(headers):
        table.add_column(escape(header), justify="right" if number else "left", overflow="fold")
    return table
