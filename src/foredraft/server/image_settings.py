"""The settings `[images]`: which pictures a request may bring, and from where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foredraft.pictures import LIMITS, PictureLimits, PixelBudget
from foredraft.server import checks

MOST_TIMEOUT_S = 3600
"""The most seconds for fetching an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """Pictures in requests to models that see. Those in the request itself are always allowed.

    `max_images`: of one request. `max_bytes`, `max_pixels`: of one image. `max_request_pixels`: of all
    images of a request. `max_total_pixels`: of all requests whose images are being read and encoded; others
    wait. `folders`: those whose files may be named as file:// addresses. `remote`: fetch http and https
    addresses, each within `remote_timeout_s` seconds, and with `remote_private` also from private addresses,
    such as those of this network.
    """

    max_images: int = 32
    max_bytes: int = LIMITS.max_bytes
    max_pixels: int = LIMITS.max_pixels
    max_request_pixels: int = 100_000_000
    max_total_pixels: int = 200_000_000
    folders: tuple[Path, ...] = ()
    remote: bool = False
    remote_private: bool = False
    remote_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("max_images", "max_bytes", "max_pixels", "max_request_pixels", "max_total_pixels"):
            checks.whole(name, getattr(self, name), 1)
        if not isinstance(self.folders, tuple) or not all(isinstance(one, Path) for one in self.folders):
            raise checks.wrong("folders", self.folders, "a list of paths of folders")
        checks.switch("remote", self.remote)
        checks.switch("remote_private", self.remote_private)
        checks.seconds("remote_timeout_s", self.remote_timeout_s, MOST_TIMEOUT_S)

    @property
    def together(self) -> int:
        """The most pixels of one request's images."""
        return min(self.max_request_pixels, self.max_total_pixels)

    def most(self, images: int) -> int:
        """The most pixels that this number of images in a request can have."""
        return min(images * self.max_pixels, self.together)

    @property
    def limits(self) -> PictureLimits:
        """The limits on the pictures of one request."""
        together = PixelBudget(self.together)
        return PictureLimits(max_bytes=self.max_bytes, max_pixels=self.max_pixels, together=together)
