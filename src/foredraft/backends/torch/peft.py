"""Reading LoRA adapters in PEFT's format, a folder with a configuration and safetensors.

An adapter adds s × B(A x) to what a linear layer computes of x, with s = alpha / rank (Hu et al. 2021, arXiv
2106.09685), or alpha / √rank with `use_rslora` (Kalajdzievski 2023, arXiv 2312.03732). Other kinds of
adapters, and other things that an adapter may change, are refused by their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from foredraft.errors import ModelFormatError, UnsupportedModelError, first_line
from foredraft.library.adapter_files import PEFT_CONFIG, PEFT_WEIGHTS, files_of
from foredraft.library.repository import read_json

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_AGAIN = "Download it again."
_MERGE = "Merge it into the model's weights with PEFT, and use the merged model."

_UNSUPPORTED = {
    "use_dora": "DoRA",
    "modules_to_save": "modules_to_save",
    "lora_bias": "lora_bias",
    "alpha_pattern": "alpha_pattern",
    "trainable_token_indices": "trainable_token_indices",
    "target_parameters": "target_parameters",
    "alora_invocation_tokens": "aLoRA",
    "layer_replication": "layer_replication",
    "use_qalora": "QALoRA",
}
"""Settings that change what an adapter computes, unless they are empty, and what they are called."""

_CHANGE_THE_MODEL = ("pissa", "olora", "corda", "loftq")
"""Initialisations that change the model's own weights, too."""


class Pair(NamedTuple):
    """The matrices of a layer: A of shape (rank, inputs), and B of (outputs, rank), scaled."""

    a: Any
    b: Any


def read_peft(path: Path) -> dict[str, Pair]:
    """The matrices of an adapter in fp32, by the name of their layer in transformers' model.

    Raises ModelNotFoundError, ModelFormatError if it is damaged, and UnsupportedModelError for what it
    changes otherwise.
    """
    if path.is_file():
        raise UnsupportedModelError(
            f"The adapter {path} is a file, and the model is a folder of safetensors.",
            hint=f"Name the adapter's folder: that with {PEFT_CONFIG} and {PEFT_WEIGHTS}.",
        )
    files_of(path)
    config = read_json(path / PEFT_CONFIG)
    for reason in _unsupported(config):
        raise UnsupportedModelError(f"The adapter {path} uses {reason}, which is not supported.", hint=_MERGE)
    try:
        tensors = load_file(path / PEFT_WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFormatError(
            f"The adapter {path} cannot be read: {first_line(error)}.", hint=_AGAIN
        ) from None
    return _pairs(path, tensors, config)


def _unsupported(config: Mapping[str, Any]) -> Iterator[str]:
    """The kinds of adapters that are not computed, by name."""
    if (kind := config.get("peft_type")) != "LORA":
        yield f"the method {kind}"
    for setting, name in _UNSUPPORTED.items():
        if config.get(setting):
            yield name
    if config.get("bias", "none") != "none":
        yield f"bias={config['bias']}"
    initial = config.get("init_lora_weights")
    if isinstance(initial, str) and initial.startswith(_CHANGE_THE_MODEL):
        yield f"the initialisation {initial}"


def _pairs(path: Path, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Pair]:
    alpha = _alpha(path, config)
    parts: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        suffix = next((suffix for suffix in (_A, _B) if name.endswith(suffix)), None)
        if suffix is None:
            raise UnsupportedModelError(
                f"The adapter {path} holds {name}, which is no LoRA matrix of a linear layer.", hint=_MERGE
            )
        its = parts.setdefault(name.removesuffix(suffix).removeprefix(_PREFIX), {})
        if suffix in its:
            raise _damaged(path, f"it holds {name.removeprefix(_PREFIX)} twice")
        its[suffix] = _numbers(path, name, tensor)
    found = {}
    for name, its in parts.items():
        a, b = its.get(_A), its.get(_B)
        if a is None or b is None or a.ndim != 2 or b.ndim != 2 or not 0 < a.shape[0] == b.shape[1]:
            raise _damaged(path, f"{name} needs two matrices of one rank")
        rank = a.shape[0]
        found[name] = Pair(a, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank) * b)
    if not found:
        raise ModelFormatError(f"The adapter {path} is empty.", hint=_AGAIN)
    return found


def _alpha(path: Path, config: Mapping[str, Any]) -> float:
    alpha = config.get("lora_alpha")
    try:
        number = math.nan if isinstance(alpha, bool) or not isinstance(alpha, int | float) else float(alpha)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _damaged(path, "lora_alpha is no number")
    return number


def _numbers(path: Path, name: str, tensor: Any) -> Any:
    if not tensor.is_floating_point():
        raise _damaged(
            path, f"{name} is of {str(tensor.dtype).removeprefix('torch.')}, and no matrix of numbers"
        )
    numbers = tensor.float()
    if not torch.isfinite(numbers).all():
        raise _damaged(path, f"{name} holds what is no number")
    return numbers


def _damaged(path: Path, reason: str) -> ModelFormatError:
    return ModelFormatError(f"The adapter {path} is damaged: {reason}.", hint=_AGAIN)
