"""Images in the messages of a chat: each is a mark in the text until the chat template is rendered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from foredraft.engine.images import BLIND_HINT, errors_of
from foredraft.errors import RequestError
from foredraft.images import EncodedPrompt, Image, ImageSpan
from foredraft.pictures import picture_of_data_url
from foredraft.protocols import Tokenizer, Vision
from foredraft.templates.control_texts import Span
from foredraft.templates.shield import unused_characters
from foredraft.types import Message

_IMAGE_HINT = (
    'An image is {"type": "image", "image": Image(pixels)}, with pixels of shape (height, width, 3), or '
    '{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}.'
)


class MarkedMessages(NamedTuple):
    """Messages in which every image is a character of their text that is nowhere else in them, and the images
    by that character.
    """

    messages: list[Message]
    images: Mapping[str, Image]


def mark_images(messages: Sequence[Message], beside: object = None) -> MarkedMessages:
    """Put marks in the places of images, characters that are not in the texts `beside` either: all that the
    template is given. Raises RequestError for one without pixels, or that cannot be read from its data URL.
    """
    messages = [_with_decoded(message) for message in messages]
    images = [part.get("image") for message in messages for part in _parts(message) if _is_image(part)]
    if not images:
        return MarkedMessages(list(messages), {})
    marks = unused_characters(len(images), [*_texts(messages), *_texts(beside)])
    left = iter(marks)
    marked = [_marked(message, left) for message in messages]
    return MarkedMessages(marked, dict(zip(marks, map(_checked, images), strict=True)))


def _parts(message: Message) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list | tuple) else ()


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image"


def _with_decoded(message: Message) -> Message:
    """The message with images in place of OpenAI's parts of data URLs."""
    parts = _parts(message)
    if not any(isinstance(part, Mapping) and part.get("type") == "image_url" for part in parts):
        return message
    return {**message, "content": [_decoded(message, part) for part in parts]}


def _decoded(message: Message, part: Any) -> Any:
    if not isinstance(part, Mapping) or part.get("type") != "image_url":
        return part
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    what = f"An image of the {message.get('role')} message"
    if not isinstance(url, str):
        raise RequestError(f"{what} has no url.", hint=_IMAGE_HINT)
    return {"type": "image", "image": picture_of_data_url(url, what=what)}


def _marked(message: Message, marks: Iterator[str]) -> Message:
    """The message with marks, each in the text beside it: parts of text are lines, images are not."""
    if not any(map(_is_image, _parts(message))):
        return message
    parts: list[Any] = []
    after_image = False
    for part in _parts(message):
        text = next(marks) if _is_image(part) else part.get("text") if isinstance(part, Mapping) else None
        before = parts[-1].get("text") if parts and isinstance(parts[-1], Mapping) else None
        joined = isinstance(text, str) and isinstance(before, str)
        if joined and (after_image or _is_image(part)):
            parts[-1] = {**parts[-1], "text": parts[-1]["text"] + text}
        else:
            parts.append({"type": "text", "text": text} if _is_image(part) else part)
        after_image = _is_image(part)
    return {**message, "content": parts}


def _texts(value: Any) -> Iterator[str]:
    """All texts in messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _checked(image: object) -> Image:
    pixels = image.pixels if isinstance(image, Image) else None
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3:
        raise RequestError("An image has no pixels as whole numbers of 8 bits.", hint=_IMAGE_HINT)
    height, width, colours = pixels.shape
    if colours != 3 or not height or not width:
        raise RequestError(f"An image has the shape {pixels.shape}.", hint=_IMAGE_HINT)
    assert isinstance(image, Image)
    return image


def as_parts(messages: Sequence[Mapping[str, Any]], images: Mapping[str, Image]) -> list[dict[str, Any]]:
    """Messages, whose content is text or parts of text, for a template that writes its own marker for a part
    {"type": "image"}.
    """
    return [{**message, "content": _typed(message["content"], images)} for message in messages]


def _typed(content: Any, images: Mapping[str, Image]) -> Any:
    text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    if not any(mark in text for mark in images):
        return content
    pieces = re.split(f"([{''.join(images)}])", text)
    return [
        {"type": "image"} if piece in images else {"type": "text", "text": piece} for piece in pieces if piece
    ]


def encode_with_images(
    tokenizer: Tokenizer,
    text: str,
    literal: Sequence[Span],
    marked: MarkedMessages,
    vision: Vision | None,
) -> EncodedPrompt:
    """Token ids of a rendered prompt, and those of images in the places of their marks, or, in the order of
    the messages, of the template's markers (`Vision.marker`). The images are laid out, not encoded.

    Raises RequestError for a model without vision, and a template that has no place for an image.
    """
    if not marked.images:
        return EncodedPrompt(tokenizer.encode_rendered(text, literal))
    first = next(iter(marked.images.values()))
    if vision is None:
        raise RequestError("This model does not see images.", hint=BLIND_HINT, setting=first.where or None)
    with errors_of(first.where):
        places = _places(text, literal, marked, vision.marker)
    tokens: list[int] = []
    spans: list[ImageSpan] = []
    done = 0
    for (start, end), image in [*places, ((len(text), len(text)), None)]:
        inside = [(max(a, done) - done, min(b, start) - done) for a, b in literal if done < b and a < start]
        tokens += tokenizer.encode_rendered(text[done:start], inside, begins=not done)
        done = end
        if image is not None:
            with errors_of(image.where):
                prepared = vision.lay_out(image)
            for run, (begin, count) in enumerate(prepared.runs):
                spans.append(ImageSpan(len(tokens) + begin, count, prepared, run, where=image.where))
            tokens += prepared.tokens
    return EncodedPrompt(tokens, tuple(spans))


def _places(
    text: str, literal: Sequence[Span], marked: MarkedMessages, marker: str
) -> list[tuple[Span, Image]]:
    """Where in the text each image belongs."""
    wanted = re.escape(marker) if marker else f"[{''.join(marked.images)}]"
    found = [match.span() for match in re.finditer(wanted, text)]
    places = [(a, b) for a, b in found if not any(a < end and start < b for start, end in literal)]
    if marker:
        order = [mark for mark in "".join(_texts(marked.messages)) if mark in marked.images]
    else:
        order = [text[a:b] for a, b in places]
    if len(places) != len(marked.images) or sorted(order) != sorted(marked.images):
        raise RequestError(
            f"The model's chat template has {len(places)} places for {len(marked.images)} images.",
            hint="Put images into messages of the user"
            + (f", and leave {marker!r} out of the texts." if marker else "."),
        )
    return [(place, marked.images[mark]) for place, mark in zip(places, order, strict=True)]
