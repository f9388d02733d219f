"""The files of LoRA adapters for GGUF models: what is in them, and whether they fit a model.

llama.cpp adds scale × B(A x) to the product of a matrix with x, where A and B are `NAME.lora_a` and
`NAME.lora_b` of a file, and NAME is the matrix in the model (Hu et al. 2021, arXiv 2106.09685).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from foredraft.backends.llamacpp.gguf_file import GGUFSummary, is_gguf, read_gguf
from foredraft.backends.llamacpp.gguf_native import Tensor
from foredraft.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from foredraft.library.adapter_files import is_peft

ALORA = "adapter.alora.invocation_tokens"
AGAIN = "Download or convert it again."
_A, _B = ".lora_a", ".lora_b"
_NOT_COMPUTED = ("i8", "i16", "i32", "i64", "f64")
_NOT_MULTIPLIED = re.compile(
    r"embd\.|masked_embd|embed_tokens|token_types|attn_rel_b|norm|conv(1d(_[qkv])?|\d)?\.weight|ssm_[ad]$"
    r"|time_mix_(lerp|first|decay\.|r_k)|_scale\.|_ape\b|tid2eid"
)
"""Tensors with several sides that are looked up or computed with otherwise: llama.cpp would leave out an
adapter's matrices, and for a model whose last layer is its embeddings end the process. They are told by name,
as in the table of tensors and operations in llama.cpp's llama-arch.cpp: no file and no exported function says
it. Matrices that a model's graph multiplies without adapters are told by a trial (`adapter_coverage`).
"""


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter's file: for each matrix of the model its two parts, and the constant that their product is
    scaled with, divided by their rank; 0 stands for the rank.
    """

    summary: GGUFSummary
    alpha: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def rank(self) -> int:
        """The largest."""
        return max(sides(a)[1] for a, _ in self.pairs.values())

    @property
    def signature(self) -> str:
        """Its shapes and types: what the exactness of computing with it depends on."""
        pairs = sorted(self.pairs.items())
        return "|".join(f"{name} {b.shape} {a.type} {b.type}" for name, (a, b) in pairs)


def sides(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs of a matrix."""
    return tensor.shape[0], tensor.shape[1] if len(tensor.shape) > 1 else 1


def is_adapter(summary: GGUFSummary) -> bool:
    """Whether this is the header of an adapter."""
    return summary.metadata.get("general.type") == "adapter"


def read_adapter(path: Path) -> AdapterFile:
    """Read the header of an adapter's file. Raises what `read_gguf` does, ModelFormatError if it is no LoRA
    adapter, or damaged, and UnsupportedModelError for one that cannot be used.
    """
    if path.is_dir():
        raise _folder(path)
    if not path.exists():
        raise ModelNotFoundError(
            f"There is no adapter {path}.", hint="Name a GGUF file that was converted from an adapter."
        )
    if not is_gguf(path):
        raise ModelFormatError(
            f"The adapter {path} is not a GGUF file.",
            hint="Convert it with llama.cpp's convert_lora_to_gguf.py.",
        )
    summary = read_gguf(path)
    if not is_adapter(summary) or summary.metadata.get("adapter.type") != "lora":
        raise ModelFormatError(
            f"{path} is not a LoRA adapter.", hint="If it is a model, name it with -m in place of --lora."
        )
    if ALORA in summary.metadata:
        raise UnsupportedModelError(
            f"{path} is an activated LoRA (aLoRA), which only changes what follows certain tokens: Foredraft "
            "cannot use it.",
            hint="Use a LoRA adapter that was trained for whole texts.",
        )
    alpha = summary.metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, float) or not math.isfinite(alpha):
        raise ModelFormatError(f"The adapter {path} is damaged: adapter.lora.alpha is no number.", hint=AGAIN)
    return AdapterFile(summary, alpha, _pairs(path, summary.tensors))


def _folder(path: Path) -> UnsupportedModelError:
    what = "in PEFT's format" if is_peft(path) else "a folder"
    return UnsupportedModelError(
        f"The adapter {path} is {what}, and the model is a GGUF file.",
        hint=f"Convert it with llama.cpp's script: python convert_lora_to_gguf.py --base MODEL_FOLDER {path}",
    )


def _pairs(path: Path, tensors: tuple[Tensor, ...]) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        suffix = tensor.name[-len(_A) :]
        if suffix not in (_A, _B):
            raise UnsupportedModelError(
                f"The adapter {path} changes {tensor.name} by something else than a product of two matrices.",
                hint="llama.cpp computes with LoRA matrices only.",
            )
        found.setdefault(tensor.name[: -len(_A)], {})[suffix] = tensor
    if not found:
        raise ModelFormatError(f"The adapter {path} is empty.", hint=AGAIN)
    for name, parts in found.items():
        if len(parts) < 2:
            raise ModelFormatError(f"The adapter {path} is damaged: {name} needs two matrices.", hint=AGAIN)
        for part in parts.values():
            if part.type in _NOT_COMPUTED:
                raise ModelFormatError(
                    f"The adapter {path} is damaged: {part.name} is of {part.type}, no matrix.",
                    hint=AGAIN,
                )
    return {name: (parts[_A], parts[_B]) for name, parts in found.items()}


def check_fits(adapter: AdapterFile, model: GGUFSummary) -> None:
    """Raises UnsupportedModelError if the adapter is one of another model."""
    path = adapter.summary.path
    if adapter.summary.architecture != model.architecture:
        raise UnsupportedModelError(
            f"The adapter {path} is for models of the architecture {adapter.summary.architecture}; "
            f"{model.path.name} has {model.architecture}.",
            hint="Use it with the model that it was trained for.",
        )
    for fault in _misfits(adapter, {tensor.name: tensor for tensor in model.tensors}):
        raise UnsupportedModelError(
            f"The adapter {path} does not fit {model.path.name}: {fault}.",
            hint="Use it with the model that it was trained for.",
        )


def _misfits(adapter: AdapterFile, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for name, (a, b) in adapter.pairs.items():
        base = tensors.get(name)
        if base is None:
            yield f"the model has no {name}"
            continue
        if len(base.shape) < 2 or _NOT_MULTIPLIED.search(name):
            yield f"{name} is no matrix of a linear layer"
            continue
        (inputs, outputs), (a_in, a_out), (b_in, b_out) = sides(base), sides(a), sides(b)
        fits = (a_in, b_out) == (inputs, outputs) and a_out == b_in
        if not fits or not a.shape[2:] == b.shape[2:] == base.shape[2:]:
            yield f"{name} is {outputs} × {inputs}, and the adapter's {b_out} × {a_in}"
