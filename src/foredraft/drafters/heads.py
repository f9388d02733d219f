"""`heads`: drafts by a trained head of the target: EAGLE-3 (Li et al. 2025, arXiv 2503.01840), layers for
multi-token prediction (DeepSeek-V3, arXiv 2412.19437 §2.2), block diffusion (DFlash, Chen, Liang and Liu
2026, arXiv 2602.06036).

A head reads the target's hidden states (features), which come with every forward. It is fed only when a draft
is requested (`stepwise`): until then the features of the last `window` rows of each request wait here. So a
head begins at most `window` tokens back, and after a prefix whose cells came from a cache. A head whose rows
see only themselves needs one row, which is left with the target until a draft is requested.

Its row for token n is the pair (token n, features of token n - 1) and predicts token n + 1, or a block of
tokens after n. The rows of a draft, which go on from the head's own hidden states, are dropped when the draft
is made.

Rows of images are not read: their tokens are placeholders, and with M-RoPE they are at positions of several
dimensions. So a head begins behind the last image, where rows follow one another as those of any text.

Memory: `window` rows of features for each request (512 rows of an 8B model's three layers: 25 MB; half
precision would take half of that, and five times as long to copy), and the head's own cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from foredraft.config import checked_by, read_options
from foredraft.drafters.stepwise import CHAIN, SECONDS, TREE, Chunk, Sequences, StepwiseDrafter
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, Head, RequestView, TokenSampler
from foredraft.types import MAX_DRAFT_TOKENS, Draft, DraftLimit, Features, HeadRows, Logits, Outcome

NAME = "heads"

ROWS = 64
"""Rows of all requests together in one forward of the head."""

Columns: TypeAlias = npt.NDArray[np.intp]


def _read(options: Mapping[str, str]) -> dict[str, Any]:
    values = read_options(NAME, options, {"model": "", "max": 8, "min-p": 0.0, "window": 512})
    if not 1 <= values["max"] <= MAX_DRAFT_TOKENS:
        raise SpeculationStringError(f"{NAME}: max={values['max']} is not between 1 and {MAX_DRAFT_TOKENS}.")
    if values["window"] < 1:
        raise SpeculationStringError(f"{NAME}: window={values['window']} must be at least 1.")
    if not 0.0 <= values["min-p"] <= 1.0:
        raise SpeculationStringError(f"{NAME}: min-p={values['min-p']} must be between 0 and 1.")
    return values


@checked_by(_read)
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
    """Create the drafter. Options: `model` (path or name of the head; empty: the one that belongs to the
    target), `max` tokens per draft (1 to 63), `min-p` (stop before a token with a lower probability),
    `window` (rows of features that are kept for each request).

    Raises SpeculationStringError for an invalid value, and the errors of loading the head.
    """
    values = _read(options)
    able = context.capabilities
    head = context.load_head(values["model"], sequences=able.sequences)
    return HeadsDrafter(
        head,
        context.sampler,
        columns=_columns(head.needs, able.features, able.feature_size),
        max_tokens=values["max"],
        min_p=values["min-p"],
        window=values["window"],
        end_tokens=context.tokenizer.end_tokens,
        trees=able.trees,
    )


def _columns(needs: Sequence[str], features: Sequence[str], size: int) -> Columns | None:
    """The columns of the target's features that a head reads; None for all of them in their order."""
    if tuple(needs) == tuple(features):
        return None
    return np.concatenate([np.arange(size) + size * features.index(name) for name in needs])


def behind_images(request: RequestView) -> int:
    """The position after the last row of an image in a request's text; 0 without images."""
    return max((span.end for span in request.images), default=0)


