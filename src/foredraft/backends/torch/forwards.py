"""Chooses a model's forward: the lean one, transformers' with our attention, or transformers' alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import transformers

from foredraft.backends.torch.adapters import Adapters
from foredraft.backends.torch.attention import Attention, cells_dtype, choose_attention
from foredraft.backends.torch.cached import CachedForward, OwnCaches
from foredraft.backends.torch.check import AS_GGUF, CHAIN, PREFIX, check_forward, reference_logits
from foredraft.backends.torch.features import Trunk
from foredraft.backends.torch.generic import GenericForward, UnseenWindowError, is_supported
from foredraft.backends.torch.half import choose_products
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.lanes import align_activations
from foredraft.backends.torch.lean import Kernels, LeanForward, is_lean
from foredraft.backends.torch.linear import drop_weights, replace_products
from foredraft.backends.torch.model import Cells, Forward, TorchModel
from foredraft.backends.torch.recurrent import Layers, RecurrentForward, RecurrentModel
from foredraft.backends.torch.seeing import SeeingCells, SeeingModel
from foredraft.backends.torch.seeing_kinds import eyes, is_seeing, kind_of
from foredraft.backends.torch.states import States
from foredraft.errors import UnsupportedModelError
from foredraft.types import Rollback


@dataclass(frozen=True, slots=True)
class Computation:
    """A forward with its cache and their capabilities. `settings` describe them, `model` creates a Model from
    them, `trunk` is what heads of the model share with it.
    """

    forward: Forward
    cells: Cells
    settings: dict[str, str]
    rollback: Rollback = Rollback.TRUNCATE
    trees: bool = True
    model: type[TorchModel] = TorchModel
    trunk: Trunk | None = None


def choose_forward(
    weights: Any,
    *,
    name: str,
    sequences: int,
    context_length: int,
    dtype: Any,
    device: Any,
    watch: Sequence[str] = (),
    adapters: Adapters | None = None,
) -> Computation:
    """Choose a forward for transformers' model `weights`, which it takes over. `watch`: the hidden states
    that it keeps (features.py).

    Raises UnsupportedModelError if no forward computes the same as transformers, also with each of the
    `adapters`, or if the model does not have the hidden states, and CapacityError.
    """
    _expect(adapters, weights)
    linear, attention = choose_products(dtype, device), choose_attention(device)
    kind = kind_of(weights.config)
    made = SeeingCells if kind is not None and kind.grid else KVCache
    cells = made(sequences, context_length, dtype=cells_dtype(dtype, device), device=device)
    if is_lean(weights, context_length):
        lean = LeanForward(weights, cells, linear, Kernels(attention), watch=watch)
        trunk = Trunk(weights.config, lean.embedding, lean.output, linear)
        settings = {"forward": "lean", "products": linear.describe()}
        computed = Computation(lean, cells, settings, trunk=trunk)
        if adapters is not None:
            lean.wrap(partial(adapters.around, linear=linear))
            _check_adapted(computed, adapters, name, dtype=dtype, device=device)
        return computed
    with _quietly():
        expected = reference_logits(weights)
    apart = eyes(weights)
    replaced = replace_products(weights, linear, apart)
    align_activations(weights, apart)
    judge = _Judge(expected, name, dtype, device, replaced if linear.copies else [])
    layers, states = Layers(weights, linear), States(cells)
    found = None
    if layers.take_over(states):
        found = _recurrent(weights, cells, attention, judge, layers=layers, states=states, watch=watch)
    elif is_supported(weights):
        found = _generic(weights, cells, attention, judge, watch)
    if found is None:
        layers.give_back()
        caches = OwnCaches(sequences, context_length, weights.config)
        found = _with_own_cache(weights, caches, judge, watch)
    found.settings["products"] = linear.describe()
    text = weights.config.get_text_config()
    embedding = weights.get_input_embeddings().weight.detach()
    trunk = Trunk(text, embedding, weights.get_output_embeddings(), linear, source=weights)
    if adapters is not None:
        for layer in sorted({layer for pairs in adapters.pairs.values() for layer in pairs}):
            module = weights.get_submodule(layer)
            module.forward = adapters.around([layer], module.forward, linear)
        _check_adapted(found, adapters, name, dtype=dtype, device=device)
    return replace(found, trunk=trunk) if watch else found


def _expect(adapters: Adapters | None, weights: Any) -> None:
    """Note what transformers computes with each adapter."""
    for name in adapters.pairs if adapters is not None else ():
        assert adapters is not None, "there are none without"
        with _quietly(), adapters.hooked(weights, name):
            adapters.expected[name] = reference_logits(weights)


def _check_adapted(found: Computation, adapters: Adapters, name: str, *, dtype: Any, device: Any) -> None:
    """Raises UnsupportedModelError, and closes the forward, if it computes something else with an adapter."""
    try:
        for adapter, expected in adapters.expected.items():
            with adapters.computing(adapter):
                check_forward(
                    found.forward,
                    expected,
                    f"{name} with the adapter {adapter}",
                    dtype=dtype,
                    device=device,
                    tree=found.trees,
                )
            found.cells.release(0)
    except BaseException:
        found.forward.close()
        raise
    adapters.expected.clear()


@dataclass(slots=True)
class _Judge:
    """Compares forwards with transformers' results before anything was changed (check.py)."""

    expected: Any
    name: str
    dtype: Any
    device: Any
    replaced: list[tuple[Any, Any]]
    """Layers whose weights are no longer needed if a forward has copies."""

    def check(self, forward: Forward, *, tree: bool) -> None:
        """Raises UnsupportedModelError."""
        check_forward(forward, self.expected, self.name, dtype=self.dtype, device=self.device, tree=tree)

    def settle(self, forward: Forward, generic: GenericForward, *, tree: bool, most: int) -> None:
        """Check a forward that uses transformers' own as `generic`, for a context of `most` tokens; it is
        closed if it fails.
        """
        try:
            self.check(forward, tree=tree)
            if self.replaced:
                drop_weights(self.replaced, lambda: self.check(forward, tree=tree))
            generic.check_windows(most)
        except BaseException:
            forward.close()  # transformers keeps it by name, and it keeps the weights
            raise


