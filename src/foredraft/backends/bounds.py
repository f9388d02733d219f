"""What every backend refuses to compute, before its library sees it."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.errors import BackendError, OutOfKVError
from foredraft.types import Rows


def check_batch(
    batch: Sequence[Rows], lengths: Sequence[int], *, context_length: int, max_batch: int, trees: bool
) -> None:
    """A forward over sequences that hold `lengths` tokens. Raises BackendError for rows that do not fit to
    them, for too many, and for a tree where `trees` is false; OutOfKVError where the context is full.
    """
    total = 0
    for rows in batch:
        total += len(rows.tokens)
        if rows.parents is not None and not trees:
            raise BackendError("This backend verifies chains only.")
        if not 0 <= rows.seq < len(lengths):  # llama.cpp would end the process
            raise BackendError(f"There is no sequence {rows.seq}; there are {len(lengths)}.")
        if rows.start != lengths[rows.seq]:
            raise BackendError(
                f"Rows of sequence {rows.seq} start at {rows.start}; its cache ends at {lengths[rows.seq]}."
            )
        if rows.start + len(rows.tokens) > context_length:
            raise OutOfKVError(
                f"Sequence {rows.seq} would hold {rows.start + len(rows.tokens)} tokens; its context has "
                f"room for {context_length}.",
                hint="Use a shorter prompt, or a larger context (--ctx) where the model has one.",
            )
    if total > max_batch:
        raise BackendError(f"{total} rows in one forward; at most {max_batch} fit.")
