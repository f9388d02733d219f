"""What is stored of heads, read from configurations and headers: no tensor is loaded, and torch not needed.

EAGLE-3 heads are folders of their own, in the form of SpecForge (`midlayer.*`) or of speculators
(`layers.0.*`, the layer's settings in `transformer_layer_config`). Layers for multi-token prediction are in
the model's own files, where transformers leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.errors import ModelError, ModelFormatError, ModelNotFoundError, UnsupportedModelError, quoted
from foredraft.library.head_kinds import EAGLE3, kind_of
from foredraft.library.repository import CONFIG, is_repository, read_json, repository_of
from foredraft.library.safetensors_file import SafetensorsSummary, StoredTensor, read_safetensors

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
WINDOW = "foredraft_window"
"""Our key of an EAGLE-3 head's configuration: how many rows a row sees, itself included; 0 for all."""

LARGEST = 1 << 24
"""Maximum of a size in a configuration: more is a mistake."""

SCALES = "_scale_inv"
"""What the name of a tensor's scales ends with, after its own."""
FP8 = "F8_E4M3"
USUAL_BLOCK = 128

Tensors = Mapping[str, StoredTensor]
Block = tuple[int, int]
AGAIN = "Pull the repository again."


@dataclass(frozen=True, slots=True)
class Eagle3File:
    """An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840) as it is stored.

    `config` holds the layer's settings; `tensors` are by the names that SpecForge gives them, `stored` has
    their names in the file. `layers` of the target are those whose inputs it reads. `normed_residual`: the
    residual stream starts with the normalised hidden state; `normed_features`: the target's are normalised.
    `block`: rows and columns of a weight in FP8 that share a scale.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Tensors
    stored: Mapping[str, str]
    layers: tuple[int, ...]
    normed_residual: bool
    normed_features: bool
    window: int
    block: Block

    @property
    def name(self) -> str:
        return self.folder.name


def read_eagle3(path: Path, *, layers: int) -> Eagle3File:
    """Read a head for a model of `layers` layers: a folder or a file in it.

    Raises ModelNotFoundError, ModelFormatError if it is damaged, UnsupportedModelError if it is no such head.
    """
    folder = head_folder(path)
    summary = read_safetensors(folder)
    outer = summary.config
    if kind_of(outer) != EAGLE3:
        raise UnsupportedModelError(
            f"{folder.name} is no EAGLE-3 head: its configuration says "
            f"{', '.join(summary.classes) or summary.architecture or 'nothing'}.",
            hint="SpecForge's and speculators' heads of this kind can be used, and a model's own layers for "
            "multi-token prediction.",
        )
    nested = outer.get("transformer_layer_config")
    config = {**outer, **nested} if isinstance(nested, dict) else outer
    if count(config, "num_hidden_layers", 1) != 1:
        raise UnsupportedModelError(f"{folder.name} has more than one layer; an EAGLE-3 head has one.")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(
            f"{folder.name} has the activation {quoted(config['hidden_act'])}; only silu is supported."
        )
    stored = {_usual_name(tensor.name): tensor.name for tensor in summary.tensors}
    return Eagle3File(
        folder=folder,
        config=config,
        tensors={_usual_name(tensor.name): tensor for tensor in summary.tensors},
        stored=stored,
        layers=_read_layers(outer, layers, folder.name),
        normed_residual=_flag(outer, "norm_before_residual"),
        normed_features=_flag(outer, "norm_before_fc"),
        window=count(outer, WINDOW, 0, least=0),
        block=block_of(outer, folder.name),
    )


def head_folder(path: Path) -> Path:
    """The folder of a head that is one, or a file in one. Raises ModelError."""
    folder = repository_of(path)
    if folder is not None:
        return folder
    if not path.exists():
        raise ModelNotFoundError(f"There is no head {path}.")
    if path.suffix.lower() == ".gguf":
        raise UnsupportedModelError(
            f"{path.name} is a head for models in GGUF files.",
            hint="A model of safetensors takes a head of safetensors.",
        )
    raise ModelFormatError(
        f"{path} is no head: a folder with {CONFIG} and safetensors, or a file in one, is expected."
    )


def _usual_name(stored: str) -> str:
    return re.sub(r"^layers\.0\.", "midlayer.", stored.removeprefix("model."))


def _read_layers(config: Mapping[str, Any], layers: int, name: str) -> tuple[int, ...]:
    """The layers of the target whose inputs the head reads: as the head says, or EAGLE's own choice.

    speculators and vLLM count a layer's input. Heads for SGLang have the numbers in `eagle_config`, and there
    they mean outputs, which are the next layer's input.
    """
    nested = config.get("eagle_config")
    key, added = "eagle_aux_hidden_state_layer_ids", 0
    found = config.get(key)
    if not found and isinstance(nested, dict):
        found, added = nested.get(key), 1
    if not found:
        found, added = [2, layers // 2, layers - 3], 0
    if not isinstance(found, list) or not all(type(layer) is int for layer in found):
        raise ModelFormatError(f"{name} does not list the layers that it reads: {key} is {quoted(found)}.")
    read = tuple(layer + added for layer in found)
    if not all(0 <= layer < layers for layer in read) or len(set(read)) < len(read):
        raise UnsupportedModelError(
            f"{name} reads the inputs of layers {', '.join(map(str, read))}, but the model has {layers}.",
            hint="The head was made for another model.",
        )
    return read


def count(config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1) -> int:
    """A number of a configuration. Raises ModelFormatError if it is missing or impossible."""
    value = config.get(key)
    value = default if value is None else value
    if type(value) is not int or not least <= value <= LARGEST:
        raise ModelFormatError(f"In a head's {CONFIG} {key} is {quoted(value)}, which is no possible number.")
    return value


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ModelFormatError(f"In a head's {CONFIG} {key} is {quoted(value)}; true or false is expected.")
    return value


def block_of(config: Mapping[str, Any], name: str) -> Block:
    """Rows and columns of a weight in FP8 that share a scale. Raises ModelFormatError."""
    stated = config.get("quantization_config")
    value = stated.get("weight_block_size") if isinstance(stated, dict) else None
    if value is None:
        return USUAL_BLOCK, USUAL_BLOCK
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise ModelFormatError(f"In {name} weight_block_size is {quoted(value)}; two sizes are expected.")
    return value[0], value[1]


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """A positive number of a configuration. Raises ModelFormatError."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise ModelFormatError(f"In a head's {CONFIG} {key} is {quoted(value)}, which is no possible number.")
    return float(value)


