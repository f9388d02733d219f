"""Foredraft's drafters beside vLLM's own `ngram` and `suffix`, on the same recorded answers.

Every proposer is called as vLLM calls it after a forward: with the tokens that were sampled, and the text as
it stands. The answers are recorded, so the tokens that come are known: of a draft those that agree are
accepted, and one more comes. So all proposers see the same texts, and differ in what they propose. No model
runs, and no time is measured but that of the calls.

- *accepted*: the share of the proposed tokens that were right;
- *tokens*: tokens that came ÷ forwards; 1 without drafts;
- *drafted*: tokens proposed ÷ forwards;
- *time*: of all answers, plain decoding being 1, where a forward of n rows takes what a curve says
  (`--curve`, those of `foredraft bench`), and proposing takes nothing. `auto` decides by these times;
- *µs*: of the processor, for a call.

Answers come one after the other, with what a proposer learns from one for the next. `--batch N` measures the
calls alone, with N rows of a long text each: their processor's time, which `auto` then counts.

`ngram` and `suffix` need vLLM's environment, and `suffix` arctic-inference; what is not installed is left
out, and said. The last line is one JSON object.

    python benchmarks/vllm_proposers.py [--traces FILE] [--curve gpu] [--longest 16] [--batch 32]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from common import run_benchmark
from foredraft.bench.curves import Curve, find_curves
from foredraft.bench.trace import Trace, TraceSet, read_traces, shipped_traces
from foredraft.scale.vllm import Integers, Proposer
from foredraft.scale.vllm_config import CLASS, OPTIONS

ROWS = 256
"""The most rows of a batch."""


@dataclass(slots=True)
class Batch:
    """What a proposer is told after a forward, by row."""

    names: list[str]
    prompts: list[int]
    sampled: list[list[int]]
    lengths: Integers
    tokens: Integers


class Propose(Protocol):
    """Drafts for all rows."""

    def __call__(self, batch: Batch, /) -> list[list[int]]: ...


@dataclass
class Clock:
    """Seconds that pass in forwards, and with `calls` also the processor's time between them."""

    now: float = 0.0
    calls: bool = False

    def __call__(self) -> float:
        return self.now + (time.thread_time() if self.calls else 0.0)


@dataclass
class Figures:
    """What came of one proposer. `seconds`: of forwards, on the curve; `call_s`: of the calls, really."""

    forwards: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    call_s: float = 0.0

    def as_dict(self, plain_s: float) -> dict[str, float]:
        """For the table."""
        return {
            "accepted": round(self.accepted / max(self.drafted, 1), 3),
            "tokens_a_forward": round(self.tokens / self.forwards, 3),
            "drafted_a_forward": round(self.drafted / self.forwards, 3),
            "relative_time": round(self.seconds / plain_s, 3),
            "call_us": round(1e6 * self.call_s / self.forwards, 1),
        }


def replay(traces: Sequence[Trace], curve: Curve, propose: Propose, clock: Clock, context: int) -> Figures:
    """All answers, one after the other, in row 0."""
    found = Figures()
    tokens, lengths = np.zeros((1, context), np.int32), np.zeros(1, np.int32)
    before = 1
    for number, trace in enumerate(traces):
        text = [*trace.prompt, *trace.output]
        end, draft = len(trace.prompt), list[int]()
        clock.now += curve.v1_ms / 1e3  # the prompt
        sampled = text[end : end + 1]
        tokens[0, :end] = text[:end]
        while True:
            tokens[0, end : end + len(sampled)] = sampled
            end += len(sampled)
            lengths[0] = end
            began = time.thread_time()
            (draft,) = propose(Batch([f"{number}"], [len(trace.prompt)], [list(sampled)], lengths, tokens))
            found.call_s += time.thread_time() - began
            if end >= len(text):
                break
            rows = 1 + len(draft)
            taken = curve.after(before, rows) * curve.v1_ms / 1e3
            before = rows
            clock.now += taken
            accepted = 0
            while accepted < min(len(draft), len(text) - end - 1) and draft[accepted] == text[end + accepted]:
                accepted += 1
            sampled = text[end : end + accepted + 1]
            found.forwards += 1
            found.seconds += taken
            found.drafted += len(draft)
            found.accepted += accepted
            found.tokens += len(sampled)
    return found