def _generic(
    weights: Any, cells: KVCache, attention: Attention, judge: _Judge, watch: Sequence[str]
) -> Computation | None:
    """Our attention in transformers' forward; None if it would not see everything it needs."""
    generic = GenericForward(weights, cells, attention, watch)
    try:
        judge.settle(generic, generic, tree=True, most=cells.context_length)
    except UnseenWindowError:
        return None
    model = SeeingModel if is_seeing(weights.config) else TorchModel
    return Computation(generic, cells, {"forward": "transformers"}, model=model)


def _recurrent(
    weights: Any,
    cells: KVCache,
    attention: Attention,
    judge: _Judge,
    *,
    layers: Layers,
    states: States,
    watch: Sequence[str],
) -> Computation | None:
    """The same with recurrent layers, which are taken over; None if they differ from our kernels."""
    size = sum(weight.numel() * weight.element_size() for weight in weights.parameters())
    judge.replaced = [entry for entry in judge.replaced if entry[0] not in layers.multiplied]
    try:
        with _quietly():
            generic = GenericForward(weights, cells, attention, watch)
        recurrent = RecurrentForward(generic, states)
        judge.settle(recurrent, generic, tree=False, most=cells.context_length)
    except (UnsupportedModelError, RuntimeError, IndexError, TypeError, ValueError) as error:
        if layers.needed:
            raise _without_a_cache(weights, error) from None
        return None
    states.keep(size)
    states.release(0)
    settings = {"forward": "transformers, recurrent", "rollback": states.describe()}
    return Computation(recurrent, states, settings, Rollback.BOUNDED, trees=False, model=RecurrentModel)


def _with_own_cache(weights: Any, own: OwnCaches, judge: _Judge, watch: Sequence[str]) -> Computation:
    """The forward of transformers with its own cache. Raises UnsupportedModelError."""
    cached = CachedForward(weights, own, watch)
    try:
        judge.check(cached, tree=False)
    except UnsupportedModelError:
        if own.croppable:
            raise
        cached.one_by_one = True
        own.release(0)
        judge.check(cached, tree=False)
    except (AttributeError, TypeError) as error:
        raise UnsupportedModelError(
            f"transformers needs another kind of cache for {type(weights).__name__} ({error}).",
            hint=AS_GGUF,
        ) from None
    own.learn(PREFIX + CHAIN)
    return Computation(
        cached,
        own,
        {"forward": "transformers, with its own cache"},
        rollback=Rollback.TRUNCATE if own.croppable else Rollback.BOUNDED,
        trees=False,
    )


def _without_a_cache(weights: Any, error: Exception) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(weights).__name__} keeps its recurrent state outside of transformers' caches, and "
        f"Foredraft's layers do not compute the same ({error}).",
        hint=AS_GGUF,
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress transformers' messages about kernels that are about to be replaced."""
    messages = transformers.utils.logging
    level = messages.get_verbosity()
    messages.set_verbosity_error()
    try:
        yield
    finally:
        messages.set_verbosity(level)
