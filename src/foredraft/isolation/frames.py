"""Messages between a pool and its children: pickles, each preceded by its length."""

from __future__ import annotations

import pickle
import struct
from io import BytesIO
from typing import IO, Any

_LENGTH = struct.Struct("!Q")


class PlainUnpickler(pickle.Unpickler):
    """Unpickles plain values only (numbers, texts, bytes, lists, tuples, sets, dicts): a pickle that names a
    class could run any code, and a child may have been compromised by its input.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError."""
        raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")


def send(stream: IO[bytes], data: bytes) -> None:
    """Write a frame. Raises OSError if the reader is gone."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes], most: int | None = None) -> bytes:
    """Read a frame. Raises EOFError at the end of the stream, even within a frame, and for more than `most`
    bytes.
    """
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    if most is not None and length > most:
        raise EOFError(f"a frame of {length} bytes")
    return _exactly(stream, length)


def plain(data: bytes) -> Any:
    """The plain value of a pickle. Raises UnpicklingError, and pickle's other errors for damaged data."""
    return PlainUnpickler(BytesIO(data)).load()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other side ended")
    return data
