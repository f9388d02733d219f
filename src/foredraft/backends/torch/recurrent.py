"""Models with recurrent layers: transformers' forward, with our attention and our recurrent kernels.

A recurrent layer of transformers calls its kernels by name. Here it calls ours (scans.py), which keep the
states (states.py); attention layers call our attention with our KV cache. So the rows of several sequences
share a forward, rows of a draft are computed together with the same bits as one by one, and the state after
each of them is available if some are rejected.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, cast

import torch

from foredraft.backends.rewind import RewindingModel
from foredraft.backends.torch.batch import Batch
from foredraft.backends.torch.lanes import evenly
from foredraft.backends.torch.linear import Linear
from foredraft.backends.torch.mixers import Mixers, calling
from foredraft.backends.torch.model import Forward, TorchModel
from foredraft.backends.torch.scans import Scans
from foredraft.backends.torch.states import States
from foredraft.protocols import Model


class Product:
    """Replaces a weight with which a layer multiplies directly (`weight @ columns`)."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __matmul__(self, columns: Any) -> Any:
        return self._linear(columns.transpose(-1, -2).contiguous()).transpose(-1, -2)


class HeadProducts:
    """Replaces the weights of several heads with which a layer multiplies at once, as in Zamba (`weight[:,
    None] @ columns`).
    """

    def __init__(self, products: Sequence[Product]) -> None:
        self._products = products

    def __getitem__(self, _: object) -> HeadProducts:
        return self

    def __matmul__(self, columns: Any) -> Any:
        return torch.stack([product @ part for product, part in zip(self._products, columns, strict=True)])


class Layers:
    """The recurrent layers of transformers' model `source`, which multiply with `linear`."""

    def __init__(self, source: Any, linear: Callable[..., Linear]) -> None:
        self._source, self._linear = source, linear
        self._attention = source.config._attn_implementation
        self._changed: list[Any] = []
        self._weights: dict[tuple[Any, str], Any] = {}
        self.needed = False
        """Whether transformers' usual caches cannot hold the layers' state, so that only our kernels work."""

    @property
    def multiplied(self) -> set[Any]:
        """The modules whose weights were replaced because a layer around them uses them directly."""
        return {module for module, _ in self._weights}

    def take_over(self, states: States) -> bool:
        """Make the layers call our kernels, with `states`, instead of functions of the same names; False if
        there is no such layer.
        """
        scans = Scans(states)
        kernels, mixers = scans.by_name(), Mixers(self._source, scans, self._linear)
        for module in self._source.modules():
            if (own := mixers.forward_for(module)) is not None:
                module.forward = own
                self._changed.append(module)
                self.needed = True
                continue
            if isinstance(shift := getattr(module, "time_shift", None), torch.nn.ZeroPad2d):
                shift.forward = scans.shift
                self._changed.append(shift)
            forward = inspect.unwrap(type(module).forward)
            if not isinstance(forward, FunctionType) or not kernels.keys() & set(forward.__code__.co_names):
                continue
            module.forward = evenly(calling(module, kernels))
            self._changed.append(module)
            if "mamba_selective_scan" in forward.__code__.co_names:
                self._replace_weight(getattr(module, "dt_proj", None), "weight")
                for name in ("x_proj_weight", "dt_proj_weight"):
                    self._replace_weight(module, name)
        for module, name in mixers.copied:
            self._take(module, name)
            setattr(module, name, None)
        return bool(self._changed)

    def _replace_weight(self, module: Any, name: str) -> None:
        weight = getattr(module, name, None)
        if weight is None:
            return
        self._take(module, name)
        products = [Product(self._linear(part)) for part in weight.detach().reshape(-1, *weight.shape[-2:])]
        setattr(module, name, products[0] if weight.ndim == 2 else HeadProducts(products))

    def _take(self, module: Any, name: str) -> None:
        """Remove a weight from its module, until it is restored."""
        self._weights[module, name] = getattr(module, name)
        delattr(module, name)

    def give_back(self) -> None:
        """Undo `take_over`."""
        for module in self._changed:
            del module.forward
        for (module, name), weight in self._weights.items():
            delattr(module, name)
            setattr(module, name, weight)
        self._source.set_attn_implementation(self._attention)


class RecurrentForward:
    """Computes a batch with `forward`, whose kernels keep their states in `states`."""

    def __init__(self, forward: Forward, states: States) -> None:
        self._forward, self._states = forward, states

    def __call__(self, batch: Batch) -> Any:
        """Logits of the wanted rows, shape (rows wanted, vocabulary)."""
        self._states.begin(batch)
        logits = self._forward(batch)
        self._states.commit()
        return logits

    def close(self) -> None:
        """Free the weights."""
        self._forward.close()


class RecurrentModel(TorchModel):
    """A model with `States`, in the form for `backends.rewind`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.with_capabilities(rollback_bound=self._states.kept, fork=True)

    @property
    def _states(self) -> States:
        return cast("States", self._cache)

    def spare(self, seq: int) -> int:
        return self._states.spare(seq)

    def checkpoint(self, seq: int, instead_of: object = None) -> object:  # noqa: ARG002 - nothing is copied
        return self._states.checkpoint(seq)

    def rewind(self, seq: int, checkpoint: object, length: int) -> None:
        self._states.rewind(seq, checkpoint, length)

    def reachable(self, seq: int, length: int) -> int:
        held = self.length(seq)
        return held if length >= held else 0


def rewinding(model: TorchModel) -> Model:
    """The model for the engine: with recurrent layers, wrapped to allow longer rollbacks."""
    return RewindingModel(model) if isinstance(model, RecurrentModel) else model
