"""The texts of a vocabulary's control tokens, and where they stand in other texts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

Span = tuple[int, int]
"""The characters of a text from the first place up to the second."""

_PREFIX = 3
"""So much of a control token's text is looked for at once: few tokens of a vocabulary begin differently."""

_MOST = 128
"""Characters of a control token's text that is put together with its surroundings: all in use are shorter,
and its parts take the square of that. Longer ones are only looked for as a whole.
"""

_MOST_MARKS = 8
"""Marks at each end of a control token that may stand around a client's text."""

_MARKS = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)
_NOTHING = re.compile(r"(?!)")


class ControlTexts:
    """The texts that stand for control tokens where a tokenizer recognises them. `lstrip` and `rstrip`: those
    that also take the white space before or behind them.
    """

    def __init__(
        self, texts: Collection[str], *, lstrip: Collection[str] = (), rstrip: Collection[str] = ()
    ) -> None:
        self._texts = frozenset(filter(None, texts))
        self._lstrip, self._rstrip = frozenset(lstrip), frozenset(rstrip)
        short = [text for text in self._texts if len(text) <= _MOST]
        self._longest = max(map(len, short), default=0)
        self._lengths = _lengths(self._texts)
        self._begins = _any_of(self._lengths)
        self._firsts = _any_of(text[0] for text in self._texts)
        self._lasts = _any_of(text[-1] for text in self._texts)
        self._heads = {text[:length] for text in short for length in range(1, len(text))}
        self._tails = {text[length:] for text in short for length in range(1, len(text))}
        self._cores = {core for text in short for core in _cores(text)}

    def spans(self, text: str) -> Iterator[Span]:
        """Where control tokens are spelled, from left to right, the longest first."""
        place = 0
        while found := self._begins.search(text, place):
            place = found.start()
            spelled = (text[place : place + length] for length in self._lengths[found[0]])
            found_text = next((one for one in spelled if one in self._texts), "")
            if found_text:
                yield place, place + len(found_text)
            place += len(found_text) or 1

    def risky(self, text: str) -> list[Span]:
        """What of a text could be taken for a control token: what spells one, what one could begin or end
        with where this text meets another, and all of it where marks such as `<` around it would do.
        """
        if text in self._cores:
            return [(0, len(text))]
        ends = (found.end() for found in self._lasts.finditer(text, 0, self._longest))
        tails = [(0, end) for end in ends if text[:end] in self._tails]
        starts = (found.start() for found in self._firsts.finditer(text, max(0, len(text) - self._longest)))
        heads = [(start, len(text)) for start in starts if text[start:] in self._heads]
        return [*self.spans(text), *tails, *heads]

    def parts(self, text: str, literal: Sequence[Span]) -> Iterator[tuple[str, bool]]:
        """The text in parts to encode one by one, and whether control tokens are recognised in each: not in
        the spans of `literal`, which are in order, nor between them and the nearest control tokens outside.

        A part begins and ends where a control token does, as tokenizers cut a text themselves: so the tokens
        of the parts are those of the whole, if no span spells a control token.
        """
        outside = [span for span in self.spans(text) if not _meets(span, literal)]
        done = 0
        for before, after in pairwise([(0, 0), *outside, (len(text), len(text))]):
            gap = before[1], after[0]
            if _meets(gap, literal):
                yield text[done : gap[0]], True
                yield self._stripped(text, before, after), False
                done = gap[1]
        yield text[done:], True

    def _stripped(self, text: str, before: Span, after: Span) -> str:
        """What stands between two control tokens, without the white space that they take."""
        between = text[before[1] : after[0]]
        if text[slice(*before)] in self._rstrip:
            between = between.lstrip()
        return between.rstrip() if text[slice(*after)] in self._lstrip else between


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    different = sorted(set(texts), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, different))) if different else _NOTHING


def _lengths(texts: Collection[str]) -> dict[str, list[int]]:
    """How long the texts are that begin in each of the ways in which texts begin, the longest first."""
    found: dict[str, set[int]] = {text[:_PREFIX]: set() for text in texts}
    for text in texts:
        found[text[:_PREFIX]].add(len(text))
    for beginning, lengths in found.items():
        lengths.update(n for n in range(1, len(beginning)) if beginning[:n] in texts)
    return {beginning: sorted(lengths, reverse=True) for beginning, lengths in found.items()}


def _cores(text: str) -> Iterator[str]:
    """What is left of a control token's text without marks at both of its ends: `im_end` of `<|im_end|>`."""
    marks = _MARKS.fullmatch(text)
    assert marks is not None
    before, core, after = marks.groups()
    most_before, most_after = (min(len(side), _MOST_MARKS) for side in (before, after))
    for first in range(1, most_before + 1):
        for last in range(1, most_after + 1) if core else ():
            yield text[first : len(text) - last]


def _meets(span: Span, others: Sequence[Span]) -> bool:
    """Whether a span has a character of one of `others`, which are in order."""
    before = bisect_left(others, (span[1], -1))  # those that begin before its end
    return before > 0 and others[before - 1][1] > span[0]


NO_CONTROL_TEXTS = ControlTexts(())
