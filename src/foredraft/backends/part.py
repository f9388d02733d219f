"""Some sequences of a model as a separate model, so that several engines share its weights.

Results are those of the whole model. Only one thread at a time, as with any model: engines on parts of one
model take turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from foredraft.errors import BackendError
from foredraft.protocols import Head, Model, Tokenizer, Vision
from foredraft.types import Capabilities, Features, Logits, ModelInfo, Rows


@dataclass(slots=True)
class _Shared:
    """What the parts of a model have in common: those that are open, by their first sequences, and the one
    that computed the last forward. Closing the last open one frees the model.
    """

    open: set[int] = field(default_factory=set)
    computed: int | None = None


class Part:
    """`count` sequences of `whole`, from `first` on, numbered from 0. Created by `split`."""

    def __init__(self, whole: Model, first: int, count: int, shared: _Shared) -> None:
        self.info: ModelInfo = whole.info
        self.tokenizer: Tokenizer = whole.tokenizer
        self.vision: Vision | None = whole.vision
        self.capabilities: Capabilities = replace(whole.capabilities, sequences=count)
        self._whole = whole
        self._first = first
        self._shared = shared
        shared.open.add(first)

    def _at(self, seq: int) -> int:
        """The whole model's number of a sequence. Raises BackendError if it does not belong to this part."""
        if not 0 <= seq < self.capabilities.sequences:
            raise BackendError(f"There is no sequence {seq}: there are {self.capabilities.sequences}.")
        if self._first not in self._shared.open:
            raise BackendError(f"The model {self.info.name} is closed.", hint="Load it again.")
        return self._first + seq

    @property
    def idle_threads(self) -> int:
        return self._whole.idle_threads

    @property
    def adapters(self) -> Mapping[str, str]:
        return self._whole.adapters

    def adapt(self, seq: int, adapter: str) -> None:
        self._whole.adapt(self._at(seq), adapter)

    def forward(self, batch: Sequence[Rows]) -> Logits:
        """As `Model.forward`."""
        self._shared.computed = self._first
        return self._whole.forward([replace(rows, seq=self._at(rows.seq)) for rows in batch])

    def features(self, rows: Sequence[int] | None = None) -> Features:
        if self.capabilities.features and self._shared.computed != self._first:
            raise BackendError("There are no features: the last forward was that of another part.")
        return self._whole.features(rows)

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
        if self._first in self._shared.open:
            for seq in range(self.capabilities.sequences):
                self.release(seq)
            self._shared.open.remove(self._first)
            if not self._shared.open:
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
    shared = _Shared()
    return [Part(model, number * count, count, shared) for number in range(parts)]
