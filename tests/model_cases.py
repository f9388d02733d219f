"""The models that the contract suites run over. Another backend joins by one more entry in `CASES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gguf_factory
import torch_factory
from foredraft.backends.part import split
from foredraft.config import ModelOptions
from foredraft.protocols import Model
from foredraft.testing import FakeModel
from foredraft.types import Logits, Rows

TRAINED_CONTEXT = 1024
LOWEST, HIGHEST = 20, 200
"""Token ids that are ordinary text in every model here."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a case keeps its files; `file` is made once and shared by every model of the case."""

    folder: Path

    def file(self, name: str, make: Callable[[Path], object]) -> Path:
        path = self.folder / name
        if not path.exists():
            make(path)
        return path


def one_thread(workspace: Workspace, context_length: int, sequences: int) -> ModelOptions:
    """A model on one thread of the processor, whose measurements stay with the case."""
    return ModelOptions(
        context_length=context_length,
        sequences=sequences,
        threads=1,
        gpu_layers=0,
        cache_dir=workspace.folder / "measurements",
    )


def _fake(_workspace: Workspace, context_length: int, sequences: int) -> Model:
    return FakeModel(context_length=context_length, sequences=sequences)


def _llamacpp(workspace: Workspace, context_length: int, sequences: int) -> Model:
    from foredraft.backends.llamacpp import BACKEND

    path = workspace.file(
        "tiny-q8_0.gguf",
        lambda path: gguf_factory.tiny_llama(
            path, vocab=300, weight_type="q8_0", ctx_train=TRAINED_CONTEXT, mixing=0.5
        ),
    )
    return BACKEND.load(path, one_thread(workspace, context_length, sequences))


def _torch(workspace: Workspace, context_length: int, sequences: int) -> Model:
    from foredraft.backends.torch import BACKEND

    folder = workspace.file("tiny-llama", torch_factory.make_tiny_llama)
    options = ModelOptions(
        context_length=context_length,
        sequences=sequences,
        threads=1,
        gpu_layers=0,
        cache_dir=workspace.folder / "measurements",
    )
    return BACKEND.load(folder, options)


def _part(workspace: Workspace, context_length: int, sequences: int) -> Model:
    """The second of three."""
    first, part, last = split(_llamacpp(workspace, context_length, 3 * sequences), 3)
    first.close()
    last.close()
    return part


CASES: dict[str, Callable[[Workspace, int, int], Model]] = {
    "fake": _fake,
    "llamacpp": _llamacpp,
    "part": _part,
    "torch": _torch,
}


def prefill(model: Model, seq: int, tokens: Sequence[int]) -> Logits:
    """Append `tokens` to the sequence; returns a copy of the last row's logits, shape (vocabulary,)."""
    row: Logits = model.forward([Rows(seq, model.length(seq), tokens, 1)])[0].copy()
    return row


def fresh(model: Model, seq: int, tokens: Sequence[int]) -> Logits:
    """The logits after `tokens` computed from nothing, in a sequence that is emptied before and after."""
    model.release(seq)
    row = prefill(model, seq, tokens)
    model.release(seq)
    return row


def same(model: Model, left: Logits, right: Logits) -> bool:
    """Equal bit for bit where the model promises that, else to the precision of half floats."""
    if model.capabilities.batch_invariant:
        return np.array_equal(left, right)
    return np.allclose(left, right, rtol=1e-2, atol=5e-2)


def text_tokens(count: int, seed: int = 0) -> list[int]:
    """Ordinary tokens, `count` of them."""
    return [int(token) for token in np.random.default_rng(seed).integers(LOWEST, HIGHEST, count)]
