"""Who proposed each character of an answer: a drafter, or the target."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable

from foredraft.protocols import Tokenizer
from foredraft.types import TARGET, TokenEvent

Run = tuple[str, int]
"""(origin, characters)"""


class Runs:
    """A queue of characters with their origins."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self._last = TARGET

    def add(self, origin: str, count: int) -> None:
        """Add `count` characters of this origin."""
        self._last = origin
        if not count:
            return
        if self._runs and self._runs[-1][0] == origin:
            count += self._runs.pop()[1]
        self._runs.append((origin, count))

    def extend(self, runs: Iterable[Run]) -> None:
        """Add all of these."""
        for origin, count in runs:
            self.add(origin, count)

    def take(self, count: int) -> list[Run]:
        """Remove the next `count` characters, as runs of which adjacent ones differ. If there are fewer, the
        rest is of the last origin that was added: text that only the end of an answer completes belongs to
        its last token.
        """
        taken: list[Run] = []
        while count and self._runs:
            origin, held = self._runs.popleft()
            if held > count:
                self._runs.appendleft((origin, held - count))
            taken.append((origin, min(held, count)))
            count -= min(held, count)
        if count and taken and taken[-1][0] == self._last:
            count += taken.pop()[1]
        return [*taken, (self._last, count)] if count else taken


class Origins:
    """The origins of one answer's text as it is shown.

    A character belongs to the token that completes it, also if it is held back and shown later. A reader of
    the answer (`AnswerReader`) leaves characters out and adds the texts of control tokens: it tells which
    characters it reads (`read`, `insert`), and its parser which of them are shown (`spans`: start and end,
    in order, counted from the first one read).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = Runs()
        self._read = Runs()
        self._place = 0
        self._shown = self._text
        self.spans: list[tuple[int, int]] = []

    def add(self, event: TokenEvent) -> None:
        """Add the next token."""
        self._text.add(event.origin, len(self._decoder.decode(self._tokenizer.token_bytes(event.token))))

    def take(self, count: int) -> list[Run]:
        """The origins of the next `count` characters that are shown."""
        return self._shown.take(count)

    # --- with a reader ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """There is a reader."""
        self._shown = Runs()

    def skip(self, head: str) -> None:
        """A text that is not the model's is read and not shown."""
        self.insert(TARGET, head)
        self.spans.clear()

    def read(self, text: str) -> None:
        """The answer's next text is read."""
        self._read.extend(self._text.take(len(text)))

    def insert(self, origin: str, marker: str) -> None:
        """A text that is not the answer's is read: of a control token, or of the prompt."""
        self._read.add(origin, len(marker))

    def show(self) -> None:
        """What is in `spans` is shown."""
        for start, end in self.spans:
            self._read.take(start - self._place)
            self._shown.extend(self._read.take(end - start))
            self._place = end
        self.spans.clear()
