"""The type that each tensor gets in a mixture such as Q4_K_M: llama.cpp's choices (llama-quant.cpp), without
an importance matrix.

A mixture has a type for most matrices. Those on which the text depends more get more bits: the output matrix,
attention's values and output, and the feed-forward's last product, in some layers or in all. Types have
ggml's names, in upper case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.gguf_native import Tensor
from foredraft.errors import ModelFormatError, UnsupportedModelError, printable

FLOATS = frozenset({"F32", "F16", "BF16"})

MIXTURES: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q6_K")},
        **{name: name for name in ("Q2_K", "IQ3_S", "IQ4_NL", "IQ4_XS", "Q1_0", "Q2_0", "TQ1_0", "TQ2_0")},
        **{f"Q3_K_{size}": "Q3_K" for size in "SML"},
        **{f"Q{bits}_K_{size}": f"Q{bits}_K" for bits in (4, 5) for size in "SM"},
        "IQ3_M": "IQ3_S",
        "MXFP4_MOE": "MXFP4",
    }
)
"""The type of most matrices in each mixture."""

OUTPUT = "output.weight"
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


@dataclass(frozen=True, slots=True)
class Traits:
    """What the choices depend on besides the tensors. `heads_per_kv`: attention heads that share K and V, 0
    without attention. `is_70b`: llama.cpp counts it among the models of 70 billion parameters.
    """

    architecture: str
    layers: int
    experts: int
    heads_per_kv: int
    is_70b: bool = False


class _Kind(Enum):
    OUTPUT = auto()
    EMBEDDING = auto()
    VALUES = auto()
    KEYS = auto()
    ATTENDED = auto()
    DOWN = auto()
    OTHER = auto()


_NAMED = (
    (_Kind.VALUES, ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")),
    (_Kind.KEYS, ("attn_k.weight",)),
    (_Kind.ATTENDED, ("attn_output.weight",)),
    (_Kind.DOWN, ("ffn_down",)),
)


@dataclass(frozen=True, slots=True)
class _Place:
    """The `index`-th of `count` tensors of its kind, in the order of the layers."""

    index: int
    count: int
    traits: Traits


_Rule = tuple[Callable[[_Place], bool], str]
"""A condition, and the type if it holds. Of several rules the first that holds counts."""


def _always(_place: _Place) -> bool:
    return True


def _first(number: int) -> Callable[[_Place], bool]:
    return lambda place: place.index < number


def _first_part(parts: int) -> Callable[[_Place], bool]:
    return lambda place: place.index < place.count // parts


def _spread(place: _Place) -> bool:
    """The first and last eighth, and every third between them."""
    eighth = place.count // 8
    return not eighth <= place.index < 7 * place.count // 8 or (place.index - eighth) % 3 == 2


def _shared(place: _Place) -> bool:
    """V is small, because several heads share it."""
    return place.traits.heads_per_kv >= 4


def _eight_experts(traits: Traits) -> bool:
    return traits.experts == 8


_VALUES: Mapping[str, Sequence[_Rule]] = {
    "Q2_K": ((_shared, "Q4_K"), (_always, "Q3_K")),
    "Q3_K_M": ((_first(2), "Q5_K"), (_always, "Q4_K")),
    "Q3_K_L": ((_always, "Q5_K"),),
    "Q4_K_S": ((_first(4), "Q5_K"),),
    "Q4_K_M": ((_spread, "Q6_K"),),
    "Q5_K_M": ((_spread, "Q6_K"),),
    "IQ3_S": ((_shared, "Q4_K"),),
    "IQ3_M": ((_always, "Q4_K"),),
    "IQ4_NL": ((_shared, "Q5_K"),),
    "IQ4_XS": ((_shared, "Q5_K"),),
}

_DOWN: Mapping[str, Sequence[_Rule]] = {
    "Q2_K": ((_always, "Q3_K"),),
    "Q3_K_M": ((_first_part(16), "Q5_K"), (_always, "Q4_K")),
    "Q3_K_L": ((_always, "Q5_K"),),
    "Q4_K_S": ((_first_part(8), "Q5_K"),),
    "Q4_K_M": ((_spread, "Q6_K"),),
    "Q5_K_M": ((_spread, "Q6_K"),),
    "IQ3_M": (
        (_first_part(8), "Q4_K"),
        (lambda place: _eight_experts(place.traits) and _spread(place), "Q4_K"),
    ),
    "IQ4_NL": ((_first_part(8), "Q5_K"),),
    "IQ4_XS": ((_first_part(8), "Q5_K"),),
}

_DOWN_OF_FALCON: Mapping[str, Sequence[_Rule]] = {
    **_DOWN,
    "Q3_K_M": ((_first_part(16), "Q5_K"), (_spread, "Q4_K")),
    "Q3_K_L": ((_always, "Q4_K"),),
    "Q4_K_S": (),
    "Q4_K_M": ((_first_part(16), "Q6_K"), (_spread, "Q5_K")),
}

_ATTENDED: Mapping[str, str] = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}
_ATTENDED_OF_FALCON: Mapping[str, str] = {"Q3_K_L": "Q4_K"}
_ATTENDED_OF_EIGHT_EXPERTS: Mapping[str, str] = dict.fromkeys(
    ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS"), "Q5_K"
)

_EMBEDDING: Mapping[str, str] = dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), "Q4_K")

_NARROWER: Mapping[str, str] = {
    **dict.fromkeys(("IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""The type in smaller blocks that is used for rows that are no multiple of a type's block."""

