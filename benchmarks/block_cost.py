"""What a block-diffusion head (DFlash) costs beside a step of the target: a block, and reading rows.

    python benchmarks/block_cost.py                  the default model
    python benchmarks/block_cost.py MODEL.gguf --layers 2 5 --types Q4_1

Time does not depend on what a head has learnt, so its weights are random. A block of n tokens is n + 1 rows
through the head's layers and the output matrix, which is the target's. Published heads have five layers of
the target's width. Reading is fusing the target's hidden states, and the keys and values of each layer.

Milliseconds are processor time of one thread, the least of several, so that a busy machine is no trouble. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import gguf
import numpy as np

from common import run_benchmark
from foredraft.backends.llamacpp import BACKEND
from foredraft.config import ModelOptions
from foredraft.library import default_model
from foredraft.protocols import Head, Model
from foredraft.types import Features, HeadRows, Rows
from head_cost import copy_tokenizer

REPEATS = 12
DEPTH = 200
ROWS = (1, 2, 4, 8, 16)
TOKENS = (1, 3, 7, 15)
READ = (1, 4, 16, 64)
READ_LAYERS = 5


def write_head(target: Path, path: Path, *, layers: int, kind: str) -> Path:
    """Write a head of random weights for a target, with its tokenizer and without embeddings of its own."""
    reader = gguf.GGUFReader(target)
    architecture = reader.fields["general.architecture"].contents()

    def stated(key: str) -> Any:
        return reader.fields[f"{architecture}.{key}"].contents()

    embd, wide = stated("embedding_length"), stated("feed_forward_length")
    heads, kv_heads = stated("attention.head_count"), stated("attention.head_count_kv")
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_name("Random block head")
    writer.add_context_length(stated("context_length"))
    writer.add_embedding_length(embd)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(wide)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(embd // heads)
    writer.add_value_length(embd // heads)
    writer.add_rope_dimension_count(embd // heads)
    writer.add_rope_freq_base(10000.0)
    read = np.linspace(1, stated("block_count") - 2, READ_LAYERS).astype(int).tolist()
    writer.add_array("dflash.target_layers", read)
    writer.add_uint32("dflash.block_size", TOKENS[-1] + 1)
    writer.add_mask_token_id(0)
    copy_tokenizer(reader, writer)
    _add_weights(writer, embd, wide, embd // heads, kv_heads, layers, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_weights(
    writer: gguf.GGUFWriter, embd: int, wide: int, head: int, kv_heads: int, layers: int, kind: str
) -> None:
    random, stored = np.random.default_rng(0), gguf.GGMLQuantizationType[kind]

    def add(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns), np.float32) / columns**0.5
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, stored), raw_dtype=stored)

    add("fc", embd, READ_LAYERS * embd)
    for name in ("enc.output_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(embd, np.float32))
    for number in range(layers):
        for name, rows, columns in (
            ("attn_q", embd, embd),
            ("attn_k", head * kv_heads, embd),
            ("attn_v", head * kv_heads, embd),
            ("attn_output", embd, embd),
            ("ffn_gate", wide, embd),
            ("ffn_up", wide, embd),
            ("ffn_down", embd, wide),
        ):
            add(f"blk.{number}.{name}", rows, columns)
        for name, size in (
            ("attn_norm", embd),
            ("ffn_norm", embd),
            ("attn_q_norm", head),
            ("attn_k_norm", head),
        ):
            writer.add_tensor(f"blk.{number}.{name}.weight", np.ones(size, np.float32))


def least(work: Callable[[], object], after: Callable[[], object]) -> float:
    """The milliseconds of processor time that it takes."""
    found = []
    for _ in range(REPEATS):
        began = thread_time()
        work()
        found.append(1e3 * (thread_time() - began))
        after()
    return round(min(found), 3)


def target_costs(model: Model, text: list[int]) -> dict[str, float]:
    """Of rows of the target after `DEPTH` tokens, all with logits."""
    model.release(0)
    model.forward([Rows(0, 0, text[:DEPTH], 1)])
    return {
        f"{count} rows": least(
            partial(model.forward, [Rows(0, DEPTH, text[DEPTH : DEPTH + count], count)]),
            partial(model.truncate, 0, DEPTH),
        )
        for count in ROWS
    }


def head_costs(head: Head, text: list[int], features: Features) -> dict[str, float]:
    """Of a block after one more row, and of reading rows alone."""
    head.forward([HeadRows(0, 1, text[1:DEPTH], features[: DEPTH - 1], 0)])

    def cost(count: int, tokens: int) -> float:
        rows = HeadRows(
            0, DEPTH, text[DEPTH : DEPTH + count], features[DEPTH - 1 : DEPTH - 1 + count], tokens
        )
        return least(partial(head.forward, [rows]), partial(head.truncate, 0, DEPTH))

    costs = {f"block of {tokens}": cost(1, tokens) for tokens in TOKENS}
    return costs | {f"read {count}": cost(count, 0) for count in READ}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=default_model())
    parser.add_argument("--layers", nargs="+", type=int, default=[2, 5])
    parser.add_argument("--types", nargs="+", default=["Q4_1"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.gguf"
        write_head(asked.model, path, layers=1, kind="F16")
        options = ModelOptions(threads=1, gpu_layers=0, probe=False, context_length=512)
        model = BACKEND.load(asked.model, replace(options, watch=BACKEND.features_for(asked.model, path)))
        text = np.random.default_rng(1).integers(300, model.info.vocab_size - 300, DEPTH + 64).tolist()
        found = {"target": target_costs(model, text)}
        model.release(0)
        model.forward([Rows(0, 0, text, 0)])
        features = model.features().copy()
        for kind in asked.types:
            for layers in asked.layers:
                write_head(asked.model, path, layers=layers, kind=kind)
                head = model.load_head(path, sequences=1)
                found[f"{kind}, {layers} layers"] = head_costs(head, text, features)
                head.close()
        model.close()
    row = found["target"]["1 rows"]
    for name, costs in found.items():
        print(name)
        for what, ms in costs.items():
            print(f"  {what:14} {ms:8.3f} ms, {ms / row:6.3f} of a target row")
    print(json.dumps(found))


if __name__ == "__main__":
    run_benchmark(main)
