"""Some sequences of a model as a separate model, so that several engines share its weights.

Results are those of the whole model. Only one thread at a time, as with any model: engines on parts of one
model take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foredraft.errors import BackendError
from foredraft.protocols import Head, Model, Tokenizer
from foredraft.types import Capabilities, Features, Logits, ModelInfo, Rows


class Part:
    """`count` sequences of `whole`, from `first` on, numbered from 0. Created by `split`.

    `open_parts` are the model's open parts; closing the last one frees the model.
    """

    def __init__(self, whole: Model, first: int, count: int, open_parts: set[int]) -> None:
        self.info: ModelInfo = whole.info
        self.tokenizer: Tokenizer = whole.tokenizer
        self.capabilities: Capabilities = replace(whole.capabilities, sequences=count)
        self._whole = whole
        self._first = first
        self._open_parts = open_parts
        open_parts.add(first)

    def _at(self, seq: int) -> int:
        """The whole model's number of a sequence. Raises BackendError if it does not belong to this part."""
        if not 0 <= seq < self.capabilities.sequences:
            raise BackendError(f"There is no sequence {seq}: there are {self.capabilities.sequences}.")
        if self._first not in self._open_parts:
            raise BackendError(f"The model {self.info.name} is closed.", hint="Load it again.")
        return self._first + seq

    @property
    def idle_threads(self) -> int:
        return self._whole.idle_threads

    def forward(self, batch: Sequence[Rows]) -> Logits:
        """As `Model.forward`."""
        return self._whole.forward(
            [Rows(self._at(rows.seq), rows.start, rows.tokens, rows.logits, rows.parents) for rows in batch]
        )

    def features(self) -> Features:
        return self._whole.features()

    def load_head(self, path: Path | None, *, sequences: int) -> Head:
        return self._whole.load_head(path, sequences=sequences)

    def length(self, seq: int) -> int:
        return self._whole.length(self._at(seq))

    def truncate(self, seq: int, length: int) -> None:
        self._whole.truncate(self._at(seq), length)

    def to_recompute(self, seq: int) -> int:
        return self._whole.to_recompute(self._at(seq))

    def reachable(self, seq: int, length: int) -> int:
        return self._whole.reachable(self._at(seq), length)

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        self._whole.keep_path(self._at(seq), start, path)

    def fork(self, src: int, dst: int, length: int) -> None:
        self._whole.fork(self._at(src), self._at(dst), length)

    def snapshot(self, seq: int) -> object:
        return self._whole.snapshot(self._at(seq))

    def restore(self, seq: int, snapshot: object) -> None:
        self._whole.restore(self._at(seq), snapshot)

    def release(self, seq: int) -> None:
        self._whole.release(self._at(seq))

    def close(self) -> None:
        """Close this part, and free the model if no other part is open. May be called twice."""
        if self._first in self._open_parts:
            for seq in range(self.capabilities.sequences):
                self.release(seq)
            self._open_parts.remove(self._first)
            if not self._open_parts:
                self._whole.close()


def split(model: Model, parts: int) -> list[Model]:
    """Split a model into `parts` models with equally many sequences; for one part the model itself.

    Raises ValueError if its sequences cannot be divided equally.
    """
    if parts == 1:
        return [model]
    count, left = divmod(model.capabilities.sequences, parts)
    if left or not count:
        raise ValueError(f"{model.capabilities.sequences} sequences cannot be divided among {parts} parts")
    open_parts: set[int] = set()
    return [Part(model, number * count, count, open_parts) for number in range(parts)]
