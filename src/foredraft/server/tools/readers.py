"""Readers of single calls, and the most common one: a JSON object with the function's name and its arguments.

A reader is fed text from a possible start of a call. It announces the call as soon as the name is known and
the arguments have started; before that everything can still be returned as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeAlias

from foredraft.server.tools.arguments import NO_ARGUMENTS, Arguments
from foredraft.server.tools.choice import Tool
from foredraft.server.tools.deltas import DeltaLog
from foredraft.server.tools.scan import ObjectScanner, Run


class CallReader(Protocol):
    """Reads one call. `failed`: the text at the returned position cannot belong to it."""

    started: bool
    done: bool
    failed: bool

    @property
    def unread(self) -> str:
        """Raw text taken but neither shown nor complete, returned as text if a started call fails."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the arguments of a started call are complete."""
        ...

    def feed(self, text: str, at: int) -> int:
        """Take text from `at` on; returns its end, or where the call was `done` or `failed`."""
        ...


ReaderFactory: TypeAlias = Callable[[Mapping[str, Tool], DeltaLog], CallReader]
"""Creates a reader for the functions that can be called, by name."""

_ARGUMENTS: Final = ("arguments", "parameters")
_IGNORED: Final = ("id", "type", "tool_call_id")


class ObjectCall:
    """Reads `{"name": …, "arguments": {…}}` in either order; `parameters` is accepted for the arguments, and
    `name_key` is the key of the function's name.

    Before the call is announced, any key besides those, ids and `type` means that this is not a call; later,
    unknown members are skipped. The same holds for a function that was not offered.
    """

    def __init__(self, names: Collection[str], log: DeltaLog, *, name_key: str = "name") -> None:
        self._name_key = name_key
        self.started = False
        self.done = False
        self.failed = False
        self._names = names
        self._log = log
        self._scanner = ObjectScanner()
        self._key: list[str] = []
        self._member: str | None = None  # the key of the current value
        self._name_json: list[str] = []
        self._name: str | None = None
        self._arguments: Arguments | None = None
        self._shown: list[str] = []

    @property
    def unread(self) -> str:
        """See CallReader."""
        return self._arguments.unread if self._arguments else ""

    @property
    def complete(self) -> bool:
        """See CallReader."""
        return self._arguments is None or self._arguments.complete or not self._arguments.begun

    def feed(self, text: str, at: int) -> int:
        """See CallReader."""
        while at < len(text) and not self.done:
            depth = self._scanner.depth
            end = self._scanner.step(text, at)
            if end == at:
                self.failed = True
                return at
            taken = self._take(text[at:end], depth)
            if self.failed:
                return at + taken
            at = end
        return at

    def _take(self, piece: str, depth: int) -> int:
        """Take a run that started at this depth. Returns the number of valid characters if it is invalid."""
        run = self._scanner.run
        if depth == 0 or (depth == 1 and run is Run.SPACE):
            return 0
        if depth == 1 and piece in ("}", ",", ":") and run is Run.PUNCTUATION:
            self._between(piece)
        elif depth == 1 and run is Run.KEY:
            self._key.append(piece)
        elif self._member == self._name_key:
            self.failed = not self._name_json and piece != '"'
            self._name_json.append(piece)
        elif self._member in _ARGUMENTS and self._arguments:
            self._shown.append(self._arguments.take(piece, run))
            self._announce()
            self.failed = self._arguments.failed
            return self._arguments.taken
        return 0

    def _between(self, piece: str) -> None:
        if piece == ":":
            self._begin_member()
            return
        if self._member == self._name_key:
            self._read_name()
        self._member = None
        if piece == "}" and not self.failed:
            self._end()

    def _begin_member(self) -> None:
        self._member = json.loads("".join(self._key), strict=False)
        self._key.clear()
        if self._member == self._name_key:
            self.failed = bool(self._name_json)
        elif self._member in _ARGUMENTS:
            self.failed = self._arguments is not None
            self._arguments = self._arguments or Arguments()
        elif self._member not in _IGNORED:
            self.failed = not self.started

    def _read_name(self) -> None:
        name = json.loads("".join(self._name_json), strict=False)
        if isinstance(name, str) and name in self._names:
            self._name = name
            self._announce()
        else:
            self.failed = True

    def _announce(self) -> None:
        """Announce the call as soon as possible, and show its arguments so far."""
        if self._name is None or self._arguments is None or not self._arguments.begun:
            return
        if not self.started:
            self._log.start(self._name)
            self.started = True
        self._log.arguments("".join(self._shown))
        self._shown.clear()

    def _end(self) -> None:
        if self._name is None:
            self.failed = True
            return
        if not self.started:  # no arguments, null, or an empty string
            self._log.start(self._name)
            self._log.arguments(NO_ARGUMENTS)
            self.started = True
        self.done = True
