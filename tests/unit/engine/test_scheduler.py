"""Who runs: first come, first served, prompts in chunks beside those who decode."""

from __future__ import annotations

import pytest

from foredraft.engine.prefill import PREFILL_ROWS
from foredraft.engine.request import Request, make_request
from foredraft.engine.scheduler import MAX_ADMITTED_TOKENS, Scheduler
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel
from foredraft.types import Rows, SamplingParams


def request(number: int, prompt: list[int], model: FakeModel, scope: str = "") -> Request:
    view = RequestView(number, prompt, SamplingParams(), prompt_length=len(prompt), scope=scope)
    return make_request(view, model.tokenizer, context_length=100, vocab_size=model.info.vocab_size)


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(sequences=2, max_batch=16)


def scheduler_of(model: FakeModel, *prompts: list[int]) -> tuple[Scheduler, list[Request]]:
    scheduler = Scheduler(model)
    requests = [request(number, prompt, model) for number, prompt in enumerate(prompts, 1)]
    for waiting in requests:
        scheduler.enqueue(waiting)
    return scheduler, requests


def admit(scheduler: Scheduler) -> list[int]:
    admitted: list[int] = []
    scheduler.admit(lambda request: admitted.append(request.id))
    return admitted


def compute(scheduler: Scheduler, model: FakeModel, request: Request, count: int) -> None:
    """Compute `count` rows of a prompt; after its last one a token follows."""
    tokens = request.view.tokens[request.computed : request.computed + count]
    model.forward([Rows(request.seq, request.computed, tokens, 1)])
    request.computed += count
    if request.pending == 0:
        request.accept(7)


def test_requests_are_admitted_in_order_as_far_as_there_are_sequences(model: FakeModel) -> None:
    scheduler, requests = scheduler_of(model, [1], [2], [3])
    assert admit(scheduler) == [1, 2]
    assert [request.seq for request in scheduler.running] == [0, 1]
    assert admit(scheduler) == []
    assert list(scheduler.waiting) == requests[2:]
    scheduler.remove(requests[1], keep=True)
    assert admit(scheduler) == [3]
    assert requests[2].seq == 1


def test_long_prompts_are_admitted_one_in_a_round() -> None:
    """Drafters read each of them while every stream waits."""
    model = FakeModel(sequences=4)
    scheduler, _ = scheduler_of(model, [1] * MAX_ADMITTED_TOKENS, [2], [3] * (MAX_ADMITTED_TOKENS - 1), [4])
    assert admit(scheduler) == [1]
    assert admit(scheduler) == [2, 3]
    assert admit(scheduler) == [4]


def test_a_request_begins_with_what_is_cached(model: FakeModel) -> None:
    scheduler, [first] = scheduler_of(model, [1, 2, 3, 4])
    admit(scheduler)
    compute(scheduler, model, first, 4)
    scheduler.remove(first, keep=True)
    again = request(2, [1, 2, 3, 4, 7, 9], model)
    scheduler.enqueue(again)
    admit(scheduler)
    assert (again.cached, again.computed, again.pending) == (4, 4, 2)
    assert not again.decoding


def test_a_failed_request_leaves_nothing_behind(model: FakeModel) -> None:
    scheduler, [first] = scheduler_of(model, [1, 2, 3, 4])
    admit(scheduler)
    compute(scheduler, model, first, 4)
    scheduler.remove(first, keep=False)
    again = request(2, [1, 2, 3, 4, 5], model)
    scheduler.enqueue(again)
    admit(scheduler)
    assert again.cached == 0


def test_prompts_are_prefilled_within_the_budget_oldest_first(model: FakeModel) -> None:
    scheduler, [first, second] = scheduler_of(model, [1] * 10, [2] * 10)
    admit(scheduler)
    for budget, expected in (
        (0, []),
        (4, [(first, 4)]),
        (10, [(first, 10)]),
        (13, [(first, 10), (second, 3)]),
        (99, [(first, 10), (second, 10)]),
    ):
        assert scheduler.prefilling(budget) == expected
    compute(scheduler, model, first, 6)
    assert scheduler.prefilling(9) == [(first, 4), (second, 5)]


def test_a_request_decodes_once_its_prompt_is_computed(model: FakeModel) -> None:
    scheduler, [first, second] = scheduler_of(model, [1, 2, 3], [4, 5])
    admit(scheduler)
    assert scheduler.decoding() == []
    compute(scheduler, model, first, 2)
    assert scheduler.decoding() == [], "one row of the prompt is left"
    compute(scheduler, model, first, 1)
    assert scheduler.decoding() == [first]
    assert scheduler.prefilling(99) == [(second, 2)]


def test_the_load_is_what_shares_the_forward(model: FakeModel) -> None:
    scheduler, [first, second] = scheduler_of(model, [1, 2, 3], [4] * 40)
    admit(scheduler)
    compute(scheduler, model, first, 3)
    load = scheduler.load(scheduler.decoding())
    assert (load.decoding, load.prefill_rows, load.depth) == (1, 16, 3), "at most a batch of rows"
    assert scheduler.prefilling(13, decoding=True) == [(second, 13)]
    compute(scheduler, model, second, 16)
    compute(scheduler, model, second, 16)
    assert scheduler.load(scheduler.decoding()).prefill_rows == 8


def test_prompts_beside_decoding_are_a_small_part_of_the_load() -> None:
    model = FakeModel(sequences=2, max_batch=512)
    scheduler, [first, second] = scheduler_of(model, [1, 2, 3], [4] * 400)
    admit(scheduler)
    assert scheduler.load([]).prefill_rows == 403
    compute(scheduler, model, first, 3)
    assert scheduler.load([first]).prefill_rows == PREFILL_ROWS
    assert scheduler.prefilling(500, decoding=True) == [(second, PREFILL_ROWS)]
    assert scheduler.prefilling(500) == [(second, 400)]


def test_requests_are_found_wherever_they_are(model: FakeModel) -> None:
    scheduler, requests = scheduler_of(model, [1], [2], [3])
    admit(scheduler)
    assert [scheduler.find(number) for number in (1, 2, 3)] == requests
    assert scheduler.find(4) is None


def test_a_waiting_request_can_be_removed(model: FakeModel) -> None:
    scheduler, requests = scheduler_of(model, [1], [2], [3])
    admit(scheduler)
    scheduler.remove(requests[2], keep=True)
    assert scheduler.find(3) is None
    idle = [scheduler.idle]
    for running in requests[:2]:
        scheduler.remove(running, keep=True)
        idle.append(scheduler.idle)
    assert idle == [False, False, True]
    assert None not in [scheduler.cache.acquire([number]) for number in (1, 2)], "both are free again"
