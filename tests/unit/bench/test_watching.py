"""What keeping hidden states costs: the difference between two models, of what a head would read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foredraft.bench.watching import watching_cost
from foredraft.testing import FakeModel
from foredraft.types import Features, Logits, Rows


class Timed(FakeModel):
    """Virtual time: 2 ms for a row, a quarter more if it keeps hidden states, and 0.5 ms for each copied."""

    now = 0.0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        each = 2.5 if self.capabilities.features else 2.0
        Timed.now += 1e-3 * each * sum(len(rows.tokens) for rows in batch)
        return super().forward(batch)

    def features(self, rows: Sequence[int] | None = None) -> Features:
        found = super().features(rows)
        Timed.now += 0.5e-3 * len(found)
        return found


@pytest.mark.parametrize(
    ("rows", "read", "more"), [(1, 1, 1.0), (8, 0, 4.0), (8, 512, 8.0), (100, 1, 50.5), (100, 30, 65.0)]
)
def test_it_is_the_difference(rows: int, read: int, more: float) -> None:
    plain, watched = Timed(), Timed(features=("layer:1",))
    for model in (plain, watched):
        model.forward([Rows(0, 0, [1, 2, 3], 1)])
    found = watching_cost(
        plain, watched, list(range(120)), rows=rows, read=read, repeats=4, clock=lambda: Timed.now
    )
    assert found.rows == rows
    assert found.plain_ms == pytest.approx(2.0 * rows)
    assert found.more_ms == pytest.approx(more)
    assert found.share == pytest.approx(more / (2.0 * rows))
    logits = {batch[0].logits for batch in plain.forwards if len(batch[0].tokens) == rows}
    assert (rows if rows < 64 else 1) in logits
    assert plain.length(0) == watched.length(0) == 0
