"""Opens a model file in a child process first, so that a fatal fault only ends the child.

If a file is not what llama.cpp expects, it asserts, throws through C, or reads out of bounds, which would end
a server and all its models' requests. So a file that was not loaded before is first loaded in a child
(`trial_run`), which computes a few rows. The weights are mapped there and not packed: the file is only read
from the disk once, because it stays in the system's page cache. The result is stored for the file (its size,
time and header), so that the cost is paid once; possible temporary faults of the machine are not stored.

So the trial does not lay weights out for Foredraft's kernels, nor compute with these: it would take as much
time and memory as loading itself. What they do with a file depends on the types and shapes of its tensors
only. Those are checked for each tensor before it is placed with them (`weights_of` in `native/products.cpp`),
and every type is tried once for the machine (`kernel_check`). No value of a weight is an index or a length.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from foredraft.backends.llamacpp import binding
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
"""Seconds for a small file on a busy machine; it normally takes less than one."""

BYTES_PER_SECOND = 20_000_000
"""Speed of a slow disk: large files get that much more time."""

MEMORY = 4 << 30
"""Memory limit of the child in addition to the weights, which are mapped."""

start_children = partial(ChildPool, size=1, memory=MEMORY)
"""A new child for each file, so that one file's effects cannot be attributed to the next."""

_FUNCTION = "foredraft.backends.llamacpp.trial_run:open_model"
_HEAD_FUNCTION = "foredraft.backends.llamacpp.trial_run:open_head"
_VERSION = 1
_ASSERTION = re.compile(r"(?:.*/)?([^/\s]+\.\w+:\d+: .+)")
_THROWN = re.compile(r"what\(\): +(.+)")
_known: dict[str, str] = {}


def admit(summary: GGUFSummary, options: ModelOptions) -> None:
    """Return if the file can be opened in this process, or is refused with an error when it is.

    Raises ModelFormatError if opening it ends a process or takes too much time or memory; BackendError if it
    could not be tried, and CapacityError if no child was free.
    """
    _admit(summary, _identity([summary], options), [summary], options, _FUNCTION)


def admit_head(target: GGUFSummary, head: GGUFSummary | None, options: ModelOptions) -> None:
    """The same for a head of a model that is admitted; None: its own layers. Raises as `admit` does."""
    files = [target] if head is None else [target, head]
    identity = _identity(files, options, as_head=True)
    _admit(head or target, identity, files, options, _HEAD_FUNCTION)


def _admit(
    tried: GGUFSummary, identity: str, files: Sequence[GGUFSummary], options: ModelOptions, function: str
) -> None:
    kept = options.cache_dir / "probes" / f"opened-{identity}.json" if options.cache_dir else None
    fault = _known.get(identity)
    if fault is None:
        fault = _read(kept)
    if fault is None:
        fault = _try(tried, files, options, function)
        _write(kept, fault)
    _known[identity] = fault
    if fault:
        raise ModelFormatError(
            f"{tried.path} cannot be loaded: {fault}.",
            hint="The file is damaged, or made for another llama.cpp version: download or convert it again.",
        )


def _try(tried: GGUFSummary, files: Sequence[GGUFSummary], options: ModelOptions, function: str) -> str:
    """The file's permanent fault; empty if it can be opened. Raises as `admit` does for faults that may be
    temporary.
    """
    seconds = SECONDS + sum(file.size_bytes for file in files) // BYTES_PER_SECOND
    try:
        with start_children() as children:
            children.call(
                function,
                [str(file.path) for file in files],
                str(binding.chosen() or ""),
                options.kv_type,
                options.flash_attention,
                list(options.watch),
                seconds=seconds,
            )
    except ModelFormatError as error:
        return error.message.rstrip(".")
    except (ChildTimeoutError, ChildMemoryError) as error:
        raise ModelFormatError(
            f"{tried.path} cannot be loaded: its trial in a child process failed. {error.message}",
            hint="The machine is too busy or has too little memory for it, or the file is damaged.",
        ) from None
    except ChildError as error:
        if isinstance(error, ChildDiedError) and not error.transient:
            return f"llama.cpp ends the process with it ({_last_words(error)})"
        raise BackendError(
            f"{tried.path} could not be tried in a child process. {error.message}",
            hint="Try again. If it fails again, check for free memory and space for temporary files.",
        ) from None
    return ""


def _last_words(error: ChildDiedError) -> str:
    """The last output of llama.cpp or C++; how the process ended if there was none."""
    found = _THROWN.findall(error.last_words) or _ASSERTION.findall(error.last_words)
    return found[-1].strip() if found else error.message.partition(": ")[2].rstrip(".")


def _identity(summaries: Sequence[GGUFSummary], options: ModelOptions, *, as_head: bool = False) -> str:
    """Identifies the files, the version of llama.cpp, and the options."""
    digest = hashlib.sha256(f"{_VERSION}|{binding.library().key}".encode())
    digest.update(f"|{options.kv_type}|{options.flash_attention}".encode())
    if options.watch:
        digest.update(f"|watch {options.watch}".encode())
    if as_head:
        digest.update(b"|head")
    for summary in summaries:
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
        logger.warning("Cannot save the result of a model file's trial: %s", error)
