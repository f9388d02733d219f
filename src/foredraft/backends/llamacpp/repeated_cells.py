"""A saved sequence of llama.cpp with its KV cells repeated, so that a deep context need not be computed.

Reading 500 tokens takes seconds on a slow processor, most of what the exactness probe may take. What kernels
do depends on the number of cells and on their positions, hardly on what is in them, and a row's logits are
compared with those of the same row over the same cells. So a few computed cells, repeated, stand for a long
context.

The format is llama.cpp's (`llama_kv_cache::state_write`): for each cache the number of streams, then the
cells' positions and sequences, then the rows of K and of V of each layer. Bytes that do not read as exactly
that are not repeated: recurrent states, positions of several dimensions.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MAGIC = 0xAF143CD8
_CELL = struct.Struct("<iIi")
"""Position, number of sequences, sequence."""

_ROW = struct.Struct("<iQ")
"""The type of a layer's rows, and the size of one."""

_LARGEST_ROW = 1 << 24
"""Bytes; more is not the size of a row, but something else."""


class _FormatError(Exception):
    """The bytes are not what this module can repeat."""


@dataclass(slots=True)
class _Reader:
    """Takes numbers and parts from saved bytes."""

    data: memoryview
    at: int = 0
    most_bytes: int = 0
    """What may be written, in bytes."""

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise _FormatError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str = "<I") -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    @property
    def ended(self) -> bool:
        return self.at == len(self.data)


def repeated(saved: bytes | bytearray, length: int, *, most_bytes: int) -> bytearray | None:
    """The saved sequence with `length` cells, its own in turns; None if its format is another one, it has no
    cells, or it would have more than `most_bytes` bytes. What is repeated are K and V; positions go on.
    """
    reader, out = _Reader(memoryview(saved), most_bytes=most_bytes), bytearray()
    try:
        if reader.number() != _MAGIC:
            return None
        out += struct.pack("<I", _MAGIC) + reader.take(4)
        while not reader.ended:
            _cache(reader, out, length)
    except _FormatError:
        return None
    return out


def _cache(reader: _Reader, out: bytearray, length: int) -> None:
    streams = reader.number()
    out += struct.pack("<I", streams)
    filled = 0
    for _ in range(streams):
        cells = reader.number()
        if not cells:
            out += struct.pack("<I", 0)
            continue
        filled += 1
        out += struct.pack("<I", length)
        _positions(reader, out, cells, length)
        _rows(reader, out, cells, length)
    if filled != 1:
        raise _FormatError


def _positions(reader: _Reader, out: bytearray, cells: int, length: int) -> None:
    seq = 0
    for position in range(cells):
        found, sequences, seq = _CELL.unpack(reader.take(_CELL.size))
        if (found, sequences) != (position, 1):
            raise _FormatError
    for position in range(length):
        out += _CELL.pack(position, 1, seq)


def _rows(reader: _Reader, out: bytearray, cells: int, length: int) -> None:
    """The rows of K of all layers, then those of V."""
    transposed, layers, *rotations = (reader.number() for _ in range(4))
    if transposed:
        raise _FormatError
    out += struct.pack("<4I", transposed, layers, *rotations)
    for _ in range(2 * layers):
        header = reader.take(_ROW.size)
        _, size = _ROW.unpack(header)
        if not 0 < size <= _LARGEST_ROW:
            raise _FormatError
        if len(out) + length * size > reader.most_bytes:
            raise _FormatError
        out += header
        out += _cycled(reader.take(cells * size), length * size)


def _cycled(part: memoryview, size: int) -> bytes:
    """The first `size` bytes of the part repeated without end."""
    whole, rest = divmod(size, len(part))
    return bytes(part) * whole + bytes(part[:rest])
