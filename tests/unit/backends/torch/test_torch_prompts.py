"""A prompt's logits do not depend on the parts in which it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.backends.torch.linear import choose_linear, packed_linear
from foredraft.backends.torch.loading import DTYPES
from foredraft.config import Dtype
from foredraft.protocols import Model
from foredraft.types import Rows
from matrix import nightly
from model_cases import text_tokens
from torch_cases import load

Make = Callable[..., Path]

ODD = {"hidden_size": 200, "intermediate_size": 1100, "head_dim": 50}
"""No multiples of what kernels like; and more inputs than a single row is added up alike with AVX-512."""
PROMPT = text_tokens(545, seed=2)
PARTS = (1, 7, 32, 33, 64, 129, 512)


def read(model: Model, step: int) -> Any:
    """The logits of every row of the prompt, read in parts of `step` rows."""
    model.release(0)
    parts = [PROMPT[start : start + step] for start in range(0, len(PROMPT), step)]
    return np.concatenate(
        [model.forward([Rows(0, i * step, part, len(part))]).copy() for i, part in enumerate(parts)]
    )


@pytest.mark.parametrize(
    ("dtype", "threads"), [("fp32", 1), ("bf16", 1), pytest.param("bf16", 2, marks=nightly)]
)
def test_parts_make_no_difference(folder: Make, dtype: Dtype, threads: int) -> None:
    if choose_linear(DTYPES[dtype], torch.device("cpu")) is not packed_linear:
        pytest.skip("not multiplied so here")
    model = load(folder("llama", **ODD), dtype, threads=threads, context_length=600)
    whole = read(model, PARTS[-1])
    assert len({row.tobytes() for row in whole}) == len(PROMPT), "every row says something else"
    for step in PARTS[:-1]:
        found = read(model, step)
        differ = np.flatnonzero((found != whole).any(1))
        assert not len(differ), f"parts of {step}: {len(differ)} rows differ, the first is {differ[0]}"
    model.close()
