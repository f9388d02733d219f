"""The network of an EAGLE-3 head (Li et al. 2025, arXiv 2503.01840).

The target's low, middle and high hidden states become one by `fc`. Attention reads it beside the token's
embedding, each normalised; the rest is a layer of the Llama family. The output before the last norm is the
hidden state that the next row goes on from. Many heads only know the most frequent tokens: `d2t` has for each
of them how far its number in the target's vocabulary is from its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from foredraft.backends.torch.attention import Style
from foredraft.backends.torch.features import Trunk
from foredraft.backends.torch.head_cells import HeadCells
from foredraft.backends.torch.head_files import Eagle3File, check_tensors, count, number
from foredraft.backends.torch.lean import ROTARY, turn_heads
from foredraft.backends.torch.linear import Linear
from foredraft.backends.torch.norm import rms_norm
from foredraft.errors import ModelFormatError, UnsupportedModelError, first_line, quoted

LAYER = "midlayer."
NUMBERS = "d2t"
"""The tensor that holds integers."""
INTEGERS = frozenset({"I64", "I32"})
BIASES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "fc")
"""Products that may have a bias."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a head's layer; `inputs` is the width of all of the target's features that it reads."""

    hidden: int
    heads: int
    groups: int
    head: int
    inner: int
    inputs: int

    @staticmethod
    def of(file: Eagle3File, target: int) -> Sizes:
        """The sizes of a head; `target` is the target's hidden size. Raises ModelFormatError."""
        config = file.config
        hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
        if config.get("head_dim") is None and hidden % heads:
            raise ModelFormatError(
                f"In {file.name} {hidden} numbers cannot be divided between {heads} heads."
            )
        groups = count(config, "num_key_value_heads", heads)
        size = count(config, "head_dim", max(1, hidden // heads))
        if heads % groups or size % 2:
            raise ModelFormatError(
                f"{file.name} has {heads} heads of {size} numbers for {groups} of keys, which is impossible."
            )
        inner = count(config, "intermediate_size")
        return Sizes(hidden, heads, groups, size, inner, len(file.layers) * target)


def check_eagle3(file: Eagle3File, trunk: Trunk) -> Sizes:
    """The head's sizes. Raises ModelError if its tensors do not fit these, or the head not the model."""
    target = trunk.config.get_text_config()
    sizes = Sizes.of(file, target.hidden_size)
    stored = file.config.get("target_hidden_size")
    if stored is not None and stored != target.hidden_size:
        raise UnsupportedModelError(
            f"{file.name} is for a model whose hidden states have {quoted(stored)} numbers; this one's have "
            f"{target.hidden_size}.",
            hint="The head was made for another model.",
        )
    vocabulary = file.config.get("vocab_size")
    if vocabulary is not None and vocabulary != target.vocab_size:
        raise UnsupportedModelError(
            f"{file.name} is for a vocabulary of {quoted(vocabulary)} tokens; this model's has "
            f"{target.vocab_size}.",
            hint="The head was made for another model.",
        )
    check_tensors(file.tensors, _needed(file, sizes, int(target.vocab_size)), file.name)
    for own, use in (("embed_tokens.weight", "embeddings"), ("lm_head.weight", "output")):
        if own not in file.tensors and sizes.hidden != target.hidden_size:
            raise UnsupportedModelError(
                f"{file.name} has no {use} of its own, and the model's have {target.hidden_size} numbers in "
                f"place of {sizes.hidden}.",
                hint="The head was made for another model.",
            )
    own_tokens = file.tensors.get(NUMBERS)
    if own_tokens is not None and (len(own_tokens.shape) != 1 or own_tokens.type not in INTEGERS):
        raise ModelFormatError(
            f"In {file.name} the tensor {NUMBERS} is {own_tokens.type} of shape {own_tokens.shape}; a list "
            "of integers is expected."
        )
    if own_tokens is not None and "lm_head.weight" not in file.tensors:
        raise ModelFormatError(
            f"{file.name} has a vocabulary of its own, but lacks the tensor lm_head.weight."
        )
    return sizes


def _needed(file: Eagle3File, sizes: Sizes, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that such a head has."""
    hidden, q, kv = sizes.hidden, sizes.heads * sizes.head, sizes.groups * sizes.head
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, sizes.inputs),
        "norm.weight": (hidden,),
        **{f"{LAYER}{name}.weight": (hidden,) for name in ("hidden_norm", "input_layernorm")},
        f"{LAYER}post_attention_layernorm.weight": (hidden,),
        f"{LAYER}self_attn.q_proj.weight": (q, 2 * hidden),
        f"{LAYER}self_attn.k_proj.weight": (kv, 2 * hidden),
        f"{LAYER}self_attn.v_proj.weight": (kv, 2 * hidden),
        f"{LAYER}self_attn.o_proj.weight": (hidden, q),
        f"{LAYER}mlp.gate_proj.weight": (sizes.inner, hidden),
        f"{LAYER}mlp.up_proj.weight": (sizes.inner, hidden),
        f"{LAYER}mlp.down_proj.weight": (hidden, sizes.inner),
    }
    if file.normed_features:
        shapes["input_norm.weight"] = (sizes.inputs,)
    if "embed_tokens.weight" in file.tensors:
        shapes["embed_tokens.weight"] = (vocabulary, hidden)
    if "lm_head.weight" in file.tensors:
        own = file.tensors.get(NUMBERS)
        shapes["lm_head.weight"] = (own.shape[0] if own and len(own.shape) == 1 else vocabulary, hidden)
    for name in (*(f"{LAYER}{name}" for name in BIASES), "fc"):
        if f"{name}.bias" in file.tensors:
            shapes[f"{name}.bias"] = (shapes[f"{name}.weight"][0],)
    return shapes


def target_tokens(offsets: Any, vocabulary: int, name: str) -> Any:
    """The target's token for each of the head's, from `d2t`. Raises ModelFormatError if one is impossible."""
    tokens = offsets.long() + torch.arange(len(offsets))
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ModelFormatError(
            f"{name} proposes tokens outside of the model's vocabulary of {vocabulary} tokens.",
            hint="The head was made for another model.",
        )
    if not len(tokens) or len(tokens.unique()) < len(tokens):
        raise ModelFormatError(f"{name} has no usable vocabulary: d2t names a token twice, or none.")
    return tokens


def _rotary(file: Eagle3File, sizes: Sizes, device: Any) -> Any:
    """Rotary positions as the head's configuration says. Raises ModelError."""
    keys = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")
    given = {key: file.config[key] for key in keys if file.config.get(key) is not None}
    try:
        config = LlamaConfig(
            hidden_size=sizes.hidden, num_attention_heads=sizes.heads, head_dim=sizes.head, **given
        )
        kind = (config.rope_parameters or {}).get("rope_type", "default")
        rotary = LlamaRotaryEmbedding(config).to(device) if kind in ROTARY else None
    except Exception as error:  # noqa: BLE001 - transformers checks settings in many ways
        raise ModelFormatError(
            f"{file.name} has impossible settings of rotary positions ({first_line(error)})."
        ) from None
    if rotary is None:
        raise UnsupportedModelError(
            f"{file.name} has rotary positions of the type {quoted(kind)}, which is not supported."
        )
    return rotary


class Eagle3:
    """See `head.Network`. `tensors` are the head's, by the names of `Eagle3File.tensors`, on the device."""

    def __init__(
        self, file: Eagle3File, sizes: Sizes, tensors: Mapping[str, Any], trunk: Trunk, cells: HeadCells
    ) -> None:
        self.window = file.window
        self._sizes, self._cells = sizes, cells
        self._style = Style(sizes.head**-0.5)
        self._eps = number(file.config, "rms_norm_eps", 1e-6)
        self._normed_residual = file.normed_residual
        embedding = tensors.get("embed_tokens.weight")
        self._embedding = trunk.embedding if embedding is None else embedding
        self._rotary = _rotary(file, sizes, self._embedding.device)
        self._norms = {name: tensor for name, tensor in tensors.items() if name.endswith("norm.weight")}
        linear = trunk.linear
        self._fc = _product(linear, tensors, "fc")
        self._qkv = _product(linear, tensors, *(f"{LAYER}self_attn.{part}_proj" for part in "qkv"))
        self._out = _product(linear, tensors, f"{LAYER}self_attn.o_proj")
        self._gate_up = _product(linear, tensors, f"{LAYER}mlp.gate_proj", f"{LAYER}mlp.up_proj")
        self._down = _product(linear, tensors, f"{LAYER}mlp.down_proj")
        own = "lm_head.weight" in tensors
        self._output = _product(linear, tensors, "lm_head") if own else trunk.output

    def _normed(self, rows: Any, name: str) -> Any:
        return rms_norm(rows, self._norms[name], self._eps)

    def fuse(self, features: Any) -> Any:
        """See `Network`."""
        if "input_norm.weight" in self._norms:
            features = self._normed(features, "input_norm.weight")
        return self._fc(features)

    def __call__(self, tokens: Any, hidden: Any, positions: Any, wanted: Any) -> tuple[Any, Any]:
        """See `Network`."""
        embedded = torch.nn.functional.embedding(tokens, self._embedding)
        normed = self._normed(hidden, f"{LAYER}hidden_norm.weight")
        both = torch.cat([self._normed(embedded, f"{LAYER}input_layernorm.weight"), normed], -1)
        residual = normed if self._normed_residual else hidden
        rows = residual + self._attend(both, positions)
        inner = self._normed(rows, f"{LAYER}post_attention_layernorm.weight")
        gate, up = self._gate_up(inner).chunk(2, -1)
        rows = rows + self._down(torch.nn.functional.silu(gate) * up)
        return rows, self._output(self._normed(rows[wanted], "norm.weight"))

    def _attend(self, both: Any, positions: Any) -> Any:
        sizes = self._sizes
        heads = self._qkv(both).view(len(both), -1, sizes.head)
        cos, sin = self._rotary(both[None], positions[None])
        cos, sin = cos[0, :, None], sin[0, :, None].clone()
        sin[..., : sizes.head // 2].neg_()  # as in the lean forward
        turn_heads(heads.narrow(1, 0, sizes.heads + sizes.groups), None, 0.0, (cos, sin))
        q, k, v = heads.split([sizes.heads, sizes.groups, sizes.groups], 1)
        return self._out(self._cells.attend(q.contiguous(), k, v, self._style).flatten(1))

    def close(self) -> None:
        """Free the weights."""
        self._norms.clear()
        del self._embedding, self._fc, self._qkv, self._out, self._gate_up, self._down, self._output


def _product(linear: Callable[..., Linear], tensors: Mapping[str, Any], *names: str) -> Linear:
    """The product with weights of the same input, joined."""
    weights = [tensors[f"{name}.weight"] for name in names]
    biases = [tensors.get(f"{name}.bias") for name in names]
    if all(bias is None for bias in biases):
        return linear(torch.cat(weights))
    filled = [
        weight.new_zeros(len(weight)) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return linear(torch.cat(weights), torch.cat(filled))
