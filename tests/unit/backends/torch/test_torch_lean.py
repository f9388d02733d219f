"""The lean forward is transformers' forward, bit for bit where both multiply the same way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_factory
from foredraft.backends.torch.attention import attend_in_blocks, attend_masked
from foredraft.backends.torch.batch import make_batch
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.lean import Kernels, LeanForward, is_lean
from foredraft.backends.torch.linear import packed_linear, plain_linear
from foredraft.types import Rows
from model_cases import text_tokens
from torch_cases import load, reference

Make = Callable[..., Path]
PROMPT = text_tokens(33)


def cache(dtype: Any = torch.float32) -> KVCache:
    return KVCache(2, 256, dtype=dtype, device=torch.device("cpu"))


def logits(forward: LeanForward, rows: Rows) -> Any:
    with torch.inference_mode():
        return forward(make_batch([rows], torch.device("cpu")))


@pytest.mark.parametrize("architecture", torch_factory.LEAN)
def test_a_prompt_gives_transformers_logits_bit_for_bit(folder: Make, architecture: str) -> None:
    source = reference(folder(architecture), "eager")
    with torch.inference_mode():
        expected = source(torch.tensor([PROMPT])).logits[0]
    forward = LeanForward(source, cache(), plain_linear, Kernels(attend_in_blocks))
    assert torch.equal(logits(forward, Rows(0, 0, PROMPT, len(PROMPT))), expected)


@pytest.mark.parametrize("linear", [plain_linear, packed_linear])
@pytest.mark.parametrize("attention", [attend_in_blocks, attend_masked])
@pytest.mark.parametrize(
    "changes", [{}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 24}], ids=str
)
def test_every_way_to_compute_it_agrees(
    folder: Make, linear: Any, attention: Any, changes: dict[str, Any]
) -> None:
    path = folder("llama", **changes)
    with torch.inference_mode():
        expected = reference(path)(torch.tensor([PROMPT])).logits[0]
    forward = LeanForward(reference(path), cache(), linear, Kernels(attention))
    parts = [logits(forward, Rows(1, 0, PROMPT[:20], 3)), logits(forward, Rows(1, 20, PROMPT[20:], 13))]
    torch.testing.assert_close(torch.cat(parts), expected[17:], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    ("changes", "lean"),
    [
        ({}, True),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, True),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, False),
        ({"hidden_act": "gelu"}, False),
    ],
    ids=str,
)
def test_what_it_does_not_compute_it_leaves_to_transformers(
    folder: Make, changes: dict[str, Any], lean: bool
) -> None:
    assert is_lean(reference(folder("llama", **changes)), 256) == lean


@pytest.mark.parametrize(("window", "lean"), [(100, False), (256, True), (None, True)])
def test_a_window_counts_only_where_the_context_is_longer(
    folder: Make, window: int | None, lean: bool
) -> None:
    assert is_lean(reference(folder("mistral", sliding_window=window)), 256) == lean


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_sixteen_bits_are_close_to_thirty_two(folder: Make, dtype: Any) -> None:
    path = folder("qwen3")
    rows = [Rows(0, 0, PROMPT, 5)]
    wide, narrow = load(path, "fp32"), load(path, dtype)
    assert narrow.info.settings["format"] == dtype
    assert narrow.info.settings["kv_type"] == "fp32", "what the cells are in, not what is computed in"
    expected, found = torch.from_numpy(wide.forward(rows)), torch.from_numpy(narrow.forward(rows))
    assert not torch.equal(found, expected)
    assert float((found - expected).abs().max()) < 0.1 * float(expected.abs().max())
