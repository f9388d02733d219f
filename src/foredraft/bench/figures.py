"""Figures as people read them, the same in every kind of report; "–" is what was not measured."""

from __future__ import annotations

from collections.abc import Mapping

from foredraft.bench.report import Report
from foredraft.bench.results import ALL, WITHOUT_LOOPS, Summary

NONE = "–"


def number(value: float | None, digits: int = 2) -> str:
    """A number with this many digits after the point."""
    return NONE if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share in per cent."""
    return NONE if share is None else f"{100 * share:.0f} %"


def worst(summary: Summary) -> str:
    """The smallest speedup, the least and the most that it was in a pass, and whose it is."""
    if summary.worst is None:
        return NONE
    passes = summary.worst_passes
    span = f" ({min(passes):.2f}–{max(passes):.2f})" if len(passes) > 1 else ""
    return f"{summary.worst:.2f}{span}  {summary.worst_prompt}"


def columns(report: Report) -> list[str]:
    """The headers of `cells`; what was not measured has no column."""
    return [name for name, known in _known(report).items() if known]


def cells(report: Report, summary: Summary) -> list[str]:
    """A summary's figures."""
    plain = summary.setting == report.baseline
    differ = NONE if plain or summary.different is None else f"{summary.different} of {summary.prompts}"
    every = {
        "tokens/s": number(summary.tokens_per_second, 1),
        "speedup": number(summary.speedup),
        "worst prompt": NONE if plain else worst(summary),
        "accepted": percent(summary.acceptance_rate),
        "length": number(summary.acceptance_length),
        **{f"{part} ms": number(summary.ms_per_token.get(part)) for part in _parts(report)},
        "differ": differ,
    }
    return [every[name] for name in columns(report)]


def _known(report: Report) -> dict[str, bool]:
    """Every column, and whether there is anything to put there."""
    found = report.scores
    return {
        "tokens/s": any(score.tokens_per_second for score in found),
        "speedup": True,
        "worst prompt": True,
        "accepted": any(score.drafted for score in found),
        "length": any(score.rounds for score in found),
        **{f"{part} ms": True for part in _parts(report)},
        "differ": any(score.different is not None for score in found),
    }


def _parts(report: Report) -> list[str]:
    return list(dict.fromkeys(part for score in report.scores for part in score.spent_ms))


EXPLAINED = {
    "speedup": "over {} on the same prompts, geometric mean",
    "worst prompt": "the smallest speedup",
    "accepted": "of the drafted tokens",
    "length": "tokens committed per round, the model's own included",
    "ms": "where the time of a token went",
    "differ": "prompts whose text is not that of {}",
}


def explanations(report: Report) -> list[str]:
    """What the columns mean, in a few words each."""
    shown = [*columns(report), *(["ms"] if _parts(report) else [])]
    said = EXPLAINED
    if any(len(score.passes) > 1 for score in report.scores):
        said = said | {"worst prompt": "the smallest speedup, in brackets that of its worst and best pass"}
    return [f"{name}: {text.format(report.baseline)}" for name, text in said.items() if name in shown]


def overall(report: Report) -> list[Summary]:
    """Each setting over all prompts."""
    return [summary for summary in report.summaries if summary.category == ALL]


def without_loops(report: Report) -> list[Summary]:
    """Each setting over the prompts whose answers do not loop; nothing where that is all of them, or none."""
    return [summary for summary in report.summaries if summary.category == WITHOUT_LOOPS]


def by_category(report: Report) -> list[Summary]:
    """Each setting over each category; nothing where there is only one category."""
    found = [summary for summary in report.summaries if summary.category not in (ALL, WITHOUT_LOOPS)]
    return found if len({summary.category for summary in found}) > 1 else []


def fact_names(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The labels of a report's further figures."""
    return list(dict.fromkeys(name for of_setting in facts.values() for name in of_setting))


def compared(report: Report) -> list[Summary]:
    """Each setting over all prompts, the baseline left out."""
    return [summary for summary in overall(report) if summary.setting != report.baseline]
