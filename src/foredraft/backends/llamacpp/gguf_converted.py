"""A GGUF file written again with its tensors in other types, some rows at a time.

Rows are read, converted to f32, quantised and checked in as many threads as asked for: ctypes lets go of the
interpreter while ggml computes. Memory is a few pieces of a tensor (`_PIECE`), whatever the model's size.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.gguf_native import Tensor
from foredraft.backends.llamacpp.mixtures import type_number
from foredraft.errors import ModelError, ModelFormatError, printable, quoted

Bytes: TypeAlias = npt.NDArray[np.uint8]

_PIECE = 1 << 24
"""Numbers that are in memory at a time, unless a row is longer: 64 MB as f32."""

_TASK = 1 << 17
"""Numbers that a thread converts at a time: 1 to 10 ms, so that threads end together."""

_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_ALIGNMENT_KEY = "general.alignment"


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor of a file, and the type that it gets (ggml's name in upper case)."""

    file: Path
    tensor: Tensor
    type: str


def write_converted(
    files: Sequence[Path],
    changes: Sequence[Change],
    file_type: int,
    out: BinaryIO,
    *,
    threads: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the model in `files` as one file: with the first one's keys, `file_type` for its own, and the
    tensors in the order of `changes`. `progress(done, total)` is called after each tensor.

    Raises ModelFormatError (numbers that are not finite or do not fit their new type, a type that cannot be
    converted), ModelError if a file cannot be read, OSError if `out` cannot be written.
    """
    header, ends = _header(files, changes, file_type)
    out.write(header)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads, "foredraft-quantise"))
        opened = {file: stack.enter_context(_open(file)) for file in files}
        written = 0
        for done, (change, end) in enumerate(zip(changes, ends, strict=True), 1):
            for piece in _pieces(opened[change.file], change, pool):
                out.write(piece.data)
                written += len(piece)
            out.write(bytes(end - written))
            written = end
            if progress is not None:
                progress(done, len(changes))


def converted_size(changes: Sequence[Change]) -> int:
    """Bytes of the tensors in their new types."""
    return sum(_row_bytes(change.type, change.tensor.shape[0]) * _rows(change.tensor) for change in changes)


# --- the header ----------------------------------------------------------------------------------------


def _header(files: Sequence[Path], changes: Sequence[Change], file_type: int) -> tuple[bytes, list[int]]:
    """The new file's header, and where each tensor ends after it, padding included."""
    _check_names(changes)
    new = lib.gguf_init_empty()
    try:
        with ExitStack() as stack:
            sources = {file: stack.enter_context(_Opened(file)) for file in files}
            lib.gguf_set_kv(new, sources[files[0]].handle)
            lib.gguf_set_val_u32(new, b"general.quantization_version", abi.GGML_QNT_VERSION)
            lib.gguf_set_val_u32(new, b"general.file_type", file_type)
            for key in (*_SPLIT_KEYS, _ALIGNMENT_KEY):  # one file, with the usual alignment
                lib.gguf_remove_key(new, key.encode())
            for change in changes:
                tensor = sources[change.file].tensors[change.tensor.name]
                lib.gguf_add_tensor(new, tensor)
                lib.gguf_set_tensor_type(new, lib.ggml_get_name(tensor), type_number(change.type))
        header = ctypes.create_string_buffer(lib.gguf_get_meta_size(new))
        lib.gguf_get_meta_data(new, header)
        starts = [lib.gguf_get_tensor_offset(new, index) for index in range(len(changes))]
        last = _padded(starts[-1] + lib.gguf_get_tensor_size(new, len(changes) - 1))
        return header.raw, [*starts[1:], last]
    finally:
        lib.gguf_free(new)


def _check_names(changes: Sequence[Change]) -> None:
    """gguf.h ends the process if a name comes twice."""
    twice = [name for name, count in Counter(change.tensor.name for change in changes).items() if count > 1]
    if twice:
        raise ModelFormatError(f"The model has several tensors of the name {quoted(twice[0])}.")


class _Opened:
    """The header of a file, with ggml's descriptions of its tensors by name."""

    def __init__(self, file: Path) -> None:
        self._context = ctypes.c_void_p()
        params = abi.gguf_init_params(no_alloc=True, ctx=ctypes.pointer(self._context))
        self.handle = lib.gguf_init_from_file(os.fsencode(file), params)
        if not self.handle:
            raise ModelFormatError(f"{file} was changed while it was read.")
        self.tensors: dict[str, int] = {}
        tensor = lib.ggml_get_first_tensor(self._context)
        while tensor:
            self.tensors[(lib.ggml_get_name(tensor) or b"").decode("utf-8", "replace")] = tensor
            tensor = lib.ggml_get_next_tensor(self._context, tensor)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_exception: object) -> None:
        lib.gguf_free(self.handle)
        lib.ggml_free(self._context)


