"""The settings [images]."""

from __future__ import annotations

from foredraft.server.console.shapes import Change, Reply


class ImageValues(Reply):
    """The fields of `ImageSettings`."""

    max_images: int
    max_bytes: int
    max_pixels: int
    max_request_pixels: int
    max_total_pixels: int
    folders: list[str]
    remote: bool
    remote_private: bool
    remote_timeout_s: float


class ImagesReply(Reply):
    """`version` as in `ModelSettingsReply`."""

    version: str
    values: ImageValues
    defaults: ImageValues


class ImagesChange(Change):
    """All settings; null is the default. `version`: refuse the change if the file has another."""

    version: str | None = None
    max_images: int | None = None
    max_bytes: int | None = None
    max_pixels: int | None = None
    max_request_pixels: int | None = None
    max_total_pixels: int | None = None
    folders: list[str] | None = None
    remote: bool | None = None
    remote_private: bool | None = None
    remote_timeout_s: float | None = None
