"""A finished benchmark, live or replayed: the value that tables, files and the HTML page are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from foredraft.bench.results import (
    Row,
    Run,
    Score,
    Summary,
    acceptance_by_depth,
    broken_promises,
    fastest,
    loop_notes,
    scores,
    summaries,
)

FORMAT = "foredraft-bench"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Timeline:
    """One answer, round by round."""

    prompt: str
    setting: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is known of a benchmark; whatever was not measured is empty.

    `about` says what was run, in words. `facts` are further figures by setting. `baseline` is the setting
    that speedups are over. `complete`: it was not stopped before its end.
    """

    title: str
    baseline: str
    about: Mapping[str, str] = field(default_factory=dict)
    scores: Sequence[Score] = ()
    rows: Sequence[Row] = ()
    depths: Mapping[str, Sequence[float]] = field(default_factory=dict)
    timeline: Timeline | None = None
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    complete: bool = True

    @property
    def settings(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(score.setting for score in self.scores))

    @property
    def summaries(self) -> list[Summary]:
        """By category and setting; the group of all prompts last."""
        return summaries(self.scores)

    @property
    def broken(self) -> list[Score]:
        """Prompts whose tokens differ from the baseline's against what was claimed."""
        return broken_promises(self.scores)


def live_report(
    rows: Sequence[Row],
    *,
    title: str,
    baseline: str,
    about: Mapping[str, str],
    notes: Sequence[str] = (),
    complete: bool = True,
) -> Report:
    """The report of answers that were measured. An incomplete one says so in its title."""
    settings = list(dict.fromkeys(row.setting for row in rows))
    found = scores(rows, baseline)
    depths = {name: acceptance_by_depth(row for row in rows if row.setting == name) for name in settings}
    return Report(
        title=title if complete else f"{title} (incomplete)",
        baseline=baseline,
        about=about,
        scores=found,
        rows=rows,
        depths={name: depth for name, depth in depths.items() if depth},
        timeline=_timeline(rows, settings),
        notes=[*notes, *loop_notes(found)],
        complete=complete,
    )


def _timeline(rows: Sequence[Row], settings: Sequence[str]) -> Timeline | None:
    """The answer with the most accepted tokens, of the first setting that had any accepted."""
    for setting in settings:
        drafted = [
            row for row in rows if row.setting == setting and any(run.accepted for run in row.sample.runs)
        ]
        if drafted:
            most = max(row.sample.accepted for row in drafted)
            row = fastest(row for row in drafted if row.sample.accepted == most)
            return Timeline(row.prompt, row.setting, row.sample.runs)
    return None


def report_dict(report: Report) -> dict[str, Any]:
    """The report as JSON has it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": report.title,
        "complete": report.complete,
        "about": dict(report.about),
        "baseline": report.baseline,
        "settings": report.settings,
        "different": sum(bool(score.different) for score in report.scores),
        "different_though_exact": [asdict(score) for score in report.broken],
        "summary": [asdict(summary) for summary in report.summaries],
        "facts": {name: dict(facts) for name, facts in report.facts.items()},
        "prompts": [asdict(score) for score in report.scores],
        "acceptance_by_depth": {name: list(depth) for name, depth in report.depths.items()},
        "samples": [row_dict(row) for row in report.rows],
        "notes": list(report.notes),
    }


def row_dict(row: Row) -> dict[str, Any]:
    """One sample, without its text."""
    sample = row.sample
    return {
        "prompt": row.prompt,
        "category": row.category,
        "setting": row.setting,
        "repeat": row.repeat,
        "prompt_tokens": sample.prompt_tokens,
        "prompt_ms": sample.prompt_ms,
        "tokens": sample.count,
        "decode_ms": sample.decode_ms,
        "tokens_per_second": sample.rate,
        "rounds": sample.rounds,
        "drafts": sample.drafts,
        "drafted": sample.drafted,
        "accepted": sample.accepted,
        **{f"{part}_ms": ms for part, ms in sample.spent_ms.items()},
    }
