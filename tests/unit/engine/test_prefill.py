"""Prompts share forwards with decoding: a bound on the rows that hold up a stream, and who gets them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import Engine, SamplingParams
from foredraft.engine.prefill import FORWARD_MS, MIN_ROWS, PREFILL_ROWS, PromptRows, share
from foredraft.engine.request import Request, make_request
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel, ScriptedDrafter, markov_logits
from foredraft.types import FinishEvent, TokenEvent


def prompt(number: int, length: int, *, priority: int = 0, generated: int = 0) -> Request:
    model = FakeModel()
    view = RequestView(number, [1] * length, SamplingParams(), prompt_length=length)
    request = make_request(view, model.tokenizer, context_length=1 << 20, vocab_size=258)
    view.tokens.extend([2] * generated)
    request.priority = priority
    return request


def shares(prompts: Sequence[Request], rows: int, *, max_rows: int = 64) -> list[tuple[int, int]]:
    return [(request.id, count) for request, count in share(prompts, rows, max_rows)]


def test_one_prompt_gets_all_rows_it_needs() -> None:
    assert shares([prompt(1, 100)], 64) == [(1, 64)]
    assert shares([prompt(1, 10)], 64) == [(1, 10)]


@pytest.mark.parametrize("rows", [0, -3])
def test_without_room_nobody_gets_rows(rows: int) -> None:
    assert shares([prompt(1, 10)], rows) == []


def test_without_prompts_there_is_nothing_to_share() -> None:
    assert shares([], 64) == []


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    assert shares([prompt(1, 100_000), prompt(2, 20)], 64) == [(1, 44), (2, 20)]
    assert shares([prompt(1, 100_000), prompt(2, 60)], 64) == [(1, 32), (2, 32)]


def test_the_oldest_prompt_goes_on_however_many_short_ones_come() -> None:
    prompts = [prompt(1, 100_000), *(prompt(n, 10) for n in range(2, 12))]
    assert shares(prompts, 64)[0] == (1, 32)


def test_prompts_of_one_length_are_computed_one_after_the_other() -> None:
    assert shares([prompt(1, 500), prompt(2, 500), prompt(3, 500)], 64) == [(1, 64)]


def test_a_higher_priority_takes_rows_first() -> None:
    prompts = [prompt(1, 100), prompt(2, 5), prompt(3, 70, priority=1)]
    assert shares(prompts, 64) == [(3, 64)]
    assert shares(prompts, 80) == [(1, 5), (2, 5), (3, 70)]


def test_generated_tokens_are_recomputed_in_no_more_rows_than_they_were_verified_in() -> None:
    resumed = prompt(1, 100, generated=50)
    assert shares([resumed], 512, max_rows=16) == [(1, 100)]
    resumed.computed = 100
    assert shares([resumed], 512, max_rows=16) == [(1, 16)]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 2)), max_size=6),
    rows=st.integers(0, 200),
)
def test_no_row_is_given_twice_nor_left_over(lengths: list[tuple[int, int]], rows: int) -> None:
    prompts = [prompt(n, length, priority=p) for n, (length, p) in enumerate(lengths)]
    given_rows = share(prompts, rows, 64)
    assert sum(count for _, count in given_rows) == min(rows, sum(length for length, _ in lengths))
    assert all(0 < count <= request.pending for request, count in given_rows)
    assert len({request.id for request, _ in given_rows}) == len(given_rows)


def prompt_rows(model: FakeModel, seq: int) -> list[int]:
    """Rows of one sequence in each forward that had any."""
    return [len(rows.tokens) for batch in model.forwards for rows in batch if rows.seq == seq]


def test_a_long_prompt_holds_up_a_stream_by_no_more_than_the_stated_rows() -> None:
    model = FakeModel(max_batch=512)
    engine = Engine(model, drafters=[ScriptedDrafter(lambda _: [1, 2, 3])], clock=lambda: 0.0)
    running = engine.add([1, 2], SamplingParams(max_tokens=200, ignore_eos=True))
    engine.step()
    engine.step()
    late = engine.add([5] * 1000, SamplingParams(max_tokens=2, ignore_eos=True))
    model.forwards.clear()
    answered = False
    while not answered:
        events = engine.step()
        assert any(isinstance(event, TokenEvent) and event.request == running for event in events)
        answered = any(event.request == late for event in events)
    assert max(sum(len(rows.tokens) for rows in batch) for batch in model.forwards) == PREFILL_ROWS + 1 + 3
    assert len(model.forwards) == -(-1000 // PREFILL_ROWS)


def test_with_nothing_decoding_a_prompt_gets_the_whole_batch() -> None:
    model = FakeModel(max_batch=512)
    Engine(model).generate([5] * 1000, max_tokens=1)
    assert prompt_rows(model, 0) == [512, 488]


def test_a_short_prompt_is_answered_while_a_long_one_is_computed() -> None:
    engine = Engine(FakeModel(sequences=3, context_length=20_000))
    engine.add([1, 2], SamplingParams(max_tokens=500, ignore_eos=True))
    engine.step()
    long = engine.add([3] * 10_000, SamplingParams(max_tokens=1))
    engine.step()
    short = engine.add([4] * 40, SamplingParams(max_tokens=1))
    events = [event for _ in range(2) for event in engine.step()]
    ended = {event.request for event in events if isinstance(event, FinishEvent)}
    assert ended == {short}
    assert long not in ended


@given(
    arrivals=st.lists(
        st.tuples(st.integers(1, 150), st.integers(0, 6), st.integers(0, 1)), min_size=2, max_size=6
    ),
    temperature=st.sampled_from([0.0, 1.0]),
    speculate=st.booleans(),
)
def test_text_is_that_of_the_request_alone_whoever_shares_its_forwards(
    arrivals: list[tuple[int, int, int]], temperature: float, speculate: bool
) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=12, ignore_eos=True)
    logits = markov_logits(7, order=3)
    prompts = [[(n * 3 + i * i) % 7 for i in range(length)] for n, (length, _, _) in enumerate(arrivals)]
    alone = [Engine(FakeModel(7, logits=logits)).generate(tokens, params).tokens for tokens in prompts]
    drafters = [ScriptedDrafter(lambda history: [history[-1], 1])] if speculate else []
    engine = Engine(FakeModel(7, logits=logits, sequences=3), drafters=drafters)
    ids = []
    for tokens, (_, rounds, priority) in zip(prompts, arrivals, strict=True):
        ids.append(engine.add(tokens, params, priority=priority))
        stepped = [event for _ in range(rounds) for event in engine.step()]
        engine._streams.deliver(stepped)
    assert [result.tokens for result in engine.run(ids)] == alone


def test_a_forward_that_decodes_has_as_many_rows_as_take_no_longer_than_it_should() -> None:
    rows = PromptRows()
    took = 0.0
    for _ in range(8):
        count = rows.most(1000, decoding=True)
        took = 20.0 + 6.0 * count
        rows.learn(count, took)
    assert MIN_ROWS < count < PREFILL_ROWS
    assert took == pytest.approx(FORWARD_MS, rel=0.1)


def test_slow_forwards_still_have_some_rows_and_fast_ones_no_more_than_the_most() -> None:
    rows = PromptRows()
    rows.learn(64, 60_000.0)
    assert rows.most(1000, decoding=True) == MIN_ROWS
    assert rows.most(1000, decoding=False) == 1000, "nobody waits"
    assert rows.most(5, decoding=True) == 5
    rows.learn(MIN_ROWS, 4.0)
    assert rows.most(1000, decoding=True) == PREFILL_ROWS
    rows.learn(1, 22.0)
    assert rows.most(1000, decoding=True) == PREFILL_ROWS, "that was the end of a prompt"
