"""Truncation for models with a recurrent state: restore a checkpoint and recompute the kept tokens.

Attention keeps a cell for every token, so tokens are removed by dropping cells. A recurrent state (Mamba,
gated delta nets, short convolutions) has absorbed rejected tokens and cannot be reverted. So the state is
copied before a forward that verifies a draft. After a rejection the copy is restored, and the accepted tokens
are to be recomputed: the sequence's next forward recomputes them before its own rows, so that a rejection
needs no additional forward. For the costs and the reasons for this order see docs/exactness.md.

The state is also copied shortly before the end of a prompt: the next prompt of a conversation often omits
what followed (a model's reasoning), and would otherwise have to be recomputed from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from foredraft.errors import BackendError, OutOfKVError
from foredraft.images import spans_within
from foredraft.protocols import Head, Model, Tokenizer, Vision
from foredraft.types import Capabilities, Features, Logits, ModelInfo, Rollback, Rows

MARKED_FROM = 256
"""Minimum rows of a prompt for a mark in it. The rows after the mark are a separate forward, which makes
prefill longer by about a plain forward (0 to 3 % on a CPU). Fewer rows are quickly recomputed.
"""

BEFORE_THE_END = 8
"""Tokens after the mark. A template may write the start of an answer differently in the history."""


class Rewindable(Model, Protocol):
    """A model whose recurrent state can be copied and restored. Its own `truncate` can remove the last
    `spare` rows, or the whole sequence.
    """

    def spare(self, seq: int) -> int:
        """The number of the sequence's last rows that `truncate` can remove now."""
        ...

    def checkpoint(self, seq: int, instead_of: object = None) -> object:
        """The part of a sequence that cannot be truncated, for `rewind`. It may overwrite `instead_of`, a
        checkpoint that is no longer needed.
        """
        ...

    def rewind(self, seq: int, checkpoint: object, length: int) -> None:
        """Restore the sequence to its state at the checkpoint, when it had `length` cells; the checkpoint may
        be of the sequence that this one is a copy of. Raises BackendError if that fails; the sequence is then
        empty.
        """
        ...


