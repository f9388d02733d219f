"""The batch-invariance probe: are a row's logits the same, bit for bit, whatever else is in its forward?

Identical output with speculation on and off requires this (docs/exactness.md): a draft is verified in a
forward of n rows, plain decoding uses forwards of one. What is compared is in `comparison`. The verdict is
kept by model and settings; a thorough one is never replaced by a quick one.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from foredraft.backends.comparison import (
    MOST_SEQUENCES,
    QUICK,
    THOROUGH,
    Effort,
    Lengthen,
    compare,
    compared_depths,
)
from foredraft.backends.differences import Result
from foredraft.config import ModelOptions
from foredraft.files import write_atomically
from foredraft.images import PreparedImage
from foredraft.protocols import Model

logger = logging.getLogger(__name__)

MOST_TRIES = 3
"""A verdict that was cut short is made again when the model is loaded again: the machine may have been busy.
A model may also be slow.
"""

_VERSION = 8
"""Version of the probe and of the arithmetic that it measures."""


class Probeable(Model, Protocol):
    """A model whose measured capabilities can be recorded."""

    def with_capabilities(self, **changes: Any) -> Self: ...


M = TypeVar("M", bound=Probeable)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The largest number of rows up to which all that was compared is bit-identical, 1 if the arithmetic is
    not exact or nothing was compared; and what was compared, in words. `thorough`: as asked for by `doctor`.
    `cut`: forwards as large as drafts can be, or a depth that is needed, were left out for time; `tries`: how
    often that has been so.
    """

    rows: int
    note: str
    thorough: bool = False
    cut: bool = False
    tries: int = 1


def with_measured(
    model: M,
    settings_key: str,
    options: ModelOptions,
    measure: Callable[[], Verdict],
    *,
    otherwise: int,
    window: int = 0,
    tries: int = MOST_TRIES,
) -> M:
    """The model with its measured `batch_invariant`, from the cache or by measuring now; a thorough probe
    always measures.

    `otherwise` is the maximum rows of one sequence in a verifying forward if the model is not exact, `window`
    the tokens of a sliding window.
    """
    able = model.capabilities
    scope = f"{compared_depths(model, window)}|{able.max_batch}|{min(able.sequences, MOST_SEQUENCES)}"
    identity = f"{_VERSION}|{version('foredraft')}|{model.info.file_hash}|{settings_key}|{scope}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    file = options.cache_dir / "probes" / f"{key}.json" if options.cache_dir else None
    verdict = _read(file)
    if verdict is None or options.probe == "thorough" or (verdict.cut and verdict.tries < tries):
        if options.notice is not None:
            options.notice("Checking exactness of batched arithmetic (once for each model and machine)…")
        verdict = _kept(file, measure())
    rows = verdict.rows
    return model.with_capabilities(
        batch_invariant=rows >= 2,
        invariance_note=verdict.note,
        max_rows=rows if rows >= 2 else min(otherwise, able.max_batch),
    )


def with_adapters_measured(
    model: M,
    kinds: Mapping[str, str],
    options: ModelOptions,
    measure: Callable[[], Verdict],
    *,
    otherwise: int,
    window: int = 0,
) -> M:
    """The same of a model with adapters: `kinds` maps those to compare, "" for none, to their settings' keys.
    The model is as exact as the least exact of them.
    """
    found = []
    for name, key in kinds.items():
        _adapt_all(model, name)
        model = with_measured(model, key, options, measure, otherwise=otherwise, window=window)
        able = model.capabilities
        found.append((able.batch_invariant, able.max_rows if able.batch_invariant else 0, name, able))
    _adapt_all(model, "")
    _, _, worst, able = min(found, key=lambda one: one[:2])
    note = f"with the adapter {worst}: {able.invariance_note}" if worst else able.invariance_note
    return model.with_capabilities(
        batch_invariant=able.batch_invariant, invariance_note=note, max_rows=able.max_rows
    )


