"""Forwards with images: an image's rows are computed by themselves, always the same ones together.

So what they are does not depend on the text around them, on what else is in the batch, and on where a cached
prefix ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.image_places import ImagePlaces
from foredraft.backends.llamacpp.vision import Run
from foredraft.images import ImageSpan, spans_within
from foredraft.types import Logits, Rows


def divided(batch: Sequence[Rows], chunk: int) -> tuple[list[Rows], list[Rows]]:
    """(what is computed piece by piece, in order; the text after it, which is computed together)."""
    first: list[Rows] = []
    rest: list[Rows] = []
    for rows in batch:
        *before, last = pieces(rows, chunk)
        first += before
        (first if last.images else rest).append(last)
    return first, rest


def pieces(rows: Rows, chunk: int) -> Iterator[Rows]:
    """The rows in parts, of which each is text alone or rows of one run of an image, at most `chunk` from a
    multiple of `chunk` on; 0: all of a run.
    """
    end, at = rows.start + len(rows.tokens), rows.start
    for span in rows.images:
        if at < span.start:
            yield _part(rows, at, span.start)
        at = span.start
        while at < span.end:
            row = span.first + at - span.start
            more = min(chunk - row % chunk, span.end - at) if chunk else span.end - at
            yield _part(rows, at, at + more)
            at += more
    if at < end:
        yield _part(rows, at, end)


def _part(rows: Rows, first: int, end: int) -> Rows:
    after = rows.start + len(rows.tokens) - end
    return replace(
        rows,
        start=first,
        tokens=rows.tokens[first - rows.start : end - rows.start],
        logits=min(max(0, rows.logits - after), end - first),
        images=spans_within(rows.images, first, end),
    )


def in_order(batch: Sequence[Rows], rest: Sequence[Rows], found: dict[int, Logits], logits: Logits) -> Logits:
    """The logits of a batch, in its order: those of `rest`, computed together, and those found before."""
    first = 0
    for piece in rest:
        found[piece.seq] = logits[first : first + piece.logits]
        first += piece.logits
    return np.concatenate([found[rows.seq] for rows in batch if rows.seq in found])


def run_of(span: ImageSpan) -> Run:
    """The run whose rows a span has."""
    data = span.image.data
    assert isinstance(data, tuple)
    run = data[span.run]
    assert isinstance(run, Run)
    return run


class ImageBatch:
    """A llama_batch of rows of an image. Its arrays belong to numpy, so nothing is freed."""

    def __init__(self, rows: Rows, stream: int, begin: int, *, mrope: bool) -> None:
        """`begin`: the position at which the run begins."""
        [span] = rows.images
        run, part, count = run_of(span), slice(span.first, span.first + span.rows), span.rows
        at = run.base[part] + run.moves[part] * begin
        if not mrope:
            at = (begin + np.arange(part.start, part.stop, dtype=np.int32))[:, None]
        self._positions = np.ascontiguousarray(at.T, np.int32)
        self._rows = np.ascontiguousarray(run.rows[part], np.float32)
        self._counts = np.ones(count, np.int32)
        self._sequences = np.full(count, stream, np.int32)
        self._pointers = self._sequences.ctypes.data + 4 * np.arange(count, dtype=np.uint64)
        self._wanted = np.zeros(count, np.int8)
        self._wanted[count - rows.logits :] = 1
        self.native = abi.llama_batch(
            n_tokens=count,
            token=None,
            embd=_pointer(self._rows, ctypes.c_float),
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )


def _pointer(array: Any, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def compute_image(context: Any, piece: Rows, stream: int, *, causal: bool, places: ImagePlaces | None) -> int:
    """Compute rows of one run of an image, and return llama.cpp's status. `places`: with M-RoPE."""
    [span] = piece.images
    run, start = run_of(span), span.start - span.first
    begin = start if places is None else places.position(piece.seq, start)
    batch = ImageBatch(piece, stream, begin, mrope=places is not None)
    try:
        if not causal:
            lib.llama_set_causal_attn(context, False)  # noqa: FBT003 - C
        status = int(lib.llama_decode(context, batch.native))
    finally:
        if not causal:
            lib.llama_set_causal_attn(context, True)  # noqa: FBT003 - C
    if status == 0 and places is not None:
        places.add(piece.seq, start, len(run.rows), run.positions)
    return status
