"""Which buffers llama.cpp may lay weights out in: all that it knows but AMX's.

On a processor with AMX, llama.cpp rearranges quantised weights for AMX's tiles. GCC 12 takes the instruction
that configures the tiles to read 8 bytes where it reads 64, and leaves out the stores of the other 56
(llama.cpp's issue 20824): whatever then lies on the stack is loaded, and the first forward ends the program.
Which compiler built the installed llama.cpp is not known here, and a crash cannot be caught. Without AMX the
same weights are rearranged for AVX-512 or AVX2, where one row and many are computed alike (exactness.md).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import llama_cpp._ggml as ggml

AMX = b"AMX"
_CPU = 0  # ggml-backend.h: GGML_BACKEND_DEVICE_TYPE_CPU
_Buffers = ctypes.POINTER(ctypes.c_void_p)


@cache
def without_amx() -> bool:
    """Take AMX's buffers off the list that llama.cpp chooses from, in this process. Returns whether they were
    on it.
    """
    listed = _extra_buffers()
    if listed is None:
        return False
    kept, found, count = 0, False, 0
    while listed[count]:
        if _name(listed[count]) == AMX:
            found = True
        else:
            listed[kept] = listed[count]
            kept += 1
        count += 1
    listed[kept] = None
    return found


def _extra_buffers() -> Any:
    """The list that llama.cpp reads: buffers besides plain memory, the best first, then a null pointer. None
    if this build has no such list.
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