def _adapt_all(model: Model, adapter: str) -> None:
    for seq in range(model.capabilities.sequences if model.adapters else 0):
        model.adapt(seq, adapter)


def measure(
    model: Model,
    options: ModelOptions,
    *,
    enough: int,
    effort: Effort = QUICK,
    window: int = 0,
    lengthen: Lengthen | None = None,
    image: PreparedImage | None = None,
) -> Verdict:
    """Compare now, with `effort`, or thoroughly if the options say so. See `comparison.compare`."""
    thorough = options.probe == "thorough"
    result = compare(
        model,
        enough=enough,
        effort=THOROUGH if thorough else effort,
        window=window,
        lengthen=lengthen,
        progress=options.notice,
        image=image,
    )
    return verdict_of(result, enough=enough, thorough=thorough)


def verdict_of(result: Result, *, enough: int, thorough: bool = False) -> Verdict:
    """The verdict on what was compared. With a difference in a forward of up to `enough` rows it is not
    exact, although fewer rows may be: drafts would have to be short.
    """
    worst = result.differences[0] if result.differences else None
    if worst is not None and worst.rows <= enough:
        cause = "what else is in a forward" if worst.beside else f"the batch size (from {worst.rows} rows on)"
        return Verdict(1, f"the backend's arithmetic depends on {cause}: {worst}", thorough)
    if not result.sizes:
        return Verdict(1, "not measured: the context or the batch is too short for a comparison", thorough)
    note = f"logits of 1 and up to {result.exact} rows are bit-identical at a depth of {_scope(result)}"
    missed = result.missed - result.depths
    if missed:
        note += f"; not compared past {max(result.depths):,}: computing {min(missed):,} tokens takes too long"
    if worst is not None:
        note += f"; {worst}"
    elif not result.complete and not thorough:
        note += "; 'foredraft doctor --thorough' compares more"
    cut = worst is None and not result.complete and result.exact < enough
    return Verdict(result.exact, note, thorough, (cut or bool(missed)) and not thorough)


def _scope(result: Result) -> str:
    """What was compared, in words."""
    *shallow, deepest = (f"{depth:,}" for depth in sorted(result.depths))
    depths = f"{', '.join(shallow)} and {deepest}" if shallow else deepest
    texts = f"{len(result.passages)} text{'s' if len(result.passages) > 1 else ''}"
    beside = ", alone and beside other sequences" if result.together else ""
    behind = ", also behind an image" if result.behind_image else ""
    return f"{depths} tokens ({texts}, {result.logits / 1e6:,.1f} million logits{beside}{behind})"


def _read(file: Path | None) -> Verdict | None:
    """The kept verdict; None, with a warning, if it cannot be read."""
    try:
        return _stored(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("Ignoring the unreadable probe result %s: %s", file, error)
        return None


def _stored(file: Path | None) -> Verdict | None:
    """The verdict in a file; None if there is none. Raises OSError, ValueError, KeyError, TypeError."""
    if file is None:
        return None
    try:
        data = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    flags = bool(data["thorough"]), bool(data["cut"])
    return Verdict(int(data["rows"]), str(data["note"]), *flags, int(data["tries"]))


def _kept(file: Path | None, verdict: Verdict) -> Verdict:
    """The verdict to use and to keep: this one, or what is there now if that compared more."""
    there = None
    if not verdict.thorough:
        with suppress(OSError, ValueError, KeyError, TypeError):  # replaced; reading it has warned
            there = _stored(file)
    if there is not None and there.thorough:
        return there
    if there is not None:
        more = verdict.rows >= there.rows or verdict.rows == 1 or (there.cut and not verdict.cut)
        verdict = replace(verdict if more else there, tries=there.tries + 1)
    if file is not None:
        try:
            write_atomically(file, json.dumps(asdict(verdict)).encode())
        except OSError as error:
            logger.warning("Cannot save the probe result: %s", error)
    return verdict
