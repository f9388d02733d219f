"""Tests in a child process whether a constraint can be used, before llguidance compiles it in this one.

llguidance is native code in the server's own process, and constraints come from clients: one that crashes it,
or takes minutes to compile, must only fail its own request. The result is cached, unless the machine may have
been the cause.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from threading import Lock

from foredraft.errors import (
    CapacityError,
    ChildDiedError,
    ChildError,
    ChildMemoryError,
    ChildTimeoutError,
)
from foredraft.isolation.pool import ChildPool
from foredraft.sampling.grammar import WHAT, Source, unusable
from foredraft.types import Constraint

SECONDS = 2.0
"""Seconds for compiling and the first steps."""

MEMORY = 512 << 20

REMEMBERED = 1024
"""Maximum cached results: a hash and a line of text each."""

_SIMPLER = "Use a simpler constraint: fewer rules, levels or alternatives, or smaller counts."
_LIMITS = ("crashes on it", "Too many items", "Current row has", "too many", "too deep")
_TRY_OUT = "foredraft.sampling.trial:try_out"

_pool = ChildPool(memory=MEMORY)
_verdicts: OrderedDict[bytes, str] = OrderedDict()
_remembering = Lock()


def check(constraint: Constraint, source: Source, vocab_size: int) -> None:
    """Raises RequestError with the reason for an unusable constraint; CapacityError if too many are being
    tested, or the testing process was killed.
    """
    names_tokens = source.form == "lark" and ("<[" in source.text or "<|" in source.text)
    size = vocab_size if names_tokens else 0
    key = sha256(f"{source.form} {size} {source.text}".encode("utf-8", "surrogatepass")).digest()
    with _remembering:
        reason = _verdicts.get(key)
    if reason is None:
        reason = _found_out(constraint, source, size)
    with _remembering:
        _verdicts[key] = reason
        _verdicts.move_to_end(key)
        if len(_verdicts) > REMEMBERED:
            _verdicts.popitem(last=False)
    if reason:
        raise unusable(constraint, reason, hint=_SIMPLER if _is_limit(reason) else None)


def get_ready() -> None:
    """Start a child, so that the first constraint does not wait for one."""
    with suppress(ChildError, CapacityError):
        _pool.call(_TRY_OUT, "regex", "a", 0, seconds=SECONDS)


def _found_out(constraint: Constraint, source: Source, vocab_size: int) -> str:
    try:
        reason: str = _pool.call(_TRY_OUT, source.form, source.text, vocab_size, seconds=SECONDS)
    except ChildDiedError as error:
        if not error.transient:
            return f"llguidance crashes on it. {error.message}"
        what = WHAT[constraint.kind]
        raise CapacityError(
            f"The {what} could not be tested. {error.message}", hint="Send the request again."
        ) from None
    except ChildMemoryError as error:
        reason = f"llguidance runs out of memory on it. {error.message}"
        raise unusable(constraint, reason, hint=_SIMPLER) from None
    except ChildTimeoutError as error:
        raise unusable(constraint, f"it is too complex. {error.message}", hint=_SIMPLER) from None
    return reason


def _is_limit(reason: str) -> bool:
    return any(words in reason for words in _LIMITS)
