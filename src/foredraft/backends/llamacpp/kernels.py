"""Foredraft's own kernels in llama.cpp: whether they were compiled in, and the command that does.

They let the rows of a draft share what is read of weights and of the context (`native/`). A header that is
included before every file of llama.cpp brings them in; without it everything works, and verifying takes
longer.
"""

from __future__ import annotations

import ctypes
import shlex
from functools import cache
from pathlib import Path

import llama_cpp._ggml as ggml

from foredraft import installation

HEADER = Path(__file__).with_name("native") / "kernels.h"
NAMES = {
    "attention": "attention",
    "few-rows": "few rows with AMX",
    "panels": "rows together with AVX2",
    "panels-vnni": "rows together with AVX-VNNI",
    "panels-wide": "rows together with AVX-512 and VNNI",
}
"""What can be compiled in, and what it is called."""


@cache
def built_in() -> str:
    """The kernels' number and the names of those compiled in, such as "3 attention panels"; empty where
    llama.cpp was built without them.
    """
    try:
        function = processor_library().foredraft_kernels
    except (AttributeError, OSError):
        return ""
    function.restype, function.argtypes = ctypes.c_char_p, ()
    return str((function() or b"").decode("ascii", "replace"))


def processor_library() -> ctypes.CDLL:
    """Ggml's library of what a processor computes. Raises OSError if there is none."""
    library = Path(ggml.libggml._name)
    return ctypes.CDLL(str(library.with_name(library.name.replace("ggml", "ggml-cpu", 1))))


def has(name: str) -> bool:
    """Whether the kernels of this name are compiled in."""
    return name in built_in().split()[1:]


def describe() -> str:
    """Those compiled in, in words; empty if there are none."""
    return ", ".join(words for name, words in NAMES.items() if has(name))


def build_command() -> str:
    """The command that builds llama.cpp with them, GCC 12's fault mended."""
    flags = f"-include {shlex.quote(str(HEADER))}"
    build = installation.add("--force-reinstall", "--no-cache-dir", "--no-deps", "llama-cpp-python")
    return f'CXXFLAGS="{flags}" {build}'
