"""What `torch_peers.py` measured, as figures and as a page of Markdown tables. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, median
from typing import Any

from foredraft.bench.report import row_dict
from foredraft.bench.results import ALL, Row, Sample, scores
from foredraft.cli.units import counted
from server_common import figure, table

OFF, AUTO, AUTO_DRAFT = "foredraft off", "foredraft auto", "foredraft auto + draft"
PLAIN, LOOKUP, ASSISTED = "transformers", "transformers lookup", "transformers assisted"
OURS = (OFF, AUTO, AUTO_DRAFT)
PEERS = (PLAIN, LOOKUP, ASSISTED)
KINDS = {"decode": "after the first token", "whole": "whole answers, their prompts included"}
PICKS: dict[str, Callable[[Sequence[float]], float]] = {"best": max, "median": median}

Rates = Mapping[tuple[str, str], Mapping[str, float]]
"""By category and prompt the tokens a second of each side."""


def rate(sample: Sample, kind: str) -> float | None:
    """Tokens a second, "decode" after the first token or "whole"; None for an answer too short."""
    if kind == "decode" or sample.rate is None:
        return sample.rate
    return 1e3 * sample.count / (sample.prompt_ms + sample.decode_ms)


def rates(rows: Sequence[Row], kind: str, pick: str) -> Rates:
    """Of each prompt's answers the best or the median rate. Prompts that some side has no rate for are left
    out.
    """
    seen: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        found = rate(row.sample, kind)
        if found is not None:
            seen.setdefault((row.category, row.prompt), {}).setdefault(row.setting, []).append(found)
    sides = {row.setting for row in rows}
    return {
        key: {side: PICKS[pick](of_side[side]) for side in of_side}
        for key, of_side in seen.items()
        if set(of_side) == sides
    }


def means(found: Rates) -> dict[str, dict[str, float]]:
    """The geometric mean of each side by category; `ALL` at the end."""
    categories = list(dict.fromkeys(category for category, _ in found))
    return {
        name: {side: geometric_mean([of[side] for of in chosen]) for side in chosen[0]}
        for name in ([*categories, ALL] if categories else [])
        if (chosen := [of for (category, _), of in found.items() if name in (category, ALL)])
    }


def own_off(side: str) -> str:
    """What a side is without speculation."""
    return OFF if side in OURS else PLAIN


def worst(rows: Sequence[Row], side: str) -> tuple[float, str] | None:
    """The smallest speedup over its own off, each prompt's by the median of its passes, and whose it is."""
    speedups = [
        (score.speedup, score.prompt)
        for score in scores(rows, own_off(side))
        if score.setting == side and score.speedup
    ]
    return min(speedups, default=None)


def different(rows: Sequence[Row], baseline: str) -> dict[str, tuple[int, int]]:
    """By side: of how many prompts some answer differs from the baseline's in the same pass, and how many
    were compared.
    """
    counts: dict[str, tuple[int, int]] = {}
    for score in scores(rows, baseline):
        if score.different is not None:
            wrong, compared = counts.get(score.setting, (0, 0))
            counts[score.setting] = (wrong + score.different, compared + 1)
    return counts


# --- demands -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of the figures, and what was found; None where it was not measured."""

    name: str
    least: float
    found: float | None
    detail: str = ""

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.found is None:
            return "not measured"
        return "met" if self.found >= self.least else "missed"


def demands(rows: Sequence[Row]) -> list[Demand]:
    """What is demanded over all prompts: of plain decoding, of `auto` beside the peer's best mode, and of its
    worst prompt.
    """
    mean = means(rates(rows, "decode", "best")).get(ALL, {})
    off, auto, plain = (mean.get(side) for side in (OFF, AUTO, PLAIN))
    best = max((side for side in PEERS if side in mean), key=lambda side: mean[side], default="")
    low = worst(rows, AUTO)
    return [
        Demand("Foredraft off ÷ transformers plain", 1.5, off / plain if off and plain else None),
        Demand(
            "Foredraft auto ÷ best of transformers' modes",
            1.25,
            auto / mean[best] if auto and best else None,
            best,
        ),
        Demand("worst prompt of auto ÷ own off", 0.97, low[0] if low else None, low[1] if low else ""),
    ]


