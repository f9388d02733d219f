"""A model file is first opened in a child process: what would end the process then ends that one.

Where a file is not what llama.cpp expects it asserts, throws through C, or reads past what it has, and a
server would end every model's requests with it. So a file that was not loaded before is loaded, and computes
a few rows, in a child (`trial_run`). The weights are mapped there and not laid out anew: what is read from
the disk is read once, for it is in the system's page cache when the file is loaded in earnest. What came out
is kept for the file (its size, time and header), so that it is paid for once; what may be a passing fault of
the machine is not.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from functools import partial
from pathlib import Path

from foredraft.backends.llamacpp.gguf_file import GGUFSummary
from foredraft.config import ModelOptions
from foredraft.errors import (
    BackendError,
    ChildDiedError,
    ChildError,
    ChildMemoryError,
    ChildTimeoutError,
    ModelFormatError,
)
from foredraft.files import write_atomically
from foredraft.isolation.pool import ChildPool

logger = logging.getLogger(__name__)

SECONDS = 60.0
"""For a small file on a busy machine; it takes less than one."""

BYTES_PER_SECOND = 20_000_000
"""What a slow disk reads: a large file gets so much longer."""

MEMORY = 4 << 30
"""What the child may have beside the weights, which are mapped."""

start_children = partial(ChildPool, size=1, memory=MEMORY)
"""A fresh child for each file: what one file did to it must not be held against the next."""

_FUNCTION = "foredraft.backends.llamacpp.trial_run:open_model"
_VERSION = 1
_ASSERTION = re.compile(r"(?:.*/)?([^/\s]+\.\w+:\d+: .+)")
_THROWN = re.compile(r"what\(\): +(.+)")
_known: dict[str, str] = {}


def admit(summary: GGUFSummary, options: ModelOptions) -> None:
    """Return if the file can be opened in this process, or is refused in words when it is.

    Raises ModelFormatError where opening it ends a process, takes too long or too much memory; BackendError
    where it could not be tried, and CapacityError where no child was free.
    """
    identity = _identity(summary, options)
    kept = options.cache_dir / "probes" / f"opened-{identity}.json" if options.cache_dir else None
    fault = _known.get(identity)
    if fault is None:
        fault = _read(kept)
    if fault is None:
        fault = _try(summary, options)
        _write(kept, fault)
    _known[identity] = fault
    if fault:
        raise ModelFormatError(
            f"{summary.path} cannot be loaded: {fault}.",
            hint="The file is damaged, or made for another llama.cpp: download or convert it again.",
        )


def _try(summary: GGUFSummary, options: ModelOptions) -> str:
    """What is wrong with the file, whenever it is opened; empty if it can be. Raises as `admit` does for what
    may be otherwise the next time.
    """
    seconds = SECONDS + summary.size_bytes // BYTES_PER_SECOND
    try:
        with start_children() as children:
            children.call(
                _FUNCTION, str(summary.path), options.kv_type, options.flash_attention, seconds=seconds
            )
    except ModelFormatError as error:
        return error.message.rstrip(".")
    except (ChildTimeoutError, ChildMemoryError) as error:
        raise ModelFormatError(
            f"{summary.path} cannot be loaded: it was tried first. {error.message}",
            hint="The machine is too busy or too full for it, or the file is damaged.",
        ) from None
    except ChildError as error:
        if isinstance(error, ChildDiedError) and not error.transient:
            return f"llama.cpp ends its process with it ({_last_words(error)})"
        raise BackendError(
            f"{summary.path} could not be tried in a process of its own. {error.message}",
            hint="Try again. If it stays so: is there memory left, and room for temporary files?",
        ) from None
    return ""


def _last_words(error: ChildDiedError) -> str:
    """What llama.cpp, or C++, said at the end; how it ended where they said nothing."""
    found = _THROWN.findall(error.last_words) or _ASSERTION.findall(error.last_words)
    return found[-1].strip() if found else error.message.partition(": ")[2].rstrip(".")


def _identity(summary: GGUFSummary, options: ModelOptions) -> str:
    """Of the files, the llama.cpp that opens them, and what they are opened with."""
    import llama_cpp  # not before it is needed

    digest = hashlib.sha256(f"{_VERSION}|{llama_cpp.__version__}".encode())
    digest.update(f"|{options.kv_type}|{options.flash_attention}".encode())
    for file, length in zip(summary.files, summary.header_bytes, strict=True):
        found = file.stat()
        digest.update(f"|{found.st_size}|{found.st_mtime_ns}|".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(length))
    return digest.hexdigest()[:32]


def _read(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["fault"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("Ignoring the unreadable result %s: %s", file, error)
        return None


def _write(file: Path | None, fault: str) -> None:
    if file is None:
        return
    try:
        write_atomically(file, json.dumps({"fault": fault}).encode())
    except OSError as error:
        logger.warning("Cannot save what opening a model file has shown: %s", error)