def check_types(tensors: Tensors, name: str) -> None:
    """Raises UnsupportedModelError for a quantised tensor, but for FP8 with its scales."""
    for ours, tensor in tensors.items():
        scales = tensors.get(ours + SCALES)
        scaled = tensor.type == FP8 and scales is not None and scales.type in FLOATS | {"F8_E8M0"}
        if tensor.type not in FLOATS and not scaled and not ours.endswith(SCALES):
            kind = f"{tensor.type} without scales in {SCALES}" if tensor.type == FP8 else tensor.type
            raise UnsupportedModelError(
                f"In {name} the tensor {tensor.name} is stored as {kind}, which is not supported.",
                hint=f"Use a head in BF16, F16 or F32, or in {FP8} with a scale for each block.",
            )


def check_tensors(tensors: Tensors, needed: Mapping[str, tuple[int, ...]], name: str) -> None:
    """Raises ModelFormatError for a tensor that is missing or has another shape than needed, and
    UnsupportedModelError for a quantised one.
    """
    for wanted, shape in needed.items():
        tensor = tensors.get(wanted)
        if tensor is None:
            raise ModelFormatError(f"{name} lacks the tensor {wanted}.", hint=AGAIN)
        if tensor.shape != shape:
            raise ModelFormatError(
                f"In {name} the tensor {tensor.name} has the shape {tensor.shape}, but {shape} is needed.",
                hint="The head may have been made for another model.",
            )
        own = (wanted, wanted + SCALES)
        check_types({key: tensors[key] for key in own if key in tensors}, name)


# --- layers for multi-token prediction -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MtpFamily:
    """How models of a family store their layers for multi-token prediction.

    `prefix` is a pattern of the tensors' names, in which {layers} is the number of the model's layers and
    {number} that of this one; without {number} there is one. `names` says what the parts around the block are
    called, and what differs in it. What is left are tensors of the block.
    """

    prefix: str
    names: Mapping[str, str]


