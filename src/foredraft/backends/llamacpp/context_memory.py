"""How much memory a context takes for each token, and how much there is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeAlias

from foredraft.backends import context_size
from foredraft.backends.llamacpp import devices
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.devices import Device
from foredraft.backends.llamacpp.rpc.library import NO_HOSTS, Hosts

_STEP = 1024
"""Tokens between the two contexts that are compared."""

Measure: TypeAlias = Callable[[int], int]
"""The bytes that a context of that many tokens takes, as llama.cpp reports them."""


def bytes_per_token(batch: int, measure: Measure) -> float:
    """Of the cells of all sequences, and of the buffers that grow with the context.

    Two small contexts are made, because architectures differ in what they keep of a token. Both have room for
    a forward of `batch` rows: a smaller one has smaller buffers.
    """
    return max(measure(batch + _STEP) - measure(batch), 0) / _STEP


def memory_for(
    device: str,
    *,
    untouched: int,
    budget: int | None,
    held: int,
    hosts: Hosts = NO_HOSTS,
    partly: bool = False,
) -> tuple[int | None, int]:
    """(bytes that are free for a context, None if not known; by what share of it). `untouched`: bytes that
    the model has and that still count as free: weights that are pages of the file, which must stay, and
    buffers; `held`: all that it holds by now, these included; `budget`: the most for that and the context
    together. `partly`: the processor has layers of its own, beside those of an RPC host.
    """
    here = context_size.free_memory()
    here = None if here is None else max(here - untouched, 0)
    if device == devices.CPU:
        free, share = here, context_size.SHARE
    else:
        free, share = _free_on(device, hosts), context_size.DEVICE_SHARE
        if hosts.devices and partly and here is not None:
            free = here if free is None else min(free, here)
    if budget is not None:
        left = max(budget - held, 0)
        free = left if free is None else min(free, left)
    return free, share


def all_memory(held: int, hosts: Hosts) -> int | None:
    """Bytes that the machine and its devices have in all beside what a model holds; None if that is not
    known.
    """
    memory = context_size.all_memory()
    own = sum(device.memory_bytes for device in devices.devices() if device.kind == devices.GPU)
    own += sum(device.memory()[1] for device in hosts.devices)
    return None if memory is None else memory + own - held


def _free_on(placed: str, hosts: Hosts) -> int | None:
    """What the devices have left that hold weights (`devices.placed`); None if the library does not say."""
    names = placed.split(" + ")
    free = [_free(place) for place, device in enumerate(devices.devices()) if _is_one_of(device, names)]
    free += [device.memory()[0] for device in hosts.devices if device.buffers in names]
    return sum(free) or None


def _is_one_of(device: Device, names: list[str]) -> bool:
    return any(name == device.name or name.startswith(f"{device.name} ") for name in names)


def _free(place: int) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    lib.ggml_backend_dev_memory(lib.ggml_backend_dev_get(place), ctypes.byref(free), ctypes.byref(total))
    return free.value