# --- the page ------------------------------------------------------------------------------------------


def setting_of(dtype: str, *, threads: int, tokens: int, repeat: int, every: int) -> str:
    """How it was measured, in words, for `report` and `as_markdown`."""
    return (
        f"{dtype}, {counted(threads, 'thread')}, {counted(tokens, 'token')} an answer, "
        f"{repeat} {'pass' if repeat == 1 else 'passes'}, the draft model keeps one layer in {every}"
    )


def report(rows: Sequence[Row], setting: str) -> dict[str, Any]:
    """Everything measured, for the JSON file."""
    return {
        "setting": setting,
        "means": {kind: {pick: means(rates(rows, kind, pick)) for pick in PICKS} for kind in KINDS},
        "demands": [asdict(demand) | {"verdict": demand.verdict} for demand in demands(rows)],
        "different": {name: different(rows, name) for name in (PLAIN, OFF)},
        "answers": [row_dict(row) for row in rows],
    }


def as_markdown(rows: Sequence[Row], setting: str) -> str:
    """The page: demands, rates by category, worst prompts, texts."""
    parts = [
        "# Foredraft beside transformers' own generation",
        f"Greedy answers; {setting}. Rates are tokens a second, geometric means over prompts.",
        "## Demands",
        _demand_table(demands(rows)),
    ]
    for kind, words in KINDS.items():
        for pick in PICKS:
            found = rates(rows, kind, pick)
            parts += [f"## {pick.capitalize()} of the passes, {words}", _rate_table(found)]
    parts += ["## The worst prompt, and texts", _side_table(rows)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _demand_table(found: Sequence[Demand]) -> str:
    lines = [
        [demand.name, f"≥ {demand.least}", figure(demand.found, 2), demand.verdict, demand.detail]
        for demand in found
    ]
    return table(["demand", "least", "found", "verdict", "which"], lines)


def _rate_table(found: Rates) -> str:
    by_category = means(found)
    if not by_category:
        return "No prompt has a rate for every side: their answers are too short."
    sides = list(by_category[ALL])
    lines = []
    for category, of in by_category.items():
        prompts = sum(category in (name, ALL) for name, _ in found)
        lines.append([category, str(prompts), *(figure(of[side]) for side in sides), *_ratios(of)])
    head = ["category", "prompts", *sides, "off ÷ plain", "auto ÷ best peer", "auto ÷ off"]
    return table(head, lines)


def _ratios(of: Mapping[str, float]) -> list[str]:
    off, auto, plain = (of.get(side) for side in (OFF, AUTO, PLAIN))
    peer = max((of[side] for side in PEERS if side in of), default=None)
    pairs = ((off, plain), (auto, peer), (auto, off))
    return [figure(one / other if one and other else None, 2) for one, other in pairs]


def _side_table(rows: Sequence[Row]) -> str:
    from_plain, from_off = different(rows, PLAIN), different(rows, OFF)
    lines = []
    for side in dict.fromkeys(row.setting for row in rows):
        low = worst(rows, side)
        ratio = "–" if low is None or side == own_off(side) else f"{low[0]:.2f} ({low[1]})"
        samples = [row.sample for row in rows if row.setting == side]
        drafted, accepted = sum(one.drafted for one in samples), sum(one.accepted for one in samples)
        share = f"{accepted / drafted:.0%}" if drafted else "–"
        lines.append([side, ratio, share, _of(from_plain.get(side)), _of(from_off.get(side))])
    head = [
        "side",
        "worst prompt ÷ own off",
        "accepted",
        "not transformers' text",
        "not Foredraft off's text",
    ]
    return table(head, lines)


def _of(count: tuple[int, int] | None) -> str:
    return "–" if count is None else f"{count[0]} of {count[1]}"
