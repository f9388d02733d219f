"""What was asked and answered, kept in memory for a request that is made while recording is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foredraft.images import ImageSpan
from foredraft.protocols import Tokenizer
from foredraft.types import Event

MOST_TEXT = 20_000
"""Characters of a prompt and of an answer that are kept."""


@dataclass(slots=True)
class Transcript:
    """The texts of one request; of several answers the first one's. `begun`: its prompt is being read."""

    prompt: str = ""
    begun: bool = False
    _source: object = None
    _pieces: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, source: object, events: Sequence[Event]) -> None:
        """Add events of the answer that `source` stands for."""
        if self._source is None:
            self._source = source
        if source is self._source and self._size < MOST_TEXT:
            text = "".join(event.text for event in events)[: MOST_TEXT - self._size]
            self._pieces.append(text)
            self._size += len(text)

    @property
    def answer(self) -> str:
        """The text until now."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    @property
    def size(self) -> int:
        """Characters of both texts."""
        return len(self.prompt) + self._size


def beginning(tokenizer: Tokenizer, prompt: Sequence[int], images: Sequence[ImageSpan] = ()) -> str:
    """The first `MOST_TEXT` characters of a prompt, as the model gets it; of an image its number of rows."""
    pieces: list[bytes] = []
    done = 0
    for span in [*images, None]:
        start = len(prompt) if span is None else span.start
        pieces += [tokenizer.token_bytes(token) for token in prompt[done : min(start, done + MOST_TEXT)]]
        if span is not None:
            pieces.append(f"[image: {span.rows} rows]".encode())
            done = span.end
    return b"".join(pieces).decode("utf-8", "replace")[:MOST_TEXT]
