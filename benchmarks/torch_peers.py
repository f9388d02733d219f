"""Foredraft's torch backend beside transformers' own ways to generate: same weights, same prompts, one run.

Sides, all on the processor (with --gpu all on CUDA's first device): transformers' `generate` as it comes,
with `prompt_lookup_num_tokens` (10, what its documentation uses) and with an `assistant_model`; Foredraft
off, with `auto`, and with `auto` that has the same draft model. It is every k-th layer of the target
(scripts/prune_layers.py): nothing is downloaded, and nothing is to be expected of it, as of draft models that
people try out, for which the planner is there.

Physics: with one row a forward reads every weight once, so its time is the weights' size over the memory's
bandwidth, plus what is done between the products. That part does not shrink with the model.

Every prompt is answered by all sides in turns of at most half a second, the order reversed from prompt to
prompt and from pass to pass (`foredraft.bench.live`). Rates are by each side's own clock: *decode* is the
tokens after the first over the time since the first, *whole* is all tokens over the time with the prompt.
transformers may get several tokens out of the forward over the prompt; they count as decoded in no time.
Foredraft's passes share no KV cells; within a pass it finds what the chat template puts in front of every
prompt in its prefix cache, and transformers has no such cache.

    python benchmarks/torch_peers.py --prompts FOLDER --threads 1 --dtype fp32

Writes torch_peers.md and torch_peers.json (torch_peers_bf16.… for bf16). Exit code 1 if, in fp32, Foredraft
off differs from transformers, or if some side that claims to be exact differs from Foredraft off.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers

from common import model_path, parser, progress, run_benchmark
from foredraft.backends.cpu import physical_cores
from foredraft.bench.live import measure, turn_ids, warm_up
from foredraft.bench.passes import Passes
from foredraft.bench.results import Row, broken_promises, scores
from foredraft.bench.sides import Messages, Side
from foredraft.bench.workloads import PromptCase, load_prompts, select
from foredraft.config import AUTO as AUTO_SPECULATION
from foredraft.config import OFF as OFF_SPECULATION
from foredraft.engine.prompt import encode_chat
from foredraft.types import SamplingParams
from server_common import add_results, write_json
from torch_peers_report import (
    ASSISTED,
    AUTO,
    AUTO_DRAFT,
    LOOKUP,
    OFF,
    PLAIN,
    as_markdown,
    demands,
    different,
    report,
    setting_of,
)
from torch_peers_sides import (
    ForedraftSide,
    TransformersSide,
    load_side,
    load_transformers,
    pruned_folder,
    weights_folder,
)

LOOKUP_TOKENS = 10


def load_sides(
    args: argparse.Namespace, weights: Path, draft: Path
) -> tuple[list[Side], list[ForedraftSide]]:
    """All sides, and those of them that hold engines. One model of transformers serves its three sides."""
    options = {"threads": args.threads, "dtype": args.dtype, "context_length": args.context}
    options |= {"gpu_layers": -1 if args.gpu else 0}
    beside = f"{AUTO_SPECULATION};draft-model:model={draft}"
    ours = [
        load_side(name, speculation, weights, **options)
        for name, speculation in ((OFF, OFF_SPECULATION), (AUTO, AUTO_SPECULATION), (AUTO_DRAFT, beside))
    ]
    tokenizer = ours[0].engine.model.tokenizer

    def encode(messages: Messages) -> list[int]:
        return encode_chat(tokenizer, messages).tokens

    model, assistant = (load_transformers(folder, args.dtype, gpu=args.gpu) for folder in (weights, draft))
    theirs: list[Side] = [
        TransformersSide(PLAIN, model, encode),
        TransformersSide(LOOKUP, model, encode, prompt_lookup_num_tokens=LOOKUP_TOKENS),
        TransformersSide(ASSISTED, model, encode, assistant_model=assistant),
    ]
    return [*theirs, *ours], ours


def measured(sides: Sequence[Side], cases: Sequence[PromptCase], args: argparse.Namespace) -> list[Row]:
    """Every prompt answered by every side in every pass; prompts that do not fit are left out."""
    warm_up(sides)
    total = len(turn_ids(cases)) * len(sides) * args.repeat
    too_long: set[str] = set()
    rows = []
    params = SamplingParams(max_tokens=args.tokens)
    for row in measure(sides, Passes(cases, args.repeat), params, too_long=too_long):
        rows.append(row)
        progress(len(rows), total, f"{row.prompt} {row.setting}")
    return [row for row in rows if row.prompt not in too_long]


def arguments() -> argparse.Namespace:
    """What the command line says."""
    made = parser(__doc__)
    made.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="what all compute in")
    made.add_argument("--gpu", action="store_true", help="all on CUDA's first device, not on the processor")
    made.add_argument("--repeat", type=int, default=3, help="passes: the best counts, and the median is told")
    made.add_argument("--every", type=int, default=3, help="the draft model keeps one layer in EVERY")
    made.add_argument("--context", type=int, default=4096, help="Foredraft's context, in tokens")
    made.add_argument("--weights", type=Path, help="folder that keeps the converted weights for the next run")
    add_results(made)
    args = made.parse_args()
    args.threads = args.threads or physical_cores()
    if args.gpu and not torch.cuda.is_available():
        made.error("--gpu: PyTorch sees no CUDA device")
    return args


def main() -> None:
    """Measure; the last line of output is one JSON object."""
    args = arguments()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    cases = select(load_prompts(args.prompts), limit=args.limit)
    model = Path(args.model or model_path(None))
    with TemporaryDirectory() as temporary:
        kept = args.weights or Path(temporary)
        weights = weights_folder(model, kept / "target")
        draft = pruned_folder(weights, kept / f"every-{args.every}", args.every)
        sides, ours = load_sides(args, weights, draft)
        try:
            with torch.inference_mode():
                rows = measured(sides, cases, args)
        finally:
            for side in ours:
                side.close()
    sys.exit(closing(args, rows))


def closing(args: argparse.Namespace, rows: Sequence[Row]) -> int:
    """Print and write the report; returns the exit code."""
    setting = setting_of(
        args.dtype, threads=args.threads, tokens=args.tokens, repeat=args.repeat, every=args.every
    )
    page = as_markdown(rows, setting)
    name = "torch_peers" + (f"_{args.dtype}" if args.dtype != "fp32" else "") + ("_gpu" if args.gpu else "")
    file = write_json(args.results, name, report(rows, setting))
    file.with_suffix(".md").write_text(page, encoding="utf-8")
    found = demands(rows)
    print(page, f"written to {file.with_suffix('.md')}", sep="\n")
    for demand in found:
        print(f"{demand.name} ≥ {demand.least}: {demand.verdict}")
    wrong = different(rows, PLAIN).get(OFF, (0, 0))[0] if args.dtype == "fp32" else 0
    broken = len(broken_promises(scores(rows, OFF)))
    verdicts = {demand.name: demand.found and round(demand.found, 3) for demand in found}
    last = {**verdicts, "off_is_not_transformers": wrong, "broken_promises": broken}
    print(json.dumps(last, ensure_ascii=False))
    return 1 if wrong or broken else 0


if __name__ == "__main__":
    run_benchmark(main)
