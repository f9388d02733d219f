"""The texts of a vocabulary's control tokens, and their occurrences in other texts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

Span = tuple[int, int]
"""The characters of a text from the first position up to the second."""

_PREFIX = 3
"""Length of the prefix of control texts that is searched first: few tokens of a vocabulary share one."""

_MOST = 128
"""Maximum length of control texts whose parts are considered: all in use are shorter, and the number of parts
grows with the square of the length. Longer ones are only searched as a whole.
"""

_MOST_MARKS = 8
"""Characters at both ends of a control token that a template may write around a client's text."""

_MARKS = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)
_NOTHING = re.compile(r"(?!)")


class ControlTexts:
    """The texts that a tokenizer recognises as control tokens. `lstrip` and `rstrip`: those that also consume
    the white space before or after them.
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
        """Occurrences of control tokens, from left to right, the longest first."""
        place = 0
        while found := self._begins.search(text, place):
            place = found.start()
            spelled = (text[place : place + length] for length in self._lengths[found[0]])
            found_text = next((one for one in spelled if one in self._texts), "")
            if found_text:
                yield place, place + len(found_text)
            place += len(found_text) or 1

    def risky(self, text: str) -> list[Span]:
        """Parts of a text that could be read as a control token: occurrences, ends that could complete one
        together with adjacent text, and all of the text if characters such as `<` around it would.
        """
        if text in self._cores:
            return [(0, len(text))]
        ends = (found.end() for found in self._lasts.finditer(text, 0, self._longest))
        tails = [(0, end) for end in ends if text[:end] in self._tails]
        starts = (found.start() for found in self._firsts.finditer(text, max(0, len(text) - self._longest)))
        heads = [(start, len(text)) for start in starts if text[start:] in self._heads]
        return [*self.spans(text), *tails, *heads]

    def parts(self, text: str, literal: Sequence[Span]) -> Iterator[tuple[str, bool]]:
        """Split the text into parts to encode separately, each with whether control tokens are recognised in
        it: not in the spans of `literal`, which are in order, nor between them and the nearest control tokens
        outside.

        A part starts and ends at a control token, where tokenizers split text themselves, so the parts'
        tokens are those of the whole text if no span contains a control token.
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
        """The text between two control tokens, without the white space that they consume."""
        between = text[before[1] : after[0]]
        if text[slice(*before)] in self._rstrip:
            between = between.lstrip()
        return between.rstrip() if text[slice(*after)] in self._lstrip else between


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    different = sorted(set(texts), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, different))) if different else _NOTHING


def _lengths(texts: Collection[str]) -> dict[str, list[int]]:
    """The lengths of the texts by their prefixes, the longest first."""
    found: dict[str, set[int]] = {text[:_PREFIX]: set() for text in texts}
    for text in texts:
        found[text[:_PREFIX]].add(len(text))
    for beginning, lengths in found.items():
        lengths.update(n for n in range(1, len(beginning)) if beginning[:n] in texts)
    return {beginning: sorted(lengths, reverse=True) for beginning, lengths in found.items()}


def _cores(text: str) -> Iterator[str]:
    """A control token's text without the marks at both of its ends: `im_end` of `<|im_end|>`."""
    marks = _MARKS.fullmatch(text)
    assert marks is not None
    before, core, after = marks.groups()
    most_before, most_after = (min(len(side), _MOST_MARKS) for side in (before, after))
    for first in range(1, most_before + 1):
        for last in range(1, most_after + 1) if core else ():
            yield text[first : len(text) - last]


def _meets(span: Span, others: Sequence[Span]) -> bool:
    """Whether a span overlaps one of `others`, which are in order."""
    before = bisect_left(others, (span[1], -1))  # those that start before its end
    return before > 0 and others[before - 1][1] > span[0]


NO_CONTROL_TEXTS = ControlTexts(())
