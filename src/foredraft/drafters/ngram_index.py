"""Index of the earlier occurrences of n-grams in a request's history, for the n-gram drafters.

The key of an n-gram t₁ … tₙ is the polynomial hash Σ (tᵢ + 1)·Bⁿ⁻ⁱ⁺¹ mod 2⁶⁴ (Karp and Rabin 1987), so a key
rolls to the next position in constant time, and numpy computes every key of a prompt in n passes. The last
token is multiplied too, because tables use a key's upper bits, which every token has to affect. Each position
links to the latest earlier position with the same key. These chains give the most recent occurrence and all
older ones without a search, and make removing text from the end as cheap as adding it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from foredraft.config import read_options
from foredraft.drafters.base import HistoryDrafter
from foredraft.errors import SpeculationStringError
from foredraft.protocols import RequestView
from foredraft.types import Draft, DraftLimit, Outcome

Keys: TypeAlias = npt.NDArray[np.uint64]

MASK = (1 << 64) - 1
BASE = 0x9E3779B97F4A7C15
"""Any odd number with well-spread bits; 2⁶⁴ divided by the golden ratio."""

LONGEST_MATCH = 64
"""Maximum tokens over which a match is measured; a longer match is no better evidence."""

BULK = 1024
"""From this many new tokens on, rebuilding with numpy is faster than adding them one by one."""

LARGEST_OPTION = 1024
"""Maximum n or m, in tokens: llama.cpp's own limit."""


def window_keys(tokens: Sequence[int], n: int) -> Keys:
    """The key of the n-gram ending at each position; the first n - 1 are keys of the shorter prefixes."""
    numbers = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
    keys = np.zeros(len(numbers), dtype=np.uint64)
    for back in range(min(n, len(numbers)) - 1, -1, -1):
        keys *= np.uint64(BASE)
        keys[back:] += numbers[: len(numbers) - back]
    return keys * np.uint64(BASE)


