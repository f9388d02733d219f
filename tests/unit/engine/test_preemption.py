"""When the KV cache is full: kept prefixes go first, then drafts, then the youngest request waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import Completion, Engine, FinishEvent, FinishReason, SamplingParams
from foredraft.engine.commit import accept_tokens
from foredraft.errors import OutOfKVError
from foredraft.testing import FakeModel, ScriptedDrafter, markov_logits
from foredraft.types import Rows, TokenEvent

TWENTY = SamplingParams(max_tokens=20, ignore_eos=True)


def alone(prompt: Sequence[int], params: SamplingParams = TWENTY) -> tuple[int, ...]:
    return Engine(FakeModel()).generate(list(prompt), params).tokens


def test_the_test_model_counts_its_cells() -> None:
    model = FakeModel(kv_cells=10)
    model.forward([Rows(0, 0, [1] * 6, 1), Rows(1, 0, [1] * 4, 1)])
    for refused in (lambda: model.forward([Rows(0, 6, [1], 1)]), lambda: model.fork(0, 2, 3)):
        with pytest.raises(OutOfKVError):
            refused()
    assert (model.length(0), model.length(1), model.length(2), model.cells) == (6, 4, 0, 10)
    model.fork(0, 1, 2)
    model.forward([Rows(0, 6, [1, 1], 1)])
    assert model.cells == 10


def run_in(
    cells: int, prompts: Sequence[Sequence[int]], *, sequences: int = 4
) -> tuple[Engine, list[Completion]]:
    engine = Engine(FakeModel(kv_cells=cells, sequences=sequences))
    return engine, engine.run([engine.add(list(prompt), TWENTY) for prompt in prompts])


def test_the_youngest_request_waits_and_goes_on_with_the_same_text() -> None:
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8]]
    engine, results = run_in(40, prompts)
    assert engine.preemptions > 0
    assert [result.tokens for result in results] == [alone(prompt) for prompt in prompts]
    assert {result.finish_reason for result in results} == {FinishReason.LENGTH}
    assert [result.error for result in results] == [None] * 3
    assert [result.usage.completion_tokens for result in results] == [20] * 3


@pytest.mark.parametrize("exact", [True, False])
def test_an_answer_says_how_often_it_waited_and_whether_that_may_have_changed_it(exact: bool) -> None:
    model = FakeModel(kv_cells=40)
    model.with_capabilities(batch_invariant=exact, invariance_note="as measured")
    engine = Engine(model)
    old, young = engine.run([engine.add([1, 2, 3], TWENTY), engine.add([4, 5, 6], TWENTY)])
    assert (old.speculation.preemptions, young.speculation.preemptions) == (0, engine.preemptions)
    assert (old.speculation.exact, old.speculation.exact_reason) == (exact, "as measured")
    assert young.speculation.exact is exact
    assert ("read again after preemption" in young.speculation.exact_reason) is not exact


def test_with_room_for_all_nobody_waits() -> None:
    engine, _ = run_in(200, [[1, 2, 3], [4, 5, 6], [7, 8]])
    assert engine.preemptions == 0


def order_of_ends(engine: Engine) -> list[int]:
    order: list[int] = []
    while not engine.idle:
        order += [event.request for event in engine.step() if isinstance(event, FinishEvent)]
    return order


def test_older_requests_are_not_held_up_by_younger_ones() -> None:
    engine = Engine(FakeModel(kv_cells=40))
    ids = [engine.add([n], TWENTY) for n in range(4)]
    assert order_of_ends(engine) == ids


def test_the_lowest_priority_waits_first_however_old() -> None:
    engine = Engine(FakeModel(kv_cells=30))
    low = engine.add([1], TWENTY, priority=-1)
    engine.step()
    high = engine.add([2], TWENTY)
    assert order_of_ends(engine) == [high, low]
    assert engine.preemptions == 1


def test_a_preempted_request_comes_back_before_those_that_came_later() -> None:
    engine = Engine(FakeModel(kv_cells=30, sequences=2))
    ids = [engine.add([1], TWENTY), engine.add([2], TWENTY), engine.add([3], TWENTY)]
    assert order_of_ends(engine) == ids


def test_its_cells_are_free_at_once_and_nobody_comes_in_meanwhile() -> None:
    model = FakeModel(kv_cells=30, sequences=4)
    engine = Engine(model)
    engine.add([1], TWENTY)
    engine.add([2], TWENTY)
    while not engine.preemptions:
        engine.step()
    assert (engine.running_count, engine.waiting_count) == (1, 1)
    assert model.cells == engine.kv_tokens
    late = engine.add([3], TWENTY)
    engine.step()
    assert (engine.running_count, engine.waiting_count) == (1, 2), "they would only push each other out"
    assert order_of_ends(engine)[-1] == late


def test_a_preempted_request_can_be_aborted() -> None:
    drafter = ScriptedDrafter(lambda _: None)
    engine = Engine(FakeModel(kv_cells=30), drafters=[drafter])
    engine.add([1], TWENTY)
    young = engine.add([2], TWENTY)
    while not engine.preemptions:
        engine.step()
    [end] = engine.abort(young)
    assert isinstance(end, FinishEvent)
    assert end.reason is FinishReason.ABORT
    assert end.usage.completion_tokens > 0
    assert drafter.open == {1}


def test_drafters_know_a_request_from_its_start_to_its_end_only_once() -> None:
    class Counting(ScriptedDrafter):
        started = stopped = 0

        def start(self, request: object) -> None:
            self.started += 1

        def stop(self, request: object) -> None:
            self.stopped += 1

    drafter = Counting(lambda history: [history[-1]])
    engine = Engine(FakeModel(kv_cells=40), drafters=[drafter])
    engine.run([engine.add([n], TWENTY) for n in range(3)])
    assert engine.preemptions > 0
    assert (drafter.started, drafter.stopped) == (3, 3)


def test_prefixes_kept_for_later_go_before_a_request_waits() -> None:
    model = FakeModel(kv_cells=60, sequences=4)
    engine = Engine(model)
    engine.run([engine.add([1] * 20, SamplingParams(max_tokens=1))])
    engine.run([engine.add([2] * 20, SamplingParams(max_tokens=1))])
    assert model.cells == 40
    results = engine.run([engine.add([3], TWENTY), engine.add([4], TWENTY)])
    assert [result.tokens for result in results] == [alone([3]), alone([4])]
    assert engine.preemptions == 0
    [again] = engine.run([engine.add([2] * 20, SamplingParams(max_tokens=1))])
    assert again.usage.cached_tokens == 19, "the one used last is still there"


def test_drafts_are_given_up_before_a_request_waits() -> None:
    model = FakeModel(kv_cells=30, sequences=2)
    engine = Engine(model, drafters=[ScriptedDrafter(lambda _: [1] * 20)])
    long = SamplingParams(max_tokens=30, ignore_eos=True)
    short = SamplingParams(max_tokens=10, ignore_eos=True)
    results = engine.run([engine.add([1], long), engine.add([2], short)])
    assert [result.tokens for result in results] == [alone([1], long), alone([2], short)]
    assert engine.preemptions == 0
    assert results[0].speculation.drafters["scripted"].drafted > 0


def test_a_request_that_is_over_makes_room_before_another_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel()
    engine = Engine(model)
    old, torn = engine.add([1], TWENTY), engine.add([2], TWENTY)
    engine.step()
    with monkeypatch.context() as patch:
        calls: list[object] = []

        def tear(*arguments: object) -> object:
            calls.append(arguments)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return accept_tokens(*arguments)  # type: ignore[arg-type]

        patch.setattr("foredraft.engine.commit.accept_tokens", tear)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    with monkeypatch.context() as patch:

        def full(_: object) -> object:
            raise OutOfKVError("full")

        patch.setattr(model, "forward", full)
        [end] = engine.step()
    assert isinstance(end, FinishEvent)
    assert (end.request, end.reason, engine.preemptions) == (torn, FinishReason.ERROR, 0)
    assert order_of_ends(engine) == [old]


def test_a_prompt_that_fits_nowhere_ends_with_an_error_and_the_others_go_on() -> None:
    engine = Engine(FakeModel(kv_cells=30))
    huge = engine.add([1] * 100, TWENTY)
    small = engine.add([2], TWENTY)
    results = engine.run([huge, small])
    assert results[0].finish_reason is FinishReason.ERROR
    assert "KV cache is full" in (results[0].error or "")
    assert results[1].tokens == alone([2])
    assert engine.generate([3], TWENTY).tokens == alone([3])


def test_an_answer_that_fills_the_cache_alone_ends_as_if_its_context_were_full() -> None:
    engine = Engine(FakeModel(kv_cells=15))
    result = engine.generate([1, 2, 3], TWENTY)
    assert (result.finish_reason, result.error) == (FinishReason.LENGTH, None)
    assert result.tokens == alone([1, 2, 3])[:13]
    assert engine.generate([4], max_tokens=5).tokens == alone([4], SamplingParams(max_tokens=5))


@given(
    prompts=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=25), min_size=2, max_size=6),
    cells=st.integers(46, 120),
    gaps=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    temperature=st.sampled_from([0.0, 1.0]),
    drafts=st.integers(0, 3),
)
def test_text_logprobs_and_stops_are_those_of_a_run_with_room(
    prompts: list[list[int]], cells: int, gaps: list[int], temperature: float, drafts: int
) -> None:
    params = SamplingParams(
        temperature=temperature,
        seed=9,
        max_tokens=20,
        ignore_eos=True,
        stop=("bbb",),
        frequency_penalty=0.3,
        logprobs=1,
    )
    logits = markov_logits(6, order=2)
    plain = [Engine(FakeModel(6, logits=logits)).generate(prompt, params) for prompt in prompts]
    script = ScriptedDrafter(lambda history: list(history[:drafts]))
    model = FakeModel(6, logits=logits, kv_cells=cells, sequences=3, max_rows=4)
    engine = Engine(model, drafters=[script])
    ids = []
    for prompt, gap in zip(prompts, gaps, strict=False):
        ids.append(engine.add(prompt, params))
        engine._streams.deliver([event for _ in range(gap) for event in engine.step()])
    results = engine.run(ids)
    for result, expected in zip(results, plain, strict=True):
        assert (result.tokens, result.text, result.logprobs, result.finish_reason) == (
            expected.tokens,
            expected.text,
            expected.logprobs,
            expected.finish_reason,
        )
    assert engine.kv_tokens == 0
    assert not script.open


def test_events_of_a_preempted_request_come_once_each() -> None:
    engine = Engine(FakeModel(kv_cells=30))
    ids = [engine.add([1], TWENTY), engine.add([2], TWENTY)]
    tokens: dict[int, list[int]] = {request: [] for request in ids}
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                tokens[event.request].append(event.token)
    assert engine.preemptions == 1
    assert [tuple(tokens[request]) for request in ids] == [alone([1]), alone([2])]
