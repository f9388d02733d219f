"""Chunked prefill: how many rows of prompts a forward computes, and of which prompts.

The more rows a forward has the longer it takes, and every stream waits for it. So prompts are computed in
chunks while other requests decode, as in Sarathi-Serve (Agrawal et al. 2024, arXiv 2403.02310).
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.engine.request import Request

PREFILL_ROWS = 64
"""The most rows of all prompts together in a forward that also decodes.

This bounds the delay between two tokens of a stream, however long new prompts are: it is never longer than
one forward over `PREFILL_ROWS` rows, one row for each decoding request, and the drafts.
"""

FORWARD_MS = 150.0
"""Milliseconds that the prompts in such a forward may take. On a CPU 64 rows of a 135M model take 400 ms at
the end of a long context, and of a 7B model more than a second."""

MIN_ROWS = 8
"""Fewer rows hardly make a forward shorter, and every forward reads all weights."""

SCORED_ROWS = 32
"""Rows of all prompts together in a forward that return logits, for scoring.

Each is as long as the vocabulary: at 150,000 tokens 32 take 19 MB, and summing them up delays the streams by
about a round of decoding.
"""


class PromptRows:
    """The most rows of prompts in a forward: as many as fit in `FORWARD_MS`, judged by the last one."""

    def __init__(self) -> None:
        self._most = PREFILL_ROWS

    def most(self, room: int, *, decoding: bool) -> int:
        """The most rows of prompts in a forward that has room for `room`; `decoding`: it also decodes."""
        return min(self._most, room) if decoding else room

    def learn(self, rows: int, ms: float) -> None:
        """Learn from a forward that also decoded: its `rows` rows of prompts took `ms` milliseconds, their
        share by rows.
        """
        if rows < self._most and ms <= FORWARD_MS:
            return  # the end of a prompt: no measure of more rows
        fitting = PREFILL_ROWS if ms <= 0 else int(rows * FORWARD_MS / ms)
        self._most = min(max(fitting, MIN_ROWS), PREFILL_ROWS)


def share(prompts: Sequence[Request], rows: int, max_rows: int) -> list[tuple[Request, int]]:
    """(request, rows of its prompt) for a forward with room for `rows`, in the order of `prompts`.

    Half goes to the prompt whose turn it is, so that none starves. The rest goes to those with the least left
    to compute, so that a short prompt does not wait behind a long one; prompts of about one length follow one
    another, because computing them side by side would delay all of them. Requests of a lower priority get
    what the others leave. Those that are scored share `SCORED_ROWS`.
    """
    if not prompts or rows <= 0:
        return []
    first = min(prompts, key=Request.turn)
    shortest = sorted(prompts, key=lambda request: (-request.priority, request.pending, request.id))
    chunks = {request.id: _chunk(request, max_rows) for request in prompts}
    given = dict.fromkeys(chunks, 0)
    left, scored = rows, SCORED_ROWS
    for request, most in [(first, (rows + 1) // 2), *((request, rows) for request in shortest)]:
        more = min(chunks[request.id] - given[request.id], most, left)
        if request.scoring:
            more = min(more, scored)
            scored -= more
        given[request.id] += more
        left -= more
    return [(request, given[request.id]) for request in prompts if given[request.id]]


def _chunk(request: Request, max_rows: int) -> int:
    """The most rows of one request. What it generated before it was preempted is recomputed in at most the
    number of rows that the backend is known to compute as it decodes. So is a prompt that is scored: its
    numbers are those of decoding it.
    """
    prompt = request.view.prompt_length - request.computed
    if request.scoring:
        return min(prompt, max_rows)
    return prompt if prompt > 0 else min(request.pending, max_rows)
