"""Images: pixels, what they become in a prompt, and what a text with them is known by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import shake_256
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_NEGATIVE = np.int32(-(1 << 31))


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture as a model sees it: `pixels` has shape (height, width, 3), red, green and blue, 0 to 255.
    `where`: the part of a request that it came with, which errors name.
    """

    pixels: npt.NDArray[np.uint8]
    where: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """What an image becomes in a prompt (`protocols.Vision.lay_out`, and with its rows `prepare`).

    `tokens` stand in its place: the model's placeholder for each of its rows, and the tokens around and
    between them that mark it. `runs` says which of `tokens` are rows: (first, how many), in order; an image
    that is cut into tiles has several. `key` identifies the rows: it is a hash of the pixels and of whatever
    else they depend on. `data` is the backend's: the rows. `image` is the picture as long as these have not
    been encoded; a model computes none of them.
    """

    key: str
    tokens: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    data: object = None
    image: Image | None = None

    @property
    def rows(self) -> int:
        """How many of the tokens are rows."""
        return sum(count for _, count in self.runs)


@dataclass(frozen=True, slots=True, eq=False)
class ImageSpan:
    """Consecutive rows of a prompt that are those of one run of an image: `rows` of them, of which the first
    is token `start` of the text. They are the rows of run `run` of the image from its row `first` on: that is
    0 unless a forward's chunk has cut the run. `where` as in `Image`.
    """

    start: int
    rows: int
    image: PreparedImage
    run: int = 0
    first: int = 0
    where: str = ""

    @property
    def end(self) -> int:
        """The token of the text after its last row."""
        return self.start + self.rows


class EncodedPrompt(NamedTuple):
    """A prompt as token ids, in which every row of an image is the model's placeholder, and the runs of its
    images, in order.
    """

    tokens: list[int]
    images: tuple[ImageSpan, ...] = ()

    def then(self, tokens: Sequence[int]) -> EncodedPrompt:
        """The same prompt with more tokens at its end."""
        return EncodedPrompt([*self.tokens, *tokens], self.images)


def row_keys(image: PreparedImage, run: int) -> list[int]:
    """A number for each row of a run of an image: negative, of 32 bits, and alike only for the same row of
    the same image. No token id is negative. Those of first rows are odd, the others even.
    """
    _, count = image.runs[run]
    digest = shake_256(f"{image.key}/{run}".encode()).digest(4 * count)
    keys = (np.frombuffer(digest, "<i4") & ~1) | _NEGATIVE
    keys[0] |= 1
    found: list[int] = keys.tolist()
    return found


def keyed(tokens: Sequence[int], images: Sequence[ImageSpan]) -> Sequence[int]:
    """The tokens with every row of an image replaced by its key: what a cache of prefixes knows a text by."""
    if not images:
        return tokens
    keys = list(tokens)
    for span in images:
        keys[span.start : span.end] = row_keys(span.image, span.run)[span.first : span.first + span.rows]
    return keys


def before_run(keys: Sequence[int], length: int) -> int:
    """The longest beginning of keyed tokens, of at most `length`, after which no run of an image goes on."""
    while 0 < length < len(keys) and keys[length] < 0 and not keys[length] & 1:
        length -= 1
    return length


def spans_within(images: Sequence[ImageSpan], start: int, end: int) -> tuple[ImageSpan, ...]:
    """The rows of images among the tokens from `start` to before `end`."""
    found = []
    for span in images:
        first, last = max(span.start, start), min(span.end, end)
        if first < last:
            cut = first - span.start
            found.append(replace(span, start=first, rows=last - first, first=span.first + cut))
    return tuple(found)