def call_ms(
    traces: Sequence[Trace], curve: Curve, propose: Propose, clock: Clock, rows: int, calls: int = 96
) -> dict[str, float]:
    """Processor time of a call in ms, on average and the longest, without the first quarter of the calls, and
    the tokens that a forward drafts. Each row holds answers after one another, another first one in each,
    and goes on by what was accepted. A forward takes what the curve says, and the calls take what they take.
    """
    texts = []
    for place in range(rows):
        text = [
            token for it in (*traces[place % len(traces) :], *traces) for token in (*it.prompt, *it.output)
        ]
        texts.append(text[place % 7 : place % 7 + 1024 + 20 * calls])
    tokens, ends = np.array(texts, np.int32), np.full(rows, 1024)
    names, prompts = [str(place) for place in range(rows)], [1023] * rows
    sampled, taken, drafted = [[text[1023]] for text in texts], [], []
    clock.calls = True
    for _ in range(calls):
        began = time.thread_time()
        drafts = propose(Batch(names, prompts, [list(it) for it in sampled], ends.astype(np.int32), tokens))
        taken.append(time.thread_time() - began)
        drafted.append(sum(map(len, drafts)))
        clock.now += curve.ratio(rows + drafted[-1]) * curve.v1_ms / 1e3
        for place, draft in enumerate(drafts):
            text, end, accepted = texts[place], int(ends[place]), 0
            while accepted < len(draft) and draft[accepted] == text[end + accepted]:
                accepted += 1
            sampled[place] = text[end : end + accepted + 1]
            ends[place] = end + accepted + 1
    counted = slice(calls // 4, None)
    return {
        "call_ms": round(1e3 * float(np.mean(taken[counted])), 2),
        "longest_ms": round(1e3 * max(taken[counted]), 2),
        "drafted": round(float(np.mean(drafted[counted])), 1),
    }


def configuration(traces: TraceSet, longest: int, context: int, **options: str) -> Any:
    """vLLM's configuration, as far as proposers read it."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            method="custom_class",
            model=CLASS,
            num_speculative_tokens=longest,
            prompt_lookup_min=None,
            prompt_lookup_max=None,
        ),
        model_config=SimpleNamespace(
            model=traces.model,
            max_model_len=context,
            hf_config=SimpleNamespace(eos_token_id=None),
            get_vocab_size=lambda: traces.vocab_size,
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=ROWS, max_num_batched_tokens=8192, async_scheduling=False
        ),
        device_config=SimpleNamespace(device_type="cuda"),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=1),
        additional_config={OPTIONS: options},
    )


def of_foredraft(configured: Any, clock: Clock) -> Propose:
    """Foredraft's, by vLLM's hook."""
    proposer = Proposer(configured, clock=clock)

    def propose(batch: Batch) -> list[list[int]]:
        return proposer.propose(batch.sampled, batch.lengths, batch.tokens)

    return propose


def of_ngram(configured: Any, least: int, most: int) -> Propose:
    """vLLM's NgramProposer, which looks for the last `most` to `least` tokens."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    settings = configured.speculative_config
    settings.prompt_lookup_min, settings.prompt_lookup_max = least, most
    proposer = NgramProposer(configured)

    def propose(batch: Batch) -> list[list[int]]:
        drafts: list[list[int]] = proposer.propose(
            settings.num_speculative_tokens, batch.sampled, batch.lengths, batch.tokens
        )
        return drafts

    return propose


def of_suffix(configured: Any) -> Propose:
    """vLLM's SuffixDecodingProposer with its defaults, around arctic-inference's suffix trees."""
    from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

    settings = configured.speculative_config
    settings.suffix_decoding_max_tree_depth = 24
    settings.suffix_decoding_max_cached_requests = 10_000
    settings.suffix_decoding_max_spec_factor = 1.0
    settings.suffix_decoding_min_token_prob = 0.1
    proposer = SuffixDecodingProposer(configured)

    def propose(batch: Batch) -> list[list[int]]:
        seen = SimpleNamespace(
            req_ids=batch.names,
            req_id_to_index={name: place for place, name in enumerate(batch.names)},
            num_tokens_no_spec=batch.lengths,
            num_prompt_tokens=batch.prompts,
            token_ids_cpu=batch.tokens,
        )
        drafts: list[list[int]] = proposer.propose(settings.num_speculative_tokens, seen, batch.sampled)
        return drafts

    return propose


def proposers(
    traces: TraceSet, longest: int, context: int, store: str
) -> dict[str, Callable[[Clock], Propose]]:
    """By name, those that can be made here."""

    def own(speculate: str, **options: str) -> Callable[[Clock], Propose]:
        return lambda clock: of_foredraft(
            configuration(traces, longest, context, speculate=speculate, **options), clock
        )

    def configured() -> Any:
        return configuration(traces, longest, context)

    found = {
        "foredraft auto": own("auto"),
        "foredraft auto, with a store": own("auto", store=store),
        "foredraft suffix": own("suffix"),
        "foredraft suffix, with a store": own("suffix", store=store + "-static"),
        "foredraft recycle": own("recycle"),
        "foredraft suffix;recycle": own("suffix;recycle"),
        "foredraft ngram-simple": own("ngram-simple"),
    }
    if find_spec("vllm") is None:
        print("vLLM is not installed here: its proposers are left out.")
        return found
    found["vllm ngram 5"] = lambda _: of_ngram(configured(), 5, 5)
    found["vllm ngram 2-4"] = lambda _: of_ngram(configured(), 2, 4)
    if find_spec("arctic_inference") is None:
        print("arctic-inference is not installed here: vLLM's suffix is left out.")
        return found
    found["vllm suffix"] = lambda _: of_suffix(configured())
    return found


def main() -> None:
    """Print a line for each proposer, and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, help="recorded answers; those that ship if absent")
    parser.add_argument("--curve", default="gpu", help="what a forward of n rows takes")
    parser.add_argument("--longest", type=int, default=16, help="num_speculative_tokens")
    parser.add_argument("--batch", type=int, default=0, help="measure calls with BATCH rows instead")
    args = parser.parse_args()
    traces = read_traces(args.traces) if args.traces else shipped_traces()
    (curve,) = find_curves(args.curve)
    context = max(4096, max(len(it.prompt) + len(it.output) for it in traces.traces) + args.longest + 1)
    answers = traces.traces
    plain_s = sum(len(it.output) - 1 for it in answers) * curve.v1_ms / 1e3
    print(f"{len(answers)} answers of {traces.model}, curve {curve.name}")
    if not args.batch:
        print(f"{'':<32}{'accepted':>9}{'tokens':>8}{'drafted':>9}{'time':>7}{'µs':>8}")
    result: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in proposers(traces, args.longest, context, f"{folder}/store").items():
            clock = Clock()
            if args.batch:
                result[name] = call_ms(answers, curve, make(clock), clock, args.batch)
                mean, longest, drafted = result[name].values()
                print(
                    f"{name:<32}{mean:>8.2f} ms a call, {longest:.2f} at most, {drafted} drafted", flush=True
                )
                continue
            figures = replay(answers, curve, make(clock), clock, context).as_dict(plain_s)
            result[name] = figures
            share, each, drafted, taken, call = figures.values()
            print(f"{name:<32}{share:>9.1%}{each:>8.2f}{drafted:>9.2f}{taken:>7.3f}{call:>8.0f}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    run_benchmark(main)
