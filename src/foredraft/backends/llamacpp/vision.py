"""How a GGUF model sees: the file of its vision (mmproj), and images as rows of embeddings.

Encoding an image takes long, a second and more on a processor, so what it gave is kept for the next time that
the same image comes. It may run in another thread while the model computes.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from foredraft.backends.llamacpp import log, mtmd
from foredraft.backends.llamacpp.binding import lib
from foredraft.errors import BackendError, ModelFormatError, RequestError
from foredraft.images import Image, PreparedImage
from foredraft.library.fingerprint import fingerprint

CHUNK = 64
"""Rows of an image in a forward, for models that may cut one: always the same rows together, so that they are
the same bits whatever else is computed. It is what a stream waits for (`engine/prefill.py`).
"""

KEPT_BYTES = 256 << 20
"""Encoded images that are kept: one of 256 rows of a model with 4,096 numbers takes 4 MB."""

OTHER_FILE = "Name the mmproj file that was made with the model (--mmproj), or --mmproj none."
"""What to do about a file that does not fit."""

_NAMES = ("<|image_pad|>", "<image_soft_token>", "<|image|>", "<image>", "[IMG]", "<|vision_pad|>")
"""What models call the token of an image's row."""


_MOST_PIXELS = re.compile(r"image_max_pixels: +(\d+)")
_WARM_SIZE = re.compile(r"warmup with image size = (\d+) x (\d+)")
_WINDOWS = re.compile(r"n_wa_pattern: *[1-9]|wa_layer_indexes: *\d")
"""In llama.cpp's log: the largest image, that of the reserved buffer, and layers with windows."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The rows of a run: `rows` of shape (rows, numbers). Row i, where the run begins at position p, has the
    position `base[i] + moves[i] * p`, of four coordinates; the text after it goes on at p + `positions`.
    """

    rows: npt.NDArray[np.float32]
    base: npt.NDArray[np.int32]
    moves: npt.NDArray[np.int32]
    positions: int


