"""Chooses the layers of a model that stay on a device: arithmetic on bytes, without tensors.

The others are streamed through two buffers (offload_stream.py). They are spread evenly between the ones that
stay, so that copies overlap with computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foredraft.errors import CapacityError

BUFFERS = 2
"""One layer is computed while the next one is copied."""

AUTOMATIC = -1


@dataclass(frozen=True, slots=True)
class Needs:
    """A model's device memory in bytes: the weights of each of its `layers`, and what always stays there: the
    other weights (`ends`: embeddings, last norm, head), the KV `cache`, and the `working` memory of the
    largest forward.
    """

    layers: tuple[int, ...]
    ends: int
    cache: int
    working: int

    def with_streamed(self, streamed: frozenset[int]) -> int:
        """The total, with these layers elsewhere and buffers for them."""
        away = [size for index, size in enumerate(self.layers) if index in streamed]
        buffers = min(BUFFERS, len(away)) * max(away, default=0)
        return self.ends + self.cache + self.working + sum(self.layers) - sum(away) + buffers


def spread(streamed: int, layers: int) -> frozenset[int]:
    """`streamed` of `layers` indices, evenly spread, starting with the last layer."""
    return frozenset(i for i in range(layers) if (i + 1) * streamed // layers > i * streamed // layers)


def choose_streamed(needs: Needs, free: int, wanted: int, name: str) -> frozenset[int]:
    """The layers to stream if `free` bytes are free. `wanted`: how many layers stay, or `AUTOMATIC` for as
    many as fit. With an explicit number the working memory is not checked.

    Raises CapacityError if that does not fit.
    """
    count = len(needs.layers)
    every = [spread(streamed, count) for streamed in range(count + 1)]
    fitting = [streamed for streamed in every if needs.with_streamed(streamed) <= free]
    if wanted == AUTOMATIC:
        if not fitting:
            raise _too_small(needs, free, name)
        return fitting[0]
    chosen = every[max(0, count - wanted)]
    if needs.with_streamed(chosen) - needs.working > free:
        if not fitting:
            raise _too_small(needs, free, name)
        most = count - len(fitting[0])
        raise CapacityError(
            f"{name} with {count - len(chosen)} of {count} layers on the device needs "
            f"{size(needs.with_streamed(chosen))}, and {size(free)} are free there.",
            hint=f"Use --gpu-layers {most}, or leave it out to keep as many as fit.",
        )
    return chosen


def _too_small(needs: Needs, free: int, name: str) -> CapacityError:
    everything = frozenset(range(len(needs.layers)))
    buffers = min(BUFFERS, len(needs.layers)) * max(needs.layers)
    return CapacityError(
        f"{name} needs {size(needs.with_streamed(everything))} on the device even with every layer streamed "
        f"from CPU memory, and {size(free)} are free there: {size(needs.cache)} for the KV cache, "
        f"{size(needs.working)} of working memory, {size(needs.ends)} for embeddings and head, "
        f"{size(buffers)} for two layers.",
        hint="Use a smaller context (--ctx), fewer sequences or a smaller batch (--batch), "
        "or --gpu-layers 0 to stay on the processor.",
    )


def working_room(config: Any, head: int, *, rows: int, wanted: int, context_length: int, item: int) -> int:
    """Maximum bytes that a forward of `rows` rows, `wanted` of which return logits, needs beside weights and
    cache: values that exist at the same time in a layer (rows before and after, heads rotated and not, the
    MLP), the masks of attention, and logits in the model's format and in fp32. `head`: a head's size, `item`:
    bytes of a number.
    """
    hidden, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    row = item * (4 * hidden + 4 * (heads + 2 * groups) * head + 4 * config.intermediate_size) + 8 * hidden
    mask = heads // groups * context_length * (1 + item)
    return int(rows * (row + mask) + wanted * config.vocab_size * (item + 4))


def size(count: int) -> str:
    """A number of bytes as text."""
    return f"{count / 1e9:.2f} GB" if count >= 10**7 else f"{count / 1e6:.3f} MB"
