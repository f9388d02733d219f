"""Does `auto` draft at all where a model is slow and the machine busy when it is loaded?

Physics: what verifying a draft costs is measured when a model is loaded for the first time. Beside other work
single forwards take several times as long, and a curve that is drawn through one of them says that no draft
pays; what looks too dear is not tried again. So each run here loads the model with nothing remembered, beside
`--busy` processes that spin, and continues a text that repeats itself exactly. A model that follows it has
nearly every token in a draft. Runs in which hardly anything is drafted are the fault; they should be none.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common import model_path, parser, progress, run_benchmark
from foredraft import Engine

SENTENCE = "The grey cat sat on the old stone wall and watched the boats come home in the rain. "
REPEATED = 12
DRAFTS_AT_LEAST = 0.3
"""Share of an answer's tokens that drafts should bring in a text that repeats itself."""


def spin() -> None:
    """Keep one core busy until the process is ended."""
    while True:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run `processes` spinning processes meanwhile."""
    with ExitStack() as running:
        for _ in range(processes):
            one = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
            one.start()
            running.callback(one.join)
            running.callback(one.terminate)
        yield


def run(model: Path, tokens: int) -> dict[str, int]:
    """One load with an empty cache, and one answer: its length, rounds and accepted draft tokens."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.load(model, cache_dir=folder, remember=False, probe=False) as engine,
    ):
        prompt = engine.model.tokenizer.encode(SENTENCE * REPEATED, add_bos=True)
        done = engine.generate(prompt, max_tokens=tokens, ignore_eos=True)
        accepted = sum(done.speculation.accepted_by_depth)
        return {"tokens": len(done.tokens), "rounds": done.speculation.rounds, "accepted": accepted}


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=9)
    arguments.add_argument("--busy", type=int, default=4, help="processes that spin meanwhile")
    args = arguments.parse_args()
    model = Path(args.model or model_path(None))
    rows = []
    with busy(args.busy):
        for number in range(args.runs):
            rows.append(run(model, args.tokens))
            what = "{tokens} tokens, {rounds} rounds, {accepted} accepted".format(**rows[-1])
            progress(number + 1, args.runs, what)
    idle = sum(row["accepted"] < DRAFTS_AT_LEAST * row["tokens"] for row in rows)
    print(json.dumps({"model": model.name, "busy": args.busy, "runs": rows, "hardly_drafted": idle}))


if __name__ == "__main__":
    run_benchmark(main)