class LlamaCppVision:
    """The encoder of an mmproj file beside a model's weights, which have to live longer. `most`: the most
    rows that a forward can compute at once. Raises what `mtmd.functions` does, and ModelFormatError for
    another file.
    """

    marker = ""

    def __init__(self, path: Path, weights: Any, *, threads: int, gpu: bool, most: int) -> None:
        self.path = path
        self.weights_bytes = path.stat().st_size
        self._mtmd = mtmd.functions()
        self._encoder = threading.Lock()
        self._unused = threading.Condition()
        self._users = 0
        self._closed = False
        self._kept: OrderedDict[str, PreparedImage] = OrderedDict()
        self._bytes = 0
        self._most = most
        params = self._mtmd.context_params_default()
        params.use_gpu, params.n_threads = gpu, threads
        params.print_timings = False
        params.warmup = True  # its buffer is reserved, and its size told; no image is encoded
        with log.capture() as lines:
            self._context = self._mtmd.init_from_file(os.fsencode(path), weights, params)
        if not self._context or not self._mtmd.support_vision(self._context):
            self.close()
            raise ModelFormatError(
                f"{path.name} is no vision for this model: {_why(lines)}.", hint=OTHER_FILE
            )
        self.compute_bytes = largest_compute_bytes(lines)
        self.causal = not self._mtmd.decode_use_non_causal(self._context, None)
        self.mrope = bool(self._mtmd.decode_use_mrope(self._context))
        self.chunk = min(CHUNK, most) if self.causal else 0
        self.placeholder = _placeholder(weights)
        self._width = int(lib.llama_model_n_embd_inp(weights))
        self.identity = f"vision {fingerprint([path])} {threads} {gpu}"

    def lay_out(self, image: Image) -> PreparedImage:
        """As `Vision.lay_out`: libmtmd resizes the image, and says how many rows it takes."""
        key = self._key(image)
        kept = self._found(key)
        if kept is not None:
            return kept
        with self._open(), self._chunks(key, image) as chunks:
            return self._laid_out(key, image, chunks)

    def prepare(self, image: Image) -> PreparedImage:
        """As `Vision.prepare`. One image at a time is encoded, and each alone, so that it is always the same
        bits.
        """
        key = self._key(image)
        kept = self._found(key)
        if kept is not None:
            return kept
        with self._open(), self._encoder:
            kept = self._found(key)  # by another thread meanwhile
            if kept is not None:
                return kept
            with self._chunks(key, image) as chunks:
                laid = self._laid_out(key, image, chunks)
                data = tuple(self._run(chunk) for chunk in self._pieces(chunks) if not self._is_text(chunk))
            prepared = replace(laid, data=data, image=None)
            self._keep(prepared)
            return prepared

    def blank(self) -> PreparedImage:
        """An image of a square of rows, as the model computes them, with random numbers: for comparisons."""
        side = min(4, isqrt(self._most))
        count = side * side
        base = np.zeros((count, 4), np.int32)
        base[:, 1], base[:, 2] = np.divmod(np.arange(count), side)
        rows = np.random.default_rng(0).normal(0, 0.1, (count, self._width)).astype(np.float32)
        run = Run(rows, base, np.ones((count, 4), np.int32), side if self.mrope else count)
        return PreparedImage("blank", (self.placeholder,) * count, ((0, count),), data=(run,))

    def _key(self, image: Image) -> str:
        height, width, _ = image.pixels.shape
        found = sha256(f"{self.identity} {width} {height} ".encode())
        found.update(np.ascontiguousarray(image.pixels).data)
        return found.hexdigest()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Keep the encoder from being freed. Raises BackendError if it was."""
        with self._unused:
            if self._closed:
                raise BackendError("The model is closed.", hint="Load it again.")
            self._users += 1
        try:
            yield
        finally:
            with self._unused:
                self._users -= 1
                self._unused.notify_all()

    def _found(self, key: str) -> PreparedImage | None:
        with self._unused:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, prepared: PreparedImage) -> None:
        with self._unused:
            self._kept[prepared.key] = prepared
            self._bytes += _size(prepared)
            while self._bytes > KEPT_BYTES and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= _size(oldest)

    @contextmanager
    def _chunks(self, key: str, image: Image) -> Iterator[Any]:
        """The image as libmtmd divides it (`mtmd_tokenize`, which any number of threads may call at once)."""
        pixels = np.ascontiguousarray(image.pixels)
        height, width, _ = pixels.shape
        data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte))
        bitmap = self._mtmd.bitmap_init(width, height, data)
        chunks = self._mtmd.input_chunks_init()
        try:
            self._mtmd.bitmap_set_id(bitmap, key.encode())
            marker = self._mtmd.default_marker()
            text = mtmd.InputText(marker, len(marker), False, True)  # noqa: FBT003 - C
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            with log.capture() as lines:
                status = self._mtmd.tokenize(self._context, chunks, text, bitmaps, 1)
            if status:
                raise RequestError(
                    f"An image of {width} × {height} pixels cannot be read by this model: "
                    f"{log.last_error(lines) or f'code {status}'}.",
                    hint="Make it larger, or less narrow.",
                )
            yield chunks
        finally:
            self._mtmd.input_chunks_free(chunks)
            self._mtmd.bitmap_free(bitmap)

    def _pieces(self, chunks: Any) -> list[Any]:
        return [
            self._mtmd.input_chunks_get(chunks, index)
            for index in range(self._mtmd.input_chunks_size(chunks))
        ]

    def _is_text(self, chunk: Any) -> bool:
        return bool(self._mtmd.input_chunk_get_type(chunk) == mtmd.TEXT)

    def _laid_out(self, key: str, image: Image, chunks: Any) -> PreparedImage:
        """Raises RequestError where a run does not fit in a forward."""
        tokens: list[int] = []
        runs: list[tuple[int, int]] = []
        for chunk in self._pieces(chunks):
            if self._is_text(chunk):
                length = ctypes.c_size_t()
                found = self._mtmd.input_chunk_get_tokens_text(chunk, ctypes.byref(length))
                tokens += found[: length.value]
                continue
            count = int(self._mtmd.input_chunk_get_n_tokens(chunk))
            if not self.causal and count > self._most:
                raise RequestError(
                    f"An image takes {count} rows, which this model computes at once, in forwards of "
                    f"{self._most} at most.",
                    hint="Load the model with larger batches (batch, ubatch), or make the image smaller.",
                )
            runs.append((len(tokens), count))
            tokens += [self.placeholder] * count
        return PreparedImage(key, tuple(tokens), tuple(runs), image=image)

    def _run(self, chunk: Any) -> Run:
        """Encode a run. Raises BackendError."""
        count = int(self._mtmd.input_chunk_get_n_tokens(chunk))
        with log.capture() as lines:
            status = self._mtmd.encode_chunk(self._context, chunk)
        if status:
            raise BackendError(f"llama.cpp could not encode an image: {log.last_error(lines)}.")
        found = self._mtmd.get_output_embd(self._context)
        rows = np.ctypeslib.as_array(found, (count, self._width)).copy()
        if not np.isfinite(rows).all():
            raise BackendError("Encoding an image gave what is no number: the mmproj file may be damaged.")
        image = self._mtmd.input_chunk_get_tokens_image(chunk)
        at = np.array([[self._position(image, p, i) for i in range(count)] for p in (0, 1)], np.int32)
        positions = int(self._mtmd.input_chunk_get_n_pos(chunk))
        return Run(rows, at[0], at[1] - at[0], positions if self.mrope else count)

    def _position(self, image: Any, begin: int, row: int) -> tuple[int, int, int, int]:
        """The coordinates in llama.cpp's order: time, height, width, and another."""
        found = self._mtmd.image_tokens_get_decoder_pos(image, begin, row)
        return found.t, found.y, found.x, found.z

    def close(self) -> None:
        """Free the encoder, once nothing uses it. May be called twice."""
        with self._unused:
            self._closed = True
            while self._users:
                self._unused.wait()
            if self._context:
                self._mtmd.free(self._context)
            self._context = None
            self._kept.clear()


