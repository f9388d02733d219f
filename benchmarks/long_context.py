"""What a long text costs beside the model: drafters, prefix cache and rounds at 1,000 to 100,000 tokens.

Physics: a forward gets slower with the depth, because attention reads all cells; what Foredraft does between
two forwards must not. The text is Python's standard library and the prompts that ship, as the default
model's tokens: code and prose, which repeat themselves as real ones do. Each drafter gets the first tokens of
it and then 400 more, committed as the match rule would commit them. For every call of `draft` and `observe`
we take the median and the 99th percentile, and for `start` the time until a prompt is indexed, which
every stream waits for. The prefix cache looks for a prompt's beginning in four sequences of that depth.
Rounds are those of an engine with a model that takes no time, so what is left is our own.

Limits: draft 60 µs and observe 20 µs (median) at 100,000 tokens.

`--table` asks a model instead: tokens a second with `auto` and with `off` in turns, and what is accepted, by
depth. Each prompt ends with the first lines of a passage in it, which a model goes on to copy, as in an edit.
With `--scaling yarn` the positions of a model that was trained for less are scaled.

The last line of stdout is one JSON object.

    python benchmarks/long_context.py [--depths 1000 100000]
    python benchmarks/long_context.py --table --model MODEL --depths 1000 4000 8000 16000 32000
"""

from __future__ import annotations

import json
import sysconfig
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from common import model_path, parser, progress, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.backends.llamacpp.loading import loaded_without_weights
from foredraft.backends.llamacpp.tokenizer import LlamaCppTokenizer
from foredraft.bench.workloads import load_prompts
from foredraft.config import AUTO, OFF, Stage, parse_speculation
from foredraft.engine.prefix.cache import PrefixCache
from foredraft.protocols import RequestView
from foredraft.registry import create_drafter, drafter_names
from foredraft.sequences import common_prefix
from foredraft.testing import FakeModel, drafter_context, markov_logits
from foredraft.types import Draft, DraftLimit, Logits, Outcome, Rows

DEPTHS = (1_000, 4_000, 16_000, 32_000, 100_000)
COMMITTED = 400
MOST_DRAFTED = 16
BEGINNING = 64
"""Tokens of the passage that a model is to copy, for `--table`."""
DRAFT_US, OBSERVE_US = 60.0, 20.0
NETWORKS = ("draft-model", "heads")
OPTIONS = {"ngram-mod": {"min": "0"}}
SOURCES = ("argparse.py", "typing.py", "inspect.py", "tarfile.py", "subprocess.py", "turtle.py", "doctest.py")


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--depths", type=int, nargs="+", default=None)
    arguments.add_argument("--table", action="store_true", help="tokens a second of a model by depth")
    arguments.add_argument("--scaling", default="auto", help="of positions, for --table: yarn or linear")
    arguments.add_argument("--repeat", type=int, default=2, help="turns of both sides, for --table")
    arguments.set_defaults(tokens=128)
    args = arguments.parse_args()
    if args.table:
        result: Any = table(args, args.depths or (1_000, 4_000, 8_000, 16_000, 32_000))
    else:
        result = beside_the_model(args, args.depths or DEPTHS)
    print(json.dumps({"benchmark": "long_context", **result}))


def long_text() -> str:
    """About 130,000 tokens of code and prose."""
    folder = Path(sysconfig.get_path("stdlib"))
    code = [(folder / name).read_text(encoding="utf-8") for name in SOURCES]
    prose = "\n\n".join(turn for case in load_prompts() for turn in case.turns)
    return "\n\n".join([prose, *code])


# --- beside the model ----------------------------------------------------------------------------------


def beside_the_model(args: Namespace, depths: Sequence[int]) -> dict[str, Any]:
    with loaded_without_weights(Path(args.model or model_path(None))) as weights:
        tokenizer = LlamaCppTokenizer(weights, None)
        tokens, vocabulary = tokenizer.encode(long_text()), tokenizer.vocab_size
    tokens = tokens[: max(depths) + COMMITTED]
    if len(tokens) < max(depths) + COMMITTED:
        raise SystemExit(f"The text has {len(tokens):,} tokens only: ask for smaller depths.")
    result: dict[str, dict[Any, Any]] = {
        "drafters": drafters(tokens, depths, vocabulary),
        "prefix_cache": {depth: prefix_cache(tokens, depth, vocabulary) for depth in depths},
        "rounds": {depth: own_time(tokens, depth, vocabulary) for depth in depths},
    }
    print(f"\n{'depth':>9}{'acquire ms':>12}{'prefix ms':>11}{'round µs':>10}{'with drafts':>13}")
    for depth in depths:
        cache, own = result["prefix_cache"][depth], result["rounds"][depth]
        print(
            f"{depth:>9,}{cache['acquire_ms']:>12.2f}{cache['common_prefix_ms']:>11.2f}"
            f"{own['plain_us']:>10.0f}{own['drafting_us']:>13.0f}"
        )
    deepest = [rows[max(depths)] for rows in result["drafters"].values()]
    holds = all(row["draft_us"] <= DRAFT_US and row["observe_us"] <= OBSERVE_US for row in deepest)
    return {**result, "holds": holds}


