"""Replays beside their bounds: any setting, trees, overhead, and how reliable the estimates were."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.bench.attempt_cost import AttemptCost
from foredraft.bench.curves import Curve, find_curve
from foredraft.bench.trace import Trace, shipped_traces
from foredraft.config import parse_speculation
from foredraft.planner.records import Candidate, RequestRecord, RoundRecord
from foredraft.registry import check_speculation
from lab import grid
from lab.bounds import clairvoyant_cost, copyable, hindsight_cost
from lab.calibration import Bin, Calibration, scored
from lab.replay import bounded_replay
from replay_cases import FLAT, noise, traces


def test_the_bounds_bound_a_replay() -> None:
    passage = noise(200, 3)
    found = bounded_replay(traces((passage, passage), (noise(50, 4), noise(200, 5))), FLAT)
    assert found.result.speedup <= found.hindsight <= found.clairvoyant
    assert 0 < found.share < found.forwards_share <= 1, "attempts take time"


def test_overhead_is_part_of_every_round_and_of_the_bounds() -> None:
    passage = noise(100, 3)
    bare = bounded_replay(traces((passage, passage)), FLAT)
    slow = bounded_replay(traces((passage, passage)), FLAT, overhead_ms=5.0)
    assert slow.result.speedup > bare.result.speedup, "fewer rounds save more where each costs more"
    assert slow.hindsight > bare.hindsight


def test_the_bounds_make_no_attempts() -> None:
    passage = noise(60, 3)
    dear = Curve("c", FLAT.points, attempt_ms=AttemptCost({}, other=5.0, choosing=5.0))
    costly, usual = (bounded_replay(traces((passage, passage)), curve) for curve in (dear, FLAT))
    assert (costly.hindsight, costly.clairvoyant) == (usual.hindsight, usual.clairvoyant)
    assert costly.result.speedup < usual.result.speedup


def test_each_trace_is_charged_as_its_own_curve_says() -> None:
    texts = traces(
        (noise(30, 1, 1000), noise(11, 2, 1000)), (noise(31, 3, 1000), noise(11, 4, 1000)), vocab_size=1000
    )
    curves = [Curve("c", FLAT.points, attempt_ms=AttemptCost({}, other=ms)) for ms in (1.0, 3.0)]
    found = bounded_replay(
        texts, curves[0], "ngram-simple:n=3,m=4", curve_for=lambda trace: curves[int(trace.id)]
    )
    assert [row.attempts for row in found.result.rows] == pytest.approx([0.9, 2.7])


def forked(count: int, seed: int) -> list[int]:
    """A text of phrases, after which one of two others follows by a coin."""
    rng = random.Random(seed)
    phrases = [[number, 20 + number, 30 + number] for number in range(6)]
    text, at = [], 0
    for _ in range(count):
        text += phrases[at]
        at = (2 * at + 1 + rng.randrange(2)) % 6
    return text


def test_trees_gain_where_rows_are_cheap_and_change_nothing_where_they_are_dear() -> None:
    recorded = traces(*((forked(30, seed), forked(60, seed + 100)) for seed in range(2)))
    cheap, dear = Curve("cheap", {1: 1.0, 64: 1.3}), Curve("dear", {1: 1.0, 64: 64.0})
    chains, trees = (bounded_replay(recorded, cheap, trees=able).result for able in (False, True))
    assert trees.speedup > 1.1 * chains.speedup
    assert trees.worst.speedup >= chains.worst.speedup
    without, able = (bounded_replay(recorded, dear, trees=able).result for able in (False, True))
    assert able.speedup == pytest.approx(without.speedup, abs=0.02)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20), st.lists(st.integers(0, 3), min_size=2, max_size=20)
)
@settings(deadline=None)
def test_what_can_be_copied_equals_brute_force(prompt: list[int], output: list[int]) -> None:
    text = prompt + output
    for i, found in enumerate(copyable(prompt, output)):
        at = len(prompt) + 1 + i
        best = 0
        for earlier in range(1, at):
            if text[earlier - 1] != text[at - 1]:
                continue
            run = 0
            while at + run < len(text) and text[earlier + run] == text[at + run]:
                run += 1
            best = max(best, run)
        assert found == best


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20), st.lists(st.integers(0, 3), min_size=2, max_size=30)
)
@settings(deadline=None)
def test_the_bounds_are_in_order(prompt: list[int], output: list[int]) -> None:
    trace, curve = Trace("x", "", tuple(prompt), tuple(output)), find_curve("steep")
    assert clairvoyant_cost(trace, curve) <= hindsight_cost(trace, curve) <= len(output) - 1


def test_static_settings_are_valid_and_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in grid.static_settings():
        check_speculation(parse_speculation(setting))
    few = ("ngram-simple:n=12,m=1", "suffix:min=2,max=15,min-p=0", "ngram-simple:n=3,m=7")
    monkeypatch.setattr(grid, "static_settings", lambda: few)
    passage = noise(60, 3)
    ranked = grid.rank_static(traces((passage, passage)), FLAT)
    assert {result.speculation for result in ranked} == set(few)
    assert [result.speedup for result in ranked] == sorted((r.speedup for r in ranked), reverse=True)
    assert ranked[0].speedup > 3


# --- calibration ---------------------------------------------------------------------------------------


def verified(survival: tuple[float, ...], accepted: int, *, own: int = 1, width: int = 1) -> RequestRecord:
    """A draft of which so many tokens were accepted, and so many tokens were the target's `own`."""
    return RequestRecord(
        request=1,
        asked=("s",),
        candidates=(Candidate("other", 1, {}, (0.5,)), Candidate("s", len(survival), {}, survival)),
        source="s",
        length=len(survival),
        gain=None,
        reason=None,
        accepted=accepted,
        committed=accepted + own,
        width=width,
    )


def test_tokens_are_scored_up_to_the_first_wrong_one() -> None:
    assert scored(verified((0.8, 0.4, 0.1), 1)) == [(0.8, True), (0.5, False)]
    assert [right for _, right in scored(verified((0.8, 0.4), 2))] == [True, True]
    assert scored(verified((0.8, 0.4, 0.1), 2, own=0))[-1] == (0.5, True), "it ended there"


def test_trees_and_what_was_not_estimated_are_not_scored() -> None:
    assert scored(verified((0.8, 0.4), 1, width=2)) == []
    assert scored(verified((), 0)) == []


def test_the_error_is_the_mean_distance_weighed_by_tokens() -> None:
    calibration = Calibration()
    assert calibration.error is None
    for accepted in (1, 1, 1, 0):
        choice = verified((0.95,), accepted)
        calibration.add(RoundRecord(1, 2, 0, 0, {}, 0.0, 0.0, 0.0, 0.0, (choice,)))
    assert calibration.bins() == [Bin(0.95, 0.75, 4)]
    assert calibration.error == pytest.approx(0.2)


def test_auto_knows_how_reliable_it_is_on_the_shipped_traces() -> None:
    recorded = shipped_traces()
    found = bounded_replay(replace(recorded, traces=recorded.traces[::3]), find_curve("gpu"))
    assert sum(one.count for one in found.calibration.bins()) > 150
    assert found.calibration.error is not None
    assert found.calibration.error < 0.1
