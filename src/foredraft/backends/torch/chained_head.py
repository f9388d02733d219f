"""A head of several layers, one for each token ahead; the last one for all further ones.

Their keys and values are of their own layers. So the target's rows are computed by all of them, and the row
of a drafted token by the layer of its depth, which first computes the rows of the tokens before it in the
draft: what other layers have computed there is in other cells. llama.cpp's `ChainedHead` computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foredraft.backends.torch.head import Held, Layer, Shape, TorchHead
from foredraft.backends.torch.head_cells import HeadSegment
from foredraft.types import HeadRows, Logits, ModelInfo


class ChainedHead(TorchHead):
    """See `protocols.Head`."""

    def __init__(
        self,
        layers: Sequence[Layer],
        info: ModelInfo,
        *,
        needs: tuple[str, ...],
        sequences: int,
        shape: Shape,
    ) -> None:
        super().__init__(layers[0], info, needs=needs, sequences=sequences, shape=shape)
        self._layers = layers

    def _compute(self, batch: Sequence[HeadRows]) -> Logits:
        found: dict[int, Logits] = {}
        given = [rows for rows in batch if rows.features is not None]
        drafts = [self._draft(rows) for rows in batch if rows.features is None]
        for number in range(len(self._layers)):
            asked = [draft for draft in drafts if number in draft.layers]
            if asked:
                self._step(number, asked)
        if given:
            self._read(given, found)
        for draft in drafts:
            self._record(draft.rows, draft.positions[draft.known :], draft.states)
            draft.held.tree.held |= dict.fromkeys(draft.layers, len(draft.parents))
            logits = draft.logits[len(draft.logits) - draft.rows.logits :]
            found[draft.rows.seq] = np.reshape(logits, (len(logits), self._shape.vocab_size))
        return np.concatenate([found[rows.seq] for rows in batch], dtype=np.float32)

    def _read(self, batch: Sequence[HeadRows], found: dict[int, Logits]) -> None:
        """Rows with the target's features, by every layer; logits by the first."""
        segments: list[HeadSegment] = []
        places: list[int] = []
        for rows in batch:
            positions = self._positions(rows)
            segments.append(self._segment(rows, positions, len(places)))
            places += positions
        tokens, hidden = [token for rows in batch for token in rows.tokens], self._hidden(batch)
        for layer in self._layers[1:]:
            layer.run(segments, tokens, hidden, places, ())
        logits, end = super()._compute(batch), 0
        for rows in batch:
            first, end = end, end + rows.logits
            found[rows.seq] = logits[first:end]

    def _draft(self, rows: HeadRows) -> _Draft:
        held = self._held[rows.seq]
        return _Draft(rows, held, self._parents(rows), self._positions(rows), last=len(self._layers) - 1)

    def _step(self, number: int, drafts: Sequence[_Draft]) -> None:
        """The new rows of drafts that are of this layer, after those before them that its cells lack."""
        segments: list[HeadSegment] = []
        tokens: list[int] = []
        places: list[int] = []
        wanted: list[int] = []
        hidden: list[Any] = []
        for draft in drafts:
            first, held = draft.held.tree.held.get(number, 0), draft.held
            sees = self._family(held, draft.parents, draft.positions, first)
            count = len(draft.parents) - first
            segments.append(HeadSegment(draft.rows.seq, len(tokens), count, held.cells + first, sees))
            wanted += [len(tokens) + draft.known - first + i for i in draft.asked(number)]
            tokens += draft.tokens[first:]
            places += draft.positions[first:]
            hidden += [
                held.state if parent < 0 else held.tree.states[parent] for parent in draft.parents[first:]
            ]
        layer = self._layers[number]
        states, logits = layer.run(segments, tokens, torch.stack(hidden), places, wanted)
        rows = iter(logits.float().cpu().numpy())
        for draft, segment in zip(drafts, segments, strict=True):
            new = segment.first + segment.count - len(draft.layers)
            for i, of in enumerate(draft.layers):
                if of == number:
                    draft.states[i] = states[new + i]
            for i in draft.asked(number):
                draft.logits[i] = next(rows)

    def close(self) -> None:
        if not self._closed:
            for layer in self._layers[1:]:
                layer.close()
        super().close()


class _Draft:
    """A sequence's tree with its new rows: their layers, and what is found of them. `last`: the number of the
    last layer.
    """

    def __init__(
        self, rows: HeadRows, held: Held, parents: Sequence[int], positions: Sequence[int], *, last: int
    ) -> None:
        self.rows, self.held = rows, held
        self.known = len(held.tree.parents)
        self.parents = [*held.tree.parents, *parents]
        self.positions = [*held.tree.positions, *positions]
        self.tokens = [*held.tree.tokens, *rows.tokens]
        self.layers = [min(position - held.end + 1, last) for position in positions]
        self.states: list[Any] = [None] * len(positions)
        self.logits: list[Any] = [None] * len(positions)

    def asked(self, layer: int) -> list[int]:
        """The new rows of this layer that are to return logits."""
        silent = len(self.layers) - self.rows.logits
        return [i for i, of in enumerate(self.layers) if of == layer and i >= silent]
