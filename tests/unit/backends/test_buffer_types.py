"""AMX's buffers are not chosen from."""

from __future__ import annotations

import ctypes

import pytest

from foretoken.backends.llamacpp import buffer_types
from foretoken.backends.llamacpp.buffer_types import without_amx

NAMES = {11: b"AMX", 12: b"CPU_REPACK", 13: b"KLEIDIAI"}


def offer(monkeypatch: pytest.MonkeyPatch, *buffers: int) -> ctypes.Array[ctypes.c_void_p]:
    """Let llama.cpp have this list."""
    listed = (ctypes.c_void_p * (len(buffers) + 1))(*buffers, None)
    pointer = ctypes.cast(listed, ctypes.POINTER(ctypes.c_void_p))
    monkeypatch.setattr(buffer_types, "_extra_buffers", lambda: pointer)
    monkeypatch.setattr(buffer_types, "_name", NAMES.__getitem__)
    return listed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([11, 12], [12, None, None]),
        ([12, 11, 13], [12, 13, None, None]),
        ([11], [None, None]),
        ([12, 13], [12, 13, None]),
        ([], [None]),
    ],
)
def test_amx_is_taken_off_the_list(
    monkeypatch: pytest.MonkeyPatch, before: list[int], after: list[int | None]
) -> None:
    listed = offer(monkeypatch, *before)
    assert without_amx.__wrapped__() is (11 in before)
    assert list(listed)[: len(after) - 1] == after[:-1]
    assert without_amx.__wrapped__() is False


def test_an_llama_cpp_without_such_a_list_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_types, "_extra_buffers", lambda: None)
    assert without_amx.__wrapped__() is False


def test_the_installed_llama_cpp_offers_no_amx_afterwards() -> None:
    without_amx()
    listed = buffer_types._extra_buffers()
    names: list[bytes] = []
    while listed and listed[len(names)]:
        names.append(buffer_types._name(listed[len(names)]))
    assert b"AMX" not in names