class _Kept:
    """The features of the last `window` rows of a text, rows `first` to `end` - 1, and their tokens."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._rows: Features | None = None
        self.first = 0
        self.tokens: list[int] = []

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    def add(self, start: int, tokens: Sequence[int], rows: Features) -> None:
        """Keep the rows of tokens from position `start` on. Rows that do not follow those that are kept are
        the new beginning.
        """
        self.cut(start)
        if start != self.end:
            self.first, self.tokens = start, []
        passed = max(0, len(tokens) - self._window)
        if self._rows is None:
            self._rows = np.empty((self._window, rows.shape[1]), np.float32)
        for at, count in self._places(start + passed, start + len(tokens)):
            self._rows[at : at + count] = rows[passed : passed + count]
            passed += count
        self.tokens += tokens
        surplus = len(self.tokens) - self._window
        if surplus > 0:
            self.first += surplus
            del self.tokens[:surplus]

    def cut(self, end: int) -> None:
        """Drop the rows from position `end` on."""
        if end < self.end:
            del self.tokens[max(0, end - self.first) :]

    def agreed(self, tokens: Sequence[int], start: int) -> int:
        """The first position from `start` on whose token is not that of `tokens`; `end` if there is none."""
        for position in range(max(start, self.first), self.end):
            if position >= len(tokens) or tokens[position] != self.tokens[position - self.first]:
                return position
        return self.end

    def features(self, start: int, end: int) -> Features:
        """Of rows `start` to `end` - 1."""
        assert self._rows is not None
        return np.concatenate([self._rows[at : at + count] for at, count in self._places(start, end)])

    def _places(self, start: int, end: int) -> list[tuple[int, int]]:
        """Where at most `window` rows are, and how many there, as they follow one another."""
        first = start % self._window
        before = min(end - start, self._window - first)
        after = end - start - before
        return [(first, before), (0, after)] if after else [(first, before)]


@dataclass(slots=True)
class _Text:
    """A request: the features that are kept, and the position after the last row that the head has of its
    text. `drafting`: the head also has rows of a draft.
    """

    kept: _Kept
    read: int = 0
    drafting: bool = False


class HeadsDrafter(StepwiseDrafter):
    """Drafts with `head`, which it owns, on `columns` of the target's features (all by default). `window`:
    rows of features kept for each request. `trees`: the target verifies trees.
    """

    name = NAME

    def __init__(
        self,
        head: Head,
        sampler: TokenSampler,
        *,
        end_tokens: frozenset[int],
        columns: Columns | None = None,
        max_tokens: int = 8,
        min_p: float = 0.0,
        window: int = 512,
        trees: bool = False,
    ) -> None:
        wide = TREE if head.trees else SECONDS
        super().__init__(
            sampler,
            end_tokens,
            rows=ROWS,
            max_tokens=max_tokens,
            min_p=min_p,
            width=wide if trees else CHAIN,
            block=head.block,
        )
        self._head = head
        self.parameters = head.info.parameters
        self.at_once = bool(head.block)
        self._columns = columns
        self._window = min(window, head.window) if head.window else window
        self.reads = self._window
        self._sequences = Sequences(head.sequences)
        self._texts: dict[int, _Text] = {}
        self._asked: set[int] = set()
        """The requests that are drafted for at the moment."""

    def start(self, request: RequestView) -> None:
        self._texts[request.id] = _Text(_Kept(self._window))

    def absorb(self, request: RequestView, start: int, features: Features) -> None:
        """Keep the target's features of rows that were kept (protocols.Drafter)."""
        text = self._texts[request.id]
        if start < text.kept.end:  # read again, after a preemption or with other tokens
            self._cut(request, text, start)
        tokens = request.tokens[start : start + len(features)]  # an answer may end within an accepted draft
        if tokens:
            passed = max(0, len(tokens) - self._window)  # they could not stay
            rows = features[passed : len(tokens)]
            wanted = rows if self._columns is None else rows[:, self._columns]
            text.kept.add(start + passed, tokens[passed:], wanted)

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        text = self._texts[request.id]
        text.kept.cut(text.kept.agreed(request.tokens, outcome.kept))  # its rows came before this call
        if outcome.kept < text.read:  # text was removed since the head read it
            self._cut(request, text, outcome.kept)

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        self._asked = {request.id for request, _ in requests}
        drafts = super().draft(requests)
        for request, _ in requests:
            self._cut(request, self._texts[request.id], len(request.tokens))
        return drafts

    def stop(self, request: RequestView) -> None:
        self._texts.pop(request.id, None)
        number = self._sequences.give_back(request.id)
        if number is not None:
            self._head.release(number)

    def close(self) -> None:
        self._texts.clear()
        self._head.close()

    def _begin(self, request: RequestView) -> tuple[int, int, int] | None:
        text, last = self._texts[request.id], len(request.tokens) - 1
        text.kept.cut(last)
        # The last of d draft tokens is never fed.
        room = self._head.info.context_length - last
        if room < 1 or not text.kept.tokens or text.kept.end != last:
            return None
        number = self._sequences.take(request.id)
        if number is None:
            number = self._taken_over(request)
        if number is None:
            return None
        self._cut(request, text, last)  # its row is fed again where the head has it: the logits are gone
        least = max(text.kept.first + 1, behind_images(request))
        if text.read < least:  # what lies between is not kept, or not to be read
            self._head.release(number)
            text.read = least
        return number, text.read, room

    def _taken_over(self, request: RequestView) -> int | None:
        """The sequence of the request that was drafted for longest ago: a preempted one keeps its own until
        it stops. None if all are those of requests that are drafted for now.
        """
        other = self._sequences.longest_unused(self._asked)
        freed = None if other is None else self._sequences.give_back(other)
        if other is None or freed is None:
            return None
        self._head.release(freed)
        self._texts[other].read, self._texts[other].drafting = 0, False
        return self._sequences.take(request.id)

    def _cut(self, request: RequestView, text: _Text, length: int) -> None:
        """Drop the head's rows of tokens from position `length` on, and those of a draft."""
        number = self._sequences.of(request.id)
        if number is None or (length >= text.read and not text.drafting):
            return
        self._head.truncate(number, length)
        text.drafting, text.read = False, min(text.read, length)

    def _feed(self, chunks: Sequence[Chunk]) -> Logits:
        logits = self._head.forward([self._rows_of(chunk) for chunk in chunks])
        for job, start, tokens, _, _ in chunks:
            text = self._texts[job.request.id]
            if job.reading:
                text.read = start + len(tokens)
            else:
                text.drafting = True
        return logits

    def _rows_of(self, chunk: Chunk) -> HeadRows:
        job, start, tokens, wanted, parents = chunk
        if job.reading:
            kept = self._texts[job.request.id].kept
            return HeadRows(
                job.number, start, tokens, kept.features(start - 1, start - 1 + len(tokens)), wanted
            )
        return HeadRows(job.number, start, tokens, None, wanted, parents if self._head.trees else None)
