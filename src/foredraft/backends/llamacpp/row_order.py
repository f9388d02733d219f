"""Where rows of a batch are among others: in logits and features of forwards in another order."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.types import Rows


def places_of_rows(batch: Sequence[Rows], order: Sequence[int]) -> list[int]:
    """The positions of the logits of the batch's rows, in its own order, if they were computed in `order`."""
    first, end = [0] * len(batch), 0
    for i in order:
        first[i] = end
        end += batch[i].logits
    return [first[i] + row for i, rows in enumerate(batch) for row in range(rows.logits)]


def laid_rows(
    asked: Sequence[tuple[int, int]], laid: Sequence[tuple[int, int]], rows: Sequence[int] | None
) -> Sequence[int]:
    """Where rows that were asked for, by default all, are among those that were computed: sorted, and padded.
    Both are sequences with their numbers of rows.
    """
    places: Sequence[int] = range(sum(count for _, count in asked)) if rows is None else rows
    if laid[: len(asked)] == asked:
        return places
    first, end = {}, 0
    for seq, count in laid:
        first[seq], end = end, end + count
    found = [first[seq] + row for seq, count in asked for row in range(count)]
    return [found[row] for row in places]
