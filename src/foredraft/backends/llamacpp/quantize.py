"""Convert the weights of a GGUF file to another type, as llama.cpp's own quantiser does (`mixtures`)."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp import binding, trial
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.file_types import file_type_name, file_type_number
from foredraft.backends.llamacpp.gguf_converted import Change, converted_size, write_converted
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.gguf_native import read_header
from foredraft.backends.llamacpp.loading import loaded_without_weights
from foredraft.backends.llamacpp.mixtures import FLOATS, MIXTURES, Traits, in_order, tensor_types
from foredraft.config import ModelOptions
from foredraft.errors import CapacityError, ConfigError, ModelFormatError, quoted
from foredraft.files import check_folder
from foredraft.library.split import model_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from foredraft.backends.llamacpp.gguf_file import GGUFSummary

NEEDS_IMATRIX = frozenset(
    {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S"}
)
"""Types for which llama.cpp requires an importance matrix, which Foredraft does not compute."""

_PROJECTOR = "clip"
"""The architecture of files with the part of a model that sees or hears, which is no model on its own."""

_WHOLE = frozenset({"I8", "I16", "I32", "I64"})
_FULL = {errno.ENOSPC, errno.EFBIG, *({errno.EDQUOT} if hasattr(errno, "EDQUOT") else ())}


def quantizable_types() -> list[str]:
    """The type names that `quantize` accepts."""
    return sorted(MIXTURES)


def default_name(stem: str, type_name: str) -> str:
    """The file name for this model quantised as `type_name`: `name-TYPE.gguf`.

    Raises ConfigError for an unknown type.
    """
    name = file_type_name(_type_number(type_name))
    plain = re.sub(r"(?i)[-.](bf16|f16|f32|fp16|fp32)$", "", stem)
    return f"{re.sub(r'[/:]+', '-', plain)}-{name}.gguf"


def quantize(
    src: Path,
    dst: Path,
    type_name: str,
    *,
    threads: int = 0,
    force: bool = False,
    allow_requantize: bool = False,
    llama_library: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GGUFSummary:
    """Write `src` to `dst` with its weights as `type_name` ("q4_0", "Q4_K_M", …); return `dst`'s summary.
    A split model becomes one file. `threads` 0 uses all cores. `progress(done, total)` is called after each
    tensor. Quantising a quantised model loses more precision than quantising the original: it is refused
    unless `allow_requantize`, and then causes a warning. `dst` only appears when it is complete.
    `llama_library` as in `ModelOptions`.

    Raises ConfigError (unknown type, `dst` exists without `force`, or is `src`, or of the library), what
    `read_gguf` raises,
    UnsupportedModelError, ModelFormatError (a model that cannot be loaded, numbers that are not finite),
    CapacityError if the disk is full.
    """
    binding.choose(llama_library)
    number = _type_number(type_name)
    _check_output(src, dst, force=force)
    source = read_gguf(src)
    if source.is_vocab_only:
        raise ModelFormatError(f"{src} contains only a vocabulary and no weights to quantise.")
    already = sorted({name.upper() for name in source.quantization} - FLOATS - _WHOLE)
    if already:
        _requantizing(source, already, allowed=allow_requantize)
    trial.admit(source, ModelOptions())
    changes = _changes(source, number)
    _check_space(dst.parent, converted_size(changes))
    # A temporary folder on the same disk: os.replace is atomic.
    try:
        folder = Path(mkdtemp(prefix=".quantize-", dir=dst.parent))
    except OSError as exc:
        raise ConfigError(f"{dst.parent} cannot be written to: {exc.strerror}.") from exc
    try:
        part = folder / dst.name
        _write(source, changes, number, part, threads=threads or physical_cores(), progress=progress)
        summary = read_gguf(part)
        part.replace(dst)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(summary, path=dst, files=(dst,))


def _type_number(type_name: str) -> int:
    number = file_type_number(type_name)
    name = "" if number is None else file_type_name(number)
    if number is not None and name in MIXTURES:
        return number
    message = f"There is no weight type {quoted(type_name)}."
    if name in NEEDS_IMATRIX:
        message = f"{name} needs an importance matrix, which Foredraft cannot compute."
    elif name:
        message = f"llama.cpp cannot quantise a model to {name}."
    raise ConfigError(message, hint=f"Valid types: {', '.join(quantizable_types())}.")


def _check_output(src: Path, dst: Path, *, force: bool) -> None:
    if dst.is_dir():
        raise ConfigError(f"{dst} is a folder.", hint="Name the file to write.")
    if dst.exists() and any(file.exists() and dst.samefile(file) for file in model_files(src)):
        raise ConfigError(f"{dst} is the input file.", hint="Choose another output file.")
    if dst.exists() and not force:
        raise ConfigError(f"{dst} exists already.", hint="Use --force to overwrite it, or another name.")
    check_folder(dst)


def _requantizing(source: GGUFSummary, already: list[str], *, allowed: bool) -> None:
    kinds = ", ".join(kind.upper() for kind in already)
    message = f"{source.path.name} is already quantised ({kinds}); quantising it again loses quality."
    if not allowed:
        raise ConfigError(message, hint="Start from an F16, BF16 or F32 file, or add --allow-requantize.")
    warnings.warn(message, UserWarning, stacklevel=3)


def _changes(source: GGUFSummary, number: int) -> list[Change]:
    """The tensors of all files with their new types, in the order of the new file."""
    with ThreadPoolExecutor(1) as thread:  # Ctrl-C would be lost in llama.cpp's log
        traits = thread.submit(_traits, source).result()
    files = {tensor.name: file for file in source.files for tensor in read_header(file).tensors}
    tensors = in_order(source.tensors)
    types = tensor_types(file_type_name(number), traits, tensors)
    return [Change(files[tensor.name], tensor, name) for tensor, name in zip(tensors, types, strict=True)]


def _traits(source: GGUFSummary) -> Traits:
    """What the choice of types depends on. Raises what loading the model raises."""
    if source.architecture == _PROJECTOR:
        return Traits(_PROJECTOR, layers=0, experts=0, heads_per_kv=0)
    experts = source.metadata.get(f"{source.architecture}.expert_count", 0)
    with loaded_without_weights(source.path) as model:
        shared = lib.llama_model_n_head_kv(model)
        description = ctypes.create_string_buffer(256)
        lib.llama_model_desc(model, description, len(description))
        return Traits(
            source.architecture,
            layers=source.block_count,
            experts=experts if isinstance(experts, int) else 0,
            heads_per_kv=lib.llama_model_n_head(model) // shared if shared else 0,
            is_70b=b" 70B " in description.value,
        )


def _check_space(folder: Path, size: int) -> None:
    """Raises CapacityError at once, and not after the hours that a large model takes."""
    disk = shutil.disk_usage(folder)
    if disk.total and disk.free < size:
        raise _full(folder, f"it takes {size / 1e6:,.0f} MB")


def _write(
    source: GGUFSummary,
    changes: list[Change],
    number: int,
    part: Path,
    *,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    try:
        with part.open("wb") as out:
            write_converted(source.files, changes, number, out, threads=threads, progress=progress)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        folder = part.parent.parent
        if error.errno in _FULL:
            raise _full(folder, "the disk is full, or no file may be so large") from error
        raise ConfigError(f"{folder} cannot be written to: {error.strerror}.") from error


def _full(folder: Path, reason: str) -> CapacityError:
    free = shutil.disk_usage(folder).free
    return CapacityError(
        f"The quantised file could not be written to {folder}: {reason} ({free / 1e6:,.0f} MB are free).",
        hint="Free some space, or choose an output file on another disk.",
    )
