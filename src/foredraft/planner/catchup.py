"""What a drafter must read before it can draft, and whether the rest of the answer is worth that.

A draft model reads a request's history when it is first asked, and what it missed when it was not asked for
a while. For a long prompt that costs as much as many rounds, and a short answer never earns it back.
"""

from __future__ import annotations

from collections import deque

from foredraft.planner.tables.window import median
from foredraft.protocols import RequestView

CHUNK = 64
"""Tokens that are read in about one step."""

SKIPPED = 32
"""As many unread tokens are no catching up: a long accepted draft leaves that many."""

KEPT = 32


class Answers:
    """How long answers have been, in tokens."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=KEPT)

    def ended(self, request: RequestView) -> None:
        self._lengths.append(_written(request))

    def remaining(self, request: RequestView) -> float:
        """How many tokens are likely to follow. Unless longer answers were seen: as many again as there are,
        which is right for lengths of any scale.
        """
        written = _written(request)
        longer = [length - written for length in self._lengths if length > written]
        # Answers that ended before this point say nothing about what follows it, but a single outlier must
        # not speak for all.
        expected = sum(longer) / len(longer) if len(longer) > 1 else float(written)
        most = request.params.max_tokens
        return expected if most is None else min(expected, max(0, most - written))


class CatchUp:
    """One drafter's reading: what it has read of which request, and what a chunk costs in plain rounds."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}
        self._taken: deque[tuple[float, int, int]] = deque(maxlen=7)

    def behind(self, request: RequestView) -> bool:
        """Whether it would have to catch up to draft for this request."""
        return len(request.tokens) - self._read.get(request.id, -SKIPPED) > SKIPPED

    def cost(self, request: RequestView, token_cost: float) -> float:
        """Of catching up, in plain rounds; 0 while never measured. `token_cost`: of a drafted token."""
        if not self._taken or not self.behind(request):
            return 0.0
        # The first readings are measured before it is known how much of them was drafting.
        costs = [max(0.0, cost - tokens * token_cost) / chunks for cost, tokens, chunks in self._taken]
        return median(costs) * self._chunks(request.id, len(request.tokens))

    def asked(self, request: int, length: int) -> int:
        """It has now read the request's first `length` tokens. Returns how many chunks that was."""
        chunks = self._chunks(request, length)
        self._read[request] = length
        return chunks

    def took(self, cost: float, tokens: int, chunks: int) -> None:
        """Reading `chunks` chunks and drafting `tokens` tokens took `cost` plain rounds."""
        self._taken.append((cost, tokens, chunks))

    def forget(self, request: int) -> None:
        self._read.pop(request, None)

    def _chunks(self, request: int, length: int) -> int:
        return max(1, -(-(length - self._read.get(request, 0)) // CHUNK))


def _written(request: RequestView) -> int:
    return len(request.tokens) - request.prompt_length
