"""The log-probabilities of a prompt's own tokens: those that decoding the same tokens would have given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import Engine, SamplingParams
from foredraft.backends.rewind import RewindingModel
from foredraft.engine.options import EngineOptions
from foredraft.engine.prefill import SCORED_ROWS
from foredraft.engine.prompt import Prompt
from foredraft.engine.scoring import PromptEvent, ScoringParams
from foredraft.engine.streams import fold
from foredraft.errors import BackendError, RequestError
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Event, FinishEvent, FinishReason, TokenEvent, TokenLogprob
from recurrent_double import FakeRecurrentModel

LONG = [token % 250 for token in range(3 * SCORED_ROWS + 5)]
ONLY = ScoringParams(logprobs=3, score_prompt=True, answers=False)


def run(engine: Engine, *requests: int) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = {request: [] for request in requests}
    while not engine.idle:
        for event in engine.step():
            events[event.request].append(event)
    return events


def scores(events: Sequence[Event]) -> list[TokenLogprob]:
    found = [event.logprob for event in events if isinstance(event, PromptEvent)]
    assert all(found)
    return [score for score in found if score is not None]


def answer(events: Sequence[Event]) -> list[TokenEvent]:
    return [event for event in events if type(event) is TokenEvent]


def end(events: Sequence[Event]) -> FinishEvent:
    assert isinstance(events[-1], FinishEvent)
    return events[-1]


def decoded(
    engine: Engine, prompt: list[int], count: int, top: int = 3
) -> tuple[list[int], list[TokenLogprob]]:
    """An answer, and the log-probabilities that came with it."""
    done = engine.generate(prompt, SamplingParams(max_tokens=count, logprobs=top, ignore_eos=True))
    return list(done.tokens), list(done.logprobs)


def score(engine: Engine, prompt: list[int], params: ScoringParams = ONLY) -> list[Event]:
    request = engine.add(prompt, params)
    return run(engine, request)[request]


def test_scores_are_those_of_decoding() -> None:
    with Engine(FakeModel()) as engine:
        tokens, expected = decoded(engine, [1, 2, 3], 150)
        found = scores(score(engine, [1, 2, 3, *tokens]))
    assert [one.token for one in found] == [2, 3, *tokens]
    assert found[2:] == expected


def test_no_forward_gives_more_rows_than_fit_in_memory() -> None:
    model = FakeModel()
    with Engine(model) as engine:
        requests = [engine.add([first, *LONG], ONLY) for first in (1, 2, 3)]
        events = run(engine, *requests)
    assert all(len(scores(events[request])) == len(LONG) for request in requests)
    assert max(sum(rows.logits for rows in batch) for batch in model.forwards) == SCORED_ROWS


def test_no_sequence_has_more_rows_than_it_is_exact_with() -> None:
    model = FakeModel(max_rows=5)
    with Engine(model) as engine:
        assert len(scores(score(engine, LONG))) == len(LONG) - 1
    assert max(rows.logits for batch in model.forwards for rows in batch) == 5


def test_nothing_is_generated_where_only_scores_are_wanted() -> None:
    with Engine(FakeModel()) as engine:
        events = score(engine, LONG)
        done = end(events)
        assert not answer(events)
        assert done.reason is FinishReason.LENGTH
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (len(LONG), 0)
        assert done.timings.prompt_n == len(LONG)
        assert done.timings.predicted_n == 0
        assert engine.idle


def test_a_prompt_of_one_token_has_no_scores() -> None:
    with Engine(FakeModel()) as engine:
        assert not scores(score(engine, [7]))
        both = score(engine, [7], ScoringParams(max_tokens=3, logprobs=0, score_prompt=True))
        assert len(answer(both)) == 3


def test_an_answer_after_the_scores_is_the_same_as_without() -> None:
    with Engine(FakeModel()) as engine:
        events = score(engine, LONG, ScoringParams(max_tokens=9, logprobs=3, score_prompt=True))
        tokens, expected = decoded(engine, LONG, 9)
    assert [event.token for event in answer(events)] == tokens
    assert [event.logprob for event in answer(events)] == expected
    assert len(scores(events)) == len(LONG) - 1


def test_cached_tokens_have_no_logits_and_are_computed_again() -> None:
    with Engine(FakeModel(sequences=1)) as engine:
        first = score(engine, LONG)
        again = score(engine, LONG)
        assert end(again).usage.cached_tokens == 0
        assert scores(again) == scores(first)
        plain = engine.generate(LONG, max_tokens=2)
        assert plain.usage.cached_tokens == len(LONG) - 1, "what was scored is of use to others"


def test_without_scores_an_answerless_request_uses_the_cache() -> None:
    with Engine(FakeModel(sequences=1)) as engine:
        engine.generate(LONG, max_tokens=1)
        events = score(engine, LONG, ScoringParams(answers=False))
        assert len(events) == 1
        assert end(events).usage.cached_tokens == len(LONG) - 1


def test_others_decode_meanwhile() -> None:
    model = FakeModel(sequences=2)
    with Engine(model) as engine:
        talking = engine.add([1, 2], SamplingParams(max_tokens=40, ignore_eos=True))
        engine.step()
        request = engine.add(LONG, ONLY)
        order = [event.request for event in _until_done(engine)]
    between = order[order.index(request) : len(order) - order[::-1].index(request)]
    assert between.count(talking) >= len(LONG) // SCORED_ROWS - 1


def _until_done(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    return events


def test_nothing_is_scored_twice_after_a_preemption() -> None:
    """The KV cache is full when a part of the prompt is scored: the rest is scored later."""
    model = FakeModel(sequences=2, kv_cells=120)
    params = ScoringParams(max_tokens=2, logprobs=3, score_prompt=True)
    with Engine(model) as engine:
        one = engine.add([1, 2], SamplingParams(max_tokens=60, ignore_eos=True))
        for _ in range(40):
            engine.step()
        request = engine.add(LONG, params)
        events = run(engine, one, request)
        assert engine.preemptions == 1
    with Engine(FakeModel()) as engine:
        alone = score(engine, LONG, params)
    assert scores(events[request]) == scores(alone)
    assert answer(events[request])[0].logprob == answer(alone)[0].logprob


@given(
    lengths=st.lists(st.tuples(st.integers(1, 80), st.booleans(), st.booleans()), min_size=1, max_size=5),
    max_rows=st.integers(2, 40),
    max_batch=st.integers(8, 64),
    sequences=st.integers(1, 3),
)
def test_whatever_runs_beside_it_each_prompt_is_scored_once(
    lengths: list[tuple[int, bool, bool]], max_rows: int, max_batch: int, sequences: int
) -> None:
    model = FakeModel(max_rows=max_rows, max_batch=max_batch, sequences=sequences)
    with Engine(model) as engine:
        requests = [
            engine.add(
                [number + 1, *range(length)],
                ScoringParams(max_tokens=3, logprobs=1, score_prompt=scored, answers=answers),
            )
            for number, (length, scored, answers) in enumerate(lengths)
        ]
        events = run(engine, *requests)
    for number, (request, (length, scored, answers)) in enumerate(zip(requests, lengths, strict=True)):
        found = scores(events[request])
        assert [one.token for one in found] == (list(range(length)) if scored else [])
        with Engine(FakeModel()) as alone:
            assert found == (scores(score(alone, [number + 1, *range(length)], _LIKE)) if scored else [])
        assert bool(answer(events[request])) == answers


_LIKE = ScoringParams(logprobs=1, score_prompt=True, answers=False)


@pytest.mark.parametrize("bound", [0, 3, 40])
def test_models_that_cannot_go_back_are_scored_too(bound: int) -> None:
    inner = FakeRecurrentModel(bound=bound)
    with Engine(RewindingModel(inner), drafters=[ScriptedDrafter(lambda tokens: tokens[:4])]) as engine:
        talking = engine.add([5, 6, 7], SamplingParams(max_tokens=30, ignore_eos=True))
        events = run(engine, talking, request := engine.add(LONG, ONLY))
        scored = scores(events[request])
        again = scores(score(engine, LONG))
        assert not engine.notes, "the drafter did not fail"
    with Engine(FakeModel()) as alone:
        assert scored == again == scores(score(alone, LONG))


# --- Engine.score ----------------------------------------------------------------------------------------


def test_a_prompt_is_scored_in_one_call() -> None:
    with Engine(FakeModel()) as engine:
        expected = scores(score(engine, LONG))
        found = engine.score(LONG, logprobs=3)
        assert found.tokens == tuple(LONG)
        assert list(found.logprobs) == expected
        assert all(len(one.top) == 3 for one in found.logprobs)
        assert found.total == pytest.approx(sum(one.logprob for one in expected))
        assert found.total < 0
        assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(LONG), 0)
        assert found.timings.prompt_n == len(LONG)
        assert engine.idle


def test_without_being_asked_no_alternatives_come() -> None:
    with Engine(FakeModel()) as engine:
        found = engine.score(LONG)
        assert all(one.top == () for one in found.logprobs)
        assert [one.token for one in found.logprobs] == LONG[1:]


def test_of_one_token_there_is_nothing_to_say() -> None:
    with Engine(FakeModel()) as engine:
        found = engine.score([7])
    assert (found.tokens, found.logprobs, found.total) == ((7,), (), 0)


@pytest.mark.parametrize("prompt", ["once upon a time", [{"role": "user", "content": "Hello"}]])
def test_text_and_messages_are_encoded_as_for_an_answer(prompt: Prompt) -> None:
    with Engine(FakeModel()) as engine:
        found = engine.score(prompt)
        assert list(found.tokens) == engine.encode(prompt)
        assert len(found.logprobs) == len(found.tokens) - 1


def test_others_are_read_on_while_a_prompt_is_scored() -> None:
    with Engine(FakeModel(sequences=2)) as engine:
        alone = engine.generate([1, 2], max_tokens=40, ignore_eos=True)
        stream = engine.stream([1, 2], max_tokens=40, ignore_eos=True)
        next(stream)
        found = engine.score(LONG)
        assert len(found.logprobs) == len(LONG) - 1
        assert fold(stream).tokens[-30:] == alone.tokens[-30:]


@pytest.mark.parametrize("prompt", [[], [10**6]])
def test_what_is_no_prompt_is_refused(prompt: list[int]) -> None:
    with Engine(FakeModel()) as engine, pytest.raises(RequestError):
        engine.score(prompt)


def test_a_prompt_that_cannot_be_computed_has_no_scores() -> None:
    with Engine(FakeModel(kv_cells=50)) as engine:
        with pytest.raises(BackendError, match="could not be scored"):
            engine.score(LONG)
        assert engine.idle
        assert len(engine.score(LONG[:20]).logprobs) == 19


def options_of(cache: Path) -> EngineOptions:
    return {
        "context_length": 512,
        "sequences": 2,
        "threads": 1,
        "gpu_layers": 0,
        "cache_dir": cache,
        "remember": False,
    }


@pytest.mark.model
def test_a_real_model_finds_what_is_true_likelier(model_path: Path, shared_cache: Path) -> None:
    """The example of docs/python-api.md."""
    page = (Path(__file__).parents[3] / "docs" / "python-api.md").read_text(encoding="utf-8")
    [example] = [
        code for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if ".score(" in code
    ]
    load = partial(Engine.load, model_path, speculate="off", **options_of(shared_cache))
    names: dict[str, object] = {}
    with patch.object(Engine, "load", load):
        exec(example, names)
    assert names["best"] == " Paris."


@pytest.mark.model
def test_a_real_model_s_scores_are_those_of_decoding(model_path: Path, shared_cache: Path) -> None:
    with Engine.load(model_path, speculate="off", **options_of(shared_cache)) as engine:
        assert engine.model.capabilities.batch_invariant
        prompt = engine.encode("The capital of France is")
        tokens, expected = decoded(engine, prompt, 24)
        found = scores(score(engine, [*prompt, *tokens]))
    assert found[len(prompt) - 1 :] == expected


def test_what_a_drafter_observes_is_the_answer_alone() -> None:
    """The scored rows of a prompt come with the one that begins the answer."""
    drafter = ScriptedDrafter(lambda _: None)
    engine = Engine(FakeModel(258), drafters=[drafter])
    asked = ScoringParams(logprobs=3, score_prompt=True, answers=True, max_tokens=4, ignore_eos=True)
    [events] = run(engine, engine.add(LONG, asked)).values()
    assert end(events).reason is FinishReason.LENGTH
    observed = [token for outcome in drafter.outcomes for token in outcome.tokens]
    assert observed == [event.token for event in answer(events)]
    assert drafter.outcomes[0].kept == len(LONG)
