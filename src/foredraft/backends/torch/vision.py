"""How an image-text model of transformers sees: an image's rows, computed by the model's own image processor
and vision tower.

An image is always computed alone, by the same operations and the same number of threads, so its rows have the
same bits every time. Of the image processors transformers has two implementations; the one of Pillow is used
also where torchvision is installed, because they resize differently.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from transformers import AutoImageProcessor

from foredraft.backends.torch.batch import SeenImage
from foredraft.backends.torch.seeing_kinds import Kind, kind_of
from foredraft.backends.torch.tokenizer import TorchTokenizer
from foredraft.errors import BackendError, CapacityError, RequestError, first_line
from foredraft.images import Image, PreparedImage

KEPT_BYTES = 256 << 20
"""Rows of images that are kept for the next time they come."""


_BLANK = 4
"""Rows and columns of an image for comparisons."""


class TorchVision:
    """`protocols.Vision` of a model of transformers. Any thread may call it; images are computed one after
    another.
    """

    def __init__(
        self, source: Any, tokenizer: TorchTokenizer, processor: Any, kind: Kind, *, context: int
    ) -> None:
        config = source.config
        self.placeholder = int(config.image_token_id)
        marker = tokenizer.spelled(getattr(config, kind.marker))
        written = marker in (tokenizer.chat_template or "")
        self.marker = marker if written else ""
        self.chunk = 0 if kind.whole else 1
        self._source, self._processor, self._kind, self._context = source, processor, kind, context
        self._tokenizer = tokenizer
        self._around = _around(tokenizer, config, kind.around if written else kind.alone or kind.around)
        self._settings = json.dumps(processor.to_dict(), sort_keys=True, default=str)
        self._threads = torch.get_num_threads()
        merge = getattr(config.vision_config, "spatial_merge_size", 1)
        self._merged = int(merge) if kind.grid else 1
        self._tile_rows: dict[tuple[int, ...], int] = {}
        self._lock = Lock()
        self._encoder = Lock()
        self._kept: OrderedDict[str, PreparedImage] = OrderedDict()
        self._kept_bytes = 0

    def lay_out(self, image: Image) -> PreparedImage:
        """See `Vision.lay_out`. Raises RequestError, BackendError."""
        key = self._key(image)
        return self._found(key) or self._laid_out(key, image, self._given(image))

    def prepare(self, image: Image) -> PreparedImage:
        """See `Vision.prepare`. Raises RequestError, BackendError."""
        key = self._key(image)
        kept = self._found(key)
        if kept is not None:
            return kept
        given = self._given(image)
        laid = self._laid_out(key, image, given)
        with self._encoder:
            kept = self._found(key)  # by another thread meanwhile
            if kept is not None:
                return kept
            data = self._seen(given)
            if len(data.vectors) != laid.rows:
                raise BackendError(f"An image has {len(data.vectors)} rows in place of {laid.rows}.")
            made = replace(laid, data=data, image=None)
            self._keep(made)
            return made

    def blank(self) -> PreparedImage:
        """An image of a square of rows, as the model computes them, with random numbers: for comparisons."""
        config, generator = self._source.config, torch.Generator().manual_seed(0)
        deep = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
        shape = (1 + deep, _BLANK**2, config.get_text_config().hidden_size)
        rows = 0.1 * torch.randn(shape, generator=generator)
        vectors, *others = rows.to(self._source.device, self._source.dtype)
        places, advance = grid_places(_BLANK, _BLANK) if self._kind.grid else (None, 0)
        data = SeenImage(vectors, places, advance, tuple(others))
        count = _BLANK**2
        return PreparedImage("blank", (self.placeholder,) * count, ((0, count),), data=data)

    def _key(self, image: Image) -> str:
        found = hashlib.sha256(repr((image.pixels.shape, self._settings)).encode())
        found.update(np.ascontiguousarray(image.pixels).data)
        return found.hexdigest()

    def _found(self, key: str) -> PreparedImage | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _given(self, image: Image) -> Any:
        """What the image processor makes of an image. Raises RequestError."""
        try:
            told = {"return_row_col_info": True} if self._kind.tiles else {}
            return self._processor(
                images=[image.pixels],
                return_tensors="pt",
                input_data_format="channels_last",  # else a height of 1 or 3 is taken for the colours
                **told,
            )
        except ValueError as error:
            height, width, _ = image.pixels.shape
            raise RequestError(
                f"The model cannot see an image of {width} × {height} pixels: {first_line(error)}."
            ) from None

    def _laid_out(self, key: str, image: Image, given: Any) -> PreparedImage:
        rows = self._rows(given)
        if rows >= self._context:
            raise RequestError(
                f"The image takes {rows} rows; the context holds {self._context}.", hint="Send a smaller one."
            )
        tokens: list[int] = []
        runs: list[tuple[int, int]] = []
        for piece in self._layout(given, rows):
            if isinstance(piece, str):
                tokens += self._tokenizer.encode(piece, special=True)
            else:
                runs.append((len(tokens), piece))
                tokens += [self.placeholder] * piece
        return PreparedImage(key, tuple(tokens), tuple(runs), image=image)

    def _rows(self, given: Any) -> int:
        """How many rows an image takes. Without a grid, all tiles of a size have as many, which the first one
        that comes tells.
        """
        if self._kind.grid:
            return int(given[self._kind.grid][0].prod()) // self._merged**2
        pixels = given["pixel_values"]
        first = (slice(None), slice(1)) if self._kind.tiles else slice(1)
        shape = tuple(pixels.shape[-3:])
        if shape not in self._tile_rows:
            names = ("pixel_values", "pixel_attention_mask")
            tile = {name: given[name][first] for name in names if name in given}
            with self._encoder:
                self._tile_rows[shape] = len(self._seen(tile).vectors)
        return self._tile_rows[shape] * int(pixels.shape[:-3].numel())

    def _layout(self, given: Any, rows: int) -> Sequence[str | int]:
        """What takes the place of an image: texts, and numbers of rows."""
        if not self._kind.tiles:
            before, after = self._around
            return before, rows, after
        high, wide = int(given["rows"][0][0]), int(given["cols"][0][0])
        return tiles(high, wide, rows // (high * wide + 1))

    def _seen(self, given: Any) -> SeenImage:
        source, grid = self._source, self._kind.grid
        if source is None:
            raise BackendError("The model is closed.", hint="Load it again.")
        if torch.get_num_threads() != self._threads:  # of this thread
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                pixels = given["pixel_values"].to(source.device, source.dtype)
                named = (grid, "pixel_attention_mask") if self._kind.tiles else (grid,)
                more = {name: given[name].to(source.device) for name in named if name in given}
                found = source.model.get_image_features(pixels, **more, return_dict=True)
                vectors = _side_by_side(found.pooler_output)
                deep = tuple(map(_side_by_side, getattr(found, "deepstack_features", None) or ()))
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"The device has too little memory to see an image ({first_line(error)})."
            ) from None
        except (RuntimeError, IndexError) as error:
            raise BackendError(f"torch failed to compute an image: {error}") from error
        if not grid:
            return SeenImage(vectors, deep=deep)
        _, high, wide = (int(number) for number in given[grid][0])
        merged = self._merged
        return SeenImage(vectors, *grid_places(high // merged, wide // merged), deep=deep)

    def _keep(self, made: PreparedImage) -> None:
        with self._lock:
            self._kept[made.key] = made
            self._kept_bytes += _size(made)
            while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= _size(oldest)

    def close(self) -> None:
        """Free the weights, and what is kept."""
        with self._encoder, self._lock:
            self._source = None
            self._kept.clear()


def _side_by_side(found: Any) -> Any:
    """The rows of an image's parts, shape (rows, hidden size)."""
    return (found if torch.is_tensor(found) else torch.cat(list(found))).flatten(0, -2)


