"""The child process's part of `trial` for the file of a model's vision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.backends.llamacpp.loading import open_weights
from foredraft.backends.llamacpp.trial_run import trial_options
from foredraft.errors import BackendError, ForedraftError, ModelFormatError, RequestError
from foredraft.images import Image, ImageSpan
from foredraft.protocols import Model
from foredraft.types import Rows

_ROWS = 1024
"""Of a forward, and of a context: a model that wants an image whole has no more."""


def open_vision(
    paths: Sequence[str], library: str, kv_type: str, flash_attention: Any, watch: Sequence[str]
) -> None:
    """Load the first file with the second, its vision: images of three shapes are encoded, and the text after
    them is computed. Raises and is silent as `trial_run.open_model`.
    """
    options = replace(
        trial_options(library, kv_type, flash_attention, watch),
        context_at_most=_ROWS,
        batch=_ROWS,
        ubatch=_ROWS,
        mmproj=Path(paths[1]),
    )
    try:
        model = open_weights(Path(paths[0]), options, as_they_lie=True)
    except ForedraftError:
        return
    try:
        for height, width in ((64, 64), (48, 640), (700, 500)):
            _see(model, height, width)
    except BackendError as error:
        raise ModelFormatError(error.message) from None
    finally:
        model.close()


def _see(model: Model, height: int, width: int) -> None:
    """Encode an image, and compute what comes of it if that fits."""
    assert model.vision is not None
    pixels = np.arange(height * width * 3, dtype=np.uint32).astype(np.uint8).reshape(height, width, 3)
    try:
        image = model.vision.prepare(Image(pixels))
    except RequestError:
        return
    spans = [ImageSpan(first, count, image, run) for run, (first, count) in enumerate(image.runs)]
    if len(image.tokens) < min(model.info.context_length, _ROWS):
        model.forward([Rows(0, 0, image.tokens, 0, images=spans)])
        logits = model.forward([Rows(0, len(image.tokens), (0,), 1)])
        if np.isnan(logits).any():
            raise ModelFormatError("after an image it computes what is no number")
        model.release(0)
