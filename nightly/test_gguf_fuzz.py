"""Damaged GGUF files: each loads or is refused with exit code 2; none ends a process, or hangs it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

import gguf_factory
import gguf_hybrids
import gguf_mutations
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.errors import ChildDiedError, ChildError
from foredraft.isolation.pool import ChildPool
from gguf_loads import LOADED

PATIENCE = 300.0
"""Seconds for one file: a trial of a small one has 60."""

MODELS: tuple[Callable[[Path], Path], ...] = (
    gguf_factory.tiny_llama,
    gguf_hybrids.tiny_qwen35,
    gguf_hybrids.tiny_lfm2,
    gguf_hybrids.tiny_falcon_h1,
    gguf_hybrids.tiny_mamba2,
)
NUMBERS = (0, 1, 0x7F, 0xFF, 2**31 - 1, 2**32 - 1, 2**63 - 1, 0x7FC00000)
_WHERE_HEADERS_LIE = 200
"""Bytes from the beginning in which a change is tried as often as in all of the header after them."""


@pytest.fixture
def children() -> Iterator[ChildPool]:
    with ChildPool(size=1, memory=4 << 30) as children:
        yield children


def fault(children: ChildPool, function: str, path: Path) -> str | None:
    """What went wrong, beyond a refusal in words."""
    try:
        result = children.call(f"gguf_loads:{function}", str(path), seconds=PATIENCE)
    except ChildDiedError as error:
        return f"{error.message} {error.last_words}"
    except ChildError as error:
        return f"{type(error).__name__}: {error.message}"
    return None if result == LOADED or result.startswith("2: ") else result


@pytest.mark.parametrize("function", ["load", "requantize"])
def test_every_value_of_every_key(function: str, children: ChildPool, tmp_path: Path, seconds: float) -> None:
    until, faults = monotonic() + seconds, {}
    for mutation in gguf_mutations.mutations():
        if monotonic() > until:
            break
        found = fault(children, function, mutation.write(tmp_path / "m.gguf"))
        if found:
            faults[mutation.name] = found
    assert not faults


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_random_bytes(
    make: Callable[[Path], Path], children: ChildPool, tmp_path: Path, seconds: float
) -> None:
    """A few bytes of the header, or of a weight, are others; the seed of a fault is its number."""
    whole = make(tmp_path / "whole.gguf")
    data, header = whole.read_bytes(), read_gguf(whole).header_bytes[0]
    until, faults = monotonic() + seconds / len(MODELS), {}
    for seed in itertools.count():
        if monotonic() > until:
            break
        path = tmp_path / "m.gguf"
        path.write_bytes(damaged(data, header, random.Random(seed)))
        found = fault(children, "load", path)
        if found:
            faults[seed] = found
    assert not faults


def damaged(data: bytes, header: int, rng: random.Random) -> bytes:
    """One to eight bytes or numbers changed."""
    changed = bytearray(data)
    end = rng.choice((_WHERE_HEADERS_LIE, header, header, len(data)))
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(4, end - 8)
        number = rng.choice(
            (0, 1, 0x7F, 0xFF, 2**31 - 1, 2**32 - 1, 2**63 - 1, 0x7FC00000, rng.getrandbits(8))
        )
        size = rng.choice((1, 1, 1, 4, 8))
        changed[at : at + size] = (number & (2 ** (8 * size) - 1)).to_bytes(size, "little")
    return bytes(changed)
