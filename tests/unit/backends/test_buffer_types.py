"""AMX's buffers on the list that llama.cpp chooses from, and off it."""

from __future__ import annotations

import ctypes

import pytest

from foredraft.backends.llamacpp import buffer_types
from foredraft.backends.llamacpp.buffer_types import offers_amx, without_amx

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
        ([11, 12], [12, None]),
        ([12, 11, 13], [12, 13, None]),
        ([11], [None]),
        ([12, 13], [12, 13, None]),
        ([], [None]),
    ],
)
def test_amx_is_taken_off_the_list(
    monkeypatch: pytest.MonkeyPatch, before: list[int], after: list[int | None]
) -> None:
    listed = offer(monkeypatch, *before)
    assert offers_amx() is (11 in before)
    without_amx()
    assert list(listed)[: len(after)] == after
    assert not offers_amx()
    without_amx()
    assert list(listed)[: len(after)] == after


def test_an_llama_cpp_without_such_a_list_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_types, "_extra_buffers", lambda: None)
    assert not offers_amx()
    without_amx()


def test_the_installed_llama_cpp_has_a_list_that_can_be_read() -> None:
    entries = buffer_types._entries()
    assert all(buffer_types._name(entry) for entry in entries)
