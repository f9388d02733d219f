"""The pictures of a conversation: read from where its content parts say, as far as the settings allow.

All APIs bring their images into one form before, the content part of OpenAI's chat completions:
{"type": "image_url", "image_url": {"url": "…"}}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from foredraft.engine.images import BLIND_HINT, errors_of
from foredraft.errors import RequestError
from foredraft.images import Image
from foredraft.pictures import PictureLimits, decode_picture, picture_of_data_url, read_picture, shown
from foredraft.protocols import Vision
from foredraft.server.begun import results_of
from foredraft.server.image_settings import ImageSettings
from foredraft.server.picture_fetch import fetch
from foredraft.types import Message

KIND = "image_url"
FETCHED = ("http", "https")
_WHERE = "where"
_DATA_HINT = 'Send "data:image/png;base64,…".'


def image_part(url: str, where: str) -> dict[str, Any]:
    """The content part of an image; `where`: the field of the request that names it, for errors."""
    return {"type": KIND, KIND: {"url": url}, _WHERE: where}


async def with_pictures(
    messages: Sequence[Message],
    vision: Vision | None,
    settings: ImageSettings,
    threads: Executor,
    fetched: Mapping[Place, bytes],
) -> list[Message]:
    """The messages with a decoded image in each of their parts that names one; `fetched`: what `fetched_for`
    found. Reading and decoding takes place on `threads`, one picture on each.

    Raises RequestError, which names the part, for what is no usable picture or not allowed, and where the
    model does not see.
    """
    places = _places(messages)
    _check(messages, places, vision, settings)
    limits = settings.limits
    reading = [threads.submit(_picture_at, messages, at, settings, limits, fetched.get(at)) for at in places]
    found = await results_of(reading)
    return after_results(_placed(messages, dict(zip(places, found, strict=True))))


async def fetched_for(
    messages: Sequence[Message], vision: Vision | None, settings: ImageSettings, threads: Executor
) -> dict[Place, bytes]:
    """What is at the http and https addresses that the messages name, fetched on `threads`. Raises as
    `with_pictures`.
    """
    places = _places(messages)
    _check(messages, places, vision, settings)
    far = _far(messages, places) if settings.remote else []
    found = await results_of([threads.submit(_fetched, messages, at, settings) for at in far])
    return dict(zip(far, found, strict=True))


def _check(
    messages: Sequence[Message], places: Sequence[Place], vision: Vision | None, settings: ImageSettings
) -> None:
    """Raises RequestError where the model does not see, or images are too many."""
    if places and vision is None:
        raise RequestError(
            f"{_name(messages, places[0])}: this model does not see images.",
            hint=BLIND_HINT,
            setting=_param(messages, places[0]),
        )
    if len(places) > settings.max_images:
        raise RequestError(
            f"messages: {len(places)} images are too many; at most {settings.max_images} are allowed.",
            hint="Leave out those that the question is not about.",
            setting=_param(messages, places[settings.max_images]),
        )


def images_in(messages: Sequence[Message]) -> int:
    """How many images the messages name. Raises RequestError where they may not."""
    return len(_places(messages))


def far_images_in(messages: Sequence[Message]) -> int:
    """How many of them are at http and https addresses. Raises RequestError where they may not be."""
    return len(_far(messages, _places(messages)))


def pixels_in(messages: Sequence[Message]) -> int:
    """The pixels of the images that were decoded."""
    found = (part.get("image") for message in messages for part in _parts(message))
    sides = (image.pixels.shape for image in found if isinstance(image, Image))
    return sum(height * width for height, width, _ in sides)


def _parts(message: Message) -> Sequence[Mapping[str, Any]]:
    content = message.get("content")
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else ()


def _picture_at(
    messages: Sequence[Message],
    at: Place,
    settings: ImageSettings,
    limits: PictureLimits,
    fetched: bytes | None,
) -> Image:
    """The picture that a part names. Raises RequestError, which names the part."""
    what, where = _name(messages, at), _param(messages, at)
    with errors_of(where):
        if fetched is not None:
            found = decode_picture(fetched, limits, what=what)
        else:
            found = picture(_url_of(messages, at), settings, limits, what)
    return replace(found, where=where)


def _fetched(messages: Sequence[Message], at: Place, settings: ImageSettings) -> bytes:
    """What is at the address that a part names. Raises RequestError, which names the part."""
    with errors_of(_param(messages, at)):
        return fetch(
            str(_url_of(messages, at)),
            max_bytes=settings.max_bytes,
            timeout_s=settings.remote_timeout_s,
            private=settings.remote_private,
            what=_name(messages, at),
        )


def _far(messages: Sequence[Message], places: Sequence[Place]) -> list[Place]:
    """The places of images at http and https addresses."""
    urls = [(at, _url_of(messages, at)) for at in places]
    return [at for at, url in urls if isinstance(url, str) and url.partition(":")[0].lower() in FETCHED]


def picture(url: object, settings: ImageSettings, limits: PictureLimits, what: str) -> Image:
    """The picture at an address that is not fetched. Raises RequestError, which begins with `what`."""
    if not isinstance(url, str) or not url:
        raise RequestError(f"{what} has no url.", hint=_DATA_HINT)
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        return picture_of_data_url(url, limits, what=what)
    if scheme == "file":
        return read_picture(_allowed_file(url, settings.folders, what), limits, what=what)
    if scheme not in FETCHED:
        raise RequestError(f"{what} is at {shown(url)}, which is no address of an image.", hint=_DATA_HINT)
    raise RequestError(
        f"{what} is at an address that this server does not fetch: {shown(url)}.",
        hint=f"{_DATA_HINT} The administrator can allow it: remote = true under [images].",
    )


def _allowed_file(url: str, folders: Sequence[Path], what: str) -> Path:
    """The file that a file:// address names, if it lies in one of the folders, also where symbolic links lead
    elsewhere. What is outside looks like what is not there.
    """
    refused = RequestError(
        f"{what} names a file that this server does not read.",
        hint=f"{_DATA_HINT} The administrator can allow a folder: folders under [images].",
    )
    try:
        parts = urlsplit(url)
        path = Path(url2pathname(parts.path)).resolve(strict=True)
        inside = any(path.is_relative_to(folder.resolve(strict=True)) for folder in folders)
    except (OSError, ValueError, RuntimeError):
        raise refused from None
    if not inside or parts.netloc not in ("", "localhost") or not path.is_file():
        raise refused
    return path


def after_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with images of tools' results in the user's message behind the results: chat templates
    write images of the user's only.
    """
    placed: list[Message] = []
    shown: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "tool":
            parts = content if isinstance(content, list) else []
            images = [part for part in parts if part.get("type") == "image"]
            if images:
                shown += images
                message = {**message, "content": [part for part in parts if part not in images] or ""}  # noqa: PLW2901
        elif shown:
            if message.get("role") == "user":
                own = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
                message = {**message, "content": [*shown, *own]}  # noqa: PLW2901
            else:
                placed.append({"role": "user", "content": shown})
            shown = []
        placed.append(message)
    return [*placed, {"role": "user", "content": shown}] if shown else placed


