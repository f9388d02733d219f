"""A report for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from foredraft.bench import figures
from foredraft.bench.report import Report
from foredraft.bench.results import WITHOUT_LOOPS, Summary

GAP = 2
"""Columns of the terminal between two of a table."""

LEAST_NAME = 12
"""Characters of a setting's name in one line, also where the terminal is narrow."""


def report_text(report: Report) -> Group:
    """Everything a terminal can show of a report: what was run, the tables, the notes."""
    return Group(*_parts(report))


def _parts(report: Report) -> Iterator[RenderableType]:
    yield Text(report.title, style="bold")
    yield _about(report)
    if categories := figures.by_category(report):
        yield Text()
        yield _summaries(report, categories, "category")
    yield Text()
    yield _summaries(report, figures.overall(report), "")
    if without := figures.without_loops(report):
        yield Text()
        yield _summaries(report, without, "", whole=WITHOUT_LOOPS)
    yield Text("\n" + "; ".join(figures.explanations(report)) + ".", style="dim")
    if report.facts:
        yield Text()
        yield _facts(report)
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


def _summaries(
    report: Report, found: Sequence[Summary], first: str, *, whole: str = "all prompts"
) -> FigureTable:
    """A row for each summary, with its category in front if `first` is that column's name; else `whole` is
    what they are of.
    """
    names = figures.columns(report)
    rows, before = [], ""
    for summary in found:
        start = [summary.category if summary.category != before else ""] if first else []
        rows.append([*start, summary.setting, *figures.cells(report, summary)])
        before = summary.category
    lead = [first, "setting"] if first else [whole]
    return FigureTable([*lead, *names], rows, lead=len(lead), left=(*lead, "worst prompt"))


def _facts(report: Report) -> FigureTable:
    names = figures.fact_names(report.facts)
    rows = [
        [setting, *(facts.get(name, figures.NONE) for name in names)]
        for setting, facts in report.facts.items()
    ]
    return FigureTable(["", *names], rows)


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table of figures. Where the terminal is too narrow for it, its columns go on in further tables below,
    each with the `lead` first ones, of which the last is broken into lines if it is long. Columns in `left`
    are flush left, as the first is. Headers may have several lines; the row `bold` is set off.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    lead: int = 1
    left: Sequence[str] = ()
    bold: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        widths = [
            max(cell_len(line) for text in column for line in text.split("\n"))
            for column in zip(self.headers, *self.rows, strict=True)
        ]
        named, room = widths[self.lead - 1], options.max_width
        if sum(widths) + GAP * (len(widths) - 1) > room:
            named = min(named, max(LEAST_NAME, room // 3))
        for number, shown in enumerate(self._split(widths, room - sum(widths[: self.lead - 1]) - named)):
            if number:
                yield Text()
            yield self._table(shown, named)

    def _split(self, widths: Sequence[int], room: int) -> list[list[int]]:
        """The columns of each table, without those of the lead, which leave so much room for them."""
        tables: list[list[int]] = []
        left = 0
        for column in range(self.lead, len(widths)):
            if not tables or widths[column] + GAP > left:
                tables.append([])
                left = room - GAP * (self.lead - 1)
            tables[-1].append(column)
            left -= widths[column] + GAP
        return tables

    def _table(self, shown: Sequence[int], named: int) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        columns = [*range(self.lead), *shown]
        for column in columns:
            header = self.headers[column]
            flush = column == 0 or header in self.left
            name = column == self.lead - 1
            table.add_column(
                escape(header),
                justify="left" if flush else "right",
                overflow="fold",
                no_wrap=not flush,
                max_width=named if name else None,
            )
        for number, row in enumerate(self.rows):
            style = "bold" if number == self.bold else ""
            table.add_row(*(escape(row[column]) for column in columns), style=style)
        return table