_SMALL_BLOCK = 32

_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj"
    r"|^position_embd\.weight$|^token_types\.weight$|ssm_conv1d|shortconv\.conv\.weight"
    r"|indexer\.[kq]_proj\.weight|time_mix_(first|w[012]|v[012]|a[012]|g[12]|decay_w[12]|lerp_fused)\.weight"
    r"|attn_rel_b\.weight|\.position_embd|sam\.(pos_embd|neck\.|net_)|\.rel_pos|\.patch_(embd|merger)"
    r"|a\.rvq\.codebook|mm\.a\.code_embd"
)
"""Matrices that are small and matter: norms, routers, convolutions, positions, codebooks."""

_GLM5_NEXT = "glm5-next"
_KEPT_OF_GLM5_NEXT = re.compile(
    r"hc_|indexer\.(attn_q_b|attn_k|proj)|indexer_compressor_(gate|ape)|ssm_([fg]_[ab]|beta)\.weight"
    r"|attn_(kv_a_mqa|k_b|v_b)\.weight"
)
_EIGHT_BITS_OF_GLM5_NEXT = re.compile(r"attn_q_[ab]|nextn\.eh_proj")
_BAILING_EXPERTS = re.compile(r"ffn_(up|gate|down)")
_LAYER = re.compile(r"blk\.(\d+)")


def in_order(tensors: Sequence[Tensor]) -> list[Tensor]:
    """By layer and name, as `tensor_types` counts them and llama.cpp writes them."""
    return sorted(tensors, key=lambda tensor: (_layer(tensor.name), tensor.name.encode()))


def tensor_types(mixture: str, traits: Traits, tensors: Sequence[Tensor]) -> list[str]:
    """The type of each of a model's tensors, which are `in_order`; for those that stay as they are, theirs.

    Raises ModelFormatError if the layer of an expert's tensor is unknown, UnsupportedModelError if the
    mixture has no type for a tensor's shape.
    """
    choice = _Choice(mixture, traits, tensors)
    return [choice.of(tensor) if _is_quantised(tensor, traits) else tensor.type.upper() for tensor in tensors]


