"""Does `auto` follow a text that changes? It flips between copying and noise every 200 tokens.

Physics: in a passage that is copied word for word every drafted token is right, and the longest draft is the
best; in tokens drawn at random every draft is wrong, and each of its rows costs time. So settings that
always draft win the one kind of phase and lose the other, plain decoding the other way round. The target
model is real and so are its forwards, but its text is scripted (`foredraft.bench.scripted`): no model flips
on command.

All settings decode the same texts in short turns, each pass another text. A phase's time
is compared with the better of plain decoding and the best of the `--on` settings in that phase, by medians
over the passes. The first pass is reported apart: in it `auto` has learnt nothing yet.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from statistics import median
from time import perf_counter

from common import parser, progress, run_benchmark
from foredraft import Engine
from foredraft.bench.phases import FlippingText, Phases, flipping_text
from foredraft.bench.scripted import ScriptedModel
from foredraft.bench.slices import in_slices, turn_seconds
from foredraft.bench.workloads import load_prompts
from foredraft.config import AUTO, OFF
from foredraft.engine.loading import freeze_heap
from foredraft.protocols import Model

Times = dict[str, list[list[float]]]
"""By setting: for each pass the seconds of every phase."""


class Side:
    """A setting on its part of a model, which says what it is told to."""

    def __init__(self, speculation: str, model: Model) -> None:
        self.model = ScriptedModel(model)
        self.engine = Engine(self.model)
        self.engine.set_speculation(speculation)

    def begin(self, text: FlippingText) -> Phases:
        self.model.text = text.prompt + text.output
        return Phases(self.engine, text, perf_counter)


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.set_defaults(tokens=200)
    arguments.add_argument("--repeat", type=int, default=3, help="passes, after the first one")
    arguments.add_argument("--passages", type=int, default=3, help="copies in a text, and as much noise")
    arguments.add_argument("--on", nargs="+", default=["suffix", "ngram-simple"], help="settings always on")
    args = arguments.parse_args()
    args.context = 3 * args.passages * args.tokens + 256
    names = [OFF, *args.on, AUTO]
    loaded = Engine.load_together(
        args.model,
        [OFF] * len(names),
        threads=args.threads,
        remember=False,
        context_length=args.context,
    )
    sides = {name: Side(name, engine.model) for name, engine in zip(names, loaded, strict=True)}
    freeze_heap()
    texts = make_texts(sides[OFF].engine, args)
    times: Times = {name: [] for name in names}
    turn = turn_seconds(None)
    for number, text in enumerate(texts):
        order = names if number % 2 == 0 else names[::-1]
        for name, seconds in in_slices({name: sides[name].begin(text) for name in order}, turn):
            times[name].append(seconds)
            if name == OFF:
                turn = turn_seconds(len(seconds) * args.tokens / sum(seconds))
            progress(sum(map(len, times.values())), len(texts) * len(names), name)
    kinds = [phase.kind for phase in texts[0].phases]
    print(f"tokens/s: {'':<14}" + "".join(f"{name:>16}" for name in names) + "   auto ÷ best")
    first = report("first pass", kinds, {name: rows[:1] for name, rows in times.items()}, args.tokens)
    later = report("afterwards", kinds, {name: rows[1:] for name, rows in times.items()}, args.tokens)
    print(json.dumps({"first": first, "later": later, "bound": 0.95, "holds": min(later.values()) >= 0.95}))


def make_texts(engine: Engine, args: Namespace) -> list[FlippingText]:
    """One for each pass: passages of real text, and noise of the whole vocabulary."""
    words = [token for case in load_prompts(args.prompts) for token in engine.encode(case.turns[0])]
    count, length = args.passages, args.tokens
    vocabulary = range(engine.model.info.vocab_size // 50, engine.model.info.vocab_size)
    texts = []
    for number in range(1 + args.repeat):
        start = number * count * length % max(1, len(words) - count * length)
        passages = [words[start + i * length : start + (i + 1) * length] for i in range(count)]
        if len(passages[-1]) < length:
            raise SystemExit("The prompts have not enough text for so many passages.")
        texts.append(flipping_text(passages, vocabulary, seed=number))
    return texts


def report(title: str, kinds: Sequence[str], times: Times, length: int) -> dict[str, float]:
    """Print each phase's tokens per second; returns `auto`'s share of the best rate by phase."""
    shares: dict[str, float] = {}
    for i, kind in enumerate(kinds):
        seconds = {name: median(row[i] for row in rows) for name, rows in times.items() if rows}
        if not seconds:
            continue
        best = min((name for name in seconds if name != AUTO), key=seconds.__getitem__)
        share = median(b[i] / a[i] for a, b in zip(times[AUTO], times[best], strict=True))
        shares[f"{i + 1} {kind}"] = round(share, 4)
        rates = "".join(f"{length / seconds[name]:16.1f}" for name in times)
        print(f"{title:<12}{i + 1:>3} {kind:<8}{rates}   {share:.3f} of {best}")
    return shares


if __name__ == "__main__":
    run_benchmark(main)
