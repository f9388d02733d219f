"""Reading a passage with a target and with what drafts for it, by teacher forcing: at every position both see
the text itself, so that one pass gives what a draft would be at each of them.

A draft model's guess after a right draft token is that after the same token of the text; so its logits are
those of the position, at any depth of a draft. A head's are not: beyond the first it goes on from its own
hidden states instead of the target's, or it has predicted a whole block.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from foredraft.draft.passages import DEPTHS, Passage
from foredraft.protocols import Head, Model
from foredraft.types import Features, HeadRows, Logits, Rows

ROWS = 32
"""Rows of a forward that return logits, at most."""


class Reader:
    """Reads passages with a model, in one sequence of it. What a passage has in common with the one before it
    is not read again, unless its features are wanted.
    """

    def __init__(self, model: Model, seq: int = 0) -> None:
        self._model = model
        self._seq = seq
        self._cells: list[int] = []

    def read(self, passage: Passage, *, features: bool = False) -> tuple[Logits, Features | None]:
        """(the logits of all tokens from `passage.first` on, one row for each; with `features` those of every
        token but the last). Raises OutOfKVError, BackendError.
        """
        tokens, first = passage.tokens, passage.first
        self._keep(0 if features else self._common(tokens[: first - 1]))
        rows: list[Logits] = []
        watched: list[Features] = []
        able = self._model.capabilities
        while (at := len(self._cells)) < len(tokens) - 1:
            wanted = at >= first - 1
            most = min(ROWS, able.max_rows) if wanted else able.max_batch
            upto = min(at + most, len(tokens) - 1 if wanted else first - 1)
            part = tokens[at:upto]
            logits = self._model.forward([Rows(self._seq, at, part, len(part) if wanted else 0)])
            if wanted:
                rows.append(logits.copy())
            if features:
                watched.append(self._model.features().copy())
            self._cells.extend(part)
        return np.concatenate(rows), np.concatenate(watched) if features else None

    def _common(self, tokens: tuple[int, ...]) -> int:
        same = 0
        for mine, theirs in zip(self._cells, tokens, strict=False):
            if mine != theirs:
                break
            same += 1
        return same

    def _keep(self, length: int) -> None:
        if length and length < len(self._cells):
            length = self._model.reachable(self._seq, length)
        if length:
            if length < len(self._cells):
                self._model.truncate(self._seq, length)
        else:
            self._model.release(self._seq)
        del self._cells[length:]


class Guesses(Protocol):
    """What drafts, as a score sees it. `by_position`: its logits are the same at every depth of a draft;
    `longest`: the most tokens of one.
    """

    by_position: bool
    longest: int

    def read(self, passage: Passage, features: Features | None) -> None:
        """Begin a passage. `features`: the target's of every token but the last, if they are needed."""
        ...

    def logits(self, start: int, depth: int) -> Logits:
        """Its logits, shape (vocabulary,), for token `start + depth` of the passage in a draft that began at
        `start` and was right up to there. Starts are asked for in order, depths from 0 on. Valid until the
        next call.
        """
        ...


class ModelGuesses:
    """Guesses of a draft model."""

    by_position = True
    longest = DEPTHS

    def __init__(self, model: Model) -> None:
        self._reader = Reader(model)
        self._rows: Logits = np.empty((0, 0), np.float32)
        self._first = 0

    def read(self, passage: Passage, features: Features | None) -> None:  # noqa: ARG002
        self._rows, _ = self._reader.read(passage)
        self._first = passage.first

    def logits(self, start: int, depth: int) -> Logits:
        row: Logits = self._rows[start + depth - self._first]
        return row


class HeadGuesses:
    """Guesses of a head, of which it uses one sequence."""

    by_position = False

    def __init__(self, head: Head, rows: int = ROWS) -> None:
        self._head = head
        self._rows = rows
        self.longest = min(head.block, DEPTHS) if head.block else DEPTHS
        self._passage = Passage((), 0, 0)
        self._features: Features = np.empty((0, 0), np.float32)
        self._held = 1
        """The position after the last row that it has with the target's features."""
        self._start, self._depth = -1, -1
        self._found: Logits = np.empty((0, 0), np.float32)
        """The logits of the draft that began at `_start`: of its depth, or of all depths of a block."""

    def read(self, passage: Passage, features: Features | None) -> None:
        assert features is not None, "a head reads the target's features"
        self._head.release(0)
        self._passage, self._features = passage, features
        self._held, self._start = 1, -1
        while self._held < passage.first - 1:
            self._absorb(min(self._held + self._rows, passage.first - 1), logits=0)

    def _absorb(self, upto: int, *, logits: int) -> None:
        at = self._held
        tokens, features = self._passage.tokens[at:upto], self._features[at - 1 : upto - 1]
        rows = self._head.forward([HeadRows(0, at, tokens, features, logits)])
        self._held = upto
        if logits:
            self._found = rows

    def logits(self, start: int, depth: int) -> Logits:
        if start != self._start:
            self._begin(start)
        if self._head.block:
            return np.asarray(self._found[depth], np.float32)
        while self._depth < depth:
            self._depth += 1
            at = start + self._depth - 1
            self._found = self._head.forward([HeadRows(0, at, (self._passage.tokens[at],), None, 1)])
        return np.asarray(self._found[-1], np.float32)

    def _begin(self, start: int) -> None:
        """Drop the head's own rows of the draft before, and read what comes before this one."""
        self._held = max(1, min(self._held, start - 1))
        self._head.truncate(0, self._held)
        self._absorb(start, logits=self.longest if self._head.block else 1)
        self._start, self._depth = start, 0
