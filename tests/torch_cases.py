"""Loading tiny models in tests, and what transformers itself makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from foredraft.backends.torch import BACKEND
from foredraft.config import Dtype, ModelOptions
from foredraft.protocols import Model


def load(folder: Path, dtype: Dtype = "auto", **options: Any) -> Model:
    """The model on one thread of the processor, without the probe unless it is asked for."""
    chosen = {"threads": 1, "gpu_layers": 0, "probe": False, "context_length": 256, **options}
    return BACKEND.load(folder, ModelOptions(dtype=dtype, **chosen))


def reference(folder: Path, attention: str | None = None) -> Any:
    """transformers' model in fp32, with the attention that is its default if none is named."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention
    )


def greedy(source: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    """What `transformers.generate` continues the prompt with, its end of text included."""
    ids = torch.tensor([list(prompt)])
    made = source.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )
    continued: list[int] = made[0, len(prompt) :].tolist()
    return continued
