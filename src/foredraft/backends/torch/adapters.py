"""LoRA adapters of a model: what they add to its products, and which one does.

A forward computes with one adapter at a time (`Adapters.active`). What each adds is computed with the same
kind of product as the rest, whose rows do not depend on their number. Products over joined weights get joined
matrices. When a model is loaded, each adapter's logits are compared with those of transformers' model whose
layers add the same: one whose layers are computed elsewhere is refused instead of being left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from foredraft.backends.torch.linear import Linear
from foredraft.backends.torch.peft import Pair, read_peft
from foredraft.config import Adapter
from foredraft.errors import ModelFormatError, UnsupportedModelError
from foredraft.library.adapter_files import key_of

Pairs = Mapping[str, Pair]


@dataclass(slots=True)
class Adapters:
    """The adapters of one model, by name: each one's matrices by layer, in the model's format and place.
    `keys`: as in `Model.adapters`. `sides`: outputs and inputs of the model's layers.
    """

    pairs: dict[str, dict[str, Pair]]
    keys: dict[str, str]
    sides: Mapping[str, tuple[int, int]]
    active: str = ""
    """The one that forwards compute with now."""
    expected: dict[str, Any] = field(default_factory=dict)
    """Of each the logits that transformers computes (check.py)."""

    @property
    def bytes(self) -> int:
        """Their size."""
        parts = [part for pairs in self.pairs.values() for pair in pairs.values() for part in pair]
        return sum(part.numel() * part.element_size() for part in parts)

    def signature(self, name: str) -> str:
        """What the exactness of one depends on."""
        return "|".join(f"{layer} {tuple(pair.b.shape)}" for layer, pair in sorted(self.pairs[name].items()))

    def around(self, layers: Sequence[str], product: Linear, linear: Callable[..., Linear]) -> Linear:
        """A product over the joined weights of some layers, with what the adapters add."""
        added = {name: self._added(layers, pairs, linear) for name, pairs in self.pairs.items()}
        used = {name: its for name, its in added.items() if its is not None}
        if not used:
            return product

        def apply(rows: Any) -> Any:
            more = used.get(self.active)
            return product(rows) if more is None else product(rows) + more(rows)

        return apply

    def _added(self, layers: Sequence[str], pairs: Pairs, linear: Callable[..., Linear]) -> Linear | None:
        """What one adapter adds to such a product; None for nothing."""
        its = [pairs.get(layer) for layer in layers]
        present = [pair for pair in its if pair is not None]
        if not present:
            return None
        rank = sum(pair.a.shape[0] for pair in present)
        outputs, at, blocks = [self.sides[layer][0] for layer in layers], 0, []
        for pair, count in zip(its, outputs, strict=True):
            block = present[0].b.new_zeros((count, rank))
            if pair is not None:
                block[:, at : at + pair.a.shape[0]] = pair.b
                at += pair.a.shape[0]
            blocks.append(block)
        down, up = linear(torch.cat([pair.a for pair in present])), linear(torch.cat(blocks))
        return lambda rows: up(down(rows))

    @contextmanager
    def computing(self, name: str) -> Iterator[None]:
        """Compute with an adapter, "" for none."""
        self.active = name
        try:
            yield
        finally:
            self.active = ""

    @contextmanager
    def hooked(self, weights: Any, name: str) -> Iterator[None]:
        """Have the layers of transformers' model add what an adapter does."""
        handles = []
        for layer, pair in self.pairs[name].items():

            def add(_module: Any, inputs: Any, output: Any, pair: Pair = pair) -> Any:
                return output + inputs[0] @ pair.a.T @ pair.b.T

            handles.append(weights.get_submodule(layer).register_forward_hook(add))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def load_adapters(adapters: Sequence[Adapter], weights: Any) -> Adapters | None:
    """Read adapters for transformers' model `weights`; None without any. Raises what `read_peft` does,
    ModelFormatError for numbers that are too large, and UnsupportedModelError for one of another model.
    """
    if not adapters:
        return None
    sides = {name: _sides(module) for name, module in weights.named_modules() if _sides(module) is not None}
    text = _text_layers(weights)
    pairs: dict[str, dict[str, Pair]] = {}
    for adapter in adapters:
        joined: dict[str, list[Pair]] = {}
        for path, scale in adapter.files:
            for layer, pair in read_peft(path).items():
                _check_fits(str(path), layer, pair, sides.get(layer), type(weights).__name__)
                if not layer.startswith(text):
                    raise UnsupportedModelError(
                        f"The adapter {path} changes {layer}, by which the model sees.",
                        hint="Only the text model computes with adapters: merge it into the weights.",
                    )
                joined.setdefault(layer, []).append(_placed(str(path), layer, pair, scale, weights))
        pairs[adapter.name] = {
            layer: Pair(torch.cat([pair.a for pair in its]), torch.cat([pair.b for pair in its], 1))
            for layer, its in joined.items()
        }
    keys = {adapter.name: key_of(adapter) for adapter in adapters}
    return Adapters(pairs, keys, {name: found for name, found in sides.items() if found})


def _text_layers(weights: Any) -> tuple[str, ...]:
    """What the names of the layers that compute text begin with: of a model that sees it has others, too."""
    if getattr(weights.config, "vision_config", None) is None:
        return ("",)
    decoder = weights.get_decoder()
    names = [name for name, module in weights.named_modules() if module is decoder]
    return (*(f"{name}." for name in names), "lm_head")


def _placed(path: str, layer: str, pair: Pair, scale: float, weights: Any) -> Pair:
    """A pair, scaled, in the model's format and place. Raises ModelFormatError for what that cannot hold."""
    place: dict[str, Any] = {"dtype": weights.dtype, "device": weights.device}
    found = Pair(pair.a.to(**place), (scale * pair.b).to(**place))
    if not all(torch.isfinite(part).all() for part in found):
        kind = str(weights.dtype).removeprefix("torch.")
        raise ModelFormatError(
            f"The adapter {path} holds numbers that, scaled, are too large for {kind}, in {layer}.",
            hint='Use a smaller scale, or dtype = "fp32"; lora_alpha in its configuration may be damaged.',
        )
    return found


def _sides(module: Any) -> tuple[int, int] | None:
    """Outputs and inputs of a linear layer; None of any other."""
    if isinstance(module, torch.nn.Linear):
        return module.out_features, module.in_features
    if type(module) is Conv1D:
        inputs, outputs = module.weight.shape
        return outputs, inputs
    return None


def _check_fits(path: str, layer: str, pair: Pair, sides: tuple[int, int] | None, model: str) -> None:
    """Raises UnsupportedModelError for matrices of another model."""
    hint = "Use it with the model that it was trained for."
    if sides is None:
        raise UnsupportedModelError(
            f"The adapter {path} does not fit: {model} has no linear layer {layer}.", hint=hint
        )
    own = pair.b.shape[0], pair.a.shape[1]
    if own != sides:
        raise UnsupportedModelError(
            f"The adapter {path} does not fit: {layer} is {sides[0]} × {sides[1]}, and the adapter's "
            f"{own[0]} × {own[1]}.",
            hint=hint,
        )