class NgramIndex:
    """All n-grams of one history. It reads the caller's token list and keeps no copy.

    Memory: 16 bytes a token and one dictionary entry per different n-gram, about 150 bytes a token if no
    n-gram repeats (15 MB at 100,000 tokens). Bounded by the context length.
    """

    __slots__ = ("_drop", "_earlier", "_keys", "_last", "_seen", "n")

    def __init__(self, n: int, tokens: Sequence[int] = ()) -> None:
        self.n = n
        self._drop = pow(BASE, n + 1, 1 << 64)
        self._build(tokens)

    def __len__(self) -> int:
        """Tokens of history covered."""
        return len(self._keys)

    def _build(self, tokens: Sequence[int]) -> None:
        first, size = self.n - 1, len(tokens)
        keys = window_keys(tokens, self.n)
        earlier = np.full(size, -1, dtype=np.int32)
        seen = np.zeros(size, dtype=np.int32)
        if size > first:
            order = np.argsort(keys[first:], kind="stable")
            ordered = keys[first:][order]
            repeats = np.concatenate(([False], ordered[1:] == ordered[:-1]))
            places = np.arange(len(order))
            group = np.maximum.accumulate(np.where(repeats, 0, places))
            seen[first + order] = places - group
            earlier[first + order[repeats]] = first + order[np.flatnonzero(repeats) - 1]
        self._keys = array("Q", keys.tobytes())
        self._earlier = array("i", earlier.tobytes())
        self._seen = array("i", seen.tobytes())
        self._last: dict[int, int] = dict(zip(keys[first:].tolist(), range(first, size), strict=True))

    def update(self, tokens: Sequence[int], kept: int) -> None:
        """Update the index: the history is now `tokens`, whose first `kept` are unchanged."""
        added = len(tokens) - kept
        if kept > len(self) or (added > BULK and 4 * added > kept):
            self._build(tokens)
            return
        self._truncate(kept)
        self._append(tokens)

    def _truncate(self, length: int) -> None:
        keys, earlier, last = self._keys, self._earlier, self._last
        for position in range(len(keys) - 1, max(length, self.n - 1) - 1, -1):
            before = earlier[position]
            if before < 0:
                del last[keys[position]]
            else:
                last[keys[position]] = before
        del keys[length:], earlier[length:], self._seen[length:]

    def _append(self, tokens: Sequence[int]) -> None:
        n, keys, earlier, seen, last = self.n, self._keys, self._earlier, self._seen, self._last
        key = keys[-1] if keys else 0
        for position in range(len(keys), len(tokens)):
            key = (key + tokens[position] + 1) * BASE
            if position >= n:
                key -= (tokens[position - n] + 1) * self._drop
            key &= MASK
            before = -1
            if position >= n - 1:
                before = last.get(key, -1)
                last[key] = position
            keys.append(key)
            earlier.append(before)
            seen.append(seen[before] + 1 if before >= 0 else 0)

    def count(self) -> int:
        """The number of earlier occurrences of the history's last n tokens."""
        return self._seen[-1] if self._keys else 0

    def recent(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Positions in `tokens` after earlier occurrences of the last n tokens: at most `limit`, the most
        recent first.
        """
        if len(self) < self.n:
            return []
        return self._walk(tokens, self._earlier[-1], tokens[-self.n :], limit)

    def after(self, tokens: Sequence[int], key: int, window: Sequence[int], limit: int) -> list[int]:
        """The same for any n-gram `window` with its key, whether or not the history ends with it."""
        position = self._last.get(key, -1)
        if position == len(tokens) - 1 and position >= 0:  # nothing follows it yet
            position = self._earlier[position]
        return self._walk(tokens, position, window, limit)

    def _walk(self, tokens: Sequence[int], position: int, window: Sequence[int], limit: int) -> list[int]:
        found: list[int] = []
        back, earlier = self.n - 1, self._earlier
        while position >= 0 and len(found) < limit:
            # The key is a hash: two n-grams may share one, so each is compared.
            if tokens[position - back : position + 1] == window:
                found.append(position + 1)
            position = earlier[position]
        return found


def copy_from(tokens: Sequence[int], position: int, length: int) -> list[int]:
    """`length` tokens of history from `position` on. At the end of the history the copy continues in itself,
    as in LZ77: a text that repeats every three tokens continues to repeat.
    """
    run = list(tokens[position : position + length])
    if len(run) < length:
        run = (run * (length // len(run) + 1))[:length]
    return run


def match_length(tokens: Sequence[int], position: int, known: int) -> int:
    """How many tokens before `position` equal the history's last ones, at least `known`."""
    length, end = known, len(tokens)
    while length < min(LONGEST_MATCH, position) and tokens[position - 1 - length] == tokens[end - 1 - length]:
        length += 1
    return length


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """Match the last `n` tokens, draft up to `m`, once they occurred `min_hits` times before."""

    n: int
    m: int
    min_hits: int


Propose: TypeAlias = Callable[[NgramIndex, Sequence[int], MatchOptions, int], Draft | None]
"""(index, history, options, maximum tokens) → a draft, if the history's last n tokens occurred before."""


class MatchDrafter(HistoryDrafter[NgramIndex]):
    """Drafts what followed earlier occurrences of the history's last n tokens, chosen by `propose`."""

    def __init__(self, name: str, options: MatchOptions, propose: Propose) -> None:
        super().__init__()
        self.name = name
        self.options = options
        self._propose = propose

    def build(self, request: RequestView) -> NgramIndex:
        return NgramIndex(self.options.n, request.tokens)

    def extend(self, state: NgramIndex, request: RequestView, outcome: Outcome) -> None:
        state.update(request.tokens, outcome.kept)

    def remove(self, state: NgramIndex, request: RequestView, outcome: Outcome) -> NgramIndex:
        if outcome.kept + len(outcome.tokens) != len(request.tokens):
            return self.build(request)
        state.update(request.tokens, outcome.kept)
        return state

    def propose(self, state: NgramIndex, request: RequestView, limit: DraftLimit) -> Draft | None:
        if state.count() < self.options.min_hits:
            return None
        return self._propose(state, request.tokens, self.options, min(self.options.m, limit.max_tokens))

    def size(self, state: NgramIndex) -> int:
        return len(state)


def match_drafter(name: str, options: Mapping[str, str], propose: Propose) -> MatchDrafter:
    """A MatchDrafter with options n=12, m=48, min-hits=1, llama.cpp's defaults.

    Raises SpeculationStringError.
    """
    return MatchDrafter(name, match_options(name, options), propose)


def match_options(name: str, options: Mapping[str, str]) -> MatchOptions:
    """The options of a stage. Raises SpeculationStringError."""
    values = read_options(name, options, {"n": 12, "m": 48, "min-hits": 1})
    check_range(name, values, "n", "m", "min-hits")
    return MatchOptions(values["n"], values["m"], values["min-hits"])


def check_range(name: str, values: Mapping[str, int], *keys: str) -> None:
    """Raises SpeculationStringError unless all of `keys` are in 1 … 1024."""
    for key in keys:
        if not 1 <= values[key] <= LARGEST_OPTION:
            raise SpeculationStringError(
                f"{name}: {key}={values[key]} is out of range.", hint=f"Use 1 to {LARGEST_OPTION}."
            )
