"""The lean forward on a device that may be smaller than the model.

What does not fit stays in CPU memory and is streamed through two buffers, layer by layer, beside the
computing. Every forward then takes as long as the copies do, whether it has one row or sixty: drafts are
almost free, and the planner, which measures that, makes them long.

A layer is one stretch of bytes wherever it is, and its weights have the same places in it: what is computed
from them has the same bits, streamed or not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from foredraft.backends.probe import ROWS
from foredraft.backends.torch.attention import choose_attention
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
"""Weights begin at multiples of this, as what torch allocates on a CUDA device does."""

SETTINGS = ("gpu_layers", "streamed", "batches")
"""What `lean_on` adds to the model's settings. They say how fast a forward is, not what it computes."""


class Accelerator(Protocol):
    """A device with memory of its own, less perhaps than a model needs."""

    device: Any

    def free(self) -> int:
        """Bytes that tensors may take now."""
        ...

    def host_bytes(self, size: int) -> Any:
        """A tensor of bytes in CPU memory, from which it copies fast."""
        ...

    def copier(self, size: int, count: int) -> Copier:
        """With `count` buffers of `size` bytes."""
        ...

    def by_rows(self, dtype: Any, **shape: int) -> Kernels | None:
        """What gives a row the same bits in any company and needs no segments, if there is such a thing for
        this `shape`: query `heads`, `groups` of them that share keys, numbers of each (`size`), and
        `context_length`.
        """
        ...

    def recorder(self) -> Recorder:
        """For forwards with that."""
        ...


def find_accelerator(device: Any) -> Accelerator | None:
    """The one that `device` is. Apple's GPUs share the processor's memory: there is nothing to stream."""
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
    """The forward of transformers' model `source`, which is in CPU memory and is taken over.

    Raises CapacityError where it does not fit, however many layers are streamed.
    """
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
            f"There is not enough memory for {name}, though {size(free)} were free on the device "
            f"({first_line(error)}).",
            hint="Something else may use it too: try again, or with fewer --gpu-layers.",
        ) from None
    settings = {"forward": "lean", "products": "plain"} | _settings(needs, streamed)
    try:
        kernels = by_rows or Kernels(choose_attention(device))
        lean = LeanForward(source, cells, plain_linear, kernels, layers)
        if by_rows is None:
            return Computation(lean, cells, settings)
        sized = _in_sizes(lean, accelerator, recorded=not streamed, dtype=dtype, vocabulary=config.vocab_size)
    except BaseException:
        layers.close()
        raise
    settings |= {"attention": "by rows", "batches": sized.describe()}
    return Computation(sized, cells, settings, model=FixedSizeModel)


def _working(config: Any, options: ModelOptions, context_length: int, item: int, *, held: bool) -> int:
    """Bytes that forwards need beside weights and cache; `held`: in batches of fixed sizes."""
    head, rows = head_size(config), max(options.batch, options.sequences)
    wanted = min(rows, options.sequences * max(ROWS))
    room = working_room(config, head, rows=rows, wanted=wanted, context_length=context_length, item=item)
    return room + (held_room(config, head, cells=context_length, item=item) if held else 0)


def _in_sizes(
    lean: LeanForward, accelerator: Accelerator, *, recorded: bool, dtype: Any, vocabulary: int
) -> FixedSizeForward:
    """Recorded in sizes that are alike. What cannot be recorded has the largest of these: it takes no longer
    where layers are streamed, as the copies do. In fp32 hardly any are alike, and all are kept.
    """
    alike = dtype != torch.float32
    if recorded:
        recorder = accelerator.recorder()
        try:
            return FixedSizeForward(
                lean, recorder, device=accelerator.device, vocabulary=vocabulary if alike else None
            )
        except RuntimeError as error:  # also where there is no memory for it
            recorder.close()
            logger.warning("Forwards cannot be recorded here (%s): they take longer.", first_line(error))
    sizes = SIZES[-1:] if alike else SIZES
    return FixedSizeForward(lean, None, device=accelerator.device, vocabulary=None, sizes=sizes)


def _placed(
    accelerator: Accelerator, weights: list[LayerWeights], streamed: frozenset[int]
) -> Layers[LeanLayer]:
    """Every layer where it belongs. Empties `weights` meanwhile: two copies need not fit."""
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
    """(name, first byte, bytes) of each tensor in a layer's stretch of memory."""
    start = 0
    for name, tensor in layer.tensors.items():
        yield name, start, tensor.nbytes
        start += -(-tensor.nbytes // ALIGNED) * ALIGNED


def _length(layer: LayerWeights) -> int:
    return max(start + -(-count // ALIGNED) * ALIGNED for _, start, count in _places(layer))


def _in_place(layer: LayerWeights, memory: Any) -> LayerWeights:
    """The layer with its tensors in `memory`, whatever that holds now."""
    tensors = {}
    for name, start, count in _places(layer):
        tensor = layer.tensors[name]
        tensors[name] = memory[start : start + count].view(tensor.dtype).view(tensor.shape)
    return LayerWeights(tensors, layer.rotates)


def _packed(layer: LayerWeights, memory: Any) -> Any:
    """`memory`, with the layer in it."""
    for name, tensor in _in_place(layer, memory).tensors.items():
        tensor.copy_(layer.tensors[name])
    return memory


def _bytes_of(modules: Sequence[Any]) -> int:
    """Of their weights; those that they share count once."""
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
        f"{name}: {len(streamed)} of {len(needs.layers)} layers are streamed from CPU memory, because all of "
        f"it needs {size(needs.with_streamed(frozenset()))} on the device and {size(free)} are free."
        if options.gpu_layers == AUTOMATIC
        else f"{name}: {len(streamed)} of {len(needs.layers)} layers are streamed from CPU memory, as "
        f"--gpu-layers {options.gpu_layers} asks for."
    )
    logger.info(line)
    if options.notice is not None:
        options.notice(line)
