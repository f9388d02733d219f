"""What a draft is scored on: passages of texts, so short that a model's logits of a whole one can be held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LENGTH = 128
"""Tokens of a passage that are scored. Their logits are in memory at once: 25 MB for 49,152 tokens, 134 MB
for 262,144."""

DEPTHS = 8
"""The longest draft that is scored, in tokens."""

LEAD = 256
"""Tokens of a text that are read before the scored ones, at most."""

SHORTEST = 2
"""Tokens that come before the first that a head can draft: its rows are about pairs of tokens."""

LEAST_LEAD = 8
"""Tokens at the beginning of a text that are only read: there is little that a model could go by."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Drafts begin at the positions `first` to `end` - 1 of `tokens`, which go on for `DEPTHS` tokens after
    that, if the text does. `temperature` and `seed` are those with which the target chooses.

    `opens`: `first` is the beginning of an answer, whose first token comes with the prompt's forward and is
    not drafted. `cut`: the text was cut off at the end of `tokens`, where no draft reaches the last one.
    """

    tokens: tuple[int, ...]
    first: int
    end: int
    temperature: float = 0.0
    seed: int = 0
    opens: bool = False
    cut: bool = False

    @property
    def scored(self) -> int:
        """Positions at which drafts may begin."""
        return self.end - self.first

    def room(self, start: int) -> int:
        """The longest draft at a position, in tokens."""
        return max(0, min(DEPTHS, len(self.tokens) - start - self.cut))


def of_answer(
    prompt: Sequence[int], answer: Sequence[int], *, temperature: float, seed: int, cut: bool
) -> Iterator[Passage]:
    """The passages of an answer, which was `cut` off at its limit or ended by itself."""
    tokens = (*prompt, *answer)
    start = max(len(prompt), SHORTEST)
    for first in range(start, len(tokens), LENGTH):
        end = min(first + LENGTH, len(tokens))
        upto = min(end + DEPTHS, len(tokens))
        whole = upto == len(tokens)
        yield Passage(tokens[:upto], first, end, temperature, seed, first == len(prompt), whole and cut)


def of_text(
    tokens: Sequence[int], *, temperature: float, seed: int, room: int, begin: int = 0
) -> Iterator[Passage]:
    """The passages of a text, or of what comes after its first `begin` tokens; each is read with up to `LEAD`
    tokens before it, and has at most `room` tokens in all. Positions, of which the noise is a function, are
    those within a passage.
    """
    length = max(1, min(LENGTH, room // 2))
    lead = max(1, min(LEAD, room - length - DEPTHS))
    for first in range(max(begin, LEAST_LEAD), len(tokens), length):
        end = min(first + length, len(tokens))
        start = max(0, first - lead)
        yield Passage(tuple(tokens[start : end + DEPTHS]), first - start, end - start, temperature, seed)
