"""Where a forward may end among the images of a prompt, and which images a model can see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from foredraft.errors import RequestError
from foredraft.images import Image, ImageSpan, PreparedImage
from foredraft.protocols import Vision
from foredraft.types import Capabilities

BLIND_HINT = "Use a vision model. A GGUF also needs its vision encoder, a file mmproj-….gguf (--mmproj)."
"""What to do where a model does not see."""


def fitting(images: Sequence[ImageSpan], chunk: int, start: int, count: int, room: int) -> int:
    """How many tokens from `start` on a forward takes of which `count` were meant for it, so that it cuts
    images only where their chunks end; more than `count`, up to `room`, where a chunk has more. 0: the
    next chunk has no room in this forward.
    """
    end = start + count
    cut = next((span for span in images if span.start < end < span.end), None)
    if cut is None:
        return count
    size = chunk or cut.rows
    before = cut.start + (end - cut.start) // size * size
    if before > start:
        return before - start
    whole = min(before + size, cut.end) - start
    return whole if whole <= room else 0


def least(images: Sequence[ImageSpan], chunk: int, start: int) -> int:
    """How many rows a forward must have room for to go on with a text from `start`."""
    for span in images:
        if span.start <= start < span.end:
            size = chunk or span.rows
            return min(span.start + ((start - span.start) // size + 1) * size, span.end) - start
    return 1


def check_rows(images: Sequence[ImageSpan], vision: Vision | None, capabilities: Capabilities) -> None:
    """Raises RequestError for images that the model cannot see, or not in one forward."""
    if not images:
        return
    if vision is None:
        raise RequestError(
            "This model does not see images.", hint=BLIND_HINT, setting=images[0].where or None
        )
    largest = max(images, key=lambda span: span.rows)
    most = largest.rows
    if min(vision.chunk or most, most) > capabilities.max_batch - capabilities.sequences:
        raise RequestError(
            f"An image takes {most} rows, and this model computes an image in one forward; a forward has "
            f"{capabilities.max_batch}.",
            hint="Make the image smaller.",
            setting=largest.where or None,
        )


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Errors of the request are those of this part (`ConfigError.setting`); "": no part is known."""
    try:
        yield
    except RequestError as error:
        error.setting = where or error.setting
        raise


def unseen(images: Sequence[ImageSpan]) -> Mapping[str, Image]:
    """The pictures among them whose rows have not been encoded, each once, by their keys."""
    return {span.image.key: span.image.image for span in images if span.image.image is not None}


def with_rows(images: Sequence[ImageSpan], prepared: Mapping[str, PreparedImage]) -> tuple[ImageSpan, ...]:
    """The same with those that were prepared, by their keys, in the places of `unseen` ones."""
    return tuple(replace(span, image=prepared.get(span.image.key, span.image)) for span in images)
