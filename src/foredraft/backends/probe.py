"""The batch-invariance probe: are a row's logits the same, bit for bit, whatever else is in its forward?

Identical output with speculation on and off requires this (docs/exactness.md): a draft is verified in a
forward of n rows, plain decoding uses forwards of one. So the probe runs the same tokens one by one and in
batches, near the start and past 512 cells of context (where llama.cpp switches attention kernels), alone and
beside another sequence, and compares the logits bitwise. The result is cached by model and settings.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from foredraft.config import ModelOptions
from foredraft.files import write_atomically
from foredraft.protocols import Model
from foredraft.types import Logits, Rollback, Rows

logger = logging.getLogger(__name__)

ROWS = (2, 3, 4, 5, 8, 12, 16, 17, 33, 63, 129)
"""Batch sizes to compare: both sides of the steps of matrix kernels, and a tiled one (≥ 64)."""

REFERENCE_ROWS = 17
DEPTHS = (8, 530)
_VERSION = 6
"""Version of the probe and of the arithmetic that it measures."""


class Probeable(Model, Protocol):
    """A model whose measured capabilities can be recorded."""

    def with_capabilities(self, **changes: Any) -> Self: ...


M = TypeVar("M", bound=Probeable)


def with_measured(
    model: M,
    settings_key: str,
    options: ModelOptions,
    measure: Callable[[], tuple[int, str]],
    *,
    otherwise: int,
) -> M:
    """The model with its measured `batch_invariant`, from the cache or by measuring now.

    `otherwise` is the maximum rows of one sequence in a verifying forward if the model is not exact.
    """
    scope = f"{_depths(model)}|{model.capabilities.max_batch}|{model.capabilities.sequences > 1}"
    identity = f"{_VERSION}|{version('foredraft')}|{model.info.file_hash}|{settings_key}|{scope}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    file = options.cache_dir / "probes" / f"{key}.json" if options.cache_dir else None
    result = _read(file)
    if result is None:
        if options.notice is not None:
            options.notice("Checking exactness of batched arithmetic (once for each model and machine)…")
        result = measure()
        _write(file, result)
    rows, note = result
    return model.with_capabilities(
        batch_invariant=rows >= 2,
        invariance_note=note,
        max_rows=rows if rows >= 2 else min(otherwise, model.capabilities.max_batch),
    )


def measure(model: Model, *, enough: int) -> tuple[int, str]:
    """(largest batch size up to which every tested size was bit-identical to single rows, a description).

    1 also if nothing could be compared, because only measured invariance counts. If fewer than `enough` rows
    are exact although more could be compared, the result is 1, too: drafts would have to be short.
    """
    rng = np.random.default_rng(7)
    tokens = [int(token) for token in rng.integers(0, model.info.vocab_size, max(DEPTHS) + max(ROWS))]
    depths = _depths(model)
    tested = [size for depth in depths for size in _sizes(model, depth)]
    if not tested:
        return 1, "not measured: the context or the batch is too short for a comparison"
    found = [_first_difference(model, tokens, depth) for depth in depths]
    model.release(0)
    smallest = min((size for size in found if size is not None), default=None)
    exact = max((size for size in tested if smallest is None or size < smallest), default=1)
    if exact < min(enough, max(tested)):
        return 1, f"the backend's arithmetic depends on the batch size (from {smallest} rows on)"
    where = " and ".join(str(depth) for depth in depths)
    return exact, f"logits of 1 and up to {exact} rows are bit-identical at a depth of {where} tokens"


def _depths(model: Model) -> list[int]:
    """`DEPTHS`, limited to the context length."""
    deepest = model.info.context_length - REFERENCE_ROWS
    return sorted({min(depth, deepest) for depth in DEPTHS}) if deepest >= 0 else []


def _sizes(model: Model, depth: int) -> list[int]:
    most = min(model.info.context_length - depth, model.capabilities.max_batch)
    return [size for size in ROWS if size <= most]


def _first_difference(model: Model, tokens: list[int], depth: int) -> int | None:
    """The smallest tested batch size whose logits differ from those of single rows, or None."""
    _prefill(model, 0, tokens[:depth])
    go_back = _way_back(model, depth)
    single = [_rows(model, 0, tokens, depth + i, 1)[0] for i in range(REFERENCE_ROWS)]
    reference = np.stack(single)
    for count in _sizes(model, depth):
        go_back()
        compared = min(count, REFERENCE_ROWS)
        if not np.array_equal(_rows(model, 0, tokens, depth, count)[:compared], reference[:compared]):
            return count
    go_back()
    if model.capabilities.sequences > 1 and not _same_beside_another(model, tokens, depth, reference):
        return 2
    return None


def _way_back(model: Model, depth: int) -> Callable[[], None]:
    """A function that restores sequence 0 to its present `depth` tokens."""
    if model.capabilities.rollback is Rollback.TRUNCATE:
        return lambda: model.truncate(0, depth)
    snapshot = model.snapshot(0)
    return lambda: model.restore(0, snapshot)


def _same_beside_another(model: Model, tokens: list[int], depth: int, reference: Logits) -> bool:
    own = min(3, model.capabilities.max_batch - 1)
    others = min(5, model.capabilities.max_batch - own)
    batch = [Rows(0, depth, tokens[depth : depth + own], own), Rows(1, 0, tokens[:others], others)]
    same = np.array_equal(model.forward(batch)[:own], reference[:own])
    model.release(1)
    return same


def _prefill(model: Model, seq: int, tokens: list[int]) -> None:
    model.release(seq)
    step = model.capabilities.max_batch
    for start in range(0, len(tokens), step):
        model.forward([Rows(seq, start, tokens[start : start + step], 0)])


def _rows(model: Model, seq: int, tokens: list[int], start: int, count: int) -> Logits:
    return model.forward([Rows(seq, start, tokens[start : start + count], count)]).copy()


def _read(file: Path | None) -> tuple[int, str] | None:
    if file is None:
        return None
    try:
        data = json.loads(file.read_text())
        return int(data["rows"]), str(data["note"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("Ignoring the unreadable probe result %s: %s", file, error)
        return None


def _write(file: Path | None, result: tuple[int, str]) -> None:
    if file is None:
        return
    try:
        write_atomically(file, json.dumps({"rows": result[0], "note": result[1]}).encode())
    except OSError as error:
        logger.warning("Cannot save the probe result: %s", error)