def drafters(tokens: list[int], depths: Sequence[int], vocabulary: int) -> dict[str, dict[int, Any]]:
    """Print and return the times of every drafter without a network."""
    print(
        f"{'drafter':<16}{'depth':>9}{'start ms':>10}{'draft µs':>10}{'p99':>8}{'observe µs':>12}{'p99':>8}"
    )
    found: dict[str, dict[int, Any]] = {}
    for name in [name for name in drafter_names() if name not in NETWORKS]:
        found[name] = {}
        for depth in depths:
            row = found[name][depth] = calls(name, tokens[: depth + COMMITTED], depth, vocabulary)
            print(
                f"{name:<16}{depth:>9,}{row['start_ms']:>10.1f}{row['draft_us']:>10.1f}"
                f"{row['draft_p99_us']:>8.0f}{row['observe_us']:>12.1f}{row['observe_p99_us']:>8.0f}",
                flush=True,
            )
    return found


def calls(name: str, text: list[int], depth: int, vocabulary: int) -> dict[str, float]:
    """The times of a drafter's calls after `depth` tokens."""
    drafter = create_drafter(Stage(name, OPTIONS.get(name, {})), drafter_context(FakeModel(vocabulary)))
    ahead = [(token + 1) % vocabulary if i % 50 == 49 else token for i, token in enumerate(text[depth:])]
    view = RequestView(id=1, tokens=text[:depth], prompt_length=depth, prediction=tuple(ahead))
    start, _ = timed(lambda: drafter.start(view))
    drafts, observes = [], []
    while len(view.tokens) < len(text):
        seconds, draft = timed(lambda: drafter.draft([(view, DraftLimit(MOST_DRAFTED))])[0])
        drafts.append(seconds)
        accepted = agreed(draft, text[len(view.tokens) : -1])
        kept = len(view.tokens)
        committed = tuple(text[kept : kept + accepted + 1])
        view.tokens.extend(committed)
        outcome = Outcome(kept, committed, draft, accepted)
        observes.append(timed(lambda: drafter.observe(view, outcome))[0])  # noqa: B023
    drafter.stop(view)
    drafter.close()
    return {
        "start_ms": 1e3 * start,
        "draft_us": 1e6 * median(drafts),
        "draft_p99_us": 1e6 * float(np.percentile(drafts, 99)),
        "observe_us": 1e6 * median(observes),
        "observe_p99_us": 1e6 * float(np.percentile(observes, 99)),
    }


