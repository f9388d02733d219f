"""Which stream of KV cells holds which sequence, and when sequences change places.

llama.cpp computes those sequences in one pass over the weights whose streams follow one another (passes.py).
Requests end at different times, and kept conversations stay where they are, so what decodes together is
scattered after a while: four requests among sixteen streams are up to four passes. Two streams can exchange
what they hold. That copies cells and takes as long as a pass or two of a small model, so it is done once the
passes too many have taken as long (the rent-or-buy rule of Karlin et al. 1988, "Competitive Snoopy Caching":
never more than twice the time of who knows what is coming).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foredraft.backends.llamacpp.passes import count_passes

MOST_BYTES = 1 << 28
"""Cells that are moved at a time: the streams of all requests wait for it, and it is copied in memory."""

_BYTES_PER_MS = 1_000_000.0
"""How fast cells move, until it was measured."""


class Streams:
    """The stream of each sequence, at first the one of its number."""

    def __init__(self, count: int) -> None:
        self.of = list(range(count))
        self._holds = list(range(count))
        self._lost_ms = 0.0
        self._bytes_per_ms = _BYTES_PER_MS

    def holds(self, stream: int) -> int:
        """The sequence of a stream."""
        return self._holds[stream]

    def rows(self, rows: Mapping[int, int]) -> dict[int, int]:
        """Rows of sequences as rows of their streams."""
        return {self.of[seq]: count for seq, count in rows.items()}

    def scattered(self, sequences: Sequence[int]) -> bool:
        """Whether their streams do not follow one another."""
        streams = [self.of[seq] for seq in sequences]
        return max(streams) - min(streams) + 1 > len(streams)

    def exchanges(self, sequences: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
        """The pairs of streams that exchange what they hold so that these sequences' follow one another; of
        all ways the one that moves the fewest cells. `lengths`: the cells of each sequence.
        """
        streams = sorted(self.of[seq] for seq in sequences)
        ways: list[tuple[int, list[tuple[int, int]]]] = []
        for first in range(len(self.of) - len(streams) + 1):
            window = range(first, first + len(streams))
            outside = [stream for stream in streams if stream not in window]
            holes = [stream for stream in window if stream not in streams]
            pairs = list(zip(outside, holes, strict=True))
            ways.append((self.cells(pairs, lengths), pairs))
        return min(ways)[1]

    def cells(self, pairs: Sequence[tuple[int, int]], lengths: Sequence[int]) -> int:
        """How many cells the pairs hold."""
        return sum(lengths[self._holds[stream]] for pair in pairs for stream in pair)

    def pays(self, size: float) -> bool:
        """Whether as much time was lost as moving so many bytes will take."""
        return size <= MOST_BYTES and self._lost_ms * self._bytes_per_ms >= size

    def took(self, rows: Mapping[int, int], pass_ms: float) -> None:
        """A forward with so many rows of each sequence was computed as it is; a pass takes so long."""
        streams = self.rows(rows)
        least = count_passes({i: streams[stream] for i, stream in enumerate(sorted(streams))})
        self.lost((count_passes(streams) - least) * pass_ms)

    def lost(self, ms: float) -> None:
        """So much time went into what was scattered."""
        self._lost_ms += ms

    def exchange(self, a: int, b: int) -> None:
        """The streams `a` and `b` hold each other's sequence now."""
        held = self._holds
        held[a], held[b] = held[b], held[a]
        self.of[held[a]], self.of[held[b]] = a, b

    def moved(self, size: float, ms: float) -> None:
        """Moving so many bytes has taken so long. What is lost is counted anew."""
        self._lost_ms = 0.0
        if size and ms > 0.0:
            self._bytes_per_ms = size / ms