# --- parts of messages ---------------------------------------------------------------------------------

Place = tuple[int, int]
"""A message, and a part of its content."""


def _places(messages: Sequence[Message]) -> Sequence[Place]:
    found: list[Place] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        parts = content if isinstance(content, list) else ()
        here = [
            (index, place)
            for place, part in enumerate(parts)
            if isinstance(part, Mapping) and part.get("type") == KIND
        ]
        if here and message.get("role") not in ("user", "tool"):
            raise RequestError(
                f"messages.{index}: a message of the role {message.get('role')!r} cannot have images.",
                hint="Put them into a message of the user.",
                setting=_param(messages, here[0]),
            )
        found += here
    return found


def _name(messages: Sequence[Message], at: Place) -> str:
    return f"{_where(messages, at)}: the image"


def _where(messages: Sequence[Message], at: Place) -> str:
    """The part of the request, as its path in the body."""
    return str(messages[at[0]]["content"][at[1]].get(_WHERE) or f"messages.{at[0]}.content.{at[1]}")


def _param(messages: Sequence[Message], at: Place) -> str:
    """The field with the image's address, which is `param` of an error in OpenAI's form."""
    return f"{_where(messages, at)}.{KIND}"


def _url_of(messages: Sequence[Message], at: Place) -> object:
    """Some clients send the address without the object around it."""
    given = messages[at[0]]["content"][at[1]].get(KIND)
    return given.get("url") if isinstance(given, Mapping) else given


def _placed(messages: Sequence[Message], pictures: Mapping[Place, Image]) -> list[Message]:
    placed: list[Message] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts = [
                {"type": "image", "image": pictures[index, place]} if (index, place) in pictures else part
                for place, part in enumerate(content)
            ]
            message = {**message, "content": parts}  # noqa: PLW2901
        placed.append(message)
    return placed
