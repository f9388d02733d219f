"""What a trained head costs, as a share of a row of its target: a step of a draft, and reading rows.

    python benchmarks/head_cost.py                  the default model
    python benchmarks/head_cost.py MODEL.gguf --vocabulary 4096 8192 --types F16 Q4_1

Time does not depend on what a head has learnt, so its weights are random. A step is one row: some 5 MB of
weights of a 135M model's head, of which the output matrix has the larger part; that is why the vocabulary is
reduced. Reading is fusing the target's hidden states and a row each, for which EAGLE-3 in llama.cpp computes
all logits, asked for or not. What is not in llama.cpp's own functions is the time of Python around them.
Keeping hidden states is what a head costs that is not asked: a forward that keeps them, and copying those
that a head would read, beside a forward of the same weights that does not.

Run it on an idle machine. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import gguf
import numpy as np

from common import run_benchmark
from foredraft.backends.llamacpp import BACKEND
from foredraft.backends.llamacpp.binding import lib
from foredraft.bench.watching import watching_cost
from foredraft.config import ModelOptions
from foredraft.library import default_model
from foredraft.protocols import Head, Model
from foredraft.types import Features, HeadRows, Rows

REPEATS = 40
DEPTH = 200
READ = (1, 4, 16, 64)


def write_head(target: Path, path: Path, *, vocabulary: int, kind: str, window: int) -> Path:
    """Write a head of random weights for a target, with its tokenizer."""
    reader = gguf.GGUFReader(target)
    architecture = reader.fields["general.architecture"].contents()

    def stated(key: str) -> Any:
        return reader.fields[f"{architecture}.{key}"].contents()

    embd, wide = stated("embedding_length"), stated("feed_forward_length")
    heads, kv_heads = stated("attention.head_count"), stated("attention.head_count_kv")
    layers = stated("block_count")
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_name("Random head")
    writer.add_context_length(stated("context_length"))
    writer.add_embedding_length(embd)
    writer.add_block_count(1)
    writer.add_feed_forward_length(wide)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(embd // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_array("eagle3.target_layers", [2, layers // 2, layers - 3])
    writer.add_uint32("eagle3.target_hidden_size", embd)
    if window:
        writer.add_uint32("foredraft.window", window)
    copy_tokenizer(reader, writer)
    _add_weights(writer, embd, wide, embd // heads * kv_heads, vocabulary, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("tokenizer.ggml."):
            kind, *of = field.types
            writer.add_key_value(key, field.contents(), kind, of[0] if of else None)


def _add_weights(writer: gguf.GGUFWriter, embd: int, wide: int, kv: int, vocabulary: int, kind: str) -> None:
    random, stored = np.random.default_rng(0), gguf.GGMLQuantizationType[kind]
    for name, rows, columns in (
        ("fc", embd, 3 * embd),
        ("output", vocabulary, embd),
        ("blk.0.attn_q", embd, 2 * embd),
        ("blk.0.attn_k", kv, 2 * embd),
        ("blk.0.attn_v", kv, 2 * embd),
        ("blk.0.attn_output", embd, embd),
        ("blk.0.ffn_gate", wide, embd),
        ("blk.0.ffn_up", wide, embd),
        ("blk.0.ffn_down", embd, wide),
    ):
        values = random.standard_normal((rows, columns), np.float32) / columns**0.5
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, stored), raw_dtype=stored)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(embd, np.float32))
    writer.add_tensor("d2t", np.arange(vocabulary, dtype=np.int64))


class Native:
    """Counts the milliseconds in llama.cpp's forwards."""

    def __init__(self) -> None:
        self.ms = 0.0
        for name in ("llama_decode", "llama_encode"):
            setattr(lib, name, self._timed(getattr(lib, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = perf_counter()
            result = function(*arguments)
            self.ms += 1e3 * (perf_counter() - began)
            return result

        return timed


def measured(native: Native, work: Callable[[], object], after: Callable[[], object]) -> tuple[float, float]:
    """(the milliseconds of `work`, those of them in llama.cpp): medians."""
    found = []
    for _ in range(REPEATS):
        native.ms = 0.0
        began = perf_counter()
        work()
        found.append((1e3 * (perf_counter() - began), native.ms))
        after()
    return tuple(float(np.median(column)) for column in zip(*found, strict=True))  # type: ignore[return-value]


def target_costs(model: Model, native: Native, text: list[int]) -> dict[str, tuple[float, float]]:
    """Of rows of the target after `DEPTH` tokens, and of returning their hidden states."""
    model.forward([Rows(0, 0, text[:DEPTH], 1)])
    costs = {}
    for count in (1, 4, 64):
        rows = Rows(0, DEPTH, text[DEPTH : DEPTH + count], min(count, 63))
        costs[f"target, {count} rows"] = measured(
            native, partial(model.forward, [rows]), partial(model.truncate, 0, DEPTH)
        )
        model.forward([rows])
        costs[f"features, {count} rows"] = measured(native, model.features, lambda: None)
        model.truncate(0, DEPTH)
    return costs


def watching(model: Model, text: list[int]) -> dict[str, dict[str, float]]:
    """What keeping hidden states costs a model with the same weights, and copying those of `rows` rows."""
    plain = model.unwatched(1)  # type: ignore[attr-defined]
    costs = {}
    for rows, read in ((1, 0), (1, 1), (512, 1), (512, 512)):
        cost = watching_cost(plain, model, text[:DEPTH] + text[:rows], rows=rows, read=read)
        costs[f"{rows} rows, {read} copied"] = asdict(cost)
    plain.close()
    return costs


def head_costs(head: Head, native: Native, text: list[int], features: Features) -> dict[str, Any]:
    """Of a step, and of reading rows with the logits of the last."""
    costs = {}

    def rows(count: int, logits: int) -> HeadRows:
        return HeadRows(0, DEPTH, text[DEPTH : DEPTH + count], features[:count], logits)

    head.forward([HeadRows(0, DEPTH - 64, text[DEPTH - 64 : DEPTH], features[:64], 0)])
    for count in READ:
        for logits in (1, 0):
            costs[f"read {count}, {logits} logits"] = measured(
                native,
                partial(head.forward, [rows(count, logits)]),
                partial(head.truncate, 0, DEPTH),
            )
    head.forward([rows(1, 1)])
    own = iter(range(DEPTH + 1, DEPTH + 1 + REPEATS))
    costs["step"] = measured(
        native, lambda: head.forward([HeadRows(0, next(own), text[:1], None, 1)]), lambda: None
    )
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=default_model())
    parser.add_argument("--vocabulary", nargs="+", type=int, default=[4096, 8192])
    parser.add_argument("--types", nargs="+", default=["F16", "Q4_1"])
    parser.add_argument("--windows", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.gguf"
        write_head(asked.model, path, vocabulary=256, kind="F16", window=0)
        options = ModelOptions(threads=asked.threads, gpu_layers=0, probe=False)
        model = BACKEND.load(asked.model, replace(options, watch=BACKEND.features_for(asked.model, path)))
        native = Native()
        text = np.random.default_rng(1).integers(300, model.info.vocab_size - 300, 600).tolist()
        found["target"] = target_costs(model, native, text)
        row = found["target"]["target, 1 rows"][0]
        kept = watching(model, text)
        model.release(0)
        model.forward([Rows(0, 0, text[:64], 0)])
        features = model.features().copy()
        for kind in asked.types:
            for vocabulary in asked.vocabulary:
                for window in asked.windows:
                    write_head(asked.model, path, vocabulary=vocabulary, kind=kind, window=window)
                    head = model.load_head(path, sequences=1)
                    name = f"{kind}, {vocabulary} tokens, window {window}"
                    found[name] = head_costs(head, native, text, features)
                    head.close()
        model.close()
    for what, cost in kept.items():
        print(f"keeping hidden states, {what}: {cost['more_ms']:+.3f} ms of {cost['plain_ms']:.3f}")
    for name, costs in found.items():
        print(name)
        for what, (ms, inside) in costs.items():
            print(f"  {what:22} {ms:7.3f} ms, {inside:7.3f} in llama.cpp, {ms / row:5.3f} of a target row")
    print(json.dumps({"keeping": kept, **found}))


if __name__ == "__main__":
    run_benchmark(main)
