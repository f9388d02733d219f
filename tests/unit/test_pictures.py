"""Pictures are decoded as a viewer shows them; everything else is refused with what is wrong with it."""

from __future__ import annotations

import base64
import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from foredraft.errors import MissingDependencyError, RequestError
from foredraft.images import Image
from foredraft.pictures import PictureLimits, decode_picture, picture_of_data_url, read_picture

RED, BLUE = (250, 10, 20), (10, 20, 250)


def two_colours(mode: str = "RGB") -> Pillow.Image:
    """Three pixels wide and two high; the upper left one is red, the others blue."""
    made = Pillow.new("RGB", (3, 2), BLUE)
    made.putpixel((0, 0), RED)
    return made.convert(mode)


def written(picture: Pillow.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def near(image: Image, x: int, y: int, colour: tuple[int, int, int], by: int = 0) -> bool:
    return bool(np.abs(image.pixels[y, x].astype(int) - colour).max() <= by)


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {}), ("GIF", {})]
)
def test_the_formats_without_losses(kind: str, options: dict[str, Any]) -> None:
    found = decode_picture(written(two_colours(), kind, **options))
    assert found.pixels.shape == (2, 3, 3)
    assert found.pixels.dtype == np.uint8
    assert near(found, 0, 0, RED)
    assert near(found, 2, 1, BLUE)


@pytest.mark.parametrize("mode", ["RGB", "CMYK", "L"])
def test_jpeg_in_every_colour_space(mode: str) -> None:
    found = decode_picture(written(Pillow.new("RGB", (16, 16), (200, 40, 60)).convert(mode), "JPEG"))
    expected = (200, 40, 60) if mode != "L" else (90, 90, 90)
    assert near(found, 8, 8, expected, by=3)


def test_sixteen_bits_of_grey_are_scaled_not_cut() -> None:
    grey = Pillow.fromarray(np.array([[0, 32_896, 65_535]], np.uint16))
    found = decode_picture(written(grey))
    assert found.pixels[0, :, 0].tolist() == [0, 128, 255]


def test_palettes_and_transparency_are_shown_on_white() -> None:
    clear = Pillow.new("RGBA", (2, 1), (0, 0, 0, 0))
    clear.putpixel((1, 0), (*RED, 255))
    found = decode_picture(written(clear))
    assert near(found, 0, 0, (255, 255, 255))
    assert near(found, 1, 0, RED)
    palette = two_colours().quantize(2)
    place = palette.getpixel((0, 0))
    found = decode_picture(written(palette, transparency=place))
    assert near(found, 0, 0, (255, 255, 255))
    assert near(found, 2, 1, BLUE, by=1)
    grey = Pillow.new("LA", (1, 1), (0, 0))
    assert near(decode_picture(written(grey)), 0, 0, (255, 255, 255))
    assert near(decode_picture(written(Pillow.new("1", (1, 1), 1))), 0, 0, (255, 255, 255))


def test_exif_turns_the_picture() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    found = decode_picture(written(two_colours(), "PNG", exif=exif))
    assert found.pixels.shape == (3, 2, 3)
    assert near(found, 1, 0, RED)
    assert near(found, 0, 0, BLUE)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_matter() -> None:
    data = written(two_colours(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert decode_picture(data).pixels.shape == (2, 3, 3)


def test_of_an_animation_the_first_frame() -> None:
    frames = [Pillow.new("RGB", (2, 2), colour) for colour in (RED, BLUE)]
    data = written(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert near(decode_picture(data), 1, 1, RED)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_cut_off_pictures_are_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = written(Pillow.fromarray(noise), kind)
    for length in (1, 12, len(data) // 2):
        with pytest.raises(RequestError, match=r"^messages\.0: the image (is|is not)"):
            decode_picture(data[:length], what="messages.0: the image")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says that it is large."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(60_000, 60_000), (10_000, 10_000), (7_100, 7_100), (40_000, 2)])
def test_what_would_be_huge_is_refused_before_it_is_unpacked(size: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match=r"pixels|too large") as refused:
        decode_picture(bomb(*size))
    assert refused.value.hint


def test_no_pixels_and_no_bytes() -> None:
    with pytest.raises(RequestError, match="empty"):
        decode_picture(b"")
    with pytest.raises(RequestError):
        decode_picture(bomb(0, 5))


def test_limits_are_those_given() -> None:
    data = written(two_colours())
    for limits, said in (
        (PictureLimits(max_bytes=len(data) - 1), "bytes"),
        (PictureLimits(max_pixels=5), "3 × 2 pixels; at most 5"),
        (PictureLimits(max_side=2), "at most 2 are allowed on a side"),
    ):
        with pytest.raises(RequestError, match=said):
            decode_picture(data, limits)
    exact = PictureLimits(max_bytes=len(data), max_pixels=6, max_side=3)
    assert decode_picture(data, exact).pixels.shape == (2, 3, 3)


@pytest.mark.parametrize(
    "data", [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"hello", b"II*\0" + b"\0" * 40]
)
def test_other_formats_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(RequestError, match="PNG, JPEG, WebP, GIF or BMP"):
        decode_picture(data)


def test_bytes_that_were_changed_never_do_more_than_be_refused() -> None:
    rng = np.random.default_rng(1)
    noise = Pillow.fromarray(rng.integers(0, 256, (24, 24, 3), np.uint8))
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        for _ in range(60):
            data = bytearray(written(noise, kind))
            for place in rng.integers(0, len(data), 4):
                data[place] = rng.integers(256)
            try:
                found = decode_picture(bytes(data))
            except RequestError:
                continue
            assert found.pixels.ndim == 3


def data_url(data: bytes, head: str = "data:image/png;base64,") -> str:
    return head + base64.b64encode(data).decode()


@pytest.mark.parametrize("head", ["data:image/png;base64,", "data:;base64,", "DATA:image/jpg;name=a;BASE64,"])
def test_data_urls(head: str) -> None:
    assert near(picture_of_data_url(data_url(written(two_colours()), head)), 0, 0, RED)


def test_base64_may_have_line_breaks() -> None:
    url = data_url(written(two_colours()))
    assert picture_of_data_url(url[:40] + "\r\n" + url[40:]).pixels.shape == (2, 3, 3)


@pytest.mark.parametrize(
    "url", ["", "data:image/png,abc", "ftp://host/a.png", "data:image/png;base64,%%%", "data:;base64,abcde"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(RequestError, match="base64"):
        picture_of_data_url(url)


def test_errors_repeat_no_base64() -> None:
    with pytest.raises(RequestError) as refused:
        picture_of_data_url("data:image/png;base65," + "QUJD" * 1000)
    assert "QUJD" not in str(refused.value)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(written(two_colours()))
    assert near(read_picture(tmp_path / "a.png"), 0, 0, RED)
    for name in ("missing.png", "a\0b", "."):
        with pytest.raises(RequestError, match="image"):
            read_picture(tmp_path / name)


def test_without_pillow_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match="Pillow") as missing:
        decode_picture(b"\x89PNG\r\n\x1a\n")
    assert "vision" in (missing.value.hint or "")


def test_a_high_picture_is_the_same_in_strips() -> None:
    rgba = np.random.default_rng(1).integers(0, 256, (300, 3, 4), np.uint8)
    white = Pillow.new("RGBA", (3, 300), (255, 255, 255, 255))
    expected = Pillow.alpha_composite(white, Pillow.fromarray(rgba)).convert("RGB")
    assert np.array_equal(decode_picture(written(Pillow.fromarray(rgba))).pixels, np.asarray(expected))
