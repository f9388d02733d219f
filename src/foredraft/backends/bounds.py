"""Checks of a forward's batch before a backend's library gets it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from foredraft.errors import BackendError, OutOfKVError
from foredraft.types import HeadRows, Logits, Rows


def check_batch(
    batch: Sequence[Rows], lengths: Sequence[int], *, context_length: int, max_batch: int, trees: bool
) -> None:
    """Check a forward over sequences with `lengths` tokens. Raises BackendError for rows that do not continue
    their sequence, for too many rows, and for a tree unless `trees`; OutOfKVError if the context is full.
    """
    total = 0
    for rows in batch:
        total += len(rows.tokens)
        if rows.parents is not None and not trees:
            raise BackendError("This backend only verifies chains.")
        if not 0 <= rows.seq < len(lengths):  # llama.cpp would end the process
            raise BackendError(f"There is no sequence {rows.seq}; there are {len(lengths)}.")
        if rows.start != lengths[rows.seq]:
            raise BackendError(
                f"Rows of sequence {rows.seq} start at {rows.start}; its cache ends at {lengths[rows.seq]}."
            )
        if rows.start + len(rows.tokens) > context_length:
            raise OutOfKVError(
                f"Sequence {rows.seq} would have {rows.start + len(rows.tokens)} tokens; its context has "
                f"room for {context_length}.",
                hint="Use a shorter prompt, or a larger context (--ctx) if the model supports it.",
            )
    if total > max_batch:
        raise BackendError(f"{total} rows in one forward; at most {max_batch} fit.")


def rows_of(chosen: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The row numbers of the `chosen` items, if each item has its number of rows, one after the other."""
    ends = [0, *accumulate(counts)]
    return [row for i in chosen for row in range(ends[i], ends[i + 1])]


def spoiled(batch: Sequence[Rows | HeadRows], bad: npt.NDArray[np.bool_]) -> set[int]:
    """The sequences with a row of logits that is not numbers, given which rows are such: cells that
    overflowed spoil all after them, also where they are masked, as 0 × NaN is NaN.
    """
    if not bad.any():
        return set()
    owners = [rows.seq for rows in batch for _ in range(rows.logits)]
    return {owners[row] for row in np.flatnonzero(bad)}


def not_numbers(logits: Logits) -> npt.NDArray[np.bool_]:
    """Which rows of a model's logits are not numbers. Such a row has none at all, so one is looked at."""
    return np.isnan(logits[:, 0])


def not_kept(seq: int) -> BackendError:
    """The beginning of a sequence cannot be kept: rows may have read, masked, what came after them."""
    return BackendError(f"Sequence {seq} holds what is not numbers.", hint="Compute it anew.")


def not_seen(seq: int) -> BackendError:
    """No row fits that would tell whether the beginning of a sequence can be kept."""
    return BackendError(
        f"Sequence {seq} is full, so it cannot be seen whether it holds numbers.", hint="Compute it anew."
    )
