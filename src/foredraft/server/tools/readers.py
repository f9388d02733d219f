"""Readers of one call each: the JSON object that names function and arguments, and `name[ARGS]{…}`.

A reader is fed text from the place where a call may begin. It announces the call as soon as the name is known
and the arguments have begun; before that everything can still be given back as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Final, Protocol, TypeAlias

from foredraft.server.tools.arguments import NO_ARGUMENTS, Arguments
from foredraft.server.tools.deltas import DeltaLog
from foredraft.server.tools.scan import ObjectScanner, Run, escape_controls


class CallReader(Protocol):
    """Reads one call. `failed`: the text at the place returned cannot belong to it."""

    started: bool
    done: bool
    failed: bool

    @property
    def unread(self) -> str:
        """Raw text taken but neither shown nor complete, to be given back if a started call fails."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the arguments of a started call are all there, whatever stands around them."""
        ...

    def feed(self, text: str, at: int) -> int:
        """Take text from `at` on and return how far: to the end unless the call is `done` or has `failed`."""
        ...


ReaderFactory: TypeAlias = Callable[[Collection[str], DeltaLog], CallReader]

_NAME: Final = "name"
_ARGUMENTS: Final = ("arguments", "parameters")
_IGNORED: Final = ("id", "type")


class ObjectCall:
    """`{"name": …, "arguments": {…}}`, in either order; `parameters` is another word for the arguments.

    Before the call is announced any key besides those, `id` and `type` means that this is not a call; after
    that, unknown members are skipped. A function that was not offered is not a call either.
    """

    def __init__(self, names: Collection[str], log: DeltaLog) -> None:
        self.started = False
        self.done = False
        self.failed = False
        self._names = names
        self._log = log
        self._scanner = ObjectScanner()
        self._key: list[str] = []
        self._member: str | None = None  # the key whose value is being read
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
        """Take a run that began at this depth. If the call fails by it: how much of it was still good."""
        run = self._scanner.run
        if depth == 0 or (depth == 1 and run is Run.SPACE):
            return 0
        if depth == 1 and piece in ("}", ",", ":") and run is Run.PUNCTUATION:
            self._between(piece)
        elif depth == 1 and run is Run.KEY:
            self._key.append(piece)
        elif self._member == _NAME:
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
        if self._member == _NAME:
            self._read_name()
        self._member = None
        if piece == "}" and not self.failed:
            self._end()

    def _begin_member(self) -> None:
        self._member = json.loads("".join(self._key), strict=False)
        self._key.clear()
        if self._member == _NAME:
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
        """Announce the call as soon as that is possible, and show what there is of its arguments."""
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


def _beginnings(literal: str) -> str:
    """A regular expression for every beginning of `literal`, the empty one and itself included."""
    pattern = ""
    for char in reversed(literal):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return pattern


_CALL_ID: Final = r"\[CALL_ID\][a-zA-Z0-9_-]{0,64}"
_HEAD: Final = re.compile(rf"([a-zA-Z0-9_-]{{1,64}})(?:{_CALL_ID})?(?:\[ARGS\])?\s*")
_HEAD_SO_FAR: Final = re.compile(
    rf"[a-zA-Z0-9_-]{{1,64}}(?:{_beginnings('[CALL_ID]')}|(?:{_CALL_ID})?{_beginnings('[ARGS]')}"
    rf"|(?:{_CALL_ID})?\[ARGS\]\s{{0,8}})"
)


class NamedCall:
    """`name[ARGS]{…}`, also with `[CALL_ID]…` in between or without `[ARGS]` (some vocabularies hide it)."""

    def __init__(self, names: Collection[str], log: DeltaLog) -> None:
        self.started = False
        self.done = False
        self.failed = False
        self.unread = ""
        self._names = names
        self._log = log
        self._head = ""
        self._scanner = ObjectScanner()

    @property
    def complete(self) -> bool:
        """See CallReader."""
        return self._scanner.complete

    def feed(self, text: str, at: int) -> int:
        """See CallReader."""
        while at < len(text) and not self.started:
            if text[at] == "{":
                self._start()
            elif _HEAD_SO_FAR.fullmatch(self._head + text[at]):
                self._head += text[at]
                at += 1
            else:
                self.failed = True
            if self.failed:
                return at
        return self._read_arguments(text, at)

    def _start(self) -> None:
        head = _HEAD.fullmatch(self._head)
        if head is None or head[1] not in self._names:
            self.failed = True
            return
        self._log.start(head[1])
        self.started = True

    def _read_arguments(self, text: str, at: int) -> int:
        while at < len(text) and not self.done:
            end = self._scanner.step(text, at)
            if end == at:
                self.failed = True
                return at
            piece = text[at:end]
            inside = self._scanner.run in (Run.STRING, Run.KEY)
            self._log.arguments(escape_controls(piece) if inside else piece)
            self.done = self._scanner.complete
            at = end
        return at
