"""Calls that start with a head containing the name of the function, followed by the arguments as an
object.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from foredraft.server.tools.deltas import DeltaLog
from foredraft.server.tools.scan import ObjectScanner, Run, escape_controls


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a head as regular expressions: `whole`, and `begun` for an incomplete part."""

    whole: str
    begun: str


def literal(text: str) -> Part:
    """Exactly this text."""
    begun = ""
    for char in reversed(text):
        begun = f"(?:{re.escape(char)}{begun})?"
    return Part(re.escape(text), begun)


def sequence(*parts: Part) -> Part:
    """These parts in order."""
    whole = [part.whole for part in parts]
    begun = ("".join(whole[:place]) + part.begun for place, part in enumerate(parts))
    return Part("".join(whole), f"(?:{'|'.join(begun)})")


def either(*parts: Part) -> Part:
    """One of these parts."""
    return Part(
        f"(?:{'|'.join(part.whole for part in parts)})", f"(?:{'|'.join(part.begun for part in parts)})"
    )


def optional(*parts: Part) -> Part:
    """These parts, or nothing."""
    inner = sequence(*parts)
    return Part(f"(?:{inner.whole})?", inner.begun)


NAME: Final = Part("([a-zA-Z0-9_-]{1,64})", "[a-zA-Z0-9_-]{0,64}")
"""A function's name. A head contains exactly one."""

SPACE: Final = Part(r"\s{0,8}", r"\s{0,8}")


@dataclass(frozen=True, slots=True)
class Head:
    """The text before the arguments of a call; one part of it is the name."""

    part: Part
    _whole: re.Pattern[str] = field(init=False)
    _begun: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_whole", re.compile(self.part.whole))
        object.__setattr__(self, "_begun", re.compile(self.part.begun))

    def begins(self, text: str) -> bool:
        """Whether a head may start with this text."""
        return self._begun.fullmatch(text) is not None

    def name(self, text: str, names: Collection[str]) -> str | None:
        """The function that this head calls, or None."""
        found = self._whole.fullmatch(text)
        name = next((group for group in found.groups() if group), None) if found else None
        return name if name in names else None


class HeadedCall:
    """Reads a call with such a head, and its arguments as a JSON object."""

    def __init__(self, tools: Mapping[str, object], log: DeltaLog, head: Head) -> None:
        self.started = False
        self.done = False
        self.failed = False
        self.unread = ""
        self._names = tools
        self._log = log
        self._form = head
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
            elif self._form.begins(self._head + text[at]):
                self._head += text[at]
                at += 1
            else:
                self.failed = True
            if self.failed:
                return at
        return self._read_arguments(text, at)

    def _start(self) -> None:
        name = self._form.name(self._head, self._names)
        if name is None:
            self.failed = True
            return
        self._log.start(name)
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