_QWEN = MtpFamily(
    r"(?:model\.)?mtp\.",
    {
        "fc.": "eh_proj.",
        "pre_fc_norm_embedding.": "enorm.",
        "pre_fc_norm_hidden.": "hnorm.",
        "norm.": "norm.",
        "layers.0.": "block.",
    },
)
_AROUND = {"eh_proj.": "eh_proj.", "enorm.": "enorm.", "hnorm.": "hnorm."}
_DEEPSEEK = MtpFamily(
    r"model\.layers\.{layers}\.",
    {
        **_AROUND,
        "shared_head.norm.": "norm.",
        "shared_head.head.": "shared.head.",
        "embed_tokens.": "shared.embedding.",
        "": "block.",
    },
)
_MIMO = MtpFamily(
    r"model\.mtp\.layers\.{number}\.",
    {
        **_AROUND,
        "final_layernorm.": "norm.",
        "pre_mlp_layernorm.": "block.post_attention_layernorm.",
        "self_attn.attention_sink_bias": "block.self_attn.sinks",
        "": "block.",
    },
)

MTP_FAMILIES: dict[str, MtpFamily] = {
    "qwen3_next": _QWEN,
    "qwen3_5": _QWEN,
    "qwen3_5_text": _QWEN,
    "qwen3_5_moe": _QWEN,
    "qwen3_5_moe_text": _QWEN,
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "mimo_v2_flash": _MIMO,
}
"""By transformers' `model_type`."""


@dataclass(frozen=True, slots=True)
class MtpFile:
    """A layer for multi-token prediction of a model: its `tensors` by our names ("eh_proj.weight",
    "block.mlp.up_proj.weight"), and what they are called in the files. `block` as in `Eagle3File`.
    """

    folder: Path
    tensors: Tensors
    stored: Mapping[str, str]
    block: Block


def read_mtp(folder: Path) -> tuple[MtpFile, ...]:
    """The layers in a model's folder; none if it has none, or the family is not known. Raises ModelError."""
    summary = read_safetensors(folder)
    family = MTP_FAMILIES.get(summary.architecture)
    found: list[MtpFile] = []
    while family is not None:
        prefix = family.prefix.format(layers=summary.block_count, number=len(found))
        file = _layer_file(summary, folder, re.compile(prefix), family.names)
        if file is not None:
            found.append(file)
        if file is None or "{number}" not in family.prefix:
            break
    return tuple(found)


def _layer_file(
    summary: SafetensorsSummary, folder: Path, prefix: re.Pattern[str], names: Mapping[str, str]
) -> MtpFile | None:
    stored: dict[str, str] = {}
    tensors: dict[str, StoredTensor] = {}
    for tensor in summary.tensors:
        found = prefix.match(tensor.name)
        rest = tensor.name[found.end() :] if found else ""
        part = next((part for part in names if rest and rest.startswith(part)), None)
        if part is not None:
            ours = names[part] + rest[len(part) :]
            stored[ours], tensors[ours] = tensor.name, tensor
    if "eh_proj.weight" not in tensors:
        return None
    return MtpFile(folder, tensors, stored, block_of(summary.config, folder.name))


def features_for(path: Path, head: Path | None) -> tuple[str, ...]:
    """See `Backend.features_for`. Raises ModelError."""
    folder = repository_of(path)
    if folder is None or not is_repository(folder):
        if head is None:
            return ()
        raise UnsupportedModelError(
            f"{path.name} is no folder of safetensors, so no head can be used with it."
        )
    if head is None:
        return ("next",) if read_mtp(folder) else ()
    config = read_json(folder / CONFIG)
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    try:
        layers = count(text, "num_hidden_layers", text.get("n_layer"))
    except ModelFormatError:
        raise ModelFormatError(
            f"The configuration of {path.name} does not say how many layers it has."
        ) from None
    return tuple(f"layer:{layer}" for layer in read_eagle3(head, layers=layers).layers)


def missing(needs: Sequence[str], watched: Sequence[str], name: str) -> ModelError | None:
    """The error for a model that was not loaded with what its head needs; None if it was."""
    if set(needs) <= set(watched):
        return None
    return UnsupportedModelError(
        f"A head of {name} reads the hidden states {', '.join(needs)}, with which the model was not loaded.",
        hint="Name the head when the model is loaded.",
    )
