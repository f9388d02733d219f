"""The proposer for vLLM under hostile schedules: rows that move, preemption, chunks, equal texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.base import HistoryDrafter
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.registry import register_drafter, unregister_drafter
from foredraft.scale.vllm import Proposer
from foredraft.scale.vllm_requests import IDLE_CALLS
from foredraft.types import Draft, DraftLimit, Outcome
from vllm_runner import Config, Runner, config

VOCABULARY, CONTEXT, LONGEST = 32, 96, 5


def next_token(text: Sequence[int]) -> int:
    return hash(tuple(text[-3:])) % 7


def guess(text: Sequence[int]) -> tuple[int, ...]:
    """What is drafted after a text: the next tokens as they will be, then wrong ones; often none."""
    number = hash(tuple(text))
    right, wrong = (number % 6, number // 6 % 3) if number % 4 else (0, 0)
    tokens = list(text)
    for _ in range(right):
        tokens.append(next_token(tokens))
    return (*tokens[len(text) :], *[VOCABULARY - 1] * wrong)


class Told(HistoryDrafter[list[int]]):
    """Drafts by what it was told of a request, and by nothing else."""

    name = "told"

    def build(self, request: RequestView) -> list[int]:
        return list(request.tokens)

    def extend(self, state: list[int], request: RequestView, outcome: Outcome) -> None:
        state += outcome.tokens

    def size(self, state: list[int]) -> int:
        return len(state)

    def propose(self, state: list[int], request: RequestView, limit: DraftLimit) -> Draft | None:
        tokens = guess(state)[: limit.max_tokens]
        return Draft(tokens, self.name) if tokens else None


@pytest.fixture(autouse=True, scope="module")
def told() -> Iterator[None]:
    def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
        return Told()

    register_drafter("told", create)
    yield
    unregister_drafter("told")


class Clock:
    """Seconds that pass as they like: also not at all, and hours."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._now = rng, 0.0

    def __call__(self) -> float:
        self._now += self._rng.choice([0.0, 1e-6, 1e-4, 1e-3, 1e-2, self._rng.choice([1.0, 4000.0])])
        return self._now


def settings_of(rng: random.Random, speculate: str) -> Config:
    settings = config(longest=LONGEST, vocabulary=VOCABULARY, context=CONTEXT, speculate=speculate)
    settings.scheduler_config.max_num_seqs = rng.randint(1, 6)
    settings.scheduler_config.max_num_batched_tokens = rng.choice([6, 12, 40, 200])
    return settings


def prompt_of(rng: random.Random, before: Sequence[Sequence[int]]) -> list[int]:
    """A prompt: new, one that came before, or its beginning, with another end, or another beginning."""
    new = [rng.randrange(rng.choice([2, 7, VOCABULARY])) for _ in range(rng.randint(1, 50))]
    if not before or rng.random() < 0.3:
        return new
    old = list(rng.choice(before))
    kind = rng.randrange(4)
    if kind == 0:
        return old
    if kind == 1:
        return [rng.randrange(7), *old[1:]]
    place = rng.randint(1, len(old))
    return (old[:place] + new[: rng.randrange(3)])[: CONTEXT - 2]


def run(runner: Runner, rng: random.Random, steps: int = 50) -> dict[int, list[int]]:
    """A random schedule. Returns the texts that are right, by request."""
    prompts: list[list[int]] = []
    expected: dict[int, list[int]] = {}
    for _ in range(steps):
        running = [request.name for request in runner.running]
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            prompts.append(prompt_of(rng, prompts))
            name, tokens = len(prompts), rng.randint(1, 60)
            runner.add(name, prompts[-1], tokens)
            text = expected[name] = list(prompts[-1])
            while len(text) < min(len(prompts[-1]) + tokens, CONTEXT):
                text.append(next_token(text))
        if running and rng.random() < 0.15:
            runner.preempt(rng.choice(running))
        if running and rng.random() < 0.03:
            name = rng.choice(running)
            if any(request.name == name for request in runner.running):
                runner.abort(name)
                del expected[name]
        runner.step([name for name in running if rng.random() < 0.05])
        check(runner)
    runner.finish()
    return expected


def check(runner: Runner) -> None:
    for request, draft in runner.proposals:
        assert len(draft) <= LONGEST
        assert len(request.tokens) + len(draft) < CONTEXT or not draft
        assert all(type(token) is int and 0 <= token < VOCABULARY for token in draft)


class Checked(Runner):
    """A runner that knows what `Told` drafts if it was told of each request what the request says."""

    checked = 0

    def _propose(self, sampled: list[list[int]]) -> None:
        super()._propose(sampled)
        for (request, draft), came in zip(self.proposals, sampled, strict=False):
            room = min(LONGEST, CONTEXT - len(request.tokens) - 1)
            if came and not self.crowded(len(sampled)):
                assert draft == list(guess(request.tokens)[: max(0, room)])
                self.checked += 1

    def crowded(self, rows: int) -> bool:
        """Whether the forward has no room for the longest drafts of all."""
        return self._budget // 2 // max(rows, 1) < LONGEST + 1


@given(st.integers(0, 1 << 32))
def test_each_request_is_known_by_its_text(seed: int) -> None:
    rng = random.Random(seed)
    settings = settings_of(rng, "told")
    settings.scheduler_config.max_num_batched_tokens = 200
    proposer = Proposer(settings, clock=Clock(rng))
    runner = Checked(settings, proposer, next_token)
    assert run(runner, rng) == runner.done
    assert runner.checked > 20
    stats = proposer.statistics()
    assert not stats.notes
    assert "error" not in str(stats.reason)


@given(st.integers(0, 1 << 32), st.sampled_from(["auto", "suffix;recycle", "told;auto", "ngram-mod:min=0"]))
def test_no_schedule_changes_a_text_or_raises(seed: int, speculate: str) -> None:
    rng = random.Random(seed)
    settings = settings_of(rng, speculate)
    proposer = Proposer(settings, clock=Clock(rng))
    runner = Runner(settings, proposer, next_token)
    assert run(runner, rng) == runner.done
    stats = proposer.statistics()
    assert not stats.notes
    assert "error" not in str(stats.reason)
    assert len(proposer) <= 2 * settings.scheduler_config.max_num_seqs


def test_requests_that_are_over_are_forgotten() -> None:
    settings = config(longest=LONGEST, vocabulary=200, context=200, speculate="suffix")
    proposer = Proposer(settings)
    runner = Runner(settings, proposer, len)  # nothing repeats, so each step is a token
    for name in range(6):
        runner.add(name, [name, 2, 3], 8)
    runner.finish()
    assert len(proposer) == 6
    runner.add(7, [9, 9, 9], IDLE_CALLS - 1)
    runner.finish()
    assert len(proposer) == 7
    runner.add(8, [8, 9, 9], 1)
    runner.finish()
    assert len(proposer) == 2


def test_one_that_comes_back_is_known_again() -> None:
    """A preempted request keeps its budget and what its drafters know: its text was never read twice."""
    settings = config(longest=LONGEST, vocabulary=VOCABULARY, context=CONTEXT, speculate="suffix")
    proposer = Proposer(settings)
    runner = Runner(settings, proposer, next_token)
    runner.add(1, [1, 2, 3], 40)
    runner.add(2, [1, 2, 3], 40)
    for step in range(30):
        if step % 7 == 6:
            runner.preempt(1 + step % 2)
        runner.step()
    assert len(proposer) == 2
