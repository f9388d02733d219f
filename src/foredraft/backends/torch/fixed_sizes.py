"""Forwards of a few fixed sizes, which on a GPU are recorded once and replayed for any rows.

A forward is hundreds of kernels, and launching them by Python and the driver takes several times as long as
the GPU computes. A CUDA graph launches all of them at once (cuda_graphs.py). It uses the same memory every
time: rows go into a batch of a fixed size, and the rest of it is padding that belongs to no sequence.

cuBLAS has other kernels for one row than for many, so a row may have other bits in a batch of another size.
This is checked when a model is loaded: only sizes with the same bits are kept, unless there are hardly any
(fp32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from foredraft.backends.torch.batch import CELL, PATH, POSITION, TOKEN, WANTED, Batch, paths_of
from foredraft.backends.torch.model import Forward, TorchModel
from foredraft.backends.torch.row_plan import ROOM, stretch_of
from foredraft.types import Rows

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of rows of the batches."""

_TOKENS = 4
"""Number of rows that are compared."""


def held_room(config: Any, head: int, *, cells: int, item: int) -> int:
    """Device memory in bytes for batches of all sizes, and for attention over prompts: sums (row_plan.py) and
    logits. `head`: numbers of a head, `item`: bytes of a number.
    """
    stretches = -(-cells // stretch_of(cells))
    sums = config.num_attention_heads * stretches * (head + 2) * 4
    return int(sum(SIZES) * (sums + config.vocab_size * item) + 4 * ROOM)


class Recorder(Protocol):
    """Converts a function into an equivalent one with less overhead."""

    def record(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """`compute` uses the same tensors in every call, and waits for nothing. The result of the returned
        function is overwritten by its next call.
        """
        ...

    def close(self) -> None:
        """Free the recordings."""
        ...


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch of a fixed size, and the function that computes it."""

    batch: Batch
    padding: Any
    compute: Callable[[], Any]

    def __call__(self, batch: Batch) -> Any:
        numbers, count = self.batch.numbers, batch.numbers.shape[1]
        numbers[:, :count].copy_(batch.numbers)
        if count < numbers.shape[1]:
            numbers[:, count:].copy_(self.padding[:, count:])
        paths = paths_of(batch)
        if paths is not None:
            self.batch.scratch["paths"][:count].copy_(paths)
        logits = self.compute()[: len(batch.wanted)]
        batch.features[:] = [rows[:count] for rows in self.batch.features]
        return logits


class FixedSizeForward:
    """`forward` for batches without segments, in `sizes`: recorded if there is a `recorder`. `vocabulary`:
    keep only sizes with the same bits, tested with such a vocabulary; None keeps all.
    """

    def __init__(
        self,
        forward: Forward,
        recorder: Recorder | None,
        *,
        device: Any,
        vocabulary: int | None,
        sizes: Sequence[int] = SIZES,
    ) -> None:
        self._forward, self._recorder, self._device = forward, recorder, device
        with torch.inference_mode():
            # The largest first: the others can reuse its device memory.
            held = {size: self._hold(size) for size in sorted(sizes, reverse=True)}
            self._held = {size: held[size] for size in sizes}
            if vocabulary is not None:
                self._keep_alike([vocabulary * turn // _TOKENS for turn in range(_TOKENS)])

    @property
    def most(self) -> int:
        """Rows of the largest size."""
        return max(self._held)

    def describe(self) -> str:
        """A description of the sizes."""
        sizes = ", ".join(map(str, self._held)) + " rows"
        return sizes if self._recorder is None else f"{sizes}, recorded"

    def __call__(self, batch: Batch) -> Any:
        """See `Forward`. More than `most` rows are computed without a fixed size."""
        count = batch.numbers.shape[1]
        for size, held in self._held.items():
            if size >= count:
                return held(batch)
        return self._forward(batch)

    def _hold(self, size: int) -> _Held:
        padding = torch.zeros(6, size, dtype=torch.long)
        padding[[POSITION, CELL]] = -1
        padding = padding.to(self._device)
        numbers = padding.clone()
        paths = torch.zeros(size, PATH, dtype=torch.long, device=self._device)
        batch = Batch(numbers, numbers[WANTED], (), {"paths": paths})

        def compute() -> Any:
            return self._forward(batch)

        return _Held(batch, padding, self._recorder.record(compute) if self._recorder else compute)

    def _keep_alike(self, tokens: Sequence[int]) -> None:
        """Drop the sizes below the smallest one from which on rows of these tokens have the same bits."""
        sizes = list(self._held)
        found = [self._bits(size, tokens) for size in sizes]
        alike = len(sizes)
        while alike and found[alike - 1] is not None and found[alike - 1] == found[-1]:
            alike -= 1
        if alike < len(sizes):
            self._held = {size: self._held[size] for size in sizes[alike:]}

    def _bits(self, size: int, tokens: Sequence[int]) -> bytes | None:
        """The logits of some rows, each in a batch of only such rows; None if these differ."""
        held, bits = self._held[size], b""
        for token in tokens:
            held.batch.numbers.zero_()
            held.batch.numbers[TOKEN] = token
            held.batch.numbers[WANTED] = torch.arange(size, device=self._device)
            logits = held.compute()
            if not torch.equal(logits, logits[:1].expand(size, -1)):
                return None
            bits += logits[0].float().cpu().numpy().tobytes()
        return bits

    def close(self) -> None:
        """Free the weights and the recordings."""
        self._held.clear()
        if self._recorder is not None:
            self._recorder.close()
        self._forward.close()


class FixedSizeModel(TorchModel):
    """Computes rows up to the largest size in batches of fixed sizes: their bits do not depend on whether a
    prompt is computed beside them.
    """

    _forward: FixedSizeForward

    def with_capabilities(self, **changes: Any) -> TorchModel:
        """Record the measured capabilities; drafts have at most as many rows as the largest size."""
        if "max_rows" in changes:
            changes["max_rows"] = min(changes["max_rows"], self._forward.most)
        return super().with_capabilities(**changes)

    def _compute(self, batch: Sequence[Rows]) -> tuple[Any, Any]:
        groups = divided([len(rows.tokens) for rows in batch], self._forward.most)
        if len(groups) == 1:
            return super()._compute(batch)
        found: dict[int, Any] = {}
        kept: dict[int, Any] = {}
        for group in groups:
            part = [batch[index] for index in group]
            logits, features = super()._compute(part)
            found.update(zip(group, logits.split([rows.logits for rows in part]), strict=True))
            if features is not None:
                kept.update(zip(group, features.split([len(rows.tokens) for rows in part]), strict=True))
        in_order = range(len(batch))
        return torch.cat([found[i] for i in in_order]), torch.cat(
            [kept[i] for i in in_order]
        ) if kept else None


def divided(counts: Sequence[int], most: int) -> list[list[int]]:
    """Groups of indices of parts with these numbers of rows: parts with more than `most` rows, which are
    prompts, alone, and the others with at most `most` rows per group.
    """
    prompts = [index for index, count in enumerate(counts) if count > most]
    groups: list[list[int]] = []
    room = 0
    for index, count in enumerate(counts):
        if count > most:
            continue
        if not groups or count > room:
            groups.append([])
            room = most
        groups[-1].append(index)
        room -= count
    return [prompts, *groups] if prompts else groups
