"""Assigns sequences to streams of KV cells, and moves them so that they share passes.

llama.cpp computes sequences in one pass over the weights if their streams are adjacent (passes.py). Requests
end at different times, and kept conversations stay in place, so decoding sequences become scattered: four
requests among sixteen streams take up to four passes. Two streams can exchange their content. That copies
cells and takes as long as a pass or two of a small model, so it is done once the additional passes have taken
as long (the rent-or-buy rule of Karlin et al. 1988, "Competitive Snoopy Caching": at most twice the time of
an optimal choice with knowledge of the future).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foredraft.backends.llamacpp.passes import count_passes

MOST_BYTES = 1 << 28
"""Cells that are moved at a time: all requests' streams wait for it, and it is copied in memory."""

_BYTES_PER_MS = 1_000_000.0
"""Initial estimate of the speed of moving cells."""


class Streams:
    """The stream of each sequence, initially the one with its number."""

    def __init__(self, count: int) -> None:
        self.of = list(range(count))
        self._holds = list(range(count))
        self._lost_ms = 0.0
        self._bytes_per_ms = _BYTES_PER_MS

    def holds(self, stream: int) -> int:
        """The sequence in a stream."""
        return self._holds[stream]

    def rows(self, rows: Mapping[int, int]) -> dict[int, int]:
        """Rows by sequence as rows by stream."""
        return {self.of[seq]: count for seq, count in rows.items()}

    def scattered(self, sequences: Sequence[int]) -> bool:
        """Whether their streams are not adjacent."""
        streams = [self.of[seq] for seq in sequences]
        return max(streams) - min(streams) + 1 > len(streams)

    def exchanges(self, sequences: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
        """The pairs of streams to exchange so that these sequences' streams are adjacent; of all
        possibilities the one that moves the fewest cells. `lengths`: the cells of each sequence.
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
        """The number of cells in the pairs."""
        return sum(lengths[self._holds[stream]] for pair in pairs for stream in pair)

    def pays(self, size: float) -> bool:
        """Whether the lost time has reached the time for moving this many bytes."""
        return size <= MOST_BYTES and self._lost_ms * self._bytes_per_ms >= size

    def took(self, rows: Mapping[int, int], pass_ms: float) -> None:
        """Learn from an unpadded forward with these rows by sequence; a pass takes `pass_ms`."""
        streams = self.rows(rows)
        least = count_passes({i: streams[stream] for i, stream in enumerate(sorted(streams))})
        self.lost((count_passes(streams) - least) * pass_ms)

    def lost(self, ms: float) -> None:
        """Add time that was lost because sequences were scattered."""
        self._lost_ms += ms

    def exchange(self, a: int, b: int) -> None:
        """Record that the streams `a` and `b` have exchanged their sequences."""
        held = self._holds
        held[a], held[b] = held[b], held[a]
        self.of[held[a]], self.of[held[b]] = a, b

    def moved(self, size: float, ms: float) -> None:
        """Learn how long moving this many bytes took. The count of lost time restarts."""
        self._lost_ms = 0.0
        if size and ms > 0.0:
            self._bytes_per_ms = size / ms
