"""LoRA adapters in PEFT's format, made on the spot for a folder with a model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LINEAR = r".*(q|k|v|o|gate|up|down|in|out)_proj\.weight|.*(query_key_value|c_attn|c_proj)\.weight"


def peft(
    folder: Path,
    model: Path,
    *,
    rank: int = 4,
    alpha: float = 8,
    seed: int = 0,
    strength: float = 0.7,
    targets: str = LINEAR,
    extra: dict[str, Any] | None = None,
    transposed: bool = False,
    renamed: tuple[str, str] = ("", ""),
    **config: Any,
) -> Path:
    """Write an adapter that changes what the layers named by `targets` compute by about `strength` of their
    own size, and return its folder. `config` changes the configuration, `extra` are further tensors.
    `renamed`: what the names of layers begin with in the model's file, and what in transformers' model.
    """
    numbers, tensors = torch.Generator().manual_seed(seed), dict[str, Any](extra or {})
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    with safe_open(model / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            if not re.fullmatch(targets, name):
                continue
            outputs, inputs = file.get_slice(name).get_shape()
            if transposed:
                outputs, inputs = inputs, outputs
            layer = f"base_model.model.{renamed[1]}{name.removesuffix('.weight').removeprefix(renamed[0])}"
            a = torch.randn(rank, inputs, generator=numbers) / inputs**0.5
            b = torch.randn(outputs, rank, generator=numbers) * strength / rank**0.5 / scale
            tensors[f"{layer}.lora_A.weight"], tensors[f"{layer}.lora_B.weight"] = a, b
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    return folder
