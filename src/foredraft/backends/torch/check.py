"""Checks, when a model is loaded, that our forward computes the same as transformers.

There are hundreds of architectures. One whose attention differs in a way that our forward does not support
must be refused instead of giving wrong answers.
"""

from __future__ import annotations

from typing import Any

import torch

from foredraft.backends.torch.batch import make_batch
from foredraft.backends.torch.model import Forward
from foredraft.errors import CapacityError, UnsupportedModelError, first_line
from foredraft.types import Rows

PREFIX = 5
TREE = (-1, 0, 0, 1)
"""Parents of the rows after the prefix: a row, its two children, and a child of the first."""
CHAIN = 2
"""Rows after the prefix for models without trees: the first branch."""
PATHS = ((0,), (0, 1), (0, 2), (0, 1, 3))

TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Maximum relative difference of equal logits: only rounding."""


AS_GGUF = "Convert the model to GGUF and run it with the llama.cpp backend."


def _text(vocab_size: int) -> list[int]:
    return [(17 + 31 * i) % vocab_size for i in range(PREFIX + len(TREE))]


def reference_logits(source: Any) -> Any:
    """The logits of transformers, shape (1 + rows of the tree, vocabulary), before anything is changed.

    Raises UnsupportedModelError if it cannot compute plain text.
    """
    text = _text(source.get_output_embeddings().weight.shape[0])
    prefix, tree = text[:PREFIX], text[PREFIX:]
    rows = []
    try:
        with torch.inference_mode():
            for path in ((), *PATHS):
                tokens = [*prefix, *(tree[row] for row in path)]
                ids = torch.tensor([tokens], device=source.device)
                rows.append(source(input_ids=ids, use_cache=False).logits[0, -1].float())
    except torch.OutOfMemoryError as error:
        raise CapacityError(
            f"The device has no memory left for a forward ({first_line(error)}).",
            hint="Use a smaller model, or --gpu-layers 0 to stay on the processor.",
        ) from None
    except Exception as error:  # noqa: BLE001 - hundreds of architectures may raise anything
        raise UnsupportedModelError(
            f"transformers cannot compute plain text with {type(source).__name__} "
            f"({type(error).__name__}: {(str(error).splitlines() or [''])[0]}).",
            hint=AS_GGUF,
        ) from None
    return torch.stack(rows)


def check_forward(
    forward: Forward, expected: Any, name: str, *, dtype: Any, device: Any, tree: bool = True
) -> None:
    """Compute the same in three forwards, the last one with a tree or, without `tree`, only its first branch.
    The model computes in `dtype`, whatever the format of its logits.

    Raises UnsupportedModelError.
    """
    text = _text(expected.shape[1])
    last = Rows(0, PREFIX, text[PREFIX:], len(TREE), TREE)
    if not tree:
        last = Rows(0, PREFIX, text[PREFIX : PREFIX + CHAIN], CHAIN)
        expected = expected[: 1 + CHAIN]
    parts = [Rows(0, 0, text[:2], 0), Rows(0, 2, text[2:PREFIX], 1), last]
    with torch.inference_mode():
        found = torch.cat([forward(make_batch([part], device)) for part in parts])
    tolerance = TOLERANCE[dtype] * float(expected.abs().max())
    difference = float((found.float() - expected).abs().max())
    if not difference <= tolerance:
        raise UnsupportedModelError(
            f"Foredraft does not compute what transformers does for {name} (logits {difference:.3g} apart).",
            hint=AS_GGUF,
        )
