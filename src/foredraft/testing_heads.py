"""The double of a head (`testing.FakeHead`), and the features that it checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from foredraft.errors import BackendError
from foredraft.types import Capabilities, Features, HeadRows, Logits, ModelInfo

LogitsFunction = Callable[[Sequence[int]], Logits]
"""Logits of shape (vocabulary,) for the token after a prefix."""

FEATURE_SIZE = 2
"""Numbers of one of a FakeModel's features."""

_PLACES, _CHAIN = 1024, 1021  # such numbers are exact in half precision, too


def feature_row(position: int, chained: int, kinds: int) -> list[int]:
    """The features of a row: its position, and a hash of the tokens up to it, each beside its kind."""
    row = []
    for kind in range(kinds):
        row += [(position + kind) % _PLACES, (chained + kind) % _CHAIN]
    return row


def chain_on(before: int, token: int) -> int:
    """The hash of a prefix from that of the prefix before its last token; 0 is that of the empty one."""
    return (31 * before + token + 1) % _CHAIN


class _Target(Protocol):
    """What a head asks of a FakeModel."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def capabilities(self) -> Capabilities: ...
    def logits_after(self, prefix: Sequence[int]) -> Logits: ...


class FakeHead:
    """A Head whose logits are the target's after the tokens that it holds of a sequence, at most `window`;
    with a `block`, after those and the likeliest tokens before.

    It raises where a real one would be wrong in silence: features of another position or text than those of
    the row before, rows that do not follow those it holds, its own hidden states where it has none. `batches`
    records every forward.
    """

    def __init__(
        self,
        model: _Target,
        *,
        window: int = 0,
        trees: bool = True,
        block: int = 0,
        sequences: int = 4,
        logits: LogitsFunction | None = None,
        name: str = "head",
    ) -> None:
        self.info = replace(model.info, name=name)
        self.needs = model.capabilities.features
        self.window = window
        self.trees = trees and not block
        self.block = block
        self.sequences = sequences
        self.batches: list[tuple[HeadRows, ...]] = []
        self.closed = False
        self._logits = logits or model.logits_after
        self._held: dict[int, list[tuple[int, list[int], int]]] = {}
        """Of each sequence its rows: position, the tokens up to it, the hash of the text up to it."""
        self._tree: dict[int, list[tuple[int, list[int], int]]] = {}
        self._open: set[int] = set()

    def forward(self, batch: Sequence[HeadRows]) -> Logits:
        self.batches.append(tuple(batch))
        wanted: list[Logits] = []
        for rows in batch:
            if not 0 <= rows.seq < self.sequences:
                raise BackendError(f"the head has no sequence {rows.seq}")
            texts = self._own(rows) if rows.features is None else self._given(rows, rows.features)
            if self.block:
                wanted += self._block_after(texts[-1], rows.logits)
                continue
            wanted += [self._logits(text) for text in texts[len(texts) - rows.logits :]]
            (self._open.add if rows.logits else self._open.discard)(rows.seq)
        return np.stack(wanted) if wanted else np.empty((0, self.info.vocab_size), np.float32)

    def _given(self, rows: HeadRows, features: Features) -> list[list[int]]:
        """Append rows with the target's features; returns the text that each row knows."""
        held = self._held.setdefault(rows.seq, [])
        if rows.start < 1 or rows.parents is not None or features.shape[0] != len(rows.tokens):
            raise BackendError("rows with features are a chain, one row of features for each token")
        if held and not self.window == 1 and rows.start != held[-1][0] + 1:
            raise BackendError(f"rows start at {rows.start}, the head's end at {held[-1][0] + 1}")
        texts = []
        for i, token in enumerate(rows.tokens):
            position, before = rows.start + i, int(features[i, 1])
            expected = feature_row(position - 1, before, len(self.needs))
            follows = bool(held) and held[-1][0] == position - 1
            if features[i].tolist() != expected or (follows and held[-1][2] != before):
                raise BackendError(f"these are not the features of token {position - 1}")
            texts.append(self._cut([*(held[-1][1] if held else []), token]))
            held.append((position, texts[-1], chain_on(before, token)))
        self._tree.pop(rows.seq, None)
        return texts

    def _block_after(self, text: list[int], count: int) -> list[Logits]:
        """The logits of the tokens after a text, if each is the likeliest one."""
        if not 0 <= count <= self.block:
            raise BackendError(f"a block has {self.block} tokens, not {count}")
        found: list[Logits] = []
        for _ in range(count):
            found.append(self._logits(text))
            text = self._cut([*text, int(found[-1].argmax())])
        return found

    def _own(self, rows: HeadRows) -> list[list[int]]:
        """Append rows that go on from the head's own hidden states."""
        held = self._held.get(rows.seq)
        if not held or rows.seq not in self._open:
            raise BackendError("the head has no hidden state to go on from")
        tree = self._tree.setdefault(rows.seq, [held[-1]])
        if rows.parents is not None and not self.trees:
            raise BackendError("this head has no trees")
        parents = [len(tree) - 2] if rows.parents is None else rows.parents
        texts = []
        for token, parent in zip(rows.tokens, parents, strict=True):
            position, text, chained = tree[parent + 1]
            if rows.start > position + 1:
                raise BackendError(f"rows start at {rows.start}, their parent is at {position}")
            texts.append(self._cut([*text, token]))
            tree.append((position + 1, texts[-1], chain_on(chained, token)))
        return texts

    def _cut(self, text: list[int]) -> list[int]:
        return text[-self.window :] if self.window else text

    def length(self, seq: int) -> int:
        rows = [*self._held.get(seq, ()), *self._tree.get(seq, ())]
        return max((position + 1 for position, _, _ in rows), default=0)

    def truncate(self, seq: int, length: int) -> None:
        self._tree.pop(seq, None)
        self._open.discard(seq)
        self._held[seq] = [row for row in self._held.get(seq, ()) if row[0] < length]

    def release(self, seq: int) -> None:
        for rows in (self._held, self._tree):
            rows.pop(seq, None)
        self._open.discard(seq)

    def close(self) -> None:
        self.closed = True
