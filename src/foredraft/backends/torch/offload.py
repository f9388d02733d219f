"""The lean forward on a device that may be smaller than the model.

Layers that do not fit stay in CPU memory and are streamed through two buffers while others are computed.
Every forward then takes as long as the copies, whether it has one row or sixty: drafts are almost free, and
the planner, which measures that, makes them long.

A layer is a contiguous range of bytes on any device, with its weights at the same offsets: results have the
same bits, streamed or not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from foredraft.backends.comparison import MOST_ROWS
from foredraft.backends.torch.attention import choose_attention
from foredraft.backends.torch.features import Trunk, check_watch
from foredraft.backends.torch.fixed_sizes import (
    SIZES,
    FixedSizeForward,
    FixedSizeModel,
    Recorder,
    held_room,
)
from foredraft.backends.torch.forwards import Computation
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.lean import (
    Kernels,
    LayerWeights,
    LeanForward,
    LeanLayer,
    head_size,
    make_layer,
    take_over,
)
from foredraft.backends.torch.linear import plain_linear
from foredraft.backends.torch.offload_budget import (
    AUTOMATIC,
    BUFFERS,
    Needs,
    choose_streamed,
    size,
    working_room,
)
from foredraft.backends.torch.offload_cuda import CudaDevice
from foredraft.backends.torch.offload_stream import Copier, Layers, Streamed
from foredraft.config import ModelOptions
from foredraft.errors import CapacityError, first_line

logger = logging.getLogger(__name__)

ALIGNED = 512
"""Alignment of weights, as in torch's allocations on CUDA devices."""

SETTINGS = ("gpu_layers", "streamed", "batches")
"""Model settings added by `lean_on` that affect only the speed of a forward, not its results."""


class Accelerator(Protocol):
    """A device with its own memory, which may be smaller than a model."""

    device: Any

    def free(self) -> int:
        """Free memory for tensors in bytes."""
        ...

    def host_bytes(self, size: int) -> Any:
        """A tensor of bytes in CPU memory from which the device copies fast."""
        ...

    def copier(self, size: int, count: int) -> Copier:
        """A copier with `count` buffers of `size` bytes."""
        ...

    def by_rows(self, dtype: Any, **shape: int) -> Kernels | None:
        """Kernels with which a row has the same bits in any batch, and which need no segments, if available
        for this `shape`: query `heads`, `groups` of them that share keys, numbers of each (`size`), and
        `context_length`.
        """
        ...

    def recorder(self) -> Recorder:
        """The recorder for forwards with these kernels."""
        ...


def find_accelerator(device: Any) -> Accelerator | None:
    """The interface for `device`. Apple's GPUs share the processor's memory: nothing has to be streamed."""
    return CudaDevice() if device.type == "cuda" else None


def lean_on(
    accelerator: Accelerator,
    source: Any,
    options: ModelOptions,
    *,
    name: str,
    context_length: int,
    dtype: Any,
) -> Computation:
    """Create the forward of transformers' model `source`, which is in CPU memory and is taken over.

    Raises CapacityError if it does not fit even with all layers streamed, and UnsupportedModelError if it
    does not have the hidden states of `options.watch`.
    """
    check_watch(options.watch, source.config.num_hidden_layers, name)
    device, config, head = accelerator.device, source.config, head_size(source.config)
    cells = KVCache(options.sequences, context_length, dtype=dtype, device=device)
    ends = (source.model.embed_tokens, source.model.norm, source.model.rotary_emb, source.lm_head)
    by_rows = accelerator.by_rows(
        dtype,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        size=head,
        context_length=context_length,
    )
    weights = list(take_over(source))
    needs = Needs(
        layers=tuple(_length(layer) for layer in weights),
        ends=_bytes_of(ends),
        cache=len(weights) * cells.layer_bytes(config.num_key_value_heads, head, head),
        working=_working(config, options, context_length, dtype.itemsize, held=by_rows is not None),
    )
    free = accelerator.free()
    streamed = choose_streamed(needs, free, options.gpu_layers, name)
    if streamed:
        _explain(needs, streamed, free, name, options)
    try:
        for module in ends:
            module.to(device)
        layers = _placed(accelerator, weights, streamed)
    except RuntimeError as error:  # torch.OutOfMemoryError is one; a processor's is not
        raise CapacityError(
            f"There is not enough memory for {name}, although {size(free)} were free on the device "
            f"({first_line(error)}).",
            hint="Another program may use it too: try again, or use fewer --gpu-layers.",
        ) from None
    settings = {"forward": "lean", "products": "plain"} | _settings(needs, streamed)
    try:
        kernels = by_rows or Kernels(choose_attention(device))
        lean = LeanForward(source, cells, plain_linear, kernels, layers, watch=options.watch)
        trunk = Trunk(config, lean.embedding, lean.output, plain_linear)
        if by_rows is None:
            return Computation(lean, cells, settings, trunk=trunk)
        sized = _in_sizes(lean, accelerator, recorded=not streamed, dtype=dtype, vocabulary=config.vocab_size)
    except BaseException:
        layers.close()
        raise
    settings |= {"attention": "by rows", "batches": sized.describe()}
    return Computation(sized, cells, settings, model=FixedSizeModel, trunk=trunk)


