"""The KV buffers: cut, copied, saved and rearranged without touching what is not meant."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft.backends.torch.kv import KVCache
from foredraft.errors import BackendError

LENGTH = 12


def filled(dtype: Any = torch.float32) -> KVCache:
    """Two layers of different shapes; sequence 0 holds the numbers of its positions, 1 their negatives."""
    cache = KVCache(3, 100, dtype=dtype, device=torch.device("cpu"))
    for index, (heads, key_size, value_size) in enumerate([(2, 4, 6), (1, 8, 8)]):
        layer = cache.layer(index, heads, key_size, value_size)
        for buffer in (layer.keys, layer.values):
            buffer[0, :, :LENGTH] = torch.arange(1.0, LENGTH + 1)[None, :, None].to(dtype)
            buffer[1, :, :LENGTH] = -torch.arange(1.0, LENGTH + 1)[None, :, None].to(dtype)
    cache.lengths[:2] = [LENGTH, LENGTH]
    return cache


def held(cache: KVCache, seq: int) -> list[float]:
    """The numbers that every buffer holds for the sequence, if they agree."""
    found: list[list[float]] = []
    for index, (heads, key_size, value_size) in enumerate([(2, 4, 6), (1, 8, 8)]):
        layer = cache.layer(index, heads, key_size, value_size)
        for buffer in (layer.keys, layer.values):
            cells = buffer[seq, :, : cache.lengths[seq]].float()
            assert (cells == cells[:1, :, :1]).all()
            found.append(cells[0, :, 0].tolist())
    assert all(numbers == found[0] for numbers in found)
    return found[0]


def numbers(*values: int) -> list[float]:
    return [float(value) for value in values]


def test_a_path_is_moved_together_and_the_rest_forgotten() -> None:
    cache = filled()
    cache.keep_path(0, 5, (0, 3, 4, 6))
    assert held(cache, 0) == numbers(1, 2, 3, 4, 5, 6, 9, 10, 12)
    assert held(cache, 1) == numbers(*range(-1, -13, -1))


@pytest.mark.parametrize("path", [(), (0,), (0, 1, 2)])
def test_a_path_along_the_front_is_a_truncation(path: tuple[int, ...]) -> None:
    cache = filled()
    cache.keep_path(0, 5, path)
    assert held(cache, 0) == numbers(*range(1, 6 + len(path)))


def test_a_path_that_is_not_there_changes_nothing() -> None:
    cache = filled()
    with pytest.raises(BackendError):
        cache.keep_path(0, 5, (0, 7))
    assert held(cache, 0) == numbers(*range(1, 13))


def test_a_fork_is_a_copy() -> None:
    cache = filled()
    cache.fork(0, 2, 5)
    cache.layer(0, 2, 4, 6).keys[0] = 99
    assert held(cache, 2) == numbers(1, 2, 3, 4, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_snapshot_is_bytes_that_another_cache_takes(dtype: Any) -> None:
    saved = filled(dtype).snapshot(0)
    assert len(saved) == 8 + LENGTH * (2 * 4 + 2 * 6 + 8 + 8) * dtype.itemsize
    other = filled(dtype)
    other.restore(1, bytearray(bytes(saved)))
    assert held(other, 1) == numbers(*range(1, 13))


@pytest.mark.parametrize("damage", [b"", b"\xff" * 8, b"\0" * 9, b"\x65" + b"\0" * 7])
def test_what_is_no_snapshot_leaves_an_empty_sequence(damage: bytes) -> None:
    cache = filled()
    with pytest.raises(BackendError):
        cache.restore(1, bytearray(damage))
    assert cache.lengths == [LENGTH, 0, 0]


def test_buffers_are_made_once() -> None:
    cache = filled()
    assert cache.layer(0, 2, 4, 6) is cache.layer(0, 2, 4, 6)
