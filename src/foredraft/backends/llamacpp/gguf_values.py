"""Validation of a GGUF header's values. Most invalid values would end the process, because llama.cpp asserts
instead of refusing them. Faults that only opening the file can reveal are found by `trial`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from foredraft.backends.llamacpp.gguf_native import Array, Tensor, Value
from foredraft.errors import ModelFormatError

Metadata = Mapping[str, Value | Array]

MOST_LAYERS, MOST_EXPERTS = 512, 1024
"""llama.cpp's limit (llama-hparams.h)."""

LARGEST = 2**31 - 1
"""llama.cpp stores sizes in C ints."""

ALIGNED = 32
"""Alignment of the weights in the file, in bytes: they are used in place."""

ONE_EXPERT_IS_NONE = ("hunyuan-dense", "hunyuan_vl")
"""Architectures whose dense models are written as models with a single expert."""

ROPE_SCALING = ("none", "linear", "yarn", "longrope")

_LONGEST = 100

_WHOLE: dict[str, tuple[int, int]] = {
    "block_count": (1, MOST_LAYERS),
    "context_length": (1, LARGEST),
    "embedding_length": (1, LARGEST),
    "vocab_size": (1, LARGEST),
    "expert_count": (0, MOST_EXPERTS),
}
"""Minimum and maximum of whole numbers, by the key after the architecture's name."""

_EPSILONS = (
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.group_norm_epsilon",
)


def check_values(path: Path, architecture: str, metadata: Metadata, tensors: Sequence[Tensor]) -> None:
    """Raises ModelFormatError for the first key with an invalid value, with its valid values."""
    for found in _wrong(architecture, metadata, tensors):
        raise ModelFormatError(
            f"{path} cannot be loaded: {found}.",
            hint="The file is damaged or was converted incorrectly: download or convert it again.",
        )


def _wrong(architecture: str, metadata: Metadata, tensors: Sequence[Tensor]) -> Iterator[str]:
    """The faults, in words."""
    for name, (least, most) in _WHOLE.items():
        key = f"{architecture}.{name}"
        if key in metadata and not _whole(metadata[key], least, most):
            yield f"{key} is {_shown(metadata[key])}, not a whole number from {least} to {most:,}"
    for name in _EPSILONS:
        key = f"{architecture}.{name}"
        if key in metadata and not _share(metadata[key]):
            yield f"{key} is {_shown(metadata[key])}, not a number from 0 to 1"
    key = f"{architecture}.rope.scaling.type"
    if metadata.get(key, ROPE_SCALING[0]) not in ROPE_SCALING:
        yield f"{key} is {_shown(metadata[key])}, not one of {', '.join(ROPE_SCALING)}"
    yield from _layers(architecture, metadata)
    yield from _experts(architecture, metadata, tensors)
    yield from _places(metadata, tensors)


def _layers(architecture: str, metadata: Metadata) -> Iterator[str]:
    """Check that layers for multi-token prediction are fewer than all layers."""
    layers, key = metadata.get(f"{architecture}.block_count"), f"{architecture}.nextn_predict_layers"
    if key in metadata and isinstance(layers, int) and not _whole(metadata[key], 0, layers - 1):
        most = f"{layers}, which is {architecture}.block_count"
        yield f"{key} is {_shown(metadata[key])}, not a whole number below {most}"


def _experts(architecture: str, metadata: Metadata, tensors: Sequence[Tensor]) -> Iterator[str]:
    """Check that a model of experts has their number, the number used, and their weights."""
    experts = metadata.get(f"{architecture}.expert_count", 0)
    assert isinstance(experts, int)  # checked before
    if architecture in ONE_EXPERT_IS_NONE and experts <= 1:
        return
    key = f"{architecture}.expert_used_count"
    used = metadata.get(key, 0)
    each = used.head if isinstance(used, Array) else (used,)  # some models have a number for each layer
    if experts and tensors and not any("_exps" in tensor.name for tensor in tensors):
        yield f"{architecture}.expert_count is {experts}, but the file has no weights of experts"
    if experts and not (all(_whole(one, 0, experts) for one in each) and any(each)):
        most = f"{experts}, which is {architecture}.expert_count"
        yield f"{key} is {_shown(used)}, not a whole number from 1 to {most}"
    if not experts and any(each):
        yield f"{key} is {_shown(used)}, but {architecture}.expert_count is 0"


def _places(metadata: Metadata, tensors: Sequence[Tensor]) -> Iterator[str]:
    first = min((tensor.offset for tensor in tensors), default=0)
    if first % ALIGNED:
        stated = metadata.get("general.alignment", 0)
        yield f"its weights start at no multiple of {ALIGNED} bytes (general.alignment is {_shown(stated)})"


def _whole(value: Value | Array, least: int, most: int) -> bool:
    """Whether it is such a number, for all layers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _share(value: Value | Array) -> bool:
    """Whether it is a number from 0 to 1 and not NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _shown(value: Value | Array) -> str:
    """The value for a message: texts in quotes, and long ones truncated."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
