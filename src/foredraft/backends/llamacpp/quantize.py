"""Convert the weights of a GGUF file to another type, with llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from foredraft.backends.llamacpp import trial
from foredraft.backends.llamacpp.file_types import file_type_name, file_type_number, file_types
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.config import ModelOptions
from foredraft.errors import (
    CapacityError,
    ConfigError,
    ForedraftError,
    ModelFormatError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from foredraft.backends.llamacpp.gguf_file import GGUFSummary

NEEDS_IMATRIX = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "Q2_K_S"})
"""Types for which llama.cpp requires an importance matrix, which Foredraft does not compute."""

_UNQUANTIZED = frozenset({"f32", "f16", "bf16"})
_FAILED = "failed to quantize: "
_PROGRESS = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")


def quantizable_types() -> list[str]:
    """The type names that `quantize` accepts. Raises MissingDependencyError."""
    return sorted(set(file_types()) - NEEDS_IMATRIX)


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
    progress: Callable[[int, int], None] | None = None,
) -> GGUFSummary:
    """Write `src` to `dst` with its weights as `type_name` ("q4_0", "Q4_K_M", …); return `dst`'s summary.
    `threads` 0 uses all cores. `progress(done, total)` is called after each tensor. Quantising a quantised
    model loses more precision than quantising the original: it is refused unless `allow_requantize`, and then
    causes a warning. `dst` only appears when it is complete.

    Raises ConfigError (unknown type, `dst` exists without `force`, or is `src`), what `read_gguf` raises,
    UnsupportedModelError, CapacityError if the disk is full.
    """
    number = _type_number(type_name)
    _check_output(src, dst, force=force)
    source = read_gguf(src)
    if source.is_vocab_only:
        raise ModelFormatError(f"{src} contains only a vocabulary and no weights to quantise.")
    already = sorted(set(source.quantization) - _UNQUANTIZED - {"i32"})
    if already:
        _requantizing(source, already, allowed=allow_requantize)
    trial.admit(source, ModelOptions())
    # A temporary folder on the same disk: llama.cpp names a file's parts itself, and os.replace is atomic.
    try:
        folder = Path(mkdtemp(prefix=".quantize-", dir=dst.parent))
    except OSError as exc:
        raise ConfigError(f"{dst.parent} cannot be written to: {exc.strerror}.") from exc
    try:
        part = folder / dst.name
        _run(source.path, part, number, threads=threads, requantize=bool(already), progress=progress)
        summary = read_gguf(part)
        part.replace(dst)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(summary, path=dst, files=(dst,))


def _type_number(type_name: str) -> int:
    number = file_type_number(type_name)
    if number is None:
        raise ConfigError(
            f"There is no weight type {type_name!r}.", hint=f"Valid types: {', '.join(quantizable_types())}."
        )
    if type_name.upper() in NEEDS_IMATRIX:
        raise ConfigError(
            f"{type_name} needs an importance matrix, which Foredraft cannot compute.",
            hint="Use Q2_K or larger, or download a quantised file.",
        )
    return number


def _check_output(src: Path, dst: Path, *, force: bool) -> None:
    if dst.is_dir():
        raise ConfigError(f"{dst} is a folder.", hint="Name the file to write.")
    if dst.exists() and src.exists() and dst.samefile(src):
        raise ConfigError(f"{dst} is the input file.", hint="Choose another output file.")
    if dst.exists() and not force:
        raise ConfigError(f"{dst} exists already.", hint="Use --force to overwrite it, or another name.")
    if not dst.parent.is_dir():
        raise ConfigError(f"There is no folder {dst.parent}.", hint="Create it, or choose another one.")


def _requantizing(source: GGUFSummary, already: list[str], *, allowed: bool) -> None:
    kinds = ", ".join(kind.upper() for kind in already)
    message = f"{source.path.name} is already quantised ({kinds}); quantising it again loses quality."
    if not allowed:
        raise ConfigError(message, hint="Start from an F16, BF16 or F32 file, or add --allow-requantize.")
    warnings.warn(message, UserWarning, stacklevel=3)


def _run(
    src: Path,
    dst: Path,
    number: int,
    *,
    threads: int,
    requantize: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    from llama_cpp import llama_cpp

    params: Any = llama_cpp.llama_model_quantize_default_params()
    params.nthread = threads  # 0: as many as the machine has
    params.ftype = number
    params.allow_requantize = requantize
    log: list[str] = []

    def listen(text: str) -> None:
        log.append(text)
        match = _PROGRESS.match(text)
        if match and progress is not None:
            progress(int(match[1]), int(match[2]))

    with _log_to(listen):
        status = llama_cpp.llama_model_quantize(os.fsencode(src), os.fsencode(dst), ctypes.byref(params))
    if status != 0:
        raise _failure(src, dst, log)


@contextmanager
def _log_to(listener: Callable[[str], object]) -> Iterator[None]:
    """Pass llama.cpp's log lines to `listener` within the block, then restore the old callback.

    The log is llama.cpp's only way to report progress.
    """
    from llama_cpp import llama_cpp

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(_level: int, text: bytes, _user_data: object) -> None:
        listener(text.decode("utf-8", errors="replace"))

    previous, user_data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(previous), ctypes.byref(user_data))
    llama_cpp.llama_log_set(listen, None)
    try:
        yield
    finally:
        llama_cpp.llama_log_set(previous, user_data)


def _failure(src: Path, dst: Path, log: list[str]) -> ForedraftError:
    """The error for llama.cpp's log when it failed: failures can only be told apart by their text."""
    said = next((text for text in reversed(log) if _FAILED in text), "")
    reason = said.partition(_FAILED)[2].strip() or "llama.cpp gave no reason"
    if "iostream" in reason:  # C++ streams do not say which error it was; nearly always the disk is full
        free = shutil.disk_usage(dst.parent).free
        return CapacityError(
            f"The quantised file could not be written to {dst.parent.parent}: the disk is full, or no file "
            f"may be so large ({free / 1e6:,.0f} MB are free).",
            hint="Free some space, or choose an output file on another disk.",
        )
    if "architecture" in reason:
        return UnsupportedModelError(f"llama.cpp cannot quantise {src}: {reason}.")
    return ModelFormatError(
        f"llama.cpp could not quantise {src}: {reason}.", hint="The file may be damaged: download it again."
    )