class _Choice:
    """The choices for one model, which have to be made in order: they depend on how many came before."""

    def __init__(self, mixture: str, traits: Traits, tensors: Sequence[Tensor]) -> None:
        self._mixture = mixture
        self._base = MIXTURES[mixture]
        self._traits = traits
        self._falcon = traits.architecture == "falcon"
        self._tied = all(tensor.name != OUTPUT for tensor in tensors)
        self._counts = {
            _Kind.VALUES: sum(_kind(tensor.name) is _Kind.VALUES for tensor in tensors),
            _Kind.DOWN: traits.layers,
        }
        self._before: Counter[_Kind] = Counter()

    def of(self, tensor: Tensor) -> str:
        if self._base in FLOATS:
            return self._base
        return _fitting(self._wanted(tensor), tensor)

    def _wanted(self, tensor: Tensor) -> str:
        kind = _kind(tensor.name)
        if self._traits.architecture == _GLM5_NEXT and _EIGHT_BITS_OF_GLM5_NEXT.search(tensor.name):
            return "Q8_0"
        if kind is _Kind.OUTPUT or (kind is _Kind.EMBEDDING and self._tied):
            return self._output(tensor)
        if self._mixture == "MXFP4_MOE":
            return "MXFP4" if self._is_expert(tensor) else "Q8_0"
        if kind is _Kind.VALUES:
            return self._values(tensor)
        if kind is _Kind.DOWN:
            return self._ruled(_DOWN_OF_FALCON if self._falcon else _DOWN, kind, tensor)
        return self._everywhere(kind).get(self._mixture, self._base)

    def _everywhere(self, kind: _Kind) -> Mapping[str, str]:
        """The types, by mixture, of a kind that has the same one in all layers."""
        if kind is _Kind.EMBEDDING:
            return _EMBEDDING
        if kind is _Kind.KEYS and _eight_experts(self._traits):
            return dict.fromkeys(MIXTURES, "Q8_0")
        if kind is not _Kind.ATTENDED:
            return {}
        if self._falcon:
            return _ATTENDED_OF_FALCON
        return _ATTENDED_OF_EIGHT_EXPERTS if _eight_experts(self._traits) else _ATTENDED

    def _output(self, tensor: Tensor) -> str:
        eight = self._mixture == "MXFP4_MOE" or self._base == "Q8_0" or self._falcon
        return "Q8_0" if eight or tensor.shape[0] % block(self._base) else "Q6_K"

    def _is_expert(self, tensor: Tensor) -> bool:
        """Matrices of experts have three dimensions, but so have others of BailingMoE 3."""
        named = self._traits.architecture != "bailingmoe3" or _BAILING_EXPERTS.search(tensor.name)
        return len(tensor.shape) > 2 and tensor.shape[2] > 1 and bool(named)

    def _values(self, tensor: Tensor) -> str:
        found = self._ruled(_VALUES, _Kind.VALUES, tensor)
        if _eight_experts(self._traits):
            return "Q8_0"
        return "Q5_K" if self._traits.is_70b and found in {"Q3_K", "Q4_K"} else found

    def _ruled(self, rules: Mapping[str, Sequence[_Rule]], kind: _Kind, tensor: Tensor) -> str:
        index = self._before[kind]
        self._before[kind] += 1
        if kind is _Kind.DOWN and self._traits.experts > 1:  # a layer has several
            index = _layer(tensor.name)
            if not 0 <= index < self._traits.layers:
                raise ModelFormatError(
                    f"The tensor {printable(tensor.name)} is of none of the {self._traits.layers} layers.",
                    hint="The file is damaged or was converted incorrectly.",
                )
        place = _Place(index, self._counts[kind], self._traits)
        chosen = (type_name for holds, type_name in rules.get(self._mixture, ()) if holds(place))
        return next(chosen, self._base)


def type_number(name: str) -> int:
    """The number that ggml has for a type."""
    return abi.ggml_type[f"GGML_TYPE_{name}"]


def block(name: str) -> int:
    """Numbers in a block of a type."""
    return lib.ggml_blck_size(type_number(name))


def _fitting(wanted: str, tensor: Tensor) -> str:
    """The type, or another one if the tensor's rows cannot have it."""
    columns = tensor.shape[0]
    if columns % block(wanted):
        if wanted not in _NARROWER and block(wanted) > _SMALL_BLOCK:
            raise UnsupportedModelError(
                f"The model cannot be quantised to {wanted}: it is for rows of a multiple of {block(wanted)} "
                f"numbers, and those of {printable(tensor.name)} have {columns}."
            )
        wanted = _NARROWER.get(wanted, wanted)
    return "F16" if columns % block(wanted) else wanted


def _is_quantised(tensor: Tensor, traits: Traits) -> bool:
    if len(tensor.shape) == 1 or not tensor.name.endswith("weight") or _KEPT.search(tensor.name):
        return False
    return traits.architecture != _GLM5_NEXT or not _KEPT_OF_GLM5_NEXT.search(tensor.name)


def _kind(name: str) -> _Kind:
    if name == OUTPUT:
        return _Kind.OUTPUT
    if name in _EMBEDDINGS:
        return _Kind.EMBEDDING
    return next((kind for kind, parts in _NAMED if any(part in name for part in parts)), _Kind.OTHER)


def _layer(name: str) -> int:
    """The number of a tensor's layer, -1 outside of them."""
    found = _LAYER.match(name)
    return int(found[1]) if found else -1