@dataclass(slots=True)
class _Trail:
    """A sequence since its checkpoint, when it had `start` cells. `tokens` were computed since;
    `to_recompute` are still to be recomputed, and while there are any the model itself is at the checkpoint.
    """

    start: int
    checkpoint: object
    tokens: list[int] = field(default_factory=list)
    to_recompute: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A copy of the state within a prompt, `length` cells from its beginning."""

    length: int
    checkpoint: object


class RewindingModel:
    """A Model around one with a recurrent state, with rollback as in `Rollback.SNAPSHOT`."""

    def __init__(self, model: Rewindable) -> None:
        self._model = model
        self.capabilities: Capabilities = replace(model.capabilities, rollback=Rollback.SNAPSHOT)
        self._trails: dict[int, _Trail] = {}
        self._marks: dict[int, _Mark] = {}
        self._unused: dict[int, object] = {}
        self._filling: set[int] = set()
        self._asked: list[tuple[int, int, int]] = []
        """The last forward's sequences, each with its rows to recompute and its rows."""
        self._first: dict[int, Features] = {}
        """The features of rows of the last forward that were computed before the others."""

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.tokenizer

    @property
    def vision(self) -> Vision | None:
        return self._model.vision

    def with_capabilities(self, **changes: Any) -> RewindingModel:
        """Record the measured capabilities."""
        self.capabilities = replace(self.capabilities, **changes)
        return self

    @property
    def idle_threads(self) -> int:
        return self._model.idle_threads

    @property
    def adapters(self) -> Mapping[str, str]:
        return self._model.adapters

    def adapt(self, seq: int, adapter: str) -> None:
        self._model.adapt(seq, adapter)

    def forward(self, batch: Sequence[Rows]) -> Logits:
        for rows in batch:
            if not 0 <= rows.seq < self.capabilities.sequences:
                raise BackendError(
                    f"There is no sequence {rows.seq}; there are {self.capabilities.sequences}."
                )
        self._asked, self._first = [], {}
        self._make_room(batch)
        lengths = {rows.seq: self.length(rows.seq) for rows in batch}
        try:
            return self._forward([self._marked(rows) for rows in batch])
        except OutOfKVError:
            for seq, length in lengths.items():
                self.truncate(seq, length)  # if a mark was made, a part of the prompt was computed
            raise

    def _forward(self, batch: Sequence[Rows]) -> Logits:
        for rows in batch:
            if self._needs_checkpoint(rows) and not self.to_recompute(rows.seq):
                self._set_checkpoint(rows.seq)
        before = [self._model.length(rows.seq) for rows in batch]
        asked = [(rows.seq, self.to_recompute(rows.seq), len(rows.tokens)) for rows in batch]
        try:
            logits = self._compute([self._with_owed(rows) for rows in batch])
        except BaseException:
            for rows, length in zip(batch, before, strict=True):
                if self._model.length(rows.seq) != length:  # an unknown part was computed
                    self._forget(rows.seq)
            raise
        for rows in batch:
            self._record(rows)
        self._asked = asked
        return logits

    def _compute(self, batch: Sequence[Rows]) -> Logits:
        """The model's forward. Of sequences that it emptied as it failed, nothing is remembered."""
        try:
            return self._model.forward(batch)
        except BaseException:
            kept = [(seq, trail.start) for seq, trail in self._trails.items()]
            kept += [(seq, mark.length) for seq, mark in self._marks.items()]
            for seq, length in kept:
                if self._model.length(seq) < length:
                    self._forget(seq)
            raise

    def _marked(self, rows: Rows) -> Rows:
        """The remaining rows of a prompt's last forward after a mark was made."""
        filling, count = rows.seq in self._filling, len(rows.tokens)
        (self._filling.discard if rows.logits else self._filling.add)(rows.seq)
        fits = rows.start == self.length(rows.seq) <= self.info.context_length - count
        if rows.logits != 1 or count == 1 or rows.parents is not None or not fits:
            return rows
        before = _before_image(rows, count - BEFORE_THE_END)
        if before > 0 and count >= MARKED_FROM:
            self._compute_first(rows, before)
            rows = _part(rows, before, count)
        elif not filling or self.to_recompute(rows.seq) or not rows.start:
            return rows
        former = self._marks.get(rows.seq)
        copy = self._model.checkpoint(rows.seq, former.checkpoint if former else None)
        self._marks[rows.seq] = _Mark(rows.start, copy)
        return rows

    def _compute_first(self, rows: Rows, count: int) -> None:
        """Compute the first rows such that all of them can be removed again."""
        if not self.to_recompute(rows.seq):
            self._set_checkpoint(rows.seq)
        trail = self._trails[rows.seq]
        head = replace(_part(rows, 0, count), logits=0)
        self._compute([self._with_owed(head)])
        if self.capabilities.features:
            self._first[rows.seq] = self._model.features()[len(trail.to_recompute) :].copy()
        trail.tokens, trail.to_recompute = [*trail.to_recompute, *head.tokens], []

    def _needs_checkpoint(self, rows: Rows) -> bool:
        """Whether more of these rows may be rejected than the model can remove by itself."""
        return rows.logits - 1 > self.capabilities.rollback_bound

    def _set_checkpoint(self, seq: int) -> None:
        start = self._model.length(seq)
        if start:
            self._unused[seq] = self._model.checkpoint(seq, self._unused.get(seq))
        self._trails[seq] = _Trail(start, self._unused[seq] if start else None)

    def _with_owed(self, rows: Rows) -> Rows:
        if not self.to_recompute(rows.seq):
            return rows
        to_recompute = self._trails[rows.seq].to_recompute
        return replace(rows, start=rows.start - len(to_recompute), tokens=[*to_recompute, *rows.tokens])

    def _record(self, rows: Rows) -> None:
        """Record that the rows, and the tokens to recompute before them, were computed."""
        if not self._needs_checkpoint(rows):
            self._trails.pop(rows.seq, None)
            return
        trail = self._trails[rows.seq]
        trail.tokens = [*trail.to_recompute, *rows.tokens]
        trail.to_recompute = []

    def _make_room(self, batch: Sequence[Rows]) -> None:
        """Recompute tokens to recompute separately if they do not fit beside the rows."""
        for rows in batch:
            count = len(rows.tokens)
            if count <= self.capabilities.max_rows < count + self.to_recompute(rows.seq):
                self._recompute(rows.seq)
        if (
            sum(len(rows.tokens) + self.to_recompute(rows.seq) for rows in batch)
            > self.capabilities.max_batch
        ):
            for rows in batch:
                self._recompute(rows.seq)

    def _recompute(self, seq: int) -> None:
        """Recompute the tokens to recompute now, in a separate forward."""
        trail = self._trails.get(seq)
        if trail is None or not trail.to_recompute:
            return
        most = min(self.capabilities.max_rows, self.capabilities.max_batch)
        try:
            for first in range(0, len(trail.to_recompute), most):
                rows = trail.to_recompute[first : first + most]
                self._compute([Rows(seq, trail.start + first, rows, 0)])
        except BaseException:
            self._forget(seq)  # a part may have been computed, so the tokens to recompute are unknown
            raise
        trail.tokens, trail.to_recompute = trail.to_recompute, []

    def features(self, rows: Sequence[int] | None = None) -> Features:
        if self.capabilities.features and not self._asked:
            raise BackendError("There are no features: the last forward failed, or there was none.")
        if not self._first and not any(owed for _, owed, _ in self._asked):
            return self._model.features(rows)
        found = self._model.features()
        parts, end = [], 0
        for seq, owed, count in self._asked:
            parts += [self._first[seq]] if seq in self._first else []
            parts.append(found[end + owed : end + owed + count])
            end += owed + count
        joined = np.concatenate(parts)
        return joined if rows is None else joined[list(rows)]

    def unwatched(self, sequences: int) -> Model | None:
        """A model on the same weights that keeps no hidden states; None if there can be none."""
        make = getattr(self._model, "unwatched", None)
        return None if make is None else cast("Model", make(sequences))

    def load_head(self, path: Path | None, *, sequences: int) -> Head:
        return self._model.load_head(path, sequences=sequences)

    def length(self, seq: int) -> int:
        return self._model.length(seq) + self.to_recompute(seq)

    def to_recompute(self, seq: int) -> int:
        trail = self._trails.get(seq)
        return len(trail.to_recompute) if trail else 0

    def truncate(self, seq: int, length: int) -> None:
        held = self.length(seq)
        if length == held:
            return
        if length == 0:
            self.release(seq)
            return
        trail, mark = self._trails.get(seq), self._marks.get(seq)
        if length > held or (not self.to_recompute(seq) and held - length <= self._model.spare(seq)):
            self._model.truncate(seq, length)
            if trail is not None:
                del trail.tokens[max(0, length - trail.start) :]
        elif trail is not None and length >= trail.start:
            self._rewind(seq, trail, length)
        elif mark is not None and length == mark.length:
            self._forget(seq)
            self._model.rewind(seq, mark.checkpoint, mark.length)
            self._marks[seq] = mark
        else:
            raise BackendError(
                f"Sequence {seq} cannot be cut to {length} of {held} tokens: a model with a recurrent state "
                "can only remove tokens of its last verified draft.",
                hint="Restore a snapshot, or release the sequence and compute it again.",
            )
        if mark is not None and length < mark.length:
            self._marks.pop(seq, None)

    def reachable(self, seq: int, length: int) -> int:
        held, mark = self.length(seq), self._marks.get(seq)
        if length >= held:
            return held
        return mark.length if mark is not None and mark.length <= length else 0

    def _rewind(self, seq: int, trail: _Trail, length: int) -> None:
        kept = (trail.to_recompute or trail.tokens)[: length - trail.start]
        if not trail.to_recompute:
            if trail.start:
                self._trails.pop(seq)  # if this fails there is no checkpoint left
                self._model.rewind(seq, trail.checkpoint, trail.start)
            else:
                self._model.release(seq)
        self._trails[seq] = _Trail(trail.start, trail.checkpoint, to_recompute=kept)

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        if list(path) != list(range(len(path))):
            raise BackendError("A model with a recurrent state only supports chains.")
        self.truncate(seq, start + len(path))

    def fork(self, src: int, dst: int, length: int) -> None:
        if src == dst:
            self.truncate(src, length)
            return
        mark = self._marks.get(src)
        marked = mark is not None and length == mark.length
        if 0 < length < self.length(src) and not marked:
            raise BackendError(
                f"Sequence {src} can only be copied completely or up to its mark, not to {length}."
            )
        self._forget(dst)
        if length:
            self._recompute(src)
        self._model.fork(src, dst, self._model.length(src) if length else 0)
        if length and mark is not None and length < self._model.length(dst):
            self._model.rewind(dst, mark.checkpoint, length)

    def snapshot(self, seq: int) -> object:
        self._recompute(seq)
        return self._model.snapshot(seq)

    def restore(self, seq: int, snapshot: object) -> None:
        self._forget(seq)
        self._model.restore(seq, snapshot)

    def release(self, seq: int) -> None:
        self._forget(seq)
        self._model.release(seq)

    def _forget(self, seq: int) -> None:
        """Drop the sequence's checkpoints."""
        self._trails.pop(seq, None)
        self._marks.pop(seq, None)
        self._filling.discard(seq)

    def close(self) -> None:
        self._trails.clear()
        self._marks.clear()
        self._unused.clear()
        self._model.close()


def _part(rows: Rows, first: int, last: int) -> Rows:
    """The rows from `first` to before `last`."""
    start = rows.start + first
    images = spans_within(rows.images, start, rows.start + last)
    return replace(rows, start=start, tokens=rows.tokens[first:last], images=images)


def _before_image(rows: Rows, place: int) -> int:
    """The last place up to this one among the rows that does not cut an image."""
    at = rows.start + place
    return next((span.start for span in rows.images if span.start < at < span.end), at) - rows.start
