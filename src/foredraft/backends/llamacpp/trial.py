"""Opens a model file in a child process first, so that a fatal fault only ends the child.

If a file is not what llama.cpp expects, it asserts, throws through C, or reads out of bounds, which would end
a server and all its models' requests. So a file that was not loaded before is first loaded in a child
(`trial_run`), which computes a few rows. The weights are mapped there and not packed: the file is only read
from the disk once, because it stays in the system's page cache. The result is stored for the file (its size,
time and header), so that the cost is paid once. Possible temporary faults of the machine are not stored for a
model, which was asked for; for a head, which is tried whenever its model is loaded, for a day.

Heads that are known when their model is loaded are tried with it, in one child, and else in one of their own.

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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import time
from typing import NamedTuple

from foredraft.backends.llamacpp import binding
from foredraft.backends.llamacpp.gguf_file import GGUFSummary, read_gguf
from foredraft.config import ModelOptions
from foredraft.embedding import Pooling
from foredraft.errors import (
    BackendError,
    ChildDiedError,
    ChildError,
    ChildMemoryError,
    ChildTimeoutError,
    ForedraftError,
    ModelError,
    ModelFormatError,
    UnsupportedModelError,
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
_EMBEDDER_FUNCTION = "foredraft.backends.llamacpp.trial_run:open_embedding_model"
_ADAPTER_FUNCTION = "foredraft.backends.llamacpp.trial_run:open_adapter"
_VISION_FUNCTION = "foredraft.backends.llamacpp.trial_images:open_vision"
_VERSION = 1
_ASSERTION = re.compile(r"(?:.*/)?([^/\s]+\.\w+:\d+: .+)")
_THROWN = re.compile(r"what\(\): +(.+)")

HEAD_AGAIN_S = 86_400.0
"""Seconds after which a head is tried again whose trial took too much time or memory."""


class _Fault(NamedTuple):
    """Why a file cannot be loaded, "" if it can, as far as is known `until` then, in seconds since 1970; 0:
    for good. `left_out`: of an adapter that can be loaded the matrices that llama.cpp would leave out.
    """

    text: str
    until: float = 0.0
    left_out: tuple[str, ...] = ()


_known: dict[str, _Fault] = {}


def admit(summary: GGUFSummary, options: ModelOptions) -> None:
    """Return if the file can be opened in this process, or is refused with an error when it is. Also tries
    the heads in `options`, of which `admit_head` then says what is wrong with them.

    Raises ModelFormatError if opening it ends a process or takes too much time or memory; BackendError if it
    could not be tried, and CapacityError if no child was free.
    """
    heads = _untried_heads(summary, options)
    identity = _identity([summary], options)
    if heads and _kept(identity, options) is None:
        with suppress(ForedraftError):  # of the model or of a head: each alone will say so
            _call(_FUNCTION, [summary, *heads.values()], options)
            for one in (identity, *heads):
                _keep(one, _Fault(""), options)
    _admit(summary, identity, [summary], options, _FUNCTION)
    for head in _untried_heads(summary, options).values():
        with suppress(ForedraftError):
            admit_head(summary, head, options)


def admit_head(target: GGUFSummary, head: GGUFSummary | None, options: ModelOptions) -> None:
    """The same for a head of a model that is admitted; None: its own layers. Raises as `admit` does."""
    files = [target] if head is None else [target, head]
    _admit(head or target, _identity(files, options, kind="head"), files, options, _HEAD_FUNCTION)


def admit_adapter(target: GGUFSummary, adapter: GGUFSummary, options: ModelOptions, scale: float) -> None:
    """The same for a LoRA adapter of a model that is admitted, at this scale. Raises as `admit` does, and
    UnsupportedModelError if llama.cpp would compute without some of its matrices.
    """
    files, at = [target, adapter], f"{scale:g}"
    identity = _identity(files, options, kind=f"what an adapter changes, {at}")
    found = _admit(adapter, identity, files, options, _ADAPTER_FUNCTION, more=[at]).left_out
    if found:
        first = ", ".join(found[:3])
        others = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise UnsupportedModelError(
            f"The adapter {adapter.path} changes what llama.cpp computes without adapters: {first}{others}.",
            hint="Merge it into the weights (with PEFT: merge_and_unload), and convert these to GGUF.",
        )


def admit_embedder(summary: GGUFSummary, options: ModelOptions, pooling: Pooling | None) -> None:
    """The same for an embedding model or reranker, pooled like this. Raises as `admit` does."""
    plain = replace(options, watch=(), heads=())
    identity = _identity([summary], plain, kind=f"embedder, {pooling}")
    _admit(summary, identity, [summary], plain, _EMBEDDER_FUNCTION, more=[pooling])


def admit_vision(target: GGUFSummary, mmproj: GGUFSummary, options: ModelOptions) -> None:
    """The same for the file of the vision of a model that is admitted. Raises as `admit` does."""
    files = [target, mmproj]
    _admit(mmproj, _identity(files, options, kind="vision"), files, options, _VISION_FUNCTION)


def _untried_heads(target: GGUFSummary, options: ModelOptions) -> dict[str, GGUFSummary | None]:
    """The heads in the options that nothing is known of, by their identities."""
    found: dict[str, GGUFSummary | None] = {}
    for file in options.heads:
        try:
            head = None if file is None else read_gguf(file)
        except ModelError:  # loading it says so
            continue
        files = [target] if head is None else [target, head]
        found[_identity(files, options, kind="head")] = head
    return {identity: head for identity, head in found.items() if _kept(identity, options) is None}


def _admit(
    tried: GGUFSummary,
    identity: str,
    files: Sequence[GGUFSummary],
    options: ModelOptions,
    function: str,
    *,
    more: Sequence[str | None] = (),
) -> _Fault:
    fault = _kept(identity, options)
    if fault is None:
        fault = _try(tried, files, options, function, more=more)
        if not fault.until or function == _HEAD_FUNCTION:
            _keep(identity, fault, options)
    if fault.until:
        again = " It is tried again after a day." if function == _HEAD_FUNCTION else ""
        raise ModelFormatError(
            f"{tried.path} cannot be loaded: its trial in a child process failed. {fault.text}",
            hint=f"The machine is too busy or has too little memory for it, or the file is damaged.{again}",
        )
    if fault.text:
        raise ModelFormatError(
            f"{tried.path} cannot be loaded: {fault.text}.",
            hint="The file is damaged, or made for another llama.cpp version: download or convert it again.",
        )
    return fault


def _try(
    tried: GGUFSummary,
    files: Sequence[GGUFSummary],
    options: ModelOptions,
    function: str,
    *,
    more: Sequence[str | None] = (),
) -> _Fault:
    """What is wrong with the file. Raises BackendError if it could not be tried."""
    try:
        found = _call(function, files, options, *more)
    except ModelFormatError as error:
        return _Fault(error.message.rstrip("."))
    except (ChildTimeoutError, ChildMemoryError) as error:
        return _Fault(error.message, time() + HEAD_AGAIN_S)
    except ChildError as error:
        if isinstance(error, ChildDiedError) and not error.transient:
            return _Fault(f"llama.cpp ends the process with it ({_last_words(error)})")
        raise BackendError(
            f"{tried.path} could not be tried in a child process. {error.message}",
            hint="Try again. If it fails again, check for free memory and space for temporary files.",
        ) from None
    return _Fault("", left_out=tuple(found or ()))


def _call(
    function: str, files: Sequence[GGUFSummary | None], options: ModelOptions, *more: str | None
) -> list[str] | None:
    """Try a model and its heads in a child; None: its own layers. Returns what the function does. Raises what
    the child does, ChildError.
    """
    seconds = SECONDS + sum(file.size_bytes for file in files if file is not None) // BYTES_PER_SECOND
    with start_children() as children:
        found: list[str] | None = children.call(
            function,
            ["" if file is None else str(file.path) for file in files],
            str(binding.chosen() or ""),
            options.kv_type,
            options.flash_attention,
            list(options.watch),
            *more,
            seconds=seconds,
        )
    return found


def _last_words(error: ChildDiedError) -> str:
    """The last output of llama.cpp or C++; how the process ended if there was none."""
    found = _THROWN.findall(error.last_words) or _ASSERTION.findall(error.last_words)
    return found[-1].strip() if found else error.message.partition(": ")[2].rstrip(".")


def _identity(summaries: Sequence[GGUFSummary], options: ModelOptions, *, kind: str = "") -> str:
    """Identifies the files, the version of llama.cpp, and the options."""
    digest = hashlib.sha256(f"{_VERSION}|{binding.library().key}".encode())
    digest.update(f"|{options.kv_type}|{options.flash_attention}".encode())
    if options.watch:
        digest.update(f"|watch {options.watch}".encode())
    if kind:
        digest.update(f"|{kind}".encode())
    for summary in summaries:
        for file, length in zip(summary.files, summary.header_bytes, strict=True):
            found = file.stat()
            digest.update(f"|{found.st_size}|{found.st_mtime_ns}|".encode())
            with file.open("rb") as opened:
                digest.update(opened.read(length))
    return digest.hexdigest()[:32]


def _kept(identity: str, options: ModelOptions) -> _Fault | None:
    """What is known of files; None if nothing is."""
    fault = _known.get(identity) or _read(_file_of(identity, options))
    if fault is None or (fault.until and fault.until < time()):
        return None
    _known[identity] = fault
    return fault


def _keep(identity: str, fault: _Fault, options: ModelOptions) -> None:
    _known[identity] = fault
    file = _file_of(identity, options)
    if file is None:
        return
    values: dict[str, object] = {"fault": fault.text}
    values |= {"until": fault.until} if fault.until else {}
    values |= {"left_out": fault.left_out} if fault.left_out else {}
    try:
        write_atomically(file, json.dumps(values).encode())
    except OSError as error:
        logger.warning("Cannot save the result of a model file's trial: %s", error)


def _file_of(identity: str, options: ModelOptions) -> Path | None:
    return options.cache_dir / "probes" / f"opened-{identity}.json" if options.cache_dir else None


def _read(file: Path | None) -> _Fault | None:
    if file is None:
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        left_out = tuple(map(str, values.get("left_out", ())))
        return _Fault(str(values["fault"]), float(values.get("until", 0.0)), left_out)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("Ignoring the unreadable result %s: %s", file, error)
        return None
