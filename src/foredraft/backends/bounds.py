"""Checks of a forward's batch before a backend's library gets it."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.errors import BackendError, OutOfKVError
from foredraft.types import Rows


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
