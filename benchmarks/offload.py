"""What does it cost that a model is larger than its device, and how much of that do drafts win back?

Physics: a layer that does not fit is copied for every forward, and a copy takes as long for one row as for
sixty. While it takes longer than computing, V(n) is flat: an accepted draft token is nearly free, so long
drafts pay that would not where every layer stays. Copying hides behind computing (two buffers, a stream of
its own), so a forward takes the longer of the two, not the sum.

With a GPU the same model is loaded twice, with all layers on the device (if they fit) and with `--resident`
of them, half if absent. Without one a processor stands for the device, and copies take `--gb-per-second` at
best: ratios show the mechanism, not a machine. Without `--model` a small random Llama is made. For each side:
V(n) as the planner measures it, then plain decoding and `auto` in turns, `--repeat` times, the best of each.
Texts are compared: with the same layers computed the same way they are equal, bit for bit, plain ones across
the sides too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from common import model_path, progress, run_benchmark
from foredraft import Engine, ForedraftError, SamplingParams
from foredraft.backends.torch.loading import load_model
from foredraft.backends.torch.offload_cpu import CpuDevice
from foredraft.config import ModelOptions
from foredraft.engine.warmup import measure_costs

EVERYTHING = 10**15
PROMPT = "Rewrite the list in capital letters, item by item. " + " ".join(
    f"item {n}: {animal};" for n, animal in enumerate(("ant", "bee", "cat", "dog", "eel", "fox") * 3)
)
SPECULATION = ("off", "auto")


@dataclass
class Side:
    """A model with some or all of its layers on the device."""

    name: str
    engine: Engine
    curve: dict[int, float] = field(default_factory=dict)
    ms_per_token: dict[str, float] = field(default_factory=dict)
    texts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    draft_length: float = 0.0

    def gain(self) -> float:
        """Plain decoding's time, in multiples of `auto`'s."""
        return self.ms_per_token["off"] / self.ms_per_token["auto"]


def arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--model", type=model_path, default=None, help="a folder of safetensors; a made-up one if absent"
    )
    made.add_argument("--resident", type=int, default=0, help="layers that stay; half of them if absent")
    made.add_argument("--tokens", type=int, default=64)
    made.add_argument("--repeat", type=int, default=2)
    made.add_argument("--threads", type=int, default=0)
    made.add_argument("--dtype", default="auto")
    made.add_argument("--curve-seconds", type=float, default=1.0, help="time to measure V(n) in")
    made.add_argument("--gb-per-second", type=float, default=1.0, help="of copies, where there is no GPU")
    return made.parse_args()


def make_model(folder: Path) -> Path:
    """A random Llama of 8 layers, 5 MB each, and a tokenizer of bytes."""
    size = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096}
    torch.manual_seed(0)
    alphabet = {byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    config = transformers.LlamaConfig(
        vocab_size=len(alphabet) + 1, eos_token_id=len(alphabet), bos_token_id=None, **size, **heads
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    bytes_only = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<end>")
    fast.save_pretrained(folder)
    return folder


def load_sides(folder: Path, args: argparse.Namespace) -> Iterator[Side]:
    """The whole model on the device if it fits there, then the one of which layers are streamed."""
    layers = transformers.AutoConfig.from_pretrained(folder).get_text_config().num_hidden_layers
    streamed = args.resident or max(1, layers // 2)
    stand_in = (
        None if torch.cuda.is_available() else CpuDevice(EVERYTHING, seconds_per_gb=1 / args.gb_per_second)
    )
    for name, resident in (("resident", layers), ("streamed", streamed)):
        options = ModelOptions(
            context_length=2048,
            threads=args.threads,
            gpu_layers=resident,
            dtype=args.dtype,
            probe=False,
        )
        try:
            model = load_model(folder, options, stand_in)
        except ForedraftError as error:
            if name == "streamed":
                raise
            print(f"not measured with all layers on the device: {error.message}")
            continue
        settings = model.info.settings
        print(f"{name}: {settings['gpu_layers']} layers on {model.info.device}", end="")
        print(f", {settings['streamed']}" if "streamed" in settings else "")
        yield Side(name, Engine(model))


def decode(side: Side, speculate: str, tokens: int) -> None:
    """One answer; keeps the best time."""
    engine = side.engine
    engine.set_speculation(speculate)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    engine.generate(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True))  # drafters and planner warm up
    result = engine.generate(PROMPT, params)
    ms = result.timings.predicted_ms / max(1, len(result.tokens) - 1)
    if ms < side.ms_per_token.get(speculate, float("inf")):
        side.ms_per_token[speculate] = ms
        if speculate == "auto" and result.speculation.rounds:
            side.draft_length = result.timings.draft_n / result.speculation.rounds
    side.texts[speculate] = tuple(result.tokens)


def report(sides: list[Side]) -> None:
    """A table, then one JSON object."""
    for side in sides:
        curve = "  ".join(f"{rows}: {ms / side.curve[1]:.2f}" for rows, ms in sorted(side.curve.items()))
        print(f"{side.name:>9}  V(1) = {side.curve[1]:.2f} ms, V(n)/V(1): {curve}")
    for side in sides:
        off, auto = (side.ms_per_token[setting] for setting in SPECULATION)
        same = "same text" if side.texts["off"] == side.texts["auto"] else "another text (not exact)"
        print(
            f"{side.name:>9}  off {off:.2f} ms a token, auto {auto:.2f} ({side.gain():.2f} times as fast, "
            f"{side.draft_length:.1f} draft tokens a round, {same})"
        )
    print(
        json.dumps(
            {
                "device": sides[0].engine.model.info.device,
                "same_plain_text": len({side.texts["off"] for side in sides}) == 1,
                **{
                    side.name: {
                        "layers": side.engine.model.info.settings["gpu_layers"],
                        "curve_ms": {rows: round(ms, 3) for rows, ms in sorted(side.curve.items())},
                        "ms_per_token": {key: round(ms, 3) for key, ms in side.ms_per_token.items()},
                        "gain": round(side.gain(), 3),
                    }
                    for side in sides
                },
            }
        )
    )


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    args = arguments()
    with ExitStack() as stack:
        folder = (
            Path(args.model)
            if args.model
            else make_model(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        )
        sides = list(load_sides(folder, args))
        for side in sides:
            stack.enter_context(side.engine)
            rounds = measure_costs(side.engine.model, 0, args.curve_seconds)
            side.curve = {measured.rows: measured.forward_ms for measured in rounds}
        for repeat in range(args.repeat):
            progress(repeat + 1, args.repeat, "decoding")
            for side in sides:
                for speculate in SPECULATION:
                    decode(side, speculate, args.tokens)
        report(sides)


if __name__ == "__main__":
    run_benchmark(main)