def _padded(size: int) -> int:
    return -(-size // abi.GGUF_DEFAULT_ALIGNMENT) * abi.GGUF_DEFAULT_ALIGNMENT


# --- the tensors ---------------------------------------------------------------------------------------


def _open(file: Path) -> BufferedReader:
    try:
        return file.open("rb")
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.") from error


def _pieces(file: BufferedReader, change: Change, pool: ThreadPoolExecutor) -> Iterator[Bytes]:
    """The tensor in its new type, some rows at a time."""
    tensor = change.tensor
    columns, rows = tensor.shape[0], _rows(tensor)
    convert = _Conversion(change)
    together, at_once = max(1, _PIECE // max(1, columns)), max(1, _TASK // max(1, columns))
    file.seek(tensor.offset)
    for start in range(0, rows, together):
        count = min(together, rows - start)
        given = _read(file, count * convert.bytes_of_row)
        made = np.empty(count * convert.bytes_of_new_row, np.uint8) if convert.changes else given
        tasks = [(given, made, first, min(at_once, count - first)) for first in range(0, count, at_once)]
        for _ in pool.map(convert, tasks):
            pass
        yield made


class _Conversion:
    """What a thread does with some rows of a tensor."""

    def __init__(self, change: Change) -> None:
        self._name = printable(change.tensor.name)
        self._old, self._new = change.tensor.type.upper(), change.type
        self._from, self._to = type_number(self._old), type_number(self._new)
        self._columns = change.tensor.shape[0]
        self.changes = self._old != self._new
        self.bytes_of_row = _row_bytes(self._old, self._columns)
        self.bytes_of_new_row = _row_bytes(self._new, self._columns)
        traits = abi.ggml_type_traits.from_address(lib.ggml_get_type_traits(self._from))
        self._to_float = traits.to_float
        if self.changes and self._old != "F32" and not self._to_float:
            raise ModelFormatError(f"{self._name} is {self._old}, which cannot be converted to {self._new}.")

    def __call__(self, task: tuple[Bytes, Bytes, int, int]) -> None:
        """Convert `count` rows of the first array, from `first` on, to the same rows of the second."""
        given, made, first, count = task
        source = given[first * self.bytes_of_row : (first + count) * self.bytes_of_row]
        if not lib.ggml_validate_row_data(self._from, source.ctypes.data, source.nbytes):
            raise ModelFormatError(
                f"{self._name} has numbers that are not finite.",
                hint="The file is damaged or was converted incorrectly: download or convert it again.",
            )
        if not self.changes:
            return
        target = made[first * self.bytes_of_new_row : (first + count) * self.bytes_of_new_row]
        floats = self._floats(source, count)
        lib.ggml_quantize_chunk(self._to, floats, target.ctypes.data, 0, count, self._columns, None)
        if not lib.ggml_validate_row_data(self._to, target.ctypes.data, target.nbytes):
            raise ModelFormatError(f"{self._name} has numbers that are too large for {self._new}.")

    def _floats(self, source: Bytes, count: int) -> Any:
        """The rows in f32."""
        if self._old == "F32":
            return source.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        floats = np.empty(count * self._columns, np.float32)
        pointer = floats.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._to_float(source.ctypes.data, pointer, floats.size)
        return pointer


def _read(file: BufferedReader, size: int) -> Bytes:
    data = np.empty(size, np.uint8)
    try:
        found = file.readinto(data.data)
    except OSError as error:
        raise ModelError(f"{file.name} cannot be read: {error.strerror}.") from error
    if found != size:
        raise ModelFormatError(f"{file.name} became shorter while it was read.")
    return data


def _rows(tensor: Tensor) -> int:
    return tensor.elements // max(1, tensor.shape[0])


def _row_bytes(type_name: str, columns: int) -> int:
    return lib.ggml_row_size(type_number(type_name), columns)
