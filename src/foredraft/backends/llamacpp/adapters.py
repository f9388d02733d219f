"""The LoRA adapters of a loaded model, and which of them its context computes with.

llama.cpp sets adapters for a whole context. When they change it prepares its buffers and graphs anew, which
takes as long as two forwards of a small model (measured, 135M: 11 ms, a forward 5.6), so requests of two
adapters that decode together would take turns at a quarter of the speed. But what changes is a single pointer
in the context, to a table of adapters and scales. So for each adapter a tiny context is made, whose table is
exchanged with the model's: that takes no time, and as each table stays where it is, llama.cpp knows by its
address which graphs are of the same adapter. The pointer is looked for as the only word that changes with the
adapters. Where it is not found, they are changed as llama.cpp does it. Python does all of this, and not our
native library, as with graphs (`native/graphs.cpp`): it has to work where that was not compiled, too.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from foredraft.backends.llamacpp import log
from foredraft.backends.llamacpp.adapter_file import AGAIN, check_fits, read_adapter
from foredraft.backends.llamacpp.adapter_panels import rewritten
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.gguf_file import GGUFSummary
from foredraft.config import Adapter
from foredraft.errors import CapacityError, ForedraftError, ModelFormatError
from foredraft.library.adapter_files import key_of

logger = logging.getLogger(__name__)

_CELLS = 256
"""Of a context that only holds adapters: the fewest that llama.cpp makes."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An adapter: llama.cpp's objects, each with its scale. `key`: as in `Model.adapters`. `bytes`: of its
    matrices. `signature`: what its exactness depends on.
    """

    parts: tuple[tuple[Any, float], ...]
    key: str
    bytes: int
    signature: str


def load_adapters(
    adapters: Sequence[Adapter], weights: Any, model: GGUFSummary, *, as_they_lie: bool
) -> dict[str, Loaded]:
    """Load adapters, by name, for llama.cpp's `weights` of a model, which free them when they are freed.
    `as_they_lie`: not for our kernels. Raises ModelError, CapacityError.
    """
    return {adapter.name: _load(adapter, weights, model, as_they_lie) for adapter in adapters}


def _load(adapter: Adapter, weights: Any, model: GGUFSummary, as_they_lie: bool) -> Loaded:
    parts: list[tuple[Any, float]] = []
    size, signatures = 0, []
    for path, scale in adapter.files:
        file = read_adapter(path)
        check_fits(file, model)
        size += sum(tensor.size_bytes for tensor in file.summary.tensors)
        with log.capture() as lines, nullcontext() if as_they_lie else rewritten(file) as ours:
            found = lib.llama_adapter_lora_init(weights, os.fsencode(ours or path))
        signatures.append(file.signature if ours else f"{file.signature}, as it lies")
        if not found:
            reason = log.last_error(lines)
            if "alloc" in reason:
                raise CapacityError(
                    f"There is not enough memory for the adapter {path} ({reason}).",
                    hint="Load fewer adapters, or a smaller model.",
                )
            raise ModelFormatError(f"The adapter {path} cannot be loaded: {reason}.", hint=AGAIN)
        parts.append((found, scale))
    return Loaded(tuple(parts), key_of(adapter), size, "&".join(signatures))


class ContextAdapters:
    """Changes what a context computes with. `close` comes before the context is freed."""

    def __init__(self, context: Any, loaded: Mapping[str, Loaded]) -> None:
        self._context = context
        self._loaded = loaded
        self.current = ""
        """The adapter in use."""
        self._holders: dict[str, Any] = {}
        self._place: int | None = None
        if loaded:
            self._make_holders()

    @property
    def exchanged(self) -> bool:
        """Whether a change takes no time, and leaves all graphs valid."""
        return self._place is not None

    def use(self, name: str) -> None:
        """Compute with this adapter from now on, "" for none."""
        if name == self.current:
            return
        if self._place is None:
            set_adapters(self._context, self._loaded[name].parts if name else ())
        else:
            for other in filter(None, (self.current, name)):
                self._exchange(self._holders[other])
        self.current = name

    def close(self) -> None:
        """Free what was made."""
        if self._place is not None:
            self.use("")
        self._free_holders()

    def _exchange(self, holder: Any) -> None:
        assert self._place is not None, "only called where it is known"
        own, its = _words(self._context), _words(holder)
        own[self._place], its[self._place] = its[self._place], own[self._place]

    def _make_holders(self) -> None:
        try:
            for name, adapter in self._loaded.items():
                holder = tiny_context(lib.llama_get_model(self._context))
                if not holder:
                    raise _UnknownError("there is no memory for a context")
                self._holders[name] = holder
                place = _place_of_table(holder, adapter.parts)
                if self._place not in (None, place) or 8 * place >= _size(self._context):
                    raise _UnknownError("the contexts differ")
                self._place = place
                self._check(name)
        except _UnknownError as error:
            logger.info("Adapters are changed as llama.cpp does it, which takes longer: %s.", error)
            self._free_holders()
            self._place = None
            set_adapters(self._context, ())

    def _check(self, name: str) -> None:
        """Raises _UnknownError unless llama.cpp sees that the context has this adapter once it was exchanged:
        then setting it changes nothing.
        """
        place = self._place
        assert place is not None
        words, before = _words(self._context), _words(self._context)[place]
        if not before:
            raise _UnknownError("the context has no table")
        self._exchange(self._holders[name])
        table = words[place]
        set_adapters(self._context, self._loaded[name].parts)
        same = words[place] == table
        self._exchange(self._holders[name])
        if not same:
            raise _UnknownError("the table is not where it should be")

    def _free_holders(self) -> None:
        for holder in self._holders.values():
            lib.llama_free(holder)
        self._holders.clear()


class _UnknownError(ForedraftError):
    """The context is not laid out as expected."""


def set_adapters(context: Any, parts: Sequence[tuple[Any, float]]) -> None:
    """Have a context compute with these adapters, at these scales, as llama.cpp does it."""
    count = len(parts)
    if not count:
        lib.llama_set_adapters_lora(context, None, 0, None)
        return
    pointers = (ctypes.c_void_p * count)(*[ctypes.cast(found, ctypes.c_void_p).value for found, _ in parts])
    scales = (ctypes.c_float * count)(*[scale for _, scale in parts])
    lib.llama_set_adapters_lora(context, pointers, count, scales)


def tiny_context(model: Any, *, rows: int = 1, watch: Any = None) -> Any:
    """The smallest context, for forwards of `rows` rows; null without memory. `watch`: called for each
    node of a forward (`cb_eval`).
    """
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = _CELLS, rows, rows, 1
    if watch is not None:
        params.cb_eval = watch
    params.n_threads = params.n_threads_batch = 1
    params.no_perf, params.op_offload = True, False
    with log.capture():
        return lib.llama_init_from_model(model, params)


def _place_of_table(context: Any, parts: Sequence[tuple[Any, float]]) -> int:
    """Which word of a context holds its table of adapters; it has these afterwards. Raises _UnknownError."""
    set_adapters(context, parts)
    with_them = list(_words(context))
    set_adapters(context, ())
    without = list(_words(context))
    set_adapters(context, parts)
    again = list(_words(context))
    changed = [i for i, word in enumerate(without) if word != with_them[i]]
    back = [i for i, word in enumerate(again) if word != without[i]]
    if len(changed) != 1 or back != changed or not all((without[changed[0]], again[changed[0]])):
        raise _UnknownError("no single word of a context changes with its adapters")
    return changed[0]


def _words(context: Any) -> Any:
    """A context's memory, as words."""
    address = ctypes.cast(context, ctypes.c_void_p).value
    return (ctypes.c_uint64 * (_size(context) // 8)).from_address(address or 0)


def _size(context: Any) -> int:
    """Bytes of a context, or a few more. Raises _UnknownError where the system does not tell."""
    try:
        usable = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError, TypeError):
        raise _UnknownError("the system does not say how large it is") from None
    usable.restype, usable.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    return int(usable(ctypes.cast(context, ctypes.c_void_p)))
