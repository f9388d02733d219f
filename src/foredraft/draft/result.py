"""A score as figures: what a person is shown, and what `--json` prints (docs/draft-model.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from foredraft.draft.rounds import Rule
from foredraft.draft.score import BINS, SURE, Scorer, Tally
from foredraft.draft.trial import RoundTimes, Trial
from foredraft.planner.decide import MARGIN

FORMAT = "foredraft-draft-score"
VERSION = 1


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule at one temperature.

    `accept`: of a draft's first token, over all positions. `acceptance`: of all tokens whose ancestors were
    accepted, in a run with drafts of `DEPTHS` tokens, and `by_depth[d]` of those at one depth. Of drafts of k
    tokens: `survival[k - 1]` is the share accepted up to each depth, `lengths[k - 1]` the tokens of a round,
    and `speedups[k - 1]` what that is over plain decoding, None where it was not tried.
    """

    rule: Rule
    temperature: float
    accept: float | None
    acceptance: float | None
    by_depth: tuple[float | None, ...]
    lengths: tuple[float, ...]
    speedups: tuple[float | None, ...]
    survival: tuple[tuple[float | None, ...], ...]

    @property
    def best(self) -> tuple[int, float] | None:
        """(the length of drafts that is predicted to be fastest, its speedup); None where none was tried."""
        known = [(speed, -length) for length, speed in enumerate(self.speedups, 1) if speed is not None]
        if not known:
            return None
        speed, length = max(known)
        return -length, speed

    @property
    def paying(self) -> int:
        """The length of drafts that is fastest, if that is more than `auto` asks of a draft, as it is shown;
        else 0.
        """
        return self.best[0] if self.best is not None and round(self.best[1], 2) > MARGIN else 0


@dataclass(frozen=True, slots=True)
class Result:
    """A whole score. `about` describes what was compared, for people. `trial` None: it was stopped before
    anything was tried.
    """

    model: str
    draft: str
    about: Mapping[str, str]
    tallies: Sequence[Tally]
    rules: Sequence[RuleResult]
    trial: Trial | None

    @property
    def uses(self) -> bool:
        """Whether the draft is worth using here: `auto` was faster with it, or, where that could not be told,
        drafts of some length in every round are.
        """
        if self.trial is not None and self.trial.gain is not None:
            return self.trial.gain.pays
        return any(rule.paying for rule in self.rules if rule.rule == "match")


def result_of(
    model: str, draft: str, about: Mapping[str, str], scorer: Scorer, trial: Trial | None
) -> Result:
    """The figures of what was scored."""
    tallies = [scorer.tallies[temperature] for temperature in sorted(scorer.tallies)]
    times = {} if trial is None else trial.times
    rules = [_rule(tally, rule, times.get(tally.temperature)) for tally in tallies for rule in tally.rules]
    return Result(model, draft, about, tallies, rules, trial)


def _rule(tally: Tally, rule: Rule, times: RoundTimes | None) -> RuleResult:
    counts = tally.counts[rule]
    return RuleResult(
        rule=rule,
        temperature=tally.temperature,
        accept=tally.first[rule].value,
        acceptance=counts[-1].acceptance,
        by_depth=tuple(counts[-1].by_depth),
        lengths=tuple(one.tokens for one in counts),
        speedups=tuple(times.speed(one.tokens, one.length) if times else None for one in counts),
        survival=tuple(tuple(one.survival) for one in counts),
    )


def sentence(result: Result) -> str:
    """Whether the draft is worth using here."""
    if result.trial is None:
        return "It was stopped before it was tried how fast that is."
    return " ".join(part for part in (_of_auto(result.trial), _of_rounds(result)) if part)


def _of_auto(trial: Trial) -> str:
    if trial.gain is None:
        return "The answers are too few or too short to tell what auto gains by it."
    (speed, error), gain = trial.gain.shown, trial.gain
    gains = "gains by it" if gain.pays else "gains nothing by it"
    return (
        f"auto {gains} here: it is {speed:.2f} ± {error:.2f} times as fast as without it, over "
        f"{gain.answers} answers."
    )


def _of_rounds(result: Result) -> str:
    best = {one.temperature: one.best for one in result.rules if one.rule == "match"}
    parts = [
        f"{found[1]:.2f} times plain decoding at temperature {temperature:g} (drafts of {found[0]})"
        for temperature, found in best.items()
        if found is not None
    ]
    return f"Drafts in every round, and by nothing else, reach {' and '.join(parts)}." if parts else ""


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
        "times": [] if result.trial is None else [_times(*one) for one in result.trial.times.items()],
        "auto": _auto(result),
    }


def _times(temperature: float, times: RoundTimes) -> dict[str, Any]:
    return {
        "temperature": temperature,
        "plain_ms": times.plain_ms,
        "rounds": list(times.rounds),
        "drafting": list(times.drafting),
        "spread": times.spread,
    }


def _auto(result: Result) -> dict[str, Any]:
    gain = None if result.trial is None else result.trial.gain
    lengths = {f"{one.temperature:g}": one.paying for one in result.rules if one.rule == "match"}
    return {
        "uses": result.uses,
        "gain": None if gain is None else gain.speed,
        "error": None if gain is None else gain.error,
        "answers": 0 if gain is None else gain.answers,
        "lengths": lengths,
        "text": sentence(result),
    }


def _distances(tally: Tally) -> dict[str, Any]:
    return {
        "temperature": tally.temperature,
        "positions": tally.positions,
        **tally.everywhere.values(),
        "by_depth": [found.values() for found in tally.by_depth],
    }


def _rule_dict(found: RuleResult) -> dict[str, Any]:
    length, speedup = found.best or (0, None)
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
