"""What does a useless draft model cost? One of random weights, with the target's vocabulary, beside `auto`.

Physics: a draft model takes time before it is known whether its tokens are right, and one of random weights
is never right. Plain decoding is the measure: `auto` has to find out what the model is worth and then keep
trying it within 1 % of the time. The model is small (2 layers, 64 wide by default), so a drafted token costs
little more than the output matrix over the whole vocabulary: the cheaper a draft, the longer a planner that
goes by its cost alone would put up with it. `--width` and `--layers` make it dearer.

All prompts are answered by `off`, `auto` and `auto` with that model in turns, `--repeat` times; of each
prompt's answers the fastest counts. Reported are geometric means over `off`, and the worst prompt.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory

import gguf
import numpy as np
import numpy.typing as npt

from common import model_path, parser, progress, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.bench.live import measure, turn_ids, warm_up
from foredraft.bench.passes import Passes
from foredraft.bench.sides import EngineSide
from foredraft.bench.workloads import load_prompts, select
from foredraft.config import AUTO, OFF
from foredraft.engine.loading import freeze_heap

HEADS = 4
SEED = 7


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--layers", type=int, default=2)
    arguments.add_argument("--width", type=int, default=64, help=f"a multiple of {2 * HEADS}")
    args = arguments.parse_args()
    cases = select(load_prompts(args.prompts), limit=args.limit or 16)
    with TemporaryDirectory() as folder:
        target = Path(args.model or model_path(None))
        draft = random_draft(target, Path(folder) / "random.gguf", args.layers, args.width)
        beside = f"{AUTO};draft-model:model={draft}"
        sides = load((OFF, AUTO, beside), target, args)
        warm_up(sides)
        rates: dict[str, dict[str, float]] = {side.name: {} for side in sides}
        drafting_ms = decode_ms = 0.0
        total = len(turn_ids(cases)) * len(sides) * args.repeat
        params = SamplingParams(max_tokens=args.tokens)
        for done, row in enumerate(measure(sides, Passes(cases, args.repeat), params), 1):
            if row.sample.rate is not None:
                seen = rates[row.setting].get(row.prompt, 0.0)
                rates[row.setting][row.prompt] = max(seen, row.sample.rate)
            if row.setting == beside:
                drafting_ms += row.sample.spent_ms.get("draft", 0.0)
                decode_ms += row.sample.decode_ms
            progress(done, total, f"{row.prompt} {row.setting[:20]}")
        for side in sides:
            side.close()
    result = {
        "auto": over_off(rates, AUTO),
        "with useless draft": over_off(rates, beside),
        "share_of_time_drafting": round(drafting_ms / decode_ms, 4),
        "bound": 0.97,
    }
    print(json.dumps(result))


def load(speculations: Sequence[str], target: Path, args: Namespace) -> list[EngineSide]:
    """Engines with these settings. Exits if a draft model was left out: nothing would be measured."""
    engines = Engine.load_together(
        target, speculations, threads=args.threads, remember=False, context_length=4096
    )
    sides = [EngineSide(name, engine) for name, engine in zip(speculations, engines, strict=True)]
    for side in sides:
        if side.engine.notes:
            raise SystemExit(f"{side.name}: {'; '.join(side.engine.notes)}")
    freeze_heap()
    return sides


def over_off(rates: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    """Geometric mean and worst prompt of a setting's rates over those of `off`."""
    speedups = {prompt: rate / rates[OFF][prompt] for prompt, rate in rates[name].items()}
    worst = min(speedups, key=speedups.__getitem__)
    mean = geometric_mean(speedups.values())
    print(f"{name[:40]:<42} {mean:.3f} of off, worst {speedups[worst]:.3f} ({worst})")
    return {"mean": round(mean, 4), "worst": round(speedups[worst], 4)}


# --- a model of random weights ---------------------------------------------------------------------------


def random_draft(target: Path, path: Path, layers: int, width: int) -> Path:
    """Write a Llama of random weights with the tokenizer of `target`; returns its path."""
    reader = gguf.GGUFReader(target)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Random")
    writer.add_file_type(int(gguf.LlamaFileType.ALL_F32))
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(width // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    add_weights(writer, layers, width, vocabulary)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_weights(writer: gguf.GGUFWriter, layers: int, width: int, vocabulary: int) -> None:
    """Normal weights at scales that keep activations near 1 and let the logits have peaks."""
    rng = np.random.default_rng(SEED)

    def normal(rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale / columns**0.5)

    ones = np.ones(width, dtype=np.float32)
    writer.add_tensor("token_embd.weight", normal(vocabulary, width, width**0.5))
    for layer in range(layers):
        prefix = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{prefix}{norm}.weight", ones)
        for matrix in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{prefix}{matrix}.weight", normal(width, width))
        for matrix in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"{prefix}{matrix}.weight", normal(2 * width, width))
        writer.add_tensor(f"{prefix}ffn_down.weight", normal(width, 2 * width))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", normal(vocabulary, width, 4.0))


if __name__ == "__main__":
    run_benchmark(main)
