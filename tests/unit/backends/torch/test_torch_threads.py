"""Several models with numbers of threads of their own in one process: each is measured and computed with its
own, whichever thread of the process asks for a forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.backends.torch import attention, half, linear
from foredraft.backends.torch.exact_sizes import measured_with_threads, telling_weight
from foredraft.protocols import Model
from foredraft.types import Rows
from matrix import nightly
from model_cases import text_tokens
from torch_cases import load

Make = Callable[..., Path]
TEXT = text_tokens(10)

needs_fbgemm = pytest.mark.skipif(not half._has_halves(), reason="torch without FBGEMM, or not exact here")


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_what_is_measured_is_kept_for_each_number_of_threads() -> None:
    asked: list[tuple[int, str]] = []

    @measured_with_threads
    def measure(name: str) -> int:
        asked.append((torch.get_num_threads(), name))
        return len(asked)

    found = []
    for threads, name in [(1, "a"), (2, "a"), (1, "b"), (1, "a"), (2, "a")]:
        torch.set_num_threads(threads)
        found.append(measure(name))
    assert asked == [(1, "a"), (2, "a"), (1, "b")]
    assert found == [1, 2, 3, 1, 2]


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        (attention, "least_rows", (23,)),
        (linear, "exact_sizes", (23, 41, torch.float32)),
        pytest.param(half, "exact_sizes", (41,), marks=needs_fbgemm),
    ],
    ids=["attention", "oneDNN", "FBGEMM"],
)
def test_every_measure_is_such_a_one(
    module: Any, name: str, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sizes that no other test has, so that nothing is known of them."""
    measured_with: list[int] = []

    def watched(*args: Any) -> Any:
        measured_with.append(torch.get_num_threads())
        return telling_weight(*args)

    monkeypatch.setattr(module, "telling_weight", watched)
    for threads in (1, 2, 2, 1):
        torch.set_num_threads(threads)
        getattr(module, name)(*arguments)
    assert measured_with == [1, 2]


def watch(model: Model) -> list[int]:
    """The number of threads of every forward that the model computes from now on."""
    seen: list[int] = []
    inner: Any = getattr(model, "_model", model)  # below the one that rewinds
    forward = inner._forward

    def watched(batch: Any) -> Any:
        seen.append(torch.get_num_threads())
        return forward(batch)

    inner._forward = watched
    return seen


def row_by_row(model: Model) -> Any:
    model.release(0)
    return np.concatenate([model.forward([Rows(0, i, TEXT[i : i + 1], 1)]) for i in range(len(TEXT))])


def at_once(model: Model) -> Any:
    model.release(0)
    return model.forward([Rows(0, 0, TEXT, len(TEXT))])


@pytest.mark.parametrize(
    "architecture", ["llama", *(pytest.param(name, marks=nightly) for name in ("gpt2", "falcon_h1"))]
)
def test_a_model_computes_with_its_own_threads_after_another_was_loaded(
    folder: Make, architecture: str
) -> None:
    first = load(folder(architecture), threads=1)
    second = load(folder(architecture), threads=2)
    seen = watch(first), watch(second)
    expected = row_by_row(first), row_by_row(second)
    for _ in range(2):
        for model, rows in zip((first, second), expected, strict=True):
            assert np.array_equal(at_once(model), rows)
    assert set(seen[0]) == {1}
    assert set(seen[1]) == {2}
    assert [model.info.settings["threads"] for model in (first, second)] == ["1", "2"]


def test_whichever_thread_asks(folder: Make) -> None:
    """torch's number of threads belongs to the thread that set it; others take the last one of any."""
    first = load(folder(), threads=2)
    load(folder(), threads=1).close()
    seen, here = watch(first), row_by_row(first)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(at_once, first).result()
    assert set(seen) == {2}
    assert np.array_equal(there, here)
