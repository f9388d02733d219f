"""The engine in virtual time: made-up texts, cost curves that ship, and a drafter that takes time.

Nothing here depends on the machine. A forward takes what the curve says, so what is asserted is decisions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import geometric_mean

from foredraft.bench.curves import Curve, shipped_curves
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.trace import Trace, TraceSet
from foredraft.engine.engine import Engine
from foredraft.protocols import DrafterContext, RequestView
from foredraft.registry import register_drafter, unregister_drafter
from foredraft.types import Draft, DraftLimit, Logits, Outcome, Rows, SamplingParams

VOCABULARY = 2048
LONGEST_DRAFT = 16
"""Of the useless drafter; a draft model's default."""

CURVES = ("steep", "flat", "gpu", "cpu-q4_0", "moe")


def curve(name: str) -> Curve:
    return shipped_curves()[name]


def trace_set(traces: Sequence[Trace]) -> TraceSet:
    return TraceSet("made up", VOCABULARY, "made up", (), traces)


def noise(length: int, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choices(range(VOCABULARY), k=length))


def noise_traces(count: int, *, prompt: int, output: int, seed: int = 0) -> TraceSet:
    """Texts in which nothing repeats itself but by chance."""
    rng = random.Random(seed)
    return trace_set(
        [Trace(f"noise/{n}", "noise", noise(prompt, rng), noise(output, rng)) for n in range(count)]
    )


def copying_trace(length: int, rng: random.Random, name: str = "copy") -> Trace:
    """An output that copies its prompt word for word."""
    passage = noise(length, rng)
    return Trace(name, "copy", passage, passage[:length])


def mixed_trace(length: int, rng: random.Random, name: str = "mixed") -> Trace:
    """An output of which a half is copied from the prompt, in runs of 5 to 40 tokens, and a half is new."""
    prompt = noise(150, rng)
    output: list[int] = []
    while len(output) < length:
        if rng.random() < 0.5:
            start = rng.randrange(len(prompt) - 40)
            output += prompt[start : start + rng.randrange(5, 40)]
        else:
            output += noise(rng.randrange(5, 40), rng)
    return Trace(name, "mixed", prompt, tuple(output[:length]))


class CountingModel(ReplayModel):
    """Also keeps, for each forward, how many rows asked for logits: 1 is a plain round of one request."""

    def __init__(self, traces: TraceSet, curve: Curve, *, sequences: int = 1, ragged: bool = True) -> None:
        super().__init__(traces, curve, sequences=sequences, ragged=ragged)
        self.sizes: list[int] = []

    def forward(self, batch: Sequence[Rows]) -> Logits:
        self.sizes.append(sum(rows.logits for rows in batch))
        return super().forward(batch)


@contextmanager
def virtual_engine(
    traces: TraceSet, curve: Curve, speculation: str, *, sequences: int = 1, ragged: bool = True
) -> Iterator[tuple[Engine, CountingModel]]:
    """An engine around a model that says the traces, set up as `speculation`. In that the drafter `useless`
    has the options `token`, `chunk` (what they take, in plain rounds) and `sure` (its confidence, at least).
    """
    model = CountingModel(traces, curve, sequences=sequences, ragged=ragged)

    def create(context: DrafterContext, options: Mapping[str, str]) -> UselessDrafter:
        token, chunk, sure = (float(options[key]) for key in ("token", "chunk", "sure"))
        return UselessDrafter(model, curve.v1_ms * token, curve.v1_ms * chunk, sure)

    register_drafter(UselessDrafter.name, create)
    try:
        with Engine(model, clock=model.clock) as engine:
            engine.set_speculation(speculation)
            yield engine, model
            assert not engine.notes, "no drafter failed"
    finally:
        unregister_drafter(UselessDrafter.name)


def ask(engine: Engine, trace: Trace) -> int:
    return engine.add(list(trace.prompt), SamplingParams(max_tokens=len(trace.output), ignore_eos=True))


def aggregate_rate(
    traces: TraceSet, curve: Curve, speculation: str, level: int, *, ragged: bool = True
) -> float:
    """Tokens per virtual second with `level` requests at a time, until all are answered."""
    with virtual_engine(traces, curve, speculation, sequences=level, ragged=ragged) as (engine, model):
        began = model.seconds
        done = engine.run([ask(engine, trace) for trace in traces.traces])
        for completion, trace in zip(done, traces.traces, strict=True):
            assert completion.tokens == trace.output
        return sum(len(trace.output) for trace in traces.traces) / (model.seconds - began)


def speedups(traces: TraceSet, curve: Curve, speculation: str) -> list[float]:
    """Of each answer over plain decoding, one after the other in one engine."""
    found: list[float] = []
    with virtual_engine(traces, curve, speculation) as (engine, model):
        for trace in traces.traces:
            began = model.seconds
            [completion] = engine.run([ask(engine, trace)])
            assert completion.tokens == trace.output
            found.append((len(trace.output) - 1) * curve.v1_ms / 1e3 / (model.seconds - began))
    return found


def mean_speedup(traces: TraceSet, curve: Curve, speculation: str) -> float:
    return geometric_mean(speedups(traces, curve, speculation))


class UselessDrafter:
    """What a draft model of random weights is to an engine: it takes time, and is wrong with confidence.

    A drafted token takes `token_ms`, 64 tokens of unread history `chunk_ms`; both pass on the model's clock.
    It claims to be right with a chance of `sure` to 1.
    """

    name = "useless"

    def __init__(self, model: ReplayModel, token_ms: float, chunk_ms: float, sure: float) -> None:
        self._model = model
        self._token_ms = token_ms
        self._chunk_ms = chunk_ms
        self._sure = sure
        self._read: dict[int, int] = {}
        self._rng = random.Random(3)

    def start(self, request: RequestView) -> None:
        self._read[request.id] = 0

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        return [self._one(request, limit) for request, limit in requests]

    def _one(self, request: RequestView, limit: DraftLimit) -> Draft | None:
        unread = len(request.tokens) - self._read[request.id]
        self._read[request.id] = len(request.tokens)
        if unread > LONGEST_DRAFT:
            self._pass(-(-unread // 64) * self._chunk_ms)
        tokens: list[int] = []
        confidence: list[float] = []
        survival = 1.0
        while len(tokens) < min(limit.max_tokens, LONGEST_DRAFT):
            self._pass(self._token_ms)
            chance = self._rng.uniform(self._sure, 1.0)
            survival *= chance
            if survival < limit.min_survival:
                break
            tokens.append(self._rng.randrange(VOCABULARY))
            confidence.append(chance)
        return Draft(tuple(tokens), self.name, confidence=tuple(confidence)) if tokens else None

    def _pass(self, ms: float) -> None:
        self._model.seconds += ms / 1e3

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        pass

    def stop(self, request: RequestView) -> None:
        self._read.pop(request.id)

    def close(self) -> None:
        pass
