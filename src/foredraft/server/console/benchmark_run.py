"""Measures `auto` against plain decoding on the server's loaded model, answer by answer.

Each prompt is answered by both, in an order that is reversed from one prompt to the next, as what the machine
does should not always hit the same one. Every answer has a scope of its own that is not kept: the second
answer to a prompt is not drafted from the first, nor from what was answered before, and takes no KV cells
from it. The planner is the server's own, and goes on learning what a forward costs and what is accepted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from secrets import token_hex
from statistics import geometric_mean

from foredraft.bench.interval import confidence
from foredraft.bench.live import WARM_UP, WARM_UP_TOKENS
from foredraft.bench.results import Sample
from foredraft.bench.sides import sample_of
from foredraft.bench.workloads import PromptCase
from foredraft.engine.prompt import encode_prompt
from foredraft.engine.streams import fold
from foredraft.protocols import UNKEPT
from foredraft.server.console.benchmark_schemas import Benchmark, Pair
from foredraft.server.console.request_book import RequestBook
from foredraft.server.generation import sound
from foredraft.server.jobs import make_job
from foredraft.server.pool import Lease
from foredraft.types import Event, Message, SamplingParams

OFF, AUTO = "off", "auto"
DRAFTED: dict[str, int | None] = {OFF: 0, AUTO: None}
"""`Job.max_draft` of each side."""


@dataclass(frozen=True, slots=True)
class _Measured:
    pair: Pair
    off: Sample
    auto: Sample


async def measure(
    lease: Lease,
    cases: Sequence[PromptCase],
    report: Benchmark,
    book: RequestBook,
    tell: Callable[[Benchmark], None],
) -> AsyncGenerator[Benchmark, None]:
    """The report after each pair. `tell` is called with it after each answer. Other requests, which `book`
    knows, make a pair disturbed; a prompt whose answer is too short to have a rate is left out.

    Raises what encoding a prompt, `make_job` and `sound` raise. Leaving it ends the answer that is being
    generated before the next round.
    """
    measured: list[_Measured] = []
    for side in DRAFTED:
        await _answer(lease, WARM_UP, WARM_UP_TOKENS, side)
    for number, case in enumerate(cases):
        before, busy, samples = book.begun, book.running, dict[str, Sample]()
        for side in (OFF, AUTO) if number % 2 == 0 else (AUTO, OFF):
            messages = ({"role": "user", "content": case.turns[0]},)
            samples[side] = await _answer(lease, messages, report.tokens, side)
            report = report.model_copy(update={"done": report.done + 1})
            tell(report)
        disturbed = book.begun != before or busy > 0
        report = report.model_copy(update={"disturbed": report.disturbed + disturbed})
        pair = _pair(case, samples[OFF], samples[AUTO], disturbed=disturbed)
        if pair is not None:
            measured.append(_Measured(pair, samples[OFF], samples[AUTO]))
        report = _summed(report, measured)
        yield report


async def _answer(lease: Lease, messages: Sequence[Message], tokens: int, side: str) -> Sample:
    served = lease.model
    limit = served.limits.max_completion_tokens
    params = SamplingParams(max_tokens=tokens if limit is None else min(tokens, limit))
    scope = f"{UNKEPT}{token_hex(8)}"
    prompt = await served.prepare(lambda: encode_prompt(served.tokenizer, messages).tokens)
    job = replace(make_job(lease, prompt, params, scope=scope), max_draft=DRAFTED[side])
    seen: list[Event] = []
    async with aclosing(sound(served.worker.stream(job))) as answer:
        async for events in answer:
            seen += events
    return sample_of(fold(iter(seen)))


def _pair(case: PromptCase, off: Sample, auto: Sample, *, disturbed: bool) -> Pair | None:
    if off.rate is None or auto.rate is None:
        return None
    return Pair(
        prompt=case.id,
        category=case.category,
        off=off.rate,
        auto=auto.rate,
        speedup=auto.rate / off.rate,
        tokens=auto.count,
        same=auto.same_as(off),
        acceptance=auto.accepted / auto.drafted if auto.drafted else None,
        disturbed=disturbed,
    )


def _summed(report: Benchmark, measured: Sequence[_Measured]) -> Benchmark:
    """The report with its pairs and what follows from them."""
    if not measured:
        return report
    speedups = [each.pair.speedup for each in measured]
    low, high = confidence(speedups) or (None, None)
    return report.model_copy(
        update={
            "pairs": [each.pair for each in measured],
            "off": _rate([each.off for each in measured]),
            "auto": _rate([each.auto for each in measured]),
            "speedup": geometric_mean(speedups),
            "low": low,
            "high": high,
        }
    )


def _rate(samples: Sequence[Sample]) -> float:
    """Tokens a second after each answer's first one."""
    return 1e3 * sum(each.count - 1 for each in samples) / sum(each.decode_ms for each in samples)
