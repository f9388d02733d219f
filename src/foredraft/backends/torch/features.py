"""Hidden states that a forward keeps for heads: which there are, and how they are taken from transformers.

A forward puts them into `Batch.features`. Nothing that it computes depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.backends.torch.linear import Linear
from foredraft.errors import UnsupportedModelError

NEXT = "next"
"""The hidden state after the last layer, as the family's layers for multi-token prediction take it."""

BEFORE_THE_NORM = frozenset({"mimo_v2_flash"})
"""Families in which that is the state before the final norm; in all others it is the one after it."""

_LAYER = re.compile(r"layer:(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Trunk:
    """What the heads of a model share with it.

    `embedding` has shape (vocabulary, size), `output` is the product that gives logits, `linear` creates
    products as the model has them. `source` is transformers' model where it computes the forward, else None.
    """

    config: Any
    embedding: Any
    output: Linear
    linear: Callable[..., Linear]
    source: Any = None


def layer_name(index: int) -> str:
    """The name of a layer's input, the residual stream before the layer's norm."""
    return f"layer:{index}"


def watched_layer(name: str) -> int | None:
    """The layer whose input is named; None for another name."""
    found = _LAYER.fullmatch(name)
    return int(found.group(1)) if found else None


def check_watch(watch: Sequence[str], layers: int, name: str) -> None:
    """Raises UnsupportedModelError for hidden states that a model of this many layers does not have."""
    if len(set(watch)) < len(watch):
        raise UnsupportedModelError(f"A hidden state of {name} is asked for twice: {', '.join(watch)}.")
    for asked in watch:
        layer = watched_layer(asked)
        if asked != NEXT and layer is None:
            raise UnsupportedModelError(
                f"There is no hidden state {asked!r}.",
                hint=f"They are called layer:0, layer:1, … and {NEXT}.",
            )
        if layer is not None and layer >= layers:
            raise UnsupportedModelError(
                f"{name} has {layers} layers, of which none is {asked}.",
                hint="The head was made for another model.",
            )


def _decoder(source: Any) -> tuple[Any, Any]:
    """The model below the output, and its layers. Raises UnsupportedModelError."""
    for base in (source.get_decoder(), getattr(source, "model", None)):
        for name in ("layers", "h", "blocks"):
            if found := getattr(base, name, None):
                return base, found
    raise UnsupportedModelError(
        f"{type(source).__name__} has no list of layers, from which hidden states could be taken for a head.",
        hint="Run the model without a head.",
    )


class Taps:
    """Takes hidden states from transformers' model `source` with hooks, `watch` by name.

    Raises UnsupportedModelError if it does not have them.
    """

    def __init__(self, source: Any, watch: Sequence[str]) -> None:
        self._watch, self._kept = tuple(watch), dict[str, Any]()
        self._hooks: list[Any] = []
        self._size = int(source.config.get_text_config().hidden_size)
        self._name = type(source).__name__
        base, layers = _decoder(source)
        check_watch(watch, len(layers), self._name)
        for name in watch:
            index = watched_layer(name)
            if index is not None:
                hook = layers[index].register_forward_pre_hook(self._input_of(name), with_kwargs=True)
            elif source.config.model_type in BEFORE_THE_NORM:
                hook = base.norm.register_forward_pre_hook(self._input_of(name), with_kwargs=True)
            else:
                hook = base.register_forward_hook(self._output)
            self._hooks.append(hook)

    def _input_of(self, name: str) -> Callable[..., None]:
        def keep(_module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._keep(name, given[0] if given else named.get("hidden_states"))

        return keep

    def _output(self, _module: Any, _given: Any, made: Any) -> None:
        self._keep(NEXT, made[0])

    def _keep(self, name: str, rows: Any) -> None:
        shape: tuple[int, ...] = getattr(rows, "shape", ())
        if name in self._kept or len(shape) != 3 or (shape[0], shape[2]) != (1, self._size):
            raise self._unknown(name)
        self._kept[name] = rows[0].clone()

    def _unknown(self, name: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"The hidden state {name} of {self._name} is not one row of {self._size} numbers for each token, "
            "so no head can read it.",
            hint="Run the model without a head.",
        )

    def begin(self) -> None:
        """A forward begins."""
        self._kept.clear()

    def taken(self) -> list[Any]:
        """The states of a forward that is over, each of shape (rows, size).

        Raises UnsupportedModelError if one did not come by.
        """
        for name in self._watch:
            if name not in self._kept:
                raise self._unknown(name)
        return [self._kept.pop(name) for name in self._watch]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
