"""What it costs that a model keeps hidden states for a head, whether or not the head drafts.

Two engines on the same weights, of which one keeps them and copies those of the rows that a head would read
(`engine.absorbing`), compute the same rows in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from foredraft.protocols import Model
from foredraft.types import Rows


@dataclass(frozen=True, slots=True)
class WatchingCost:
    """Milliseconds of a forward of `rows` rows without hidden states, and the milliseconds more with them."""

    rows: int
    plain_ms: float
    more_ms: float

    @property
    def share(self) -> float:
        """How much longer a forward takes, of what it takes without."""
        return self.more_ms / self.plain_ms


def watching_cost(
    plain: Model,
    watched: Model,
    text: Sequence[int],
    *,
    rows: int,
    read: int,
    repeats: int = 20,
    clock: Callable[[], float] = perf_counter,
) -> WatchingCost:
    """Of forwards over `rows` rows after the others of `text`, of which the hidden states of the last `read`
    are copied; medians of the times and of their differences. `clock` gives seconds.

    The models have the same weights (`Engine.load_together` with a setting that has a head and one that has
    none); their sequences 0 are emptied. 64 rows and more are a prompt's and return the last one's logits,
    fewer are verified and return all. Raises BackendError, OutOfKVError.
    """
    models, start = (plain, watched), len(text) - rows
    before = {}
    for model in models:
        model.release(0)
        if start:
            model.forward([Rows(0, 0, text[:start], 0)])
            before[id(model)] = model.snapshot(0)
    batch = [Rows(0, start, text[start:], rows if rows < 64 else 1)]
    wanted = range(rows - min(read, rows), rows)

    def once(model: Model) -> float:
        began = clock()
        model.forward(batch)
        if model is watched and read:
            model.features(wanted)
        taken = 1e3 * (clock() - began)
        model.release(0)
        if start:
            model.restore(0, before[id(model)])
        return taken

    pairs = []
    for turn in range(repeats + 1):
        order = models if turn % 2 else models[::-1]
        found = {id(model): once(model) for model in order}
        pairs.append((found[id(plain)], found[id(watched)]))
    pairs = pairs[1:]  # the first builds graphs
    for model in models:
        model.release(0)
    return WatchingCost(rows, median(one for one, _ in pairs), median(two - one for one, two in pairs))
