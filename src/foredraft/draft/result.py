"""A score as figures: what a person is shown, and what `--json` prints (docs/draft-model.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from foredraft.draft.passages import DEPTHS
from foredraft.draft.rounds import Counts, Rule
from foredraft.draft.score import BINS, SURE, Scorer, Tally
from foredraft.engine.warmup import measure_costs
from foredraft.planner.cost import CostCurve
from foredraft.planner.decide import MARGIN
from foredraft.planner.draft_model import best_length
from foredraft.protocols import Model

FORMAT = "foredraft-draft-score"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs in plain forwards of the target: `verify[n]` is a forward with n draft tokens, `token` drafting
    one. `plain_ms` and `token_ms` are what they took when they were measured side by side.
    """

    verify: tuple[float, ...]
    token: float
    plain_ms: float
    token_ms: float

    def speedup(self, tokens: float, length: int) -> float:
        """Of rounds that draft `length` tokens and bring `tokens`, over plain decoding."""
        return tokens / (self.verify[length] + length * self.token)

    def ceiling(self, counts: Sequence[Counts]) -> float:
        """The speedup of drafts that always stop before their first wrong token, at the cost of one token
        more: above what a drafter reaches that judges by its own probabilities.
        """
        return max(self._stopped(one) for one in counts)

    def _stopped(self, counts: Counts) -> float:
        tokens = cost = 0.0
        reached = [counts.rounds, *counts.accepted, 0.0]
        for right in range(counts.length + 1):
            rounds = reached[right] - reached[right + 1]
            tokens += rounds * (1 + right)
            cost += rounds * (self.verify[right] + min(right + 1, counts.length) * self.token)
        return tokens / cost if cost else 1.0

    def worthwhile(self, tokens: Sequence[float]) -> float:
        """The highest price of a draft token at which drafts of some length pay; negative where none does,
        even for nothing. `tokens[k - 1]`: what rounds with drafts of k tokens bring.
        """
        return max((tokens[k - 1] / MARGIN - self.verify[k]) / k for k in range(1, len(tokens) + 1))


def measure_here(curve: CostCurve, model: Model, depth: int) -> None:
    """Bring a curve up to date with a few forwards, of as many threads as compute now, and focus it on them
    and on a depth. What the stored profile has may be of another number of threads. Empties sequence 0.
    """
    model.release(0)
    for measured in measure_costs(model, 0):
        curve.learn(measured)
    curve.focus(depth, 1, model.idle_threads)


def prices_of(curve: CostCurve, scorer: Scorer) -> Prices:
    """With the curve of this machine, at the depth that it is focused on."""
    costs = curve.costs(DEPTHS + 1)
    verify = (1.0, *(cost / costs[0] for cost in costs[1:]))
    return Prices(verify, scorer.token_ms / scorer.plain_ms, scorer.plain_ms, scorer.token_ms)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule at one temperature.

    `accept`: of a draft's first token, over all positions. `acceptance`: of all tokens whose ancestors were
    accepted, in a run with drafts of `DEPTHS` tokens, and `by_depth[d]` of those at one depth. Of drafts of k
    tokens: `survival[k - 1]` is the share accepted up to each depth, `lengths[k - 1]` the tokens of a round,
    and `speedups[k - 1]` what that is over plain decoding.
    """

    rule: Rule
    temperature: float
    accept: float | None
    acceptance: float | None
    by_depth: tuple[float | None, ...]
    lengths: tuple[float, ...]
    speedups: tuple[float, ...]
    survival: tuple[tuple[float | None, ...], ...]

    @property
    def best(self) -> tuple[int, float]:
        """(the length of drafts that is predicted to be fastest, its speedup)."""
        best = max(self.speedups)
        return self.speedups.index(best) + 1, best


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether `auto` would use the draft at a temperature, alone and under the rule `match`. `length`: of
    drafts that pay though they are always as long, 0 if none do; `auto`, which looks at each draft and stops
    where it is unsure, reaches more. `ceiling`, `worthwhile`: see `Prices`.
    """

    temperature: float
    length: int
    worthwhile: float
    ceiling: float


@dataclass(frozen=True, slots=True)
class Result:
    """A whole score. `about` describes what was compared, for people."""

    model: str
    draft: str
    about: Mapping[str, str]
    tallies: Sequence[Tally]
    rules: Sequence[RuleResult]
    prices: Prices
    advice: Sequence[Advice]