def agreed(draft: Draft | None, future: Sequence[int]) -> int:
    """How many of a draft's tokens are right, along its first branch that is."""
    if draft is None:
        return 0
    parents = draft.parents or range(-1, len(draft) - 1)
    accepted, parent = 0, -1
    for row, (token, above) in enumerate(zip(draft.tokens, parents, strict=True)):
        if above == parent and accepted < len(future) and token == future[accepted]:
            accepted, parent = accepted + 1, row
    return accepted


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, what it returns)."""
    begun = time.perf_counter()
    value = call()
    return time.perf_counter() - begun, value


class TimelessModel(FakeModel):
    """A FakeModel whose forward takes the same at every depth: logits depend on the last token only."""

    def _append(self, rows: Rows) -> list[Logits]:
        self._cache.setdefault(rows.seq, []).extend(rows.tokens)
        return [self._logits([token]) for token in rows.tokens[len(rows.tokens) - rows.logits :]]


def timeless(depth: int, vocabulary: int, text: Sequence[int] = ()) -> TimelessModel:
    """With room for that depth. The token after each is the one that followed it last in the text."""
    following = dict(pairwise(text))
    rare = markov_logits(vocabulary)

    def logits(prefix: Sequence[int]) -> Logits:
        row = np.zeros(vocabulary, np.float32) if text else rare(prefix)
        row[following.get(prefix[-1], 0)] = 9.0
        return row

    return TimelessModel(vocabulary, logits=logits, context_length=depth + 4096, trees=False)


def prefix_cache(tokens: list[int], depth: int, vocabulary: int) -> dict[str, float]:
    """Milliseconds to find the next turn of a conversation, and of one that begins alike, in four."""
    model = timeless(depth, vocabulary)
    cache = PrefixCache(model)
    text = tokens[:depth]
    for turn in range(model.capabilities.sequences):
        found = cache.acquire([turn])
        assert found is not None
        held = text if turn == 0 else [*text[: depth // 2], turn, *text[depth // 2 :]]
        for start in range(0, len(held), model.capabilities.max_batch):
            chunk = held[start : start + model.capabilities.max_batch]
            model.forward([Rows(found[0], start, chunk, 0)])
        cache.release(found[0], held)
    seconds, place = timed(lambda: cache.acquire([*text, 7, 8, 9]))
    assert place is not None
    assert place[1] == depth
    other = [*text[: depth // 2], -1, *text[depth // 2 :]]
    return {
        "acquire_ms": 1e3 * seconds,
        "common_prefix_ms": 1e3 * min(timed(lambda: common_prefix(text, other))[0] for _ in range(5)),
    }


def own_time(tokens: list[int], depth: int, vocabulary: int) -> dict[str, float]:
    """The median microseconds of a round after a prompt of that depth, with speculation off and on."""
    return {
        f"{name}_us": 1e6 * median(steps(timeless(depth, vocabulary, tokens), tokens[:depth], used))
        for name, used in (("plain", ()), ("drafting", ("suffix", "recycle")))
    }


def steps(model: FakeModel, prompt: list[int], names: Sequence[str]) -> list[float]:
    """Seconds of each round that decodes."""
    made = [create_drafter(Stage(name), drafter_context(model)) for name in names]
    engine = Engine(model, drafters=made)
    engine.add(prompt, SamplingParams(max_tokens=COMMITTED, ignore_eos=True))
    found: list[float] = []
    while not engine.idle:
        seconds, events = timed(engine.step)
        if events:
            found.append(seconds)
    engine.close()
    return found[2:-1]


# --- with a model --------------------------------------------------------------------------------------


def table(args: Namespace, depths: Sequence[int]) -> dict[str, Any]:
    """Print and return tokens a second by depth, with speculation and without, in turns."""
    scaling: Any = {"rope_scaling": args.scaling} if args.scaling != "auto" else {}
    engines = Engine.load_together(
        args.model,
        [parse_speculation(AUTO), parse_speculation(OFF)],
        threads=args.threads,
        remember=False,
        context_length=max(depths) + args.tokens,
        **scaling,
    )
    tokens, rows = engines[0].encode(long_text()), {}
    print(
        f"{'depth':>8}{'auto tok/s':>12}{'off tok/s':>11}{'ratio':>7}{'accepted':>10}"
        f"{'tokens/round':>14}{'same text':>11}"
    )
    for number, depth in enumerate(depths, 1):
        progress(number, len(depths), f"{depth:,} tokens")
        row = rows[depth] = at_depth(engines, copying(tokens, depth), args.tokens, args.repeat)
        print(
            f"{depth:>8,}{row['auto']:>12.1f}{row['off']:>11.1f}{row['ratio']:>7.2f}"
            f"{row['accepted']:>10.0%}{row['tokens_per_round']:>14.2f}{'yes' if row['same'] else 'NO':>11}",
            flush=True,
        )
    for engine in engines:
        engine.close()
    return {"model": args.model, "rows": rows}


def copying(tokens: list[int], depth: int) -> list[int]:
    """A prompt of `depth` tokens that ends as a passage 600 tokens before its end begins."""
    body = tokens[: depth - BEGINNING]
    begin = max(len(body) - 600, 0)
    return [*body, *body[begin : begin + BEGINNING]]


def at_depth(engines: Sequence[Engine], prompt: list[int], count: int, repeat: int) -> dict[str, Any]:
    """Both sides in turns; the first answer of each reads the prompt, which the others find in its cells."""
    speeds: list[list[float]] = [[], []]
    texts: list[str] = []
    stats: list[Any] = []
    for _ in range(repeat):
        for side, engine in enumerate(engines):
            answer = engine.generate(prompt, max_tokens=count, ignore_eos=True)
            speeds[side].append(answer.timings.predicted_per_second)
            texts.append(answer.text)
            if side == 0:
                stats.append(answer)
    drafted = sum(answer.timings.draft_n for answer in stats)
    accepted = sum(answer.timings.draft_n_accepted for answer in stats)
    auto, off = (median(side) for side in speeds)
    return {
        "auto": auto,
        "off": off,
        "ratio": median(one / other for one, other in zip(*speeds, strict=True)),
        "accepted": accepted / drafted if drafted else 0.0,
        "tokens_per_round": median(answer.speculation.acceptance_length for answer in stats),
        "same": len(set(texts)) == 1,
    }


if __name__ == "__main__":
    run_benchmark(main)
