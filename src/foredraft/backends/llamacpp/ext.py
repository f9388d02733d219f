"""llama.cpp's functions for trained heads, which its C API does not have.

They are in `src/llama-ext.h`, which is C++, so the names in a library are the compiler's: GCC's and Clang's,
Microsoft's, or plain ones. That header may change with any version; it was read in the one that is pinned.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

from foredraft.backends.llamacpp import binding
from foredraft.errors import MissingDependencyError

_CONTEXT, _ADDRESS = ctypes.c_void_p, ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    "llama_set_embeddings_nextn": (
        None,
        (_CONTEXT, ctypes.c_bool, ctypes.c_bool),
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    ),
    "llama_get_embeddings_nextn": (
        _ADDRESS,
        (_CONTEXT,),
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ),
    "llama_set_nextn_layer_offset": (
        None,
        (_CONTEXT, ctypes.c_int32),
        "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
        "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z",
    ),
    "llama_set_embeddings_layer_inp": (
        None,
        (_CONTEXT, ctypes.c_uint32, ctypes.c_bool),
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    "llama_get_embeddings_layer_inp": (
        _ADDRESS,
        (_CONTEXT, ctypes.c_uint32),
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
}
"""Of each function the types of its result and arguments, and its names by GCC and by Microsoft."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions, without `llama_` in their names. `masked`: only of rows that return logits. A `get` is
    the address of the rows of the last forward in its order, valid until the next.
    """

    set_embeddings_nextn: Any
    get_embeddings_nextn: Any
    set_nextn_layer_offset: Any
    set_embeddings_layer_inp: Any
    get_embeddings_layer_inp: Any


@cache
def functions() -> Functions:
    """The functions of the process's library. Raises MissingDependencyError if it lacks one."""
    handle = binding.library().handle
    return Functions(**{name.removeprefix("llama_"): _bound(handle, name) for name in _FUNCTIONS})


def _bound(handle: ctypes.CDLL, name: str) -> Any:
    result, arguments, *mangled = _FUNCTIONS[name]
    for one in (*mangled, name):
        try:
            function = getattr(handle, one)
        except AttributeError:
            continue
        function.restype, function.argtypes = result, arguments
        return function
    raise MissingDependencyError(
        f"Trained heads need a function that this llama.cpp library does not export ({name}).",
        hint="Use the packaged library, or build a shared one without hiding its symbols "
        "(documentation: llama-library).",
    )