def largest_compute_bytes(lines: Sequence[str]) -> int:
    """Bytes of the encoder's buffer for the largest image, by llama.cpp's log of opening a file. It is
    reserved for an image that others exceed (Qwen2-VL's: 2,116 of at most 4,096 rows), and then grows: with
    the pixels, and with their square where attention has a mask or scores of all pairs.
    """
    reserved, text = log.buffer_sizes(lines).get("compute", 0), "\n".join(lines)
    most, warm = _MOST_PIXELS.search(text), _WARM_SIZE.search(text)
    if most is None or warm is None:
        return reserved
    times = max(1.0, int(most[1]) / max(1, int(warm[1]) * int(warm[2])))
    pairs = "flash attention is enabled" not in text or _WINDOWS.search(text) is not None
    return round(reserved * (times**2 if pairs else times))


def _why(lines: list[str]) -> str:
    """Why a file could not be opened, by llama.cpp's log."""
    widths = re.search(r"text model \(n_embd = (\d+)\) and mmproj \(n_embd = (\d+)\)", "\n".join(lines))
    if widths is not None:
        return f"it is {widths[2]} wide, the model {widths[1]}"
    return log.last_error(lines) if lines else "it has no encoder of images"


def _placeholder(weights: Any) -> int:
    """A token for rows of images: the model's own, else one that text hardly has."""
    vocab = lib.llama_model_get_vocab(weights)
    tokens = (ctypes.c_int32 * 8)()
    for name in _NAMES:
        raw = name.encode()
        count = lib.llama_tokenize(vocab, raw, len(raw), tokens, len(tokens), False, True)  # noqa: FBT003 - C
        if count == 1:
            return int(tokens[0])
    found = (lib.llama_vocab_pad(vocab), lib.llama_vocab_bos(vocab), lib.llama_vocab_eos(vocab), 0)
    return next(int(token) for token in found if token >= 0)


def _size(prepared: PreparedImage) -> int:
    data = prepared.data
    assert isinstance(data, tuple)
    return sum(run.rows.nbytes for run in data)
