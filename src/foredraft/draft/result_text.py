"""A score for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from foredraft.bench.figures import number, percent
from foredraft.bench.report_text import FigureTable
from foredraft.draft.passages import DEPTHS
from foredraft.draft.result import Result, RuleResult, sentence
from foredraft.draft.score import BINS, SURE, Tally
from foredraft.draft.trial import BUSY, RoundTimes

_TOLD = (1, 2, 4, 8)
"""Lengths of drafts whose times are told."""


def result_text(result: Result) -> Group:
    """All tables, and at the end whether the draft is worth using."""
    return Group(*_parts(result))


def column(found: RuleResult) -> str:
    """A rule's name in tables and plots."""
    return f"{found.rule}\nT {found.temperature:g}" if found.temperature else "greedy\n"


def _parts(result: Result) -> Iterator[RenderableType]:
    yield Text(f"{result.draft} as a draft for {result.model}", style="bold")
    yield _about(result)
    yield Text()
    yield Text("Accepted at each depth, of draft tokens whose ancestors were", style="bold")
    yield _depths(result)
    warmest = result.tallies[-1]
    compared = f"at temperature {warmest.temperature or 1:g}"
    yield Text(
        f"KL in nats and TV (total variation): of the target's distribution p and the draft's q {compared}, "
        "where the target chooses. bound: what match accepts at least, (1 − TV) ÷ (1 + TV).",
        style="dim",
    )
    yield Text()
    yield Text("Drafts of each length: tokens of a round, and speed over plain decoding", style="bold")
    yield _lengths(result)
    for temperature, times in result.trial.times.items() if result.trial is not None else ():
        yield Text(_times(temperature, times), style="dim")
    yield Text()
    yield Text("How often the draft is right by its own probability", style="bold")
    yield _calibration(result)
    yield Text()
    yield Text(sentence(result), style="bold")


def _about(result: Result) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in result.about.items():
        table.add_row(label, escape(value))
    return table


def _depths(result: Result) -> FigureTable:
    headers = ["depth\n", *map(column, result.rules), "bound\n", "KL(p‖q)\n", "KL(q‖p)\n", "TV\n"]
    rows = []
    for depth in range(DEPTHS):
        distances = result.tallies[-1].by_depth[depth].values()
        rows.append([
            str(depth + 1),
            *(percent(found.by_depth[depth]) for found in result.rules),
            percent(distances["bound"]),
            *(number(distances[name]) for name in ("kl_pq", "kl_qp", "tv")),
        ])  # fmt: skip
    return FigureTable(headers, rows)


def _lengths(result: Result) -> FigureTable:
    names = [column(found) for found in result.rules]
    headers = ["length\n", *(f"tokens\n{_short(name)}" for name in names)]
    headers += [f"speed\n{_short(name)}" for name in names]
    rows = [
        [
            str(length + 1),
            *(number(found.lengths[length]) for found in result.rules),
            *(_speed(found, length + 1) for found in result.rules),
        ]
        for length in range(DEPTHS)
    ]
    return FigureTable(headers, rows)


def _times(temperature: float, times: RoundTimes) -> str:
    whole, drafting = (
        ", ".join(number(of[length]) for length in _TOLD) for of in (times.rounds, times.drafting)
    )
    lengths = ", ".join(map(str, _TOLD))
    busy = f" Plain rounds differ by {percent(times.spread)}: the machine is busy, and this is rough."
    return (
        f"Tried here, at temperature {temperature:g}: a plain round takes {times.plain_ms:.1f} ms; one with "
        f"a draft of {lengths} tokens {whole} times as long, of which drafting takes {drafting}."
        + busy
        * (times.spread > BUSY)
    )


def _speed(found: RuleResult, length: int) -> str:
    mark = "*" if found.best is not None and found.best[0] == length else " "
    return number(found.speedups[length - 1]) + mark


def _short(name: str) -> str:
    return name.partition("\n")[0]


def _calibration(result: Result) -> FigureTable:
    headers = ["probability\n"]
    for tally in result.tallies:
        headers += [f"of tokens\nT {tally.temperature:g}", f"right\nT {tally.temperature:g}"]
    rows = [
        [f"{low:g} to {high:g}", *_shares(result.tallies, i)] for i, (low, high) in enumerate(pairwise(BINS))
    ]
    sure = [f"over {SURE:g}"]
    for tally in result.tallies:
        sure += [
            percent(tally.of_all(tally.sure)),
            percent(tally.sure.value),
        ]
    return FigureTable(headers, [*rows, sure], bold=len(rows))


def _shares(tallies: Sequence[Tally], number_of_bin: int) -> Iterator[str]:
    for tally in tallies:
        found = tally.bins[number_of_bin]
        yield percent(tally.of_all(found))
        yield percent(found.value)
