"""Replays: the engine runs as it would, in the curve's time."""

from __future__ import annotations

import pytest

from foredraft.bench.attempt_cost import FREE
from foredraft.bench.curves import Curve, find_curve
from foredraft.bench.replay import replay
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.replay_report import replay_report
from foredraft.bench.results import loops
from foredraft.bench.trace import TraceSet, shipped_traces
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.types import SamplingParams
from replay_cases import FLAT, noise, traces


def test_off_takes_as_long_as_plain_decoding() -> None:
    result = replay(traces(([1, 2], noise(40, 1)), ([3], noise(9, 2))), FLAT, "off")
    assert [row.speedup for row in result.rows] == pytest.approx([1.0, 1.0])
    assert [row.rounds for row in result.rows] == [39, 8]


def test_copied_text_is_fast_and_noise_is_not_slow() -> None:
    passage = noise(200, 3)
    result = replay(traces((passage, passage), (noise(50, 4), noise(200, 5))), FLAT, "auto")
    copied, random_text = result.rows
    assert copied.speedup > 5
    assert random_text.speedup >= 0.97
    assert result.worst is random_text


def test_a_right_draft_costs_what_the_curve_says() -> None:
    """n=2, m=3: after two tokens that occurred before, three are drafted and four committed at V(4)."""
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    curve = Curve("c", {1: 1.0, 4: 1.5, 5: 40.0}, attempt_ms=FREE)
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


def test_a_replay_says_which_answers_loop() -> None:
    recorded = traces((noise(60, 3), noise(40, 1)), (noise(60, 4), noise(9, 2) * 20))
    result = replay(recorded, find_curve("flat"), "auto")
    assert [row.looping for row in result.rows] == [False, True]
    report = replay_report([result], source="x", traces=recorded)
    assert [score.looping for score in report.scores] == [False, True]
    assert report.notes[0].startswith("1 of 2 answers loop")
    without, whole = report.summaries[-2:]
    assert (without.prompts, whole.prompts) == (1, 2)
    assert without.speedup is not None
    assert whole.speedup is not None
    assert without.speedup < whole.speedup


def test_the_shipped_traces_gain_and_none_is_slow() -> None:
    recorded = shipped_traces()
    assert not [trace.id for trace in recorded.traces if loops(trace.output)]
    assert len(recorded.traces) == 32
    assert sum(len(trace.output) for trace in recorded.traces) > 4000
    assert len({trace.category for trace in recorded.traces}) >= 6
    result = replay(recorded, find_curve("gpu"))
    assert result.speedup > 1.3
    assert result.worst.speedup >= 0.97
    assert 0 < result.attempts < 0.05
