"""Layers for multi-token prediction (DeepSeek-V3, arXiv 2412.19437 §2.2) in llama.cpp, on the target's
weights.

One layer predicts the token after next from the target's hidden state and the next token, and goes on from
its own. Of a recurrent target it has nothing: its rows are cells of attention, which can be dropped.

Some models have a layer for each token ahead (`ChainedHead`). Their keys and values are of their own layers,
so the target's rows are computed by all of them, and the n-th token of a draft by the n-th layer, from the
last of the target's rows on: what the layer before has computed there is in other layers' cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foredraft.backends.llamacpp import ext
from foredraft.backends.llamacpp.heads.batch import Pairs
from foredraft.backends.llamacpp.heads.native import NativeHead, Opened
from foredraft.types import Features, HeadRows, Logits


class MtpHead(NativeHead):
    """A single layer."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """A sequence since the last row with the target's features, which is at `start`: tokens, the hidden state
    beside each, and whether a draft has gone on from that row.
    """

    start: int
    tokens: tuple[int, ...]
    states: tuple[Features, ...]

    @property
    def drafted(self) -> bool:
        return len(self.tokens) > 1


class ChainedHead(NativeHead):
    """Several `layers`, one for each token ahead; the last one for all further ones."""

    def __init__(
        self, opened: Opened, needs: tuple[str, ...], *, size: int, state: int, sequences: int, layers: int
    ) -> None:
        self._layers = layers
        self._chains: dict[int, _Chain] = {}
        super().__init__(opened, needs, size=size, state=state, sequences=sequences)

    def forward(self, batch: Sequence[HeadRows]) -> Logits:
        chains = dict(self._chains)
        try:
            return super().forward(batch)
        except BaseException:
            self._chains = chains
            raise

    def _compute(self, batch: Sequence[HeadRows], pairs: Sequence[Pairs]) -> Logits:
        given = [rows for rows in batch if rows.features is not None]
        found: dict[int, Logits] = {}
        if given:
            self._read(given, [part for part in pairs if any(part.seq == rows.seq for rows in given)], found)
        for rows, part in zip(sorted(batch, key=lambda rows: rows.seq), pairs, strict=True):
            if rows.features is None:
                found[rows.seq] = self._step(rows, part)
        self._use(0)
        parts = [found[rows.seq] for rows in batch]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read(self, batch: Sequence[HeadRows], pairs: Sequence[Pairs], found: dict[int, Logits]) -> None:
        """Rows with the target's features, by every layer; logits by the first."""
        rows, again = [], []
        for part in pairs:
            chain = self._chains.get(part.seq)
            if chain is not None and chain.drafted:  # its cell is that of the draft's last layer alone
                part = Pairs(  # noqa: PLW2901
                    part.seq,
                    chain.start,
                    [chain.tokens[0], *part.tokens],
                    np.concatenate([chain.states[0], part.states]),
                    0,
                )
            again.append(part)
        for part in again:
            source = next(one for one in batch if one.seq == part.seq)
            rows.append(replace(source, start=part.start, tokens=part.tokens, features=part.states))
        places, placed = 0, []
        for part in again:
            placed.append(replace(part, place=places))
            places += len(part)
        logits: Logits = np.empty((0, self.info.vocab_size), np.float32)
        for layer in reversed(range(self._layers)):
            self._use(layer)
            for part in placed:
                self._cut(part.seq, part.start)
            if layer:
                self._run(placed, wanted=False)
            else:
                logits = super()._compute(rows, placed).copy()
        end = 0
        for part, one in zip(placed, rows, strict=True):
            found[part.seq] = logits[end : end + one.logits]
            end += one.logits
            self._chains[part.seq] = _Chain(
                part.start + len(part) - 1, (part.tokens[-1],), (part.states[-1:].copy(),)
            )

    def _step(self, rows: HeadRows, part: Pairs) -> Logits:
        """The next token of a draft, by the next layer."""
        before = self._chains[part.seq]
        chain = _Chain(before.start, (*before.tokens, part.tokens[0]), (*before.states, part.states))
        self._chains[part.seq] = chain
        self._use(min(len(chain.tokens), self._layers) - 1)
        self._cut(part.seq, chain.start)
        again = Pairs(part.seq, chain.start, chain.tokens, np.concatenate(chain.states), 0)
        whole = replace(rows, start=chain.start, tokens=again.tokens)
        return super()._compute([whole], [again]).copy()

    def _use(self, layer: int) -> None:
        ext.functions().set_nextn_layer_offset(self._context, layer)
        self._graph = f"layer {layer}"

    def truncate(self, seq: int, length: int) -> None:
        chain = self._chains.get(seq)
        if chain is not None and length <= chain.start:
            del self._chains[seq]
        super().truncate(seq, length)

    def release(self, seq: int) -> None:
        self._chains.pop(seq, None)
        super().release(seq)
