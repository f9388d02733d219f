"""Which replica gets a request: one that has its prompt's beginning already, and is not too busy.

The policy, and what it knows a prompt by. Nothing here needs Ray: `benchmarks/scale.py` simulates this class.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

SLACK = 1 / 4
"""How many requests more than the least busy replica one may have that holds a prompt's beginning, as a share
of its sequences; one at least.
"""

MOST_KNOWN = 1 << 16
"""Beginnings that a table knows: about 10 MB, or a thousand prompts of 32 kB."""

BLOCK = 512
"""Bytes of a long text that are known as one."""

MOST = 256
"""Beginnings of one prompt."""


class RoutingTable:
    """Chooses the replica to which the longest beginning of a prompt was last sent. Replicas are known by
    name, and each has `sequences` sequences. Of more than `most` beginnings, the least recently used are
    dropped.

    A replica is not chosen for what it holds if it has `SLACK` more requests than the least busy one, or is
    full while another is not. What no such replica holds goes to the least busy one, and of several to the
    one with the highest hash of both (rendezvous hashing, Thaler and Ravishankar 1998): with little load,
    independent tables then send chats with the same system prompt to the same replica.
    """

    def __init__(self, *, sequences: int, most: int = MOST_KNOWN) -> None:
        self._sequences = sequences
        self._slack = max(1, int(SLACK * sequences))
        self._most = most
        self._sent: OrderedDict[int, str] = OrderedDict()
        self._unlike = count()

    def __len__(self) -> int:
        return len(self._sent)

    def choose(self, beginnings: Sequence[int], loads: Mapping[str, int]) -> str:
        """The replica for a prompt with these beginnings, shortest first. `loads`: requests on each replica;
        not empty.
        """
        least = min(loads.values())
        most = least + self._slack
        if least < self._sequences:
            most = min(most, self._sequences - 1)
        for beginning in reversed(beginnings):
            holder = self._sent.get(beginning)
            if holder is not None and holder in loads and loads[holder] <= most:
                return holder
        key = beginnings[0] if beginnings else next(self._unlike)
        return max((name for name, load in loads.items() if load == least), key=lambda name: _pull(key, name))

    def sent(self, beginnings: Sequence[int], replica: str) -> None:
        """The replica was sent a prompt with these beginnings."""
        for beginning in reversed(beginnings):
            self._sent[beginning] = replica
            self._sent.move_to_end(beginning)
        while len(self._sent) > self._most:
            self._sent.popitem(last=False)

    def keep(self, replicas: Collection[str]) -> None:
        """Forget what was sent to any other replica: these are gone."""
        for beginning in [one for one, holder in self._sent.items() if holder not in replicas]:
            del self._sent[beginning]


def _pull(key: int, replica: str) -> bytes:
    return hashlib.blake2b(f"{key}/{replica}".encode(), digest_size=8).digest()


# --- what a prompt is known by -------------------------------------------------------------------------


def beginnings_of(path: str, body: bytes, scope: str) -> tuple[int, ...]:
    """A number for each beginning of the prompt that a request asks for, the shortest first; none for a body
    that is not such a request.

    A beginning ends with a message, or within a long one after a whole number of blocks of `BLOCK` bytes. Two
    requests have a number in common if they begin alike, in whatever API, and have the same model and
    `scope`, since prefixes are kept for each. The order of a body's fields does not matter, nor do those that
    are not part of the prompt; a few that are (thoughts, names) are left out too: what begins almost alike
    may well go to one replica. The numbers are the same in every process. At most `MOST`: the first and the
    last ones. Never raises: what is wrong with a body, the replica says.

    Takes under 1 ms for 100 kB of text, 1 to 3 ms for 100 kB of token ids, tools, or very short messages, and
    up to 10 ms for each MB of a large body.
    """
    read = _READERS.get(path.rstrip("/"))
    if read is None:
        return ()
    try:
        asked = json.loads(body, object_hook=_without_marks)
        if not isinstance(asked, dict):
            return ()
        trail = _Trail(scope, asked.get("model"))
        read(asked, trail)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ()
    return trail.found()


def _without_marks(made: dict[str, Any]) -> dict[str, Any]:
    """Anthropic's clients move these marks on with every turn."""
    made.pop("cache_control", None)
    return made


class _Trail:
    """Hashes the parts of a prompt one after the other, and keeps the hash of each beginning."""

    def __init__(self, *key: object) -> None:
        self._hash = hashlib.blake2b(_canonical(key), digest_size=8)
        self._found: list[int] = []

    def add(self, kind: object, *contents: object) -> None:
        """A part of this kind, such as a role. What is None or empty is no part."""
        pieces = [piece for content in contents if content for piece in _pieces(content)]
        if not pieces:
            return
        self._hash.update(b"\0%b" % _canonical(kind))
        for piece in pieces:
            self._hash.update(b"\0")
            at = 0
            for end in _ends(len(piece)):
                self._hash.update(piece[at:end])
                self._mark()
                at = end
            self._hash.update(piece[at:])
        self._hash.update(b"\0")
        self._mark()

    def _mark(self) -> None:
        self._found.append(int.from_bytes(self._hash.digest(), "big"))

    def found(self) -> tuple[int, ...]:
        """What was found, shortest first."""
        if len(self._found) > MOST:
            return (*self._found[: MOST // 2], *self._found[-MOST // 2 :])
        return tuple(self._found)


def _ends(size: int) -> Sequence[int]:
    """Where blocks end in a text of `size` bytes; of a very long one the first and the last ones."""
    ends = range(BLOCK, size + 1, BLOCK)
    return ends if len(ends) <= MOST else (*ends[: MOST // 2], *ends[-MOST // 2 :])


def _pieces(content: object) -> Iterator[bytes]:
    """The texts of a content as bytes: of a text and of a list with that text as its only part the same."""
    if isinstance(content, bytes):
        yield content
        return
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text.encode("utf-8", "surrogatepass")
        elif part:
            yield _canonical(part)


_canon = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _canonical(value: object) -> bytes:
    return _canon(value).encode()


def _read_chat(asked: Mapping[str, Any], trail: _Trail) -> None:
    trail.add("tools", asked.get("tools"))
    _read_messages(asked.get("messages"), trail)


def _read_anthropic(asked: Mapping[str, Any], trail: _Trail) -> None:
    trail.add("tools", asked.get("tools"))
    trail.add("system", asked.get("system"))
    _read_messages(asked.get("messages"), trail)


def _read_responses(asked: Mapping[str, Any], trail: _Trail) -> None:
    trail.add("tools", asked.get("tools"))
    trail.add("system", asked.get("instructions"))
    given = asked.get("input")
    _read_messages([{"role": "user", "content": given}] if isinstance(given, str) else given, trail)


def _read_messages(messages: object, trail: _Trail) -> None:
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            role = message.get("role")
            said = (message.get(name) for name in ("content", "tool_calls", "arguments", "output"))
            trail.add("system" if role == "developer" else role, *said)


def _read_completion(asked: Mapping[str, Any], trail: _Trail) -> None:
    """Of several prompts the first."""
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    trail.add("prompt", array("q", prompt).tobytes() if isinstance(prompt, list) else prompt)


_READERS: Mapping[str, Callable[[Mapping[str, Any], _Trail], None]] = {
    "/v1/chat/completions": _read_chat,
    "/v1/messages": _read_anthropic,
    "/v1/responses": _read_responses,
    "/v1/completions": _read_completion,
}
