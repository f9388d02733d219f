"""Pictures as clients send them, decoded: PNG, JPEG, WebP, GIF (its first frame) and BMP become RGB pixels.

Decoders are the part of a server that hostile data reaches first, so size and dimensions are checked before
anything is unpacked, and only the five formats above are tried.
"""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foredraft.errors import MissingDependencyError, RequestError, first_line
from foredraft.images import Image
from foredraft.installation import add_extra

if TYPE_CHECKING:
    from PIL.Image import Image as Opened

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MIB: Final = 1 << 20

_KINDS: Final = "PNG, JPEG, WebP, GIF or BMP"
_SEND: Final = "Send PNG, JPEG, WebP, GIF or BMP."
_DATA_HINT: Final = 'Send "data:image/png;base64,…".'
_DATA: Final = re.compile(r"data:[^,;]*(?:;[^,;]*)*?;base64,", re.IGNORECASE)
_SPACE: Final = re.compile(r"\s+")
_ADDRESS: Final = re.compile(r"https?:/", re.IGNORECASE)
_ORIENTATION: Final = 0x0112
_SIXTEEN_BITS: Final = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_STRIP: Final = 128
"""Lines of a picture that are converted at once."""
_SHOWN: Final = 40
"""Characters of an address that an error repeats."""


class PixelBudget:
    """The pixels that several pictures may have together. Any thread may take some."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._left = most
        self._lock = Lock()

    def take(self, count: int, what: str) -> None:
        """Raises RequestError if fewer are left."""
        with self._lock:
            if count > self._left:
                raise RequestError(
                    f"{what} is too large beside the others: together they may have {self.most} pixels.",
                    hint="Send fewer or smaller ones: models reduce them to about a million pixels anyway.",
                )
            self._left -= count


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """Limits on one picture, checked before it is unpacked. `max_bytes`: as it was sent, decoded from base64.
    `max_pixels`: width times height. `max_side`: the longer of the two. `together`: what it shares with
    others.
    """

    max_bytes: int = 20 * MIB
    max_pixels: int = 50_000_000
    max_side: int = 32_768
    together: PixelBudget | None = None


LIMITS: Final = PictureLimits()


def decode_picture(data: bytes, limits: PictureLimits = LIMITS, *, what: str = "The image") -> Image:
    """The pixels of a picture in one of `FORMATS`: turned as its EXIF data says, on white where it is
    transparent, the first frame of an animation.

    Raises RequestError, which begins with `what`, for anything else, MissingDependencyError without Pillow.
    """
    if not data:
        raise RequestError(f"{what} is empty.", hint=_SEND)
    if len(data) > limits.max_bytes:
        raise RequestError(
            f"{what} has {len(data)} bytes; at most {limits.max_bytes} are allowed.",
            hint="Send a smaller one: models reduce pictures to about a million pixels anyway.",
        )
    with _opened(data, what) as opened:
        _check_dimensions(opened.size, limits, what)
        try:
            pixels = _pixels(opened)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - decoders fail in any way with broken data
            raise RequestError(
                f"{what} is broken or cut off: {first_line(error)}.", hint="Send the whole file."
            ) from None
    return Image(pixels)


def picture_of_data_url(url: str, limits: PictureLimits = LIMITS, *, what: str = "The image") -> Image:
    """The picture in a data URL, `data:image/png;base64,…`; what it says about the format does not matter.

    Raises what `decode_picture` does.
    """
    head = _DATA.match(url)
    if head is None:
        raise RequestError(f"{what} is not a data URL in base64: {shown(url)}.", hint=_DATA_HINT)
    return picture_of_base64(url[head.end() :], limits, what=what)


def picture_of_base64(text: str, limits: PictureLimits = LIMITS, *, what: str = "The image") -> Image:
    """The picture in base64 text. Raises what `decode_picture` does."""
    if len(text) > 2 * limits.max_bytes:  # before it is decoded; line breaks included
        raise RequestError(f"{what} is larger than {limits.max_bytes} bytes.", hint="Send a smaller one.")
    try:
        data = binascii.a2b_base64(_SPACE.sub("", text), strict_mode=True)
    except ValueError as error:  # also for characters outside of ASCII
        raise RequestError(f"{what} is not base64: {first_line(error)}.", hint=_DATA_HINT) from None
    return decode_picture(data, limits, what=what)


def read_picture(path: str | Path, limits: PictureLimits = LIMITS, *, what: str = "") -> Image:
    """The picture in a file, in errors `what` in place of its path. Raises what `decode_picture` does, and
    RequestError if it cannot be read.
    """
    what = what or f"The image {path}"
    return decode_picture(_read(Path(path), limits, what), limits, what=what)


def as_data_url(path: Path) -> str:
    """The picture in a file as a data URL, after it was decoded once. Raises what `read_picture` does."""
    what = f"The image {path}"
    data = _read(path, LIMITS, what)
    decode_picture(data, what=what)
    return f"data:;base64,{binascii.b2a_base64(data, newline=False).decode('ascii')}"


def _read(path: Path, limits: PictureLimits, what: str) -> bytes:
    if _ADDRESS.match(str(path)):
        raise RequestError(
            "An image is a file here: addresses are not fetched.", hint="Download it, and name the file."
        )
    try:
        with path.open("rb") as file:
            return file.read(limits.max_bytes + 1)
    except OSError as error:
        raise RequestError(f"{what} cannot be read: {error.strerror}.") from None
    except ValueError:  # a NUL in the file name
        raise RequestError("An image cannot have this name.", hint="Name an image file.") from None


def shown(url: str) -> str:
    """An address in an error message: no base64, and not more of it than a line holds."""
    head = url.partition(",")[0] if url[:5].lower() == "data:" else url
    return repr(head if len(head) <= _SHOWN else f"{head[:_SHOWN]}…")


# --- decoding ------------------------------------------------------------------------------------------


def _opened(data: bytes, what: str) -> Opened:
    """The picture, of which only the head has been read."""
    try:
        from PIL import Image as Pillow
        from PIL import UnidentifiedImageError
    except ImportError:
        raise MissingDependencyError(
            "Reading images needs Pillow, which is not installed.",
            hint=f"Install it with: {add_extra('vision')}",
        ) from None
    bombs = (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning)
    try:
        return Pillow.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise RequestError(f"{what} is not a {_KINDS} picture, or is broken.", hint=_SEND) from None
    except bombs as error:
        raise RequestError(f"{what} is too large: {first_line(error)}", hint="Send a smaller one.") from None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        raise RequestError(f"{what} is broken: {first_line(error)}.", hint="Send the whole file.") from None


def _check_dimensions(size: tuple[int, int], limits: PictureLimits, what: str) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise RequestError(f"{what} has {width} × {height} pixels.", hint="Send one that has some.")
    if width * height > limits.max_pixels:
        raise RequestError(
            f"{what} has {width} × {height} pixels; at most {limits.max_pixels} are allowed.",
            hint="Send a smaller one: models reduce pictures to about a million pixels anyway.",
        )
    if max(size) > limits.max_side:
        raise RequestError(
            f"{what} has {width} × {height} pixels; at most {limits.max_side} are allowed on a side.",
            hint="Cut it into parts.",
        )
    if limits.together is not None:
        limits.together.take(width * height, what)


def _pixels(opened: Opened) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Shape (height, width, 3). Raises anything for a broken picture."""
    from PIL import Image as Pillow

    opened.load()
    turned: Opened = opened
    turn = _turns(Pillow).get(_orientation(opened))
    if turn is not None:
        turned = turned.transpose(turn)
    pixels = np.empty((turned.height, turned.width, 3), np.uint8)
    for top in range(0, turned.height, _STRIP):  # what is converted is copied several times
        bottom = min(top + _STRIP, turned.height)
        pixels[top:bottom] = _strip(turned.crop((0, top, turned.width, bottom)))
    return pixels


def _strip(part: Opened) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Shape (height, width, 3)."""
    from PIL import Image as Pillow

    if part.mode in _SIXTEEN_BITS:
        grey = np.clip(np.asarray(part, np.int64), 0, 65_535) // 257  # 65,535 is 255
        return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    if part.has_transparency_data:
        above = part.convert("RGBA")
        below = Pillow.new("RGBA", above.size, (255, 255, 255, 255))
        part = Pillow.alpha_composite(below, above)
    return np.asarray(part.convert("RGB"), np.uint8)


def _orientation(opened: Opened) -> int:
    """EXIF's orientation; 1, upright, where that is missing or broken."""
    try:
        return int(opened.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - a picture is shown upright where its EXIF data cannot be read
        return 1


def _turns(library: Any) -> dict[int, Any]:
    """What brings a picture with this orientation upright (EXIF 2.32, tag 0x0112)."""
    ways = library.Transpose
    return {
        2: ways.FLIP_LEFT_RIGHT,
        3: ways.ROTATE_180,
        4: ways.FLIP_TOP_BOTTOM,
        5: ways.TRANSPOSE,
        6: ways.ROTATE_270,
        7: ways.TRANSVERSE,
        8: ways.ROTATE_90,
    }
