"""Forwards of a few fixed sizes, which on a GPU are recorded once and replayed for any rows.

A forward is hundreds of kernels, and Python and the driver take several times as long to launch them as a GPU
to compute them. A CUDA graph of them is launched at once (cuda_graphs.py). It works on the same memory
every time: rows go into a batch of a fixed size, and the rest of it is padding that belongs to no sequence.

cuBLAS has other kernels for one row than for many, so a row may have other bits in a batch of another size.
That is looked at when a model is loaded: only sizes are kept in which it has the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import torch

from foretoken.backends.torch.batch import CELL, PATH, POSITION, TOKEN, WANTED, Batch, paths_of
from foretoken.backends.torch.model import Forward, TorchModel
from foretoken.types import Rows

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Rows of the batches."""

DEARER = 2.0
"""Sizes are given up for equal bits while the smallest one that is left takes no more than so many times as
long as one row."""

_TOKENS = (0, 11, 222)
_TIMES = 7


class Recorder(Protocol):
    """Makes of a function one that does the same with less ado."""

    def record(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """`compute` works on the same tensors whenever it is called, and waits for nothing. What the result
        returns is overwritten by the next call.
        """
        ...

    def wait(self) -> None:
        """Return when everything is computed."""
        ...

    def close(self) -> None:
        """Free what was recorded."""
        ...


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch of a fixed size, and what computes it."""

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
        return self.compute()[: len(batch.wanted)]


class FixedSizeForward:
    """The `forward` of batches that do not say which segments they have, in `sizes`: recorded, and only those
    kept that are alike, where a `recorder` is given.
    """

    def __init__(
        self, forward: Forward, recorder: Recorder | None, *, device: Any, sizes: Sequence[int] = SIZES
    ) -> None:
        self._forward, self._recorder, self._device = forward, recorder, device
        with torch.inference_mode():
            self._held = {size: self._hold(size) for size in sizes}
            if recorder is not None:
                self._keep_alike(recorder)

    @property
    def most(self) -> int:
        """Rows of the largest size."""
        return max(self._held)

    def describe(self) -> str:
        """The sizes, for people."""
        sizes = ", ".join(map(str, self._held)) + " rows"
        return sizes if self._recorder is None else f"{sizes}, recorded"

    def __call__(self, batch: Batch) -> Any:
        """See `Forward`. More than `most` rows are computed as they come."""
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

    def _keep_alike(self, recorder: Recorder) -> None:
        """Forget the sizes below the first one from which on rows have the same bits, if it costs little."""
        sizes = list(self._held)
        found = [self._bits(size) for size in sizes]
        alike = len(sizes)
        while alike and found[alike - 1] is not None and found[alike - 1] == found[-1]:
            alike -= 1
        if 0 < alike < len(sizes):
            one, least = (self._time(size, recorder) for size in (sizes[0], sizes[alike]))
            if least <= DEARER * one:
                self._held = {size: self._held[size] for size in sizes[alike:]}

    def _bits(self, size: int) -> bytes | None:
        """The logits of some rows, each in a batch of nothing but such rows; None where these differ."""
        held, bits = self._held[size], b""
        for token in _TOKENS:
            held.batch.numbers.zero_()
            held.batch.numbers[TOKEN] = token
            held.batch.numbers[WANTED] = torch.arange(size, device=self._device)
            logits = held.compute()
            if not torch.equal(logits, logits[:1].expand(size, -1)):
                return None
            bits += logits[0].float().cpu().numpy().tobytes()
        return bits

    def _time(self, size: int, recorder: Recorder) -> float:
        """Seconds of a forward."""
        times = []
        for _ in range(_TIMES):
            recorder.wait()
            begun = perf_counter()
            self._held[size].compute()
            recorder.wait()
            times.append(perf_counter() - begun)
        return median(times)

    def close(self) -> None:
        """Free the weights, and what was recorded."""
        self._held.clear()
        if self._recorder is not None:
            self._recorder.close()
        self._forward.close()


class FixedSizeModel(TorchModel):
    """Rows of up to the largest size are computed in batches of fixed sizes, whatever they come with: their
    bits do not depend on whether a prompt is computed beside them.
    """

    _forward: FixedSizeForward

    def _compute(self, batch: Sequence[Rows]) -> Any:
        groups = divided([len(rows.tokens) for rows in batch], self._forward.most)
        if len(groups) == 1:
            return super()._compute(batch)
        found: dict[int, Any] = {}
        for group in groups:
            part = [batch[index] for index in group]
            logits = super()._compute(part).split([rows.logits for rows in part])
            found.update(zip(group, logits, strict=True))
        return torch.cat([found[index] for index in range(len(batch))])


def divided(counts: Sequence[int], most: int) -> list[list[int]]:
    """Groups of indices of parts with so many rows: those of more than `most` rows, which are prompts, and
    the others, with no more than `most` rows together in each group.
    """
    prompts = [index for index, count in enumerate(counts) if count > most]
    groups: list[list[int]] = []
    room = 0
    for index, count in enumerate(counts):
        if count > most:
            continue
        if count > room:
            groups.append([])
            room = most
        groups[-1].append(index)
        room -= count
    return [prompts, *groups] if prompts else groups
