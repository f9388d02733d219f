"""A few forwards of different sizes when a model is loaded: they warm caches up and seed the cost curve.

The curve V(n) has steps (docs/how-it-works.md): on a CPU 2 rows may cost as much as 3, and 4 hardly more. A
planner that only knows V(1) and V(2) would conclude from a dear second row that drafting never pays, and
never find out otherwise.
"""

from __future__ import annotations

from time import perf_counter

from foretoken.protocols import Model
from foretoken.types import Load, Round, Rows

SIZES = (1, 2, 4, 8, 16, 3, 6, 12, 32, 24, 5, 48)
"""Batch sizes in the order in which they matter: a slow model gets through the first ones only."""

REPEATS = 2
BUDGET_S = 0.5


def measure_costs(model: Model, seq: int, budget_s: float = BUDGET_S) -> list[Round]:
    """Rounds of `SIZES` rows in an empty sequence, for at most about `budget_s` seconds; best of two each,
    because a busy machine only ever makes a forward slower. The sequence is empty again afterwards.
    """
    began = perf_counter()
    most = min(model.capabilities.max_rows, model.capabilities.max_batch, model.info.context_length)
    measured: list[Round] = []
    _forward_ms(model, seq, 1)  # the first forward pages the weights in
    for size in (size for size in SIZES if size <= most):
        best = min(_forward_ms(model, seq, size) for _ in range(REPEATS))
        measured.append(Round(Load(1, 0, 0), size, {}, best, 0.0, ()))
        spent = perf_counter() - began
        if spent + 2 * REPEATS * best / 1e3 > budget_s:
            break
    return measured


def _forward_ms(model: Model, seq: int, rows: int) -> float:
    began = perf_counter()
    model.forward([Rows(seq, 0, (0,) * rows, rows)])
    elapsed = 1e3 * (perf_counter() - began)
    model.release(seq)
    return elapsed
