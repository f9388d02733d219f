"""Which forward computes a model: the lean one, transformers' with our attention in it, or all of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import transformers

from foretoken.backends.torch.attention import cells_dtype, choose_attention
from foretoken.backends.torch.cached import CachedForward, OwnCaches
from foretoken.backends.torch.check import CHAIN, PREFIX, check_forward, reference_logits
from foretoken.backends.torch.generic import GenericForward, is_supported
from foretoken.backends.torch.half import Products, choose_products
from foretoken.backends.torch.kv import KVCache
from foretoken.backends.torch.lanes import align_activations
from foretoken.backends.torch.lean import LeanForward, is_lean
from foretoken.backends.torch.linear import drop_weights, replace_products
from foretoken.backends.torch.model import Cells, Forward, TorchModel
from foretoken.backends.torch.recurrent import Layers, RecurrentForward, RecurrentModel
from foretoken.backends.torch.states import States
from foretoken.errors import UnsupportedModelError
from foretoken.types import Rollback


@dataclass(frozen=True, slots=True)
class Computation:
    """A forward, the cache it computes over, and what the two can do. `settings` say it in words, `model`
    makes a Model of them.
    """

    forward: Forward
    cells: Cells
    settings: dict[str, str]
    rollback: Rollback = Rollback.TRUNCATE
    trees: bool = True
    model: type[TorchModel] = TorchModel


def choose_forward(
    weights: Any, *, name: str, sequences: int, context_length: int, dtype: Any, device: Any
) -> Computation:
    """For transformers' model `weights`, which it takes over.

    Raises UnsupportedModelError where none computes what transformers does, and CapacityError.
    """
    linear, attention = choose_products(dtype, device), choose_attention(device)
    cells = KVCache(sequences, context_length, dtype=cells_dtype(dtype, device), device=device)
    if is_lean(weights, context_length):
        lean = LeanForward(weights, cells, linear, attention)
        return Computation(lean, cells, {"forward": "lean", "products": linear.describe()})
    with _quietly():
        expected = reference_logits(weights)
    replaced = replace_products(weights, linear)
    align_activations(weights)

    def check(forward: Forward, *, tree: bool) -> None:
        check_forward(forward, expected, name, dtype=dtype, device=device, tree=tree)

    def settle(forward: Forward, *, tree: bool) -> None:
        check(forward, tree=tree)
        if linear.copies:
            drop_weights(replaced, lambda: check(forward, tree=tree))

    def own_cache() -> Computation:
        caches = OwnCaches(sequences, context_length, weights.config)
        return _with_own_cache(weights, caches, check, linear)

    layers, states = Layers(weights, linear), States(cells)
    size = sum(weight.numel() * weight.element_size() for weight in weights.parameters())
    if layers.take_over(states):
        replaced = [entry for entry in replaced if entry[0] not in layers.multiplied]
        try:
            with _quietly():
                recurrent = RecurrentForward(GenericForward(weights, cells, attention), states)
            settle(recurrent, tree=False)
        except (UnsupportedModelError, RuntimeError, IndexError, TypeError, ValueError) as error:
            layers.give_back()  # it has layers that our kernels are not meant for
            if layers.needed:
                raise _without_a_cache(weights, error) from None
            return own_cache()
        states.keep(size)
        states.release(0)
        settings = {
            "forward": "transformers, recurrent",
            "products": linear.describe(),
            "rollback": states.describe(),
        }
        return Computation(recurrent, states, settings, Rollback.BOUNDED, trees=False, model=RecurrentModel)
    if is_supported(weights):
        generic = GenericForward(weights, cells, attention)
        settle(generic, tree=True)
        return Computation(generic, cells, {"forward": "transformers", "products": linear.describe()})
    return own_cache()


def _with_own_cache(
    weights: Any, own: OwnCaches, check: Callable[..., None], linear: Products
) -> Computation:
    cached = CachedForward(weights, own)
    try:
        check(cached, tree=False)
    except UnsupportedModelError:
        if own.croppable:
            raise
        cached.one_by_one = True
        own.release(0)
        check(cached, tree=False)
    except (AttributeError, TypeError) as error:
        raise UnsupportedModelError(
            f"transformers wants another kind of cache for {type(weights).__name__} ({error}).",
            hint="Convert the model to GGUF and run it with the llama.cpp backend.",
        ) from None
    own.learn(PREFIX + CHAIN)
    return Computation(
        cached,
        own,
        {"forward": "transformers, with its own cache", "products": linear.describe()},
        rollback=Rollback.TRUNCATE if own.croppable else Rollback.BOUNDED,
        trees=False,
    )


def _without_a_cache(weights: Any, error: Exception) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(weights).__name__} keeps its recurrent state outside of transformers' caches, and what "
        f"Foretoken computes in the place of its layers is something else ({error}).",
        hint="Convert the model to GGUF and run it with the llama.cpp backend.",
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what transformers says of kernels that are about to be replaced."""
    messages = transformers.utils.logging
    level = messages.get_verbosity()
    messages.set_verbosity_error()
    try:
        yield
    finally:
        messages.set_verbosity(level)
