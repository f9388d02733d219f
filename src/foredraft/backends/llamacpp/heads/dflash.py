"""Block diffusion in llama.cpp: DFlash (Chen, Liang and Liu 2026, arXiv 2602.06036), and what was made of it,
DFlash2 with a selector and DSpark with a Markov head.

An encoder fuses the hidden states of several layers of the target, of which the decoder's layers make the
keys and values of their cells: so the text's rows cost little. A draft is one forward of a block, the text's
last token and masks after it, whose rows see the text and one another. It leaves cells, which are dropped.

The row of token n in the contract is the cell at position n - 1, where the hidden states beside it belong;
the token itself is only computed where it begins a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from foredraft.backends.llamacpp import abi, ext
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.heads.batch import COORDINATES, Pairs
from foredraft.backends.llamacpp.heads.dflash_file import DFlashFile
from foredraft.backends.llamacpp.heads.native import NativeHead, Opened, divided
from foredraft.errors import BackendError
from foredraft.types import Features, HeadRows, Logits

_NOTHING: Features = np.empty((0, 0), np.float32)


class DFlashHead(NativeHead):
    """A head that drafts blocks. Raises BackendError if llama.cpp cannot compute it."""

    def __init__(self, opened: Opened, file: DFlashFile, *, size: int, sequences: int) -> None:
        self.block = file.block
        self._file = file
        many = lib.llama_model_rope_type(opened.weights) == abi.llama_rope_type.LLAMA_ROPE_TYPE_MROPE
        self._coordinates = COORDINATES if many else 1
        lib.llama_set_causal_attn(opened.context, file.causal)
        super().__init__(opened, file.needs, size=size, state=file.state, sequences=sequences)

    def _plan(self) -> None:
        if self._file.choices:  # a selector's are among the states of all rows, which return no logits
            ext.functions().set_embeddings_nextn(self._context, True, False)  # noqa: FBT003 - C
        context, nothing = self._context, np.zeros((1, self._columns), np.float32)
        row = self._batch.fill_states(
            [Pairs(0, 0, [0], nothing, 0)], wanted=False, coordinates=self._coordinates
        )
        self._check(lib.llama_decode(context, row))
        block = Pairs(0, 1, [0] * self._size(self.block), _NOTHING, 0)
        self._check(
            lib.llama_decode(context, self._batch.fill_tokens([block], wanted=not self._file.choices))
        )
        self._cut(0, 0)

    # --- what differs from other heads ------------------------------------------------------------------

    def _most_logits(self, rows: HeadRows) -> int:  # noqa: ARG002
        return self.block

    def _check_states(self, rows: HeadRows) -> None:
        if rows.features is None:
            raise BackendError("A head that drafts blocks has no hidden states of its own to go on from.")
        super()._check_states(rows)

    def _cut(self, seq: int, length: int) -> None:
        super()._cut(seq, max(0, length - 1))

    def _not_numbers(self, rows: Logits) -> npt.NDArray[np.bool_]:
        if self._file.choices:  # each row has logits of other tokens
            bad: npt.NDArray[np.bool_] = np.isnan(rows.max(axis=1, initial=-np.inf))
            return bad
        return super()._not_numbers(rows)

    # --- forwards ---------------------------------------------------------------------------------------

    def _compute(self, batch: Sequence[HeadRows], pairs: Sequence[Pairs]) -> Logits:
        """Append the rows; then draft blocks, those of one size together."""
        for parts in divided(pairs, self._batch.capacity):
            self._append(parts)
        wanted = {rows.seq: rows.logits for rows in batch}
        asking = [part for part in pairs if wanted[part.seq]]
        if len(asking) == 1:
            alone: Logits = self._block_rows(asking, wanted[asking[0].seq])[0]
            return alone
        places, end = {}, 0
        for rows in batch:
            places[rows.seq], end = end, end + rows.logits
        answer = np.empty((end, self.info.vocab_size), np.float32)
        for count in sorted({wanted[part.seq] for part in asking}):
            alike = [part for part in asking if wanted[part.seq] == count]
            most = self._batch.capacity // self._size(count)
            for first in range(0, len(alike), most):
                parts = alike[first : first + most]
                for part, found in zip(parts, self._block_rows(parts, count), strict=True):
                    answer[places[part.seq] : places[part.seq] + count] = found
        return answer

    def _append(self, pairs: Sequence[Pairs]) -> None:
        """Make the cells of rows, each at the position of its hidden states."""
        parts = [replace(part, start=part.start - 1) for part in pairs]
        shape = [(part.seq, len(part)) for part in parts]
        self._graphs.use(("rows", *shape), sum(map(len, parts)))
        filled = self._batch.fill_states(parts, wanted=False, coordinates=self._coordinates)
        self._check(lib.llama_decode(self._context, filled))

    def _size(self, count: int) -> int:
        """Rows of a block that drafts `count` tokens."""
        return count if self._file.anchored else count + 1

    def _block_rows(self, pairs: Sequence[Pairs], count: int) -> Logits:
        """The logits of the `count` tokens after each last row, shape (sequences, count, vocabulary)."""
        size, parts = self._size(count), []
        for part in pairs:
            tokens = [part.tokens[-1], *[self._file.mask] * (size - 1)]
            parts.append(Pairs(part.seq, part.start + len(part) - 1, tokens, _NOTHING, 0))
        choices = self._file.choices
        rows = size * len(parts)
        self._graphs.use(("block", *[(part.seq, size) for part in parts]), rows)
        self._check(lib.llama_decode(self._context, self._batch.fill_tokens(parts, wanted=not choices)))
        for part in parts:
            super()._cut(part.seq, part.start)
        if choices:
            blocks = self._states(rows).reshape(len(parts), size, self._state)
            return np.stack([self._selected(block) for block in blocks])
        logits: Logits = self._logits(rows).reshape(len(parts), size, self.info.vocab_size)
        return logits[:, size - count :]

    def _selected(self, block: Features) -> Logits:
        """What DFlash2's selector says of a block's rows, each after the likeliest token of the row before:
        of the few tokens that it has for each, by how well they follow that one.

        A row has these tokens' ids, then as many scores for each token of the row before.
        """
        choices = self._file.choices
        logits = np.full((len(block) - 1, self.info.vocab_size), -np.inf, np.float32)
        before = 0  # of the text's last token there is one, whose scores are repeated
        for row, numbers in zip(logits, block[1:], strict=True):
            tokens, scores = np.split(numbers[: choices * (choices + 1)], [choices])
            row[tokens.astype(np.intp)] = scores[before * choices : (before + 1) * choices]
            before = int(scores[before * choices : (before + 1) * choices].argmax())
        return logits
