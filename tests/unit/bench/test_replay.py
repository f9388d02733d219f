"""Replays: the engine runs as it would, in the curve's time, and the bounds bound it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.bench.asking_cost import FREE
from foredraft.bench.curves import Curve, find_curve
from foredraft.bench.hindsight import clairvoyant_cost, copyable, hindsight_cost
from foredraft.bench.replay import replay
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.replay_report import replay_report
from foredraft.bench.results import loops
from foredraft.bench.static_drafters import rank_static, shipped_traces, static_settings
from foredraft.bench.trace import Trace, TraceSet
from foredraft.config import parse_speculation
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.registry import check_speculation
from foredraft.types import SamplingParams

FLAT = Curve("flat", {1: 1.0, 64: 2.0})


def traces(*pairs: tuple[list[int], list[int]], vocab_size: int = 50) -> TraceSet:
    return TraceSet(
        "test",
        vocab_size,
        "h",
        (),
        [Trace(str(i), "c", tuple(a), tuple(b)) for i, (a, b) in enumerate(pairs)],
    )


def noise(count: int, seed: int, vocab_size: int = 50) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(count)]


def test_off_takes_as_long_as_plain_decoding() -> None:
    result = replay(traces(([1, 2], noise(40, 1)), ([3], noise(9, 2))), FLAT, "off")
    assert [row.speedup for row in result.rows] == pytest.approx([1.0, 1.0])
    assert [row.rounds for row in result.rows] == [39, 8]
    assert result.calibration_error is None


def test_copied_text_is_fast_and_noise_is_not_slow() -> None:
    passage = noise(200, 3)
    result = replay(traces((passage, passage), (noise(50, 4), noise(200, 5))), FLAT, "auto")
    copied, random_text = result.rows
    assert copied.speedup > 5
    assert random_text.speedup >= 0.97
    assert result.worst is random_text
    assert result.speedup <= result.hindsight <= result.clairvoyant
    assert result.calibration_error is not None


def test_a_right_draft_costs_what_the_curve_says() -> None:
    """n=2, m=3: after two tokens that occurred before, three are drafted and four committed at V(4)."""
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    curve = Curve("c", {1: 1.0, 4: 1.5, 5: 40.0}, asking_ms=FREE)
    row = replay(traces((text, [1, 2, 3, 4, 5, 6])), curve, "ngram-simple:n=2,m=3").rows[0]
    assert row.rounds == 2
    assert row.cost == pytest.approx(1.0 + 1.5)
    assert (row.drafted, row.accepted) == (3, 3)


@pytest.mark.parametrize(("ends_by_itself", "drafted"), [(True, 8), (False, 0)])
def test_how_long_an_answer_becomes_is_not_known_beforehand(ends_by_itself: bool, drafted: int) -> None:
    end = 49 if ends_by_itself else 48
    seen = [1, 2, 3, 49, *range(10, 30), 1, 2]
    both = traces((seen, [3, 49]), (noise(5, 1, 40), noise(30, 2, 40)))
    recorded = TraceSet(both.model, both.vocab_size, both.vocab_hash, (end,), both.traces)
    row, longer = replay(recorded, FLAT, "ngram-simple:n=2,m=8").rows
    assert (row.tokens, row.drafted) == (2, drafted)
    assert longer.tokens == 30, "it was cut off, or may have been"


def test_overhead_is_part_of_every_round_and_of_the_bounds() -> None:
    passage = noise(100, 3)
    bare = replay(traces((passage, passage)), FLAT, "auto").rows[0]
    slow = replay(traces((passage, passage)), FLAT, "auto", overhead_ms=5.0).rows[0]
    assert slow.speedup > bare.speedup, "fewer rounds save more where each costs more"
    assert slow.hindsight > bare.hindsight


def test_requests_at_once_share_forwards() -> None:
    recorded = traces(*(([i, i + 1], noise(30, i)) for i in range(4)))
    model = ReplayModel(recorded, Curve("c", {1: 1.0, 4: 1.6}), sequences=4)
    with Engine(model, clock=model.clock) as engine:
        ids = [engine.add(list(t.prompt), SamplingParams(max_tokens=30)) for t in recorded.traces]
        done = engine.run(ids)
    assert [completion.tokens for completion in done] == [trace.output for trace in recorded.traces]
    assert model.seconds == pytest.approx(29 * 1.6 * 0.010)


@pytest.mark.parametrize("setting", ["draft-model:model=d.gguf", "auto;draft-model:model=d.gguf"])
def test_drafts_of_a_model_cannot_be_replayed(setting: str) -> None:
    with pytest.raises(ConfigError, match="cannot be replayed"):
        replay(traces(([1], [2, 3])), FLAT, setting)


def test_nothing_to_replay() -> None:
    with pytest.raises(ConfigError, match="more than one token"):
        replay(traces(([1], [2])), FLAT, "auto")


@pytest.mark.parametrize("speculation", ["off", "auto", "suffix;recycle"])
def test_a_prompt_that_was_asked_twice_has_both_its_answers(speculation: str) -> None:
    """As recorded in use: asked again, with another answer; and asked on, with a part of the answer."""
    used = traces(
        ([1, 7], [2, 3, 4, 5]), ([1, 7], [4, 5, 2, 3]), ([1, 7, 2, 3], [9, 9, 9]), ([1, 7], [2, 3, 4, 5])
    )
    rows = replay(used, FLAT, speculation).rows
    assert [row.tokens for row in rows] == [4, 4, 3, 4]


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


def test_no_shipped_answer_loops() -> None:
    recorded = shipped_traces()
    assert not [trace.id for trace in recorded.traces if loops(trace.output)]
    assert len(recorded.traces) == 32
    assert sum(len(trace.output) for trace in recorded.traces) > 4000


def test_the_shipped_traces_replay_and_auto_knows_how_reliable_it_is() -> None:
    recorded = shipped_traces()
    assert len({trace.category for trace in recorded.traces}) >= 6
    result = replay(recorded, find_curve("gpu"), "auto")
    assert result.speedup > 1.3
    assert min(row.speedup for row in result.rows) >= 0.97
    assert result.calibration_error is not None
    assert result.calibration_error < 0.1
    assert 0 < result.share <= 1
    assert result.share < result.forwards_share <= 1, "asking takes time"


def test_a_replay_says_which_answers_loop() -> None:
    recorded = traces((noise(60, 3), noise(40, 1)), (noise(60, 4), noise(9, 2) * 20))
    result = replay(recorded, find_curve("flat"), "auto")
    assert [row.looping for row in result.rows] == [False, True]
    report = replay_report([result], source="x", traces=recorded, overhead_ms=0)
    assert [score.looping for score in report.scores] == [False, True]
    assert report.notes[0].startswith("1 of 2 answers loop")
    without, whole = report.summaries[-2:]
    assert (without.prompts, whole.prompts) == (1, 2)
    assert without.speedup is not None
    assert whole.speedup is not None
    assert without.speedup < whole.speedup


def test_static_settings_are_valid_and_ranked() -> None:
    for setting in static_settings():
        check_speculation(parse_speculation(setting))
    passage = noise(60, 3)
    calls: list[int] = []
    ranked = rank_static(FLAT, lambda done, total, name: calls.append(done), traces((passage, passage)))
    assert [result.speedup for result in ranked] == sorted((r.speedup for r in ranked), reverse=True)
    assert calls[-1] == len(ranked) == len(static_settings())
    assert ranked[0].speedup > 3


def test_the_planner_is_within_reach() -> None:
    model = ReplayModel(traces(([1], [2, 3])), FLAT)
    with Engine(model, clock=model.clock) as engine:
        engine.set_speculation("auto")
        assert isinstance(engine.planner, AdaptivePlanner)
