"""What it costs that each text is embedded in a forward of its own: texts/s of that, and of 32 in one.

    python benchmarks/embeddings.py [--tokens 8 128] [--threads 1]

In one forward the weights are read once for all texts, but every token's attention also runs over the tokens
of the others, which a mask then takes out; and sums have other zeros in them, so that the last bits of a
vector depend on its company. The model is an F32 BERT of 6 layers, 384 wide, with random weights. The fastest
of some runs counts. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import embedder_factory as factory
from common import run_benchmark
from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.embedder_loading import load_embedder
from foredraft.backends.llamacpp.loading import ContextSettings, create_context
from foredraft.config import ModelOptions
from foredraft.embedding import Encoded, Vectors

TEXTS, RUNS, SIZE = 32, 3, 384


def together(weights: Any, tokens: int, threads: int) -> Callable[[list[list[int]]], Vectors]:
    """Computes up to 32 texts in one forward, pooled by llama.cpp."""
    room = TEXTS * tokens

    def adjust(params: Any) -> None:
        params.embeddings, params.pooling_type = True, abi.LLAMA_POOLING_TYPE_MEAN
        params.n_ctx, params.kv_unified = room, True

    settings = ContextSettings(
        context_length=room,
        sequences=TEXTS,
        threads=threads,
        batch=room,
        ubatch=room,
        kv_types=("f16", "f16"),
        flash_attention="auto",
        device="cpu",
    )
    context, _ = create_context(weights, settings, fallback=False, adjust=adjust)

    def compute(texts: list[list[int]]) -> Vectors:
        batch, row = lib.llama_batch_init(sum(map(len, texts)), 0, 1), 0
        for number, text in enumerate(texts):
            for position, token in enumerate(text):
                batch.token[row], batch.pos[row] = token, position
                batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, number, 1
                row += 1
        batch.n_tokens = row
        assert lib.llama_decode(context, batch) == 0
        lib.llama_batch_free(batch)
        vectors = [lib.llama_get_embeddings_seq(context, number) for number in range(len(texts))]
        return np.stack([np.ctypeslib.as_array(vector, (SIZE,)).copy() for vector in vectors])

    return compute


def rate(work: Callable[[], object]) -> float:
    """Texts a second."""
    best = float("inf")
    for _ in range(RUNS):
        began = perf_counter()
        work()
        best = min(best, perf_counter() - began)
    return TEXTS / best


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 128])
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        wide: dict[str, Any] = {"hidden_size": SIZE, "num_hidden_layers": 6, "num_attention_heads": 12}
        model = factory.bert(**wide, intermediate_size=4 * SIZE, max_position_embeddings=512)
        path = factory.bert_gguf(Path(folder) / "bert.gguf", model)
        embedder = load_embedder(path, ModelOptions(threads=given.threads), None)
        random = np.random.default_rng(0)
        for tokens in given.tokens:
            texts = [random.integers(5, 200, tokens).tolist() for _ in range(TEXTS)]
            shared = together(embedder._weights, tokens, given.threads)
            equal = np.array_equal(shared(texts), np.concatenate([shared([text]) for text in texts]))
            alone = rate(lambda texts=texts: embedder.compute([Encoded(text) for text in texts]))  # type: ignore[misc]
            at_once = rate(lambda texts=texts, shared=shared: shared(texts))  # type: ignore[misc]
            results[tokens] = {"alone": alone, "together": at_once, "ratio": at_once / alone, "equal": equal}
            print(
                f"{tokens} tokens: {alone:.1f} texts/s each in a forward of its own, {at_once:.1f} together, "
                f"{at_once / alone:.2f} times; {'the same' if equal else 'other'} bits in company"
            )
        embedder.close()
    print(json.dumps(results))


if __name__ == "__main__":
    run_benchmark(main)
