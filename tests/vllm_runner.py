"""A stand-in for vLLM around a proposer: rows, prompts in chunks, verification, preemption, as its scheduler
and model runner have them, in Python and without a model.

What is mirrored (vLLM 0.32 and 0.33, `v1/worker/gpu_model_runner.py`, `v1/core/sched/scheduler.py`): in a
step requests that are over or not scheduled leave their rows, and the last rows move up; new and resumed
requests take the next free ones. Every row that is scheduled computes some of its tokens. One whose tokens
are not all computed samples nothing; the others commit what they accept of their drafts, and one token
more. Then the proposer is called with all rows, also those of requests that end with this step; but not
while a request is too near to the context's end: then drafts of zeros are verified. A row that is free
keeps what was in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from foredraft.scale.vllm import Hook
from foredraft.scale.vllm_config import OPTIONS

NextToken = Callable[[Sequence[int]], int]


@dataclass
class Speculative:
    """vLLM's SpeculativeConfig."""

    method: str | None = "custom_class"
    model: str | None = "foredraft.scale.vllm.Proposer"
    num_speculative_tokens: int = 16
    num_speculative_tokens_per_batch_size: object = None


@dataclass
class Model:
    """vLLM's ModelConfig."""

    model: str = "tiny"
    max_model_len: int = 256
    hf_config: object = field(default_factory=lambda: SimpleNamespace(eos_token_id=None))
    vocabulary: int = 64

    def get_vocab_size(self) -> int:
        return self.vocabulary


@dataclass
class Scheduler:
    """vLLM's SchedulerConfig."""

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    async_scheduling: bool | None = False


@dataclass
class Parallel:
    """vLLM's ParallelConfig."""

    pipeline_parallel_size: int = 1


@dataclass
class Device:
    """vLLM's DeviceConfig."""

    device_type: str = "cuda"


@dataclass
class Config:
    """vLLM's VllmConfig."""

    speculative_config: Speculative | None = field(default_factory=Speculative)
    model_config: Model = field(default_factory=Model)
    scheduler_config: Scheduler = field(default_factory=Scheduler)
    parallel_config: Parallel = field(default_factory=Parallel)
    device_config: Device = field(default_factory=Device)
    additional_config: object = field(default_factory=dict)


def config(*, longest: int = 16, vocabulary: int = 64, context: int = 256, **options: object) -> Config:
    """A configuration with our `options`."""
    return Config(
        Speculative(num_speculative_tokens=longest),
        Model(max_model_len=context, vocabulary=vocabulary),
        additional_config={OPTIONS: options} if options else {},
    )


@dataclass
class Served:
    """A request. `computed` counts the tokens in the KV cache, `drafts` what is verified next."""

    name: int
    tokens: list[int]
    end: int
    computed: int = 0
    drafts: list[int] = field(default_factory=list)