def _working(config: Any, options: ModelOptions, context_length: int, item: int, *, held: bool) -> int:
    """Bytes that forwards need beside weights and cache; `held`: in batches of fixed sizes."""
    head, rows = head_size(config), max(options.batch, options.sequences)
    wanted = min(rows, options.sequences * MOST_ROWS)
    room = working_room(config, head, rows=rows, wanted=wanted, context_length=context_length, item=item)
    if held:
        room += held_room(config, head, cells=context_length, item=item)
    watched = len(options.watch) * (rows + (sum(SIZES) if held else 0))
    return room + watched * int(config.hidden_size) * item


def _in_sizes(
    lean: LeanForward, accelerator: Accelerator, *, recorded: bool, dtype: Any, vocabulary: int
) -> FixedSizeForward:
    """The forward in recorded sizes with the same bits. Without recording only the largest of these is used:
    with streamed layers it takes no longer, because the copies do. In fp32 hardly any sizes are alike, and
    all are kept.
    """
    alike = dtype != torch.float32
    if recorded:
        recorder = accelerator.recorder()
        try:
            return FixedSizeForward(
                lean, recorder, device=accelerator.device, vocabulary=vocabulary if alike else None
            )
        except RuntimeError as error:  # also without enough memory
            recorder.close()
            logger.warning("Forwards cannot be recorded here (%s): they take longer.", first_line(error))
    sizes = SIZES[-1:] if alike else SIZES
    return FixedSizeForward(lean, None, device=accelerator.device, vocabulary=None, sizes=sizes)


def _placed(
    accelerator: Accelerator, weights: list[LayerWeights], streamed: frozenset[int]
) -> Layers[LeanLayer]:
    """Move every layer to its place. Empties `weights` meanwhile: two copies may not fit."""
    make = partial(make_layer, plain_linear)
    largest = max((_length(weights[index]) for index in streamed), default=0)
    copier = accelerator.copier(largest, min(BUFFERS, len(streamed))) if streamed else None
    placed: list[LeanLayer | Streamed[LeanLayer]] = []
    try:
        weights.reverse()
        while weights:
            layer = weights.pop()
            if copier is None or len(placed) not in streamed:
                memory = _packed(layer, torch.empty(_length(layer), dtype=torch.uint8))
                placed.append(make(_in_place(layer, memory.to(accelerator.device))))
            else:
                memory = _packed(layer, accelerator.host_bytes(_length(layer)))
                views = tuple(make(_in_place(layer, buffer)) for buffer in copier.buffers)
                placed.append(Streamed(memory, views))
    except BaseException:
        if copier is not None:
            copier.close()
        raise
    return Layers(placed, copier)


def _places(layer: LayerWeights) -> Iterator[tuple[str, int, int]]:
    """(name, first byte, bytes) of each tensor in a layer's memory."""
    start = 0
    for name, tensor in layer.tensors.items():
        yield name, start, tensor.nbytes
        start += -(-tensor.nbytes // ALIGNED) * ALIGNED


def _length(layer: LayerWeights) -> int:
    return max(start + -(-count // ALIGNED) * ALIGNED for _, start, count in _places(layer))


def _in_place(layer: LayerWeights, memory: Any) -> LayerWeights:
    """The layer with its tensors in `memory`, with its current content."""
    tensors = {}
    for name, start, count in _places(layer):
        tensor = layer.tensors[name]
        tensors[name] = memory[start : start + count].view(tensor.dtype).view(tensor.shape)
    return LayerWeights(tensors, layer.rotates)


def _packed(layer: LayerWeights, memory: Any) -> Any:
    """Copy the layer into `memory` and return it."""
    for name, tensor in _in_place(layer, memory).tensors.items():
        tensor.copy_(layer.tensors[name])
    return memory


def _bytes_of(modules: Sequence[Any]) -> int:
    """The size of their weights in bytes; shared weights count once."""
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return sum({tensor.data_ptr(): int(tensor.nbytes) for tensor in tensors}.values())


def _settings(needs: Needs, streamed: frozenset[int]) -> dict[str, str]:
    count = len(needs.layers)
    said = {"gpu_layers": f"{count - len(streamed)} of {count}"}
    if streamed:
        buffers = min(BUFFERS, len(streamed))
        largest = max(needs.layers[index] for index in streamed)
        said["streamed"] = f"{len(streamed)} layers from CPU memory, {buffers} buffers of {size(largest)}"
    return said


def _explain(needs: Needs, streamed: frozenset[int], free: int, name: str, options: ModelOptions) -> None:
    line = (
        f"{name}: {len(streamed)} of {len(needs.layers)} layers are streamed from CPU memory, because the "
        f"model needs {size(needs.with_streamed(frozenset()))} on the device and {size(free)} are free."
        if options.gpu_layers == AUTOMATIC
        else f"{name}: {len(streamed)} of {len(needs.layers)} layers are streamed from CPU memory, "
        f"set by --gpu-layers {options.gpu_layers}."
    )
    logger.info(line)
    if options.notice is not None:
        options.notice(line)
