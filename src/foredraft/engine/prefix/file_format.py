"""The file format that one sequence's KV cells are kept in, and the folder of such files.

Little-endian: the cells as the backend gave them, the tokens as 32-bit integers, and a tail of `_TAIL.size`
bytes: magic, version, the number of tokens and of bytes of cells, the first halves of the SHA-256 of what
makes cells valid and of the scope, the CRC-32 of the cells, and the CRC-32 of everything after the cells.
What describes the cells comes last, so that it is appended to them where they are: cells of a long context
are gigabytes, and copying them would delay the decoding. A file that lost its end has no tail.

A file's name identifies its model and scope. A file with such a name in this folder is Foredraft's: one that
cannot be used is removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.int32]

MAGIC = b"foredraft-prefix"
VERSION = 1
PIECE = 1 << 20

_TAIL = struct.Struct("<16sIIQ16s16sII")
_WORD = 4
_NAME = re.compile(r"prefix-[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]{16}\.bin")
_LEFT_BEHIND = re.compile(rf"\.{_NAME.pattern}\.\w+")  # by a crash while one was written


class UnusableError(Exception):
    """Why a file is not used, as the end of a sentence that begins with "it"."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose cells: 16 bytes that stand for what makes them valid, and 16 for the scope."""

    model: bytes
    scope: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file: what its cells are. `checksum` is their CRC-32."""

    identity: Identity
    tokens: Tokens
    bytes: int
    checksum: int


def prefixes_dir(cache_dir: Path) -> Path:
    """The folder that prefixes are kept in; it may not exist yet."""
    return cache_dir / "prefixes"


def digest(text: str) -> bytes:
    """What stands for a scope, or for what makes cells valid."""
    return hashlib.sha256(text.encode()).digest()[:16]


def as_tokens(tokens: Sequence[int]) -> Tokens:
    """Tokens as they are in a file."""
    return np.asarray(tokens, "<i4")


def name_of(identity: Identity, tokens: Tokens) -> str:
    """The file name of a prefix."""
    parts = (identity.model, identity.scope, hashlib.sha256(tokens.tobytes()).digest())
    return "-".join(["prefix", *(part[:8].hex() for part in parts)]) + ".bin"


# --- the folder ----------------------------------------------------------------------------------------


def files(folder: Path, model: bytes | None = None) -> list[Path]:
    """The prefixes in a folder, of one model or of all, by name. Raises OSError."""
    start = "prefix-" if model is None else f"prefix-{model[:8].hex()}-"
    found = _listed(folder, _NAME)
    return [path for path in found if path.name.startswith(start)]


def left_behind(folder: Path) -> list[Path]:
    """What crashes left of files that were being written. Another process may be writing one just now.

    Raises OSError.
    """
    return _listed(folder, _LEFT_BEHIND)


def remembered(folder: Path) -> list[Path]:
    """Everything in the folder that is ours: what `forget` erases. Raises OSError."""
    return files(folder) + left_behind(folder)


def forget(folder: Path) -> None:
    """Erase everything in the folder that is ours, and nothing else. Raises OSError."""
    for path in remembered(folder):
        path.unlink(missing_ok=True)


def _listed(folder: Path, names: re.Pattern[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if names.fullmatch(path.name) and path.is_file())


# --- one file ------------------------------------------------------------------------------------------


def finish(cells: bytearray, identity: Identity, tokens: Tokens) -> bytearray:
    """The content of a file: `cells`, to which the rest is appended."""
    size, checksum = len(cells), zlib.crc32(cells)
    words = tokens.tobytes()
    fields = (MAGIC, VERSION, len(tokens), size, identity.model, identity.scope, checksum)
    described = zlib.crc32(_TAIL.pack(*fields, 0), zlib.crc32(words))
    cells += words
    cells += _TAIL.pack(*fields, described)
    return cells


def read_header(path: Path) -> Header:
    """What a file holds, without the cells. Raises UnusableError, OSError."""
    with path.open("rb") as file:
        return _header(file)


def read(path: Path, identity: Identity, tokens: Tokens) -> bytearray:
    """The cells of a prefix, checked. Raises UnusableError, OSError."""
    with path.open("rb") as file:
        header = _header(file)  # again: the file may have been replaced since its header was read
        if header.identity != identity or not np.array_equal(header.tokens, tokens):
            raise UnusableError("is another prefix than its name says")
        file.seek(0)
        cells, checksum = bytearray(), 0
        # In pieces: filling gigabytes with zeros first would hold up everything else in this process.
        while piece := file.read(min(PIECE, header.bytes - len(cells))):
            cells += piece
            checksum = zlib.crc32(piece, checksum)
        if len(cells) != header.bytes or checksum != header.checksum:
            raise UnusableError("is damaged: its checksum is another")
    return cells


def _header(file: BinaryIO) -> Header:
    size = os.fstat(file.fileno()).st_size
    if size < _TAIL.size:
        raise UnusableError("is too short to be a prefix")
    file.seek(size - _TAIL.size)
    magic, version, count, cells, model, scope, checksum, described = _TAIL.unpack(file.read(_TAIL.size))
    if magic != MAGIC:
        raise UnusableError("has no end, or is no prefix")
    if version != VERSION:
        raise UnusableError(f"has version {version} of the format; this reads {VERSION}")
    if size != cells + count * _WORD + _TAIL.size:
        raise UnusableError("is damaged: it has another size than it says")
    file.seek(cells)
    words = file.read(count * _WORD)
    tail = _TAIL.pack(magic, version, count, cells, model, scope, checksum, 0)
    if zlib.crc32(tail, zlib.crc32(words)) != described:
        raise UnusableError("is damaged: the checksum of its tokens is another")
    return Header(Identity(model, scope), np.frombuffer(words, "<i4"), cells, checksum)