class Runner:
    """Steps of vLLM with a proposer, None for none. The model's next token is a function of the text.
    `proposals` holds what was proposed for each row in the last call. `drafted` and `accepted` count tokens.
    """

    def __init__(self, settings: Config, proposer: Hook | None, next_token: NextToken) -> None:
        self.proposer = proposer
        self.done: dict[int, list[int]] = {}
        self.waiting: list[Served] = []
        self.proposals: list[tuple[Served, list[int]]] = []
        self.called = False
        """Whether the last step called the proposer."""
        self.drafted = self.accepted = 0
        self.computed_rows = 0
        """Rows of the last step's forward."""
        self._next = next_token
        self._context = settings.model_config.max_model_len
        self._most = settings.scheduler_config.max_num_seqs
        self._budget = settings.scheduler_config.max_num_batched_tokens
        assert settings.speculative_config is not None
        self._longest = settings.speculative_config.num_speculative_tokens
        self._rows: list[Served | None] = [None] * self._most
        self._tokens = np.full((self._most, self._context), -7, np.int32)
        self._lengths = np.zeros(self._most, np.int32)

    @property
    def running(self) -> list[Served]:
        return [request for request in self._rows if request is not None]

    def add(self, name: int, prompt: Sequence[int], tokens: int) -> None:
        """A request for so many tokens comes."""
        end = min(len(prompt) + tokens, self._context)
        self.waiting.append(Served(name, list(prompt), end))

    def preempt(self, name: int) -> None:
        """Its cells are gone: it is computed again later."""
        for place, request in enumerate(self._rows):
            if request is not None and request.name == name:
                self._rows[place] = None
                request.computed, request.drafts = 0, []
                self.waiting.insert(0, request)

    def abort(self, name: int) -> None:
        """Its client is gone."""
        self._rows = [None if it is not None and it.name == name else it for it in self._rows]

    def step(self, unscheduled: Iterable[int] = ()) -> None:
        """A step, in which the requests of these names have no room."""
        left_out = [it for it in self.running if it.name in set(unscheduled)]
        kept = [None if it in left_out else it for it in self._rows]
        self._rows = kept
        self._fill(left_out)
        sampled: list[list[int]] = []
        budget, self.computed_rows = self._budget, 0
        for place, request in enumerate(self._rows):
            if request is None:
                break
            came, rows = self._compute(request, budget)
            budget -= rows
            self.computed_rows += rows
            sampled.append(came)
            start = int(self._lengths[place])
            self._tokens[place, start : start + len(came)] = came
            self._lengths[place] += len(came)
            request.tokens += came
        self._propose(sampled)
        for place, request in enumerate(self._rows):
            if request is not None and len(request.tokens) >= request.end:
                self.done[request.name] = request.tokens[: request.end]
                self._rows[place] = None
        self.waiting = left_out + self.waiting

    def _fill(self, left_out: Sequence[Served]) -> None:
        """Free rows at the end, and then who waits in them."""
        last = self._most - 1
        for place in range(self._most):
            if self._rows[place] is not None:
                continue
            while last > place and self._rows[last] is None:
                last -= 1
            if last <= place:
                break
            self._rows[place], self._rows[last] = self._rows[last], None
            length = int(self._lengths[last])
            self._tokens[place, :length] = self._tokens[last, :length]
            self._lengths[place] = length
        for place in range(self._most):
            if self._rows[place] is None and self.waiting:
                request = self.waiting.pop(0)
                assert request not in left_out
                self._rows[place] = request
                self._tokens[place, : len(request.tokens)] = request.tokens
                self._lengths[place] = len(request.tokens)

    def _compute(self, request: Served, budget: int) -> tuple[list[int], int]:
        """(the tokens that come, the rows that were computed), with at most `budget` rows."""
        drafts, request.drafts = request.drafts, []
        missing = len(request.tokens) - request.computed
        if missing > budget or not budget:
            request.computed += budget
            return [], budget
        drafts = drafts[: min(budget - missing, self._context - len(request.tokens) - 1)]
        came = [self._next(request.tokens)]
        for draft in drafts:
            if draft != came[-1]:
                break
            came.append(self._next(request.tokens + came))
        self.drafted += len(drafts)
        self.accepted += len(came) - 1
        came = came[: self._context - len(request.tokens)]
        request.computed = len(request.tokens) + len(came) - 1
        return came, missing + len(drafts)

    def _propose(self, sampled: list[list[int]]) -> None:
        rows = [it for it in self._rows if it is not None]
        self.called, self.proposals = False, []
        if self.proposer is None or not rows:
            return
        longest = max(it.computed for it in rows)
        if longest + self._longest > self._context:  # vLLM then verifies zeros
            for request, came in zip(rows, sampled, strict=True):
                request.drafts = [0] * self._longest if came else []
            return
        self.called = True
        copies = [list(came) for came in sampled]
        drafts = self.proposer.propose(copies, self._lengths, self._tokens, slot_mappings=None)
        assert len(drafts) == len(rows)
        for request, came, draft in zip(rows, sampled, drafts, strict=True):
            self.proposals.append((request, draft))
            if came:
                request.drafts = draft

    def finish(self, steps: int = 10_000) -> dict[int, list[int]]:
        """Steps until all requests are over: their texts, by name."""
        for _ in range(steps):
            if not self.waiting and not self.running:
                break
            self.step()
        assert not self.waiting
        assert not self.running
        return self.done
