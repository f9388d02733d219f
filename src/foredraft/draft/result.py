"""A score as figures: what a person is shown, and what `--json` prints (docs/draft-model.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from foredraft.draft.passages import DEPTHS
from foredraft.draft.rounds import Rule
from foredraft.draft.score import BINS, SURE, Scorer, Tally
from foredraft.planner.cost import CostCurve
from foredraft.planner.decide import MARGIN
from foredraft.planner.draft_model import best_length

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

    def worthwhile(self, tokens: Sequence[float]) -> float:
        """The highest price of a draft token at which drafts of some length pay; negative where none does,
        even for nothing. `tokens[k - 1]`: what rounds with drafts of k tokens bring.
        """
        return max((tokens[k - 1] / MARGIN - self.verify[k]) / k for k in range(1, len(tokens) + 1))


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
    """What `auto` would do with the draft at a temperature, alone and under the rule `match`: `length` tokens
    at a time, 0 for none. `worthwhile`: see `Prices`.
    """

    temperature: float
    length: int
    worthwhile: float


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
    advice = [_advice(found, prices, curve) for found in rules if found.rule == "match"]
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


def _advice(found: RuleResult, prices: Prices, curve: CostCurve) -> Advice:
    length, _ = best_length(found.acceptance or 0.0, prices.token, curve)
    return Advice(found.temperature, length, prices.worthwhile(found.lengths))


def sentence(result: Result) -> str:
    """Whether `auto` would use the draft here."""
    price = result.prices.token
    by_temperature = {found.temperature: found for found in result.rules if found.rule == "match"}
    using = [advice for advice in result.advice if advice.length]
    if not using:
        least = max(advice.worthwhile for advice in result.advice)
        best = max(found.best[1] for found in by_temperature.values())
        could = (
            f"it would pay below {least:.2f}"
            if least > 0.005
            else "it would not pay if it were free, as verifying takes more than is accepted"
        )
        return (
            f"auto would not use it here: it reaches {best:.2f} of the speed of plain decoding. One of its "
            f"tokens takes {price:.2f} plain steps; {could}."
        )
    parts = [
        f"drafts of {advice.length} at temperature {advice.temperature:g} "
        f"({by_temperature[advice.temperature].best[1]:.2f} times plain decoding)"
        for advice in using
    ]
    left = [f"{advice.temperature:g}" for advice in result.advice if not advice.length]
    but = f", and none at temperature {', '.join(left)}" if left else ""
    return f"auto would use it here: {', '.join(parts)}{but}."


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
