"""A head drafts for a torch model with LoRA adapters, and no token changes."""

from __future__ import annotations

from pathlib import Path

import pytest

import torch_factory
import torch_heads
from foredraft import SamplingParams
from foredraft.backends.torch import BACKEND
from foredraft.config import ModelOptions
from foredraft.drafters.heads import HeadsDrafter
from foredraft.library.adapter_files import adapters_of
from foredraft.protocols import Drafter, Model
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import assert_lossless
from model_cases import text_tokens
from peft_adapters import peft

PROMPTS = [text_tokens(12), text_tokens(25, seed=1), [30, 31, 32] * 5, text_tokens(7, seed=2)]
KNOWN = sorted({*range(0, 300, 3), 40, 41})


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_head_drafts_for_a_model_with_adapters(
    temperature: float, tmp_path: Path, *, concurrent: bool
) -> None:
    path, head = tmp_path / "model", tmp_path / "head"
    torch_factory.make_model(path, "llama", num_hidden_layers=4, tie_word_embeddings=False)
    torch_heads.write_specforge(head, torch_heads.eagle3_tensors(known=KNOWN))
    options = ModelOptions(
        context_length=128,
        sequences=4,
        threads=1,
        gpu_layers=0,
        dtype="fp32",
        watch=BACKEND.features_for(path, head),
        adapters=adapters_of({"one": peft(tmp_path / "one", path)}),
        cache_dir=tmp_path,
    )

    def drafters(model: Model) -> list[Drafter]:
        ends = model.tokenizer.end_tokens
        loaded = model.load_head(head, sequences=model.capabilities.sequences)
        return [HeadsDrafter(loaded, CoupledSampler(model.info.vocab_size, ends), end_tokens=ends)]

    origins = assert_lossless(
        lambda: BACKEND.load(path, options),
        drafters,
        PROMPTS,
        SamplingParams(temperature=temperature, seed=3, max_tokens=16, ignore_eos=True),
        concurrent=concurrent,
        adapters=("one", ""),
    )
    assert sum(origins.values()) == len(PROMPTS) * 16
