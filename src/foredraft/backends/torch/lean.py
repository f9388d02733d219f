"""The forward of the Llama family, written out: equivalent to transformers, without its layers of calls.

Llama, Mistral, Qwen2, Qwen3 and SmolLM3 only differ in biases, a norm of each head's queries and keys, and
layers without rotary positions. With torch's own matrix product the logits of a prompt equal transformers'
bit for bit (tests/unit/backends/torch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from foredraft.backends.torch.attention import Attention, Style
from foredraft.backends.torch.batch import Batch
from foredraft.backends.torch.features import NEXT, check_watch, layer_name
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.lanes import by_lanes
from foredraft.backends.torch.linear import Linear
from foredraft.backends.torch.norm import rms_norm
from foredraft.backends.torch.offload_stream import Layers

FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
ROTARY = frozenset({"default", "linear", "llama3", "yarn"})
"""Types of rotary frequencies that do not depend on the length of the text."""


def is_lean(source: Any, context_length: int) -> bool:
    """Whether `LeanForward` supports transformers' model `source` with this context length."""
    config = source.config
    rope = getattr(config, "rope_parameters", None) or {}
    windows = {kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"}
    window = getattr(config, "sliding_window", None)
    if config.model_type == "mistral" and window is not None and window < context_length:
        return False
    return (
        config.model_type in FAMILY
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in ROTARY
        and not windows
        and type(source.model.layers[0].self_attn.q_proj) is torch.nn.Linear  # not quantised
    )


def head_size(config: Any) -> int:
    """The size of one head's query."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's tensors by name, with weights of the same input joined for one product."""

    tensors: Mapping[str, Any]
    rotates: bool


JOINED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The layers of transformers' model whose weights are joined for each product."""


def take_over(source: Any) -> Iterator[LayerWeights]:
    """The weights of each layer of transformers' model `source`, which releases them: they are copied, and
    two copies may not fit.
    """
    config = source.config
    for layer in source.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        tensors = {
            "before": layer.input_layernorm.weight.detach(),
            **_joined("qkv", attention.q_proj, attention.k_proj, attention.v_proj),
            **_joined("out", attention.o_proj),
            "after": layer.post_attention_layernorm.weight.detach(),
            **_joined("gate_up", mlp.gate_proj, mlp.up_proj),
            **_joined("down", mlp.down_proj),
        }
        if hasattr(attention, "q_norm"):
            queries = attention.q_norm.weight.detach().expand(config.num_attention_heads, -1)
            keys = attention.k_norm.weight.detach().expand(config.num_key_value_heads, -1)
            tensors["norms"] = torch.cat([queries, keys])
        rotates = bool(getattr(attention, "use_rope", True))
        layer.self_attn = layer.mlp = None
        del attention, mlp
        yield LayerWeights(tensors, rotates)


def _joined(name: str, *modules: Any) -> dict[str, Any]:
    """Join weights with the same input for one product."""
    joined = {name: torch.cat([module.weight.detach() for module in modules])}
    biases = [module.bias.detach() for module in modules if module.bias is not None]
    return joined | {f"{name}_bias": torch.cat(biases)} if biases else joined


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """A layer ready for computation."""

    before: Any
    qkv: Linear
    norms: Any
    rotates: bool
    out: Linear
    after: Any
    gate_up: Linear
    down: Linear


def make_layer(linear: Callable[..., Linear], weights: LayerWeights) -> LeanLayer:
    """Create a layer with the matrix product `linear` over the weights, on their device."""
    tensors = weights.tensors

    def product(name: str) -> Linear:
        return linear(tensors[name], tensors.get(f"{name}_bias"))

    return LeanLayer(
        before=tensors["before"],
        qkv=product("qkv"),
        norms=tensors.get("norms"),
        rotates=weights.rotates,
        out=product("out"),
        after=tensors["after"],
        gate_up=product("gate_up"),
        down=product("down"),
    )


class TurnHeads(Protocol):
    """Normalises and rotates queries and keys of shape (rows, heads, size) in place.

    `norms` has shape (heads, size), `angles` are cosines and sines of shape (rows, 1, size), the sines of the
    first half negative. Either may be None.
    """

    def __call__(self, qk: Any, norms: Any, eps: float, angles: tuple[Any, Any] | None) -> None: ...


def turn_heads(qk: Any, norms: Any, eps: float, angles: tuple[Any, Any] | None) -> None:
    """`TurnHeads` with torch's functions."""
    if norms is not None:
        qk.copy_(rms_norm(qk, norms, eps))
    if angles is not None:
        cos, sin = angles
        changed = torch.roll(qk, qk.shape[-1] // 2, -1).mul_(sin)
        qk.mul_(cos).add_(changed)


class Kernels(NamedTuple):
    """The parts of a layer that depend on heads and positions."""

    attention: Attention
    turn: TurnHeads = turn_heads


class LeanForward:
    """Computes a batch over a KV cache. `source` is transformers' model, whose weights it takes over; with
    `layers` they have already been taken. `watch`: the hidden states that it keeps. Raises
    UnsupportedModelError if there are no such ones.
    """

    def __init__(
        self,
        source: Any,
        cache: KVCache,
        linear: Callable[..., Linear],
        kernels: Kernels,
        layers: Layers[LeanLayer] | None = None,
        *,
        watch: Sequence[str] = (),
    ) -> None:
        check_watch(watch, source.config.num_hidden_layers, type(source).__name__)
        self._watch = tuple(watch)
        config, base = source.config, source.model
        self._cache, self._kernels = cache, kernels
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        self._size = head_size(config)
        self._style = Style(self._size**-0.5)
        self._eps = config.rms_norm_eps
        self.embedding = base.embed_tokens.weight.detach()
        self._rotary = base.rotary_emb
        self._norm = base.norm.weight.detach()
        if layers is None:
            layers = Layers([make_layer(linear, weights) for weights in take_over(source)])
        self._layers = layers
        for index in range(len(layers)):
            cache.layer(index, self._groups, self._size, self._size)
        self.output = linear(source.lm_head.weight.detach(), source.lm_head.bias)

    def __call__(self, batch: Batch) -> Any:
        """Logits of the wanted rows, shape (rows wanted, vocabulary)."""
        rows = torch.nn.functional.embedding(batch.tokens, self.embedding)
        cos, sin = self._rotary(rows[None], batch.positions[None])
        cos, sin = cos[0, :, None], sin[0, :, None].clone()
        half = self._size // 2
        sin[..., :half].neg_()  # the halves are swapped, and one changes its sign
        kept: dict[str, Any] = {}
        with closing(iter(self._layers)) as layers:
            for index, layer in enumerate(layers):
                if (name := layer_name(index)) in self._watch:
                    kept[name] = rows  # a layer's output is a new tensor
                rows = rows + self._attend(index, layer, batch, rows, angles=(cos, sin))
                gate, up = layer.gate_up(rms_norm(rows, layer.after, self._eps)).chunk(2, -1)
                rows = rows + layer.down(by_lanes(torch.nn.functional.silu, gate) * up)
        if NEXT in self._watch:
            kept[NEXT] = rms_norm(rows, self._norm, self._eps)
        batch.features[:] = [kept[name] for name in self._watch]
        return self.output(rms_norm(rows[batch.wanted], self._norm, self._eps))

    def _attend(
        self, index: int, layer: LeanLayer, batch: Batch, rows: Any, *, angles: tuple[Any, Any]
    ) -> Any:
        count, turned = len(rows), self._heads + self._groups
        heads = layer.qkv(rms_norm(rows, layer.before, self._eps)).view(count, -1, self._size)
        if layer.rotates or layer.norms is not None:
            qk = heads.narrow(1, 0, turned)
            self._kernels.turn(qk, layer.norms, self._eps, angles if layer.rotates else None)
        cells = self._cache.layer(index, self._groups, self._size, self._size)
        kv = heads.narrow(1, self._heads, 2 * self._groups).view(count, 2, self._groups, self._size)
        seen = self._kernels.attention(cells, batch, heads.narrow(1, 0, self._heads), kv, style=self._style)
        return layer.out(seen.reshape(count, -1))

    def wrap(self, around: Callable[[Sequence[str], Linear], Linear]) -> None:
        """Replace each product by what `around` makes of it and the names of its layers in transformers'
        model.
        """
        wrapped = []
        with closing(iter(self._layers)) as layers:
            for index, layer in enumerate(layers):
                made: dict[str, Any] = {
                    name: around([f"model.layers.{index}.{part}" for part in parts], getattr(layer, name))
                    for name, parts in JOINED.items()
                }
                wrapped.append(replace(layer, **made))
        self._layers = Layers(wrapped)
        self.output = around(["lm_head"], self.output)

    def close(self) -> None:
        """Free the weights."""
        self._layers.close()
