"""Finds which stop sequence ended a text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from foredraft.protocols import Tokenizer
from foredraft.types import TokenEvent


class StopFinder:
    """Follows a request's tokens and keeps the text that the engine holds back.

    The engine ends the text before the stop sequence that is completed first. The held-back text then starts
    with that sequence; if several start there, the shortest was completed first.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = sorted(stops, key=len)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, event: TokenEvent) -> None:
        """Add a token and the text that was shown with it."""
        if self._stops:
            piece = self._decoder.decode(self._tokenizer.token_bytes(event.token))
            self._held = (self._held + piece)[len(event.text) :]

    def found(self) -> str | None:
        """The stop sequence that ended the text; None if it ended without one."""
        return next((stop for stop in self._stops if self._held.startswith(stop)), None)