def _size(image: PreparedImage) -> int:
    data = image.data
    assert isinstance(data, SeenImage)
    return sum(int(part.numel() * part.element_size()) for part in (data.vectors, *data.deep))


def grid_places(high: int, wide: int) -> tuple[Any, int]:
    """Positions in time, height and width of an image's rows, line by line, counted from its first, and how
    many positions it takes (Qwen2-VL, Wang et al. 2024, arXiv 2409.12191, section 2.1).
    """
    down = torch.arange(high).repeat_interleave(wide)
    across = torch.arange(wide).repeat(high)
    return torch.stack([torch.zeros_like(down), down, across]), max(high, wide)


def tiles(high: int, wide: int, each: int) -> Sequence[str | int]:
    """The layout of an image in `high` × `wide` tiles of `each` rows and then as a whole, or as a whole only
    (Idefics3 and SmolVLM).
    """
    edge = "<fake_token_around_image>"
    pieces: list[str | int] = []
    text = ""
    for row in range(high):
        for column in range(wide):
            pieces += [f"{text}{edge}<row_{row + 1}_col_{column + 1}>", each]
            text = ""
        text = "\n"
    lines = f"{text}\n" if high else ""
    return [*pieces, f"{lines}{edge}<global-img>", each, edge]


def _around(tokenizer: TorchTokenizer, config: Any, texts: tuple[str, str]) -> tuple[str, str]:
    """The texts before and after an image's rows."""
    named = {name for text in texts for name in re.findall(r"{(\w+)}", text)}
    spelled = {name: tokenizer.spelled(getattr(config, f"{name}_token_id")) for name in named}
    before, after = (text.format(**spelled) for text in texts)
    return before, after


def find_vision(source: Any, tokenizer: TorchTokenizer, folder: Path, *, context: int) -> TorchVision | str:
    """The vision of transformers' model `source`, which was loaded from a folder; a reason if it cannot be
    used.
    """
    kind = kind_of(source.config)
    if kind is None:
        return "the model reads text only"
    rows, window = getattr(source.config, "mm_tokens_per_image", 0), _window(source.config)
    if kind.whole and window is not None and rows > window:
        return f"its images take {rows} rows, and its window only {window}"
    if not 0 <= source.config.image_token_id < tokenizer.vocab_size:
        return "its placeholder of images is no token of its vocabulary"
    try:
        processor = AutoImageProcessor.from_pretrained(
            folder, backend="pil", local_files_only=True, trust_remote_code=False
        )
    except ImportError as error:
        return f"a package is missing ({first_line(error)})"
    except (OSError, ValueError) as error:
        return f"transformers finds no image processor in its folder ({first_line(error)})"
    return TorchVision(source, tokenizer, processor, kind, context=context)


def _window(config: Any) -> int | None:
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ()
    return int(text.sliding_window) if "sliding_attention" in kinds and text.sliding_window else None
