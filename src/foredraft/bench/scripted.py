"""A real model whose text is written beforehand: real forwards at their real cost, and a workload of choice.

What a small model says cannot be chosen, and some workloads must be: text that flips from copying to noise,
or copies for hundreds of tokens. So the logits of a real forward are overruled at one token for each row. The
forward, the drafters, verification and the planner are those of any other request.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.errors import BackendError
from foredraft.protocols import Model, Tokenizer
from foredraft.types import Capabilities, Logits, ModelInfo, Rows

CERTAIN = 1e4
"""Logit of the scripted token: above all that a model computes."""


class ScriptedModel:
    """`model`, saying `text` (prompt and output) by the position in it, in every sequence.

    A row gets the token that follows its position, whatever tokens are cached: rows behind a wrong draft
    token are never read. `sizes` are the rows of each forward so far.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.text: Sequence[int] = ()
        self.sizes: list[int] = []

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def capabilities(self) -> Capabilities:
        return self._model.capabilities

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.tokenizer

    def forward(self, batch: Sequence[Rows]) -> Logits:
        logits = self._model.forward(batch)
        self.sizes.append(sum(len(rows.tokens) for rows in batch))
        row = 0
        for rows in batch:
            if rows.parents is not None:
                raise BackendError("A scripted model verifies chains only.")
            end = rows.start + len(rows.tokens)
            for position in range(end - rows.logits, end):
                if position + 1 < len(self.text):
                    logits[row, self.text[position + 1]] = CERTAIN
                row += 1
        return logits

    def length(self, seq: int) -> int:
        return self._model.length(seq)

    def owed(self, seq: int) -> int:
        return self._model.owed(seq)

    def truncate(self, seq: int, length: int) -> None:
        self._model.truncate(seq, length)

    def reachable(self, seq: int, length: int) -> int:
        return self._model.reachable(seq, length)

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        self._model.keep_path(seq, start, path)

    def fork(self, src: int, dst: int, length: int) -> None:
        self._model.fork(src, dst, length)

    def snapshot(self, seq: int) -> object:
        return self._model.snapshot(seq)

    def restore(self, seq: int, snapshot: object) -> None:
        self._model.restore(seq, snapshot)

    def release(self, seq: int) -> None:
        self._model.release(seq)

    def close(self) -> None:
        self._model.close()
