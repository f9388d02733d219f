"""Metadata of a GGUF file, read from its header without loading the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from time import time_ns
from typing import TYPE_CHECKING

from foredraft.backends.llamacpp.file_types import file_type_name
from foredraft.backends.llamacpp.gguf_native import Array, Header, Tensor, Value, read_header
from foredraft.backends.llamacpp.gguf_values import check_values
from foredraft.errors import ModelError, ModelFormatError, ModelNotFoundError
from foredraft.library.catalogue import stem_of
from foredraft.library.display import display_name
from foredraft.library.split import model_files, split_stem
from foredraft.library.type_share import TypeShare, type_shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAGIC = b"GGUF"

SETTLED_NS = 2_000_000_000
"""How long ago a file must have changed last for its times to tell one content from another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFSummary:
    """The header of a GGUF file (or of all parts of a split model).

    Missing counts are 0, missing names are empty; `name` is the file's if the header has no useful one. For
    models whose layers differ, head counts are the largest. `quantization` maps tensor types to their share,
    largest first; `file_type` is the usual name of the mixture ("Q4_K_M"). `size_bytes` is the total of all
    files, `header_bytes` the size of each file's part before its weights.
    """

    path: Path
    files: tuple[Path, ...]
    version: int
    architecture: str
    name: str
    parameters: int
    context_length: int
    block_count: int
    embedding_length: int
    head_count: int
    kv_head_count: int
    vocab_size: int
    tokenizer: str
    has_chat_template: bool
    file_type: str
    quantization: Mapping[str, TypeShare]
    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, Value | Array]
    size_bytes: int
    header_bytes: tuple[int, ...]

    @property
    def is_vocab_only(self) -> bool:
        """Whether there is a tokenizer but no weights, so that it cannot generate."""
        return not self.tensors

    @property
    def is_split(self) -> bool:
        return len(self.files) > 1


def is_gguf(path: Path) -> bool:
    """Whether the file starts like a GGUF file; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def check_file(path: Path) -> None:
    """Raises ModelNotFoundError or ModelFormatError for faults that are visible without llama.cpp."""
    if not path.exists():
        raise ModelNotFoundError(
            f"There is no file {path}.", hint="'foredraft models list' shows the models you have."
        )
    if not path.is_file():
        raise ModelFormatError(f"{path} is not a file.", hint="Name the GGUF file itself.")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelNotFoundError(
            f"Cannot read {path}: {error.strerror}.", hint="Check the file's permissions."
        ) from None
    if magic != b"GGUF":
        begins = f"it starts with {magic.decode('latin-1')!r}" if magic else "it is empty"
        raise ModelFormatError(
            f"{path} is not a GGUF file ({begins}).",
            hint="Convert models in other formats to GGUF with llama.cpp's converters.",
        )


def read_gguf(path: Path) -> GGUFSummary:
    """Summarise a GGUF file; for a split model any part may be given, and all parts are read.

    Raises ModelNotFoundError if it or one of its parts is missing, ModelFormatError if a file is not GGUF,
    has a damaged header or an impossible value in it, or is truncated, MissingDependencyError without
    llama.cpp. A file with only a vocabulary is accepted. A file that has not changed since is not read again.
    """
    files = model_files(path)
    for file in files:
        _check_readable(file, among=files)
    found = [file.stat() for file in files]
    changed = max(max(one.st_mtime_ns, one.st_ctime_ns) for one in found)
    if time_ns() - changed < SETTLED_NS:
        return _read(path, files)
    times = tuple((one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found)
    return _read_settled(path, files, times)


@lru_cache(maxsize=8)
def _read_settled(path: Path, files: tuple[Path, ...], _times: tuple[object, ...]) -> GGUFSummary:
    return _read(path, files)


def _read(path: Path, files: tuple[Path, ...]) -> GGUFSummary:
    headers = [read_header(file) for file in files]
    for file, header in zip(files, headers, strict=True):
        _check_complete(file, header)
    metadata = headers[0].metadata
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    architecture = _text(metadata, "general.architecture")
    if not architecture:
        raise ModelFormatError(f"{path} has no architecture in its header (general.architecture).")
    check_values(path, architecture, metadata, tensors)
    quantization = type_shares((tensor.type, tensor.size_bytes) for tensor in tensors)
    return GGUFSummary(
        path=files[0],
        files=files,
        version=headers[0].version,
        architecture=architecture,
        name=display_name(_text(metadata, "general.name"), stem_of(files[0])),
        parameters=sum(tensor.elements for tensor in tensors),
        context_length=_count(metadata, f"{architecture}.context_length"),
        block_count=_count(metadata, f"{architecture}.block_count"),
        embedding_length=_count(metadata, f"{architecture}.embedding_length"),
        head_count=_count(metadata, f"{architecture}.attention.head_count"),
        kv_head_count=_count(metadata, f"{architecture}.attention.head_count_kv"),
        vocab_size=_vocab_size(metadata, architecture),
        tokenizer=_text(metadata, "tokenizer.ggml.model"),
        has_chat_template=bool(_text(metadata, "tokenizer.chat_template")),
        file_type=_file_type(metadata, quantization),
        quantization=quantization,
        tensors=tensors,
        metadata=metadata,
        size_bytes=sum(file.stat().st_size for file in files),
        header_bytes=tuple(header.bytes for header in headers),
    )


def _check_readable(file: Path, *, among: Sequence[Path]) -> None:
    if not file.is_file():
        if len(among) > 1:
            raise ModelNotFoundError(
                f"{split_stem(file.stem)} is split into {len(among)} files, and {file} is missing.",
                hint="Download the missing file into the same folder, or pull the model again.",
            )
        raise ModelNotFoundError(f"There is no file {file}.")
    try:
        with file.open("rb") as opened:
            start = opened.read(len(MAGIC))
    except OSError as exc:
        raise ModelError(f"{file} cannot be read: {exc.strerror}.") from exc
    if start != MAGIC:
        what = "is empty" if not start else "is not a GGUF file"
        raise ModelFormatError(
            f"{file} {what}.",
            hint="Foredraft reads GGUF model files; download one with 'foredraft models pull'.",
        )


def _check_complete(file: Path, header: Header) -> None:
    """Check the file's size: a truncated download has a valid header, and llama.cpp would read all of it
    first.
    """
    size = file.stat().st_size
    needed = max((tensor.offset + tensor.size_bytes for tensor in header.tensors), default=0)
    if size < needed:
        raise ModelFormatError(
            f"{file} is truncated: it has {size:,} bytes of at least {needed:,}.",
            hint="The download is incomplete: repeat it.",
        )


def _file_type(metadata: Mapping[str, Value | Array], quantization: Mapping[str, TypeShare]) -> str:
    """The name of `general.file_type`, or of the most common tensor type if the file has none."""
    value = metadata.get("general.file_type")
    name = file_type_name(value) if isinstance(value, int) else ""
    return name or next(iter(quantization), "").upper()


def _vocab_size(metadata: Mapping[str, Value | Array], architecture: str) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Array):
        return tokens.length
    return _count(metadata, f"{architecture}.vocab_size")


def _text(metadata: Mapping[str, Value | Array], key: str) -> str:
    value = metadata.get(key, "")
    return value if isinstance(value, str) else ""


def _count(metadata: Mapping[str, Value | Array], key: str) -> int:
    """A whole number, the largest if each layer has its own, or 0."""
    value = metadata.get(key, 0)
    numbers = value.head if isinstance(value, Array) else (value,)
    return max((number for number in numbers if isinstance(number, int)), default=0)