def result_of(model: str, draft: str, about: Mapping[str, str], scorer: Scorer, curve: CostCurve) -> Result:
    """The figures of what was scored."""
    prices = prices_of(curve, scorer)
    tallies = [scorer.tallies[temperature] for temperature in sorted(scorer.tallies)]
    rules = [_rule(tally, rule, prices) for tally in tallies for rule in tally.rules]
    counts = {tally.temperature: tally.counts["match"] for tally in tallies}
    advice = [
        _advice(found, prices, curve, counts[found.temperature]) for found in rules if found.rule == "match"
    ]
    return Result(model, draft, about, tallies, rules, prices, advice)


def _rule(tally: Tally, rule: Rule, prices: Prices) -> RuleResult:
    counts = tally.counts[rule]
    return RuleResult(
        rule=rule,
        temperature=tally.temperature,
        accept=tally.first[rule].value,
        acceptance=counts[-1].acceptance,
        by_depth=tuple(counts[-1].by_depth),
        lengths=tuple(one.tokens for one in counts),
        speedups=tuple(prices.speedup(one.tokens, one.length) for one in counts),
        survival=tuple(tuple(one.survival) for one in counts),
    )


def _advice(found: RuleResult, prices: Prices, curve: CostCurve, counts: Sequence[Counts]) -> Advice:
    length, _ = best_length(found.acceptance or 0.0, prices.token, curve)
    return Advice(found.temperature, length, prices.worthwhile(found.lengths), prices.ceiling(counts))


def sentence(result: Result) -> str:
    """Whether `auto` would use the draft here."""
    found = {one.temperature: one for one in result.rules if one.rule == "match"}
    using = [advice for advice in result.advice if advice.length]
    if not using:
        return _against(result, max(one.best[1] for one in found.values()))
    parts = [
        f"drafts of {advice.length} at temperature {advice.temperature:g} "
        f"({found[advice.temperature].best[1]:.2f} times plain decoding)"
        for advice in using
    ]
    left = [f"{advice.temperature:g}" for advice in result.advice if not advice.length]
    but = f", and none at temperature {', '.join(left)}" if left else ""
    return f"auto would use it here: {', '.join(parts)}{but}."


def _against(result: Result, best: float) -> str:
    """Why it would not, `best` being the speed of drafts of the best length."""
    least = max(advice.worthwhile for advice in result.advice)
    ceiling = max(advice.ceiling for advice in result.advice)
    would = "would not use it here" if ceiling <= MARGIN else "would use it here only where it is sure"
    could = f"it would pay below {least:.2f}" if least > 0.005 else "it would not pay if it were free"
    return (
        f"auto {would}: drafts of the best length reach {best:.2f} of the speed of plain decoding, and "
        f"{ceiling:.2f} if they always stopped in time. A draft token takes {result.prices.token:.2f} plain "
        f"steps; {could}."
    )


def as_dict(result: Result) -> dict[str, Any]:
    """The object of `--json`. Its fields stay; more may be added."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": result.model,
        "draft": result.draft,
        "about": dict(result.about),
        "distances": [_distances(tally) for tally in result.tallies],
        "rules": [_rule_dict(found) for found in result.rules],
        "calibration": [_calibration(tally) for tally in result.tallies],
        "price": {
            "token": result.prices.token,
            "token_ms": result.prices.token_ms,
            "plain_ms": result.prices.plain_ms,
            "verify": list(result.prices.verify),
        },
        "auto": {
            "uses": any(advice.length for advice in result.advice),
            "lengths": {f"{advice.temperature:g}": advice.length for advice in result.advice},
            "ceilings": {f"{advice.temperature:g}": advice.ceiling for advice in result.advice},
            "text": sentence(result),
        },
    }


def _distances(tally: Tally) -> dict[str, Any]:
    return {
        "temperature": tally.temperature,
        "positions": tally.positions,
        **tally.everywhere.values(),
        "by_depth": [found.values() for found in tally.by_depth],
    }


def _rule_dict(found: RuleResult) -> dict[str, Any]:
    length, speedup = found.best
    return {
        "rule": found.rule,
        "temperature": found.temperature,
        "accept": found.accept,
        "accept_by_depth": list(found.by_depth),
        "survival": [list(depths) for depths in found.survival],
        "length": list(found.lengths),
        "speedup": list(found.speedups),
        "best_length": length,
        "best_speedup": speedup,
    }


def _calibration(tally: Tally) -> dict[str, Any]:
    bins = [
        {"from": low, "to": high, "share": tally.of_all(found), "mean": mean, "right": found.value}
        for (low, high), mean, found in zip(pairwise(BINS), tally.means, tally.bins, strict=True)
    ]
    sure = {"above": SURE, "share": tally.of_all(tally.sure)}
    return {"temperature": tally.temperature, "bins": bins, "sure": sure | {"right": tally.sure.value}}
