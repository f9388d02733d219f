"""llama.cpp's list of buffer types for packed weights, and AMX's entry in it (`amx`)."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp._ggml as ggml

AMX = b"AMX"
_CPU = 0  # ggml-backend.h: GGML_BACKEND_DEVICE_TYPE_CPU
_Buffers = ctypes.POINTER(ctypes.c_void_p)


def offers_amx() -> bool:
    """Whether AMX is in the list: the processor has it, and llama.cpp was built for it."""
    return AMX in map(_name, _entries())


def without_amx() -> None:
    """Remove AMX from the list, in this process. No weights may be in AMX's buffers by then, because
    llama.cpp also uses the list when it computes.
    """
    entries = _entries()
    kept = [entry for entry in entries if _name(entry) != AMX]
    if len(kept) == len(entries):
        return
    listed = _extra_buffers()
    for at, entry in enumerate([*kept, None]):
        listed[at] = entry


def _entries() -> list[int]:
    listed = _extra_buffers()
    entries: list[int] = []
    while listed and listed[len(entries)]:
        entries.append(listed[len(entries)])
    return entries


def _extra_buffers() -> Any:
    """llama.cpp's list: buffer types beside plain memory, the best first, ending with a null pointer. None if
    this build has no such list.
    """
    registry = _function("ggml_backend_dev_backend_reg", ctypes.c_void_p)
    address = _function("ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_char_p)
    device = _function("ggml_backend_dev_by_type", ctypes.c_int)(_CPU)
    if not device:
        return None
    proc = address(registry(device), b"ggml_backend_dev_get_extra_bufts")
    if not proc:
        return None
    listed = ctypes.CFUNCTYPE(_Buffers, ctypes.c_void_p)(proc)(device)
    return listed if listed else None


def _name(buffer: int) -> bytes:
    name: bytes = _function("ggml_backend_buft_name", ctypes.c_void_p, result=ctypes.c_char_p)(buffer)
    return name


def _function(name: str, *arguments: type, result: type = ctypes.c_void_p) -> Any:
    function = getattr(ggml.libggml, name)
    return ctypes.CFUNCTYPE(result, *arguments)(ctypes.cast(function, ctypes.c_void_p).value or 0)
