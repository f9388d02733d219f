"""Foredraft's own kernels in llama.cpp: whether they are compiled in, and the command that does it.

They let the rows of a draft share reads of weights and of the context (`native/`). They are added by a header
that is included before every file of llama.cpp; without it everything works, but verification takes longer.
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
"""The kernels that can be compiled in, with descriptions."""


@cache
def built_in() -> str:
    """The kernels' version and the names of those compiled in, such as "3 attention panels"; empty without
    any.
    """
    try:
        function = processor_library().foredraft_kernels
    except (AttributeError, OSError):
        return ""
    function.restype, function.argtypes = ctypes.c_char_p, ()
    return str((function() or b"").decode("ascii", "replace"))


def processor_library() -> ctypes.CDLL:
    """The processor library of ggml. Raises OSError if there is none."""
    library = Path(ggml.libggml._name)
    return ctypes.CDLL(str(library.with_name(library.name.replace("ggml", "ggml-cpu", 1))))


def has(name: str) -> bool:
    """Whether the kernels of this name are compiled in."""
    return name in built_in().split()[1:]


def describe() -> str:
    """Descriptions of those compiled in; empty if there are none."""
    return ", ".join(words for name, words in NAMES.items() if has(name))


def build_command() -> str:
    """The command that builds llama.cpp with the kernels and with a fix for GCC 12's bug."""
    flags = f"-include {shlex.quote(str(HEADER))}"
    build = installation.add("--force-reinstall", "--no-cache-dir", "--no-deps", "llama-cpp-python")
    return f'CXXFLAGS="{flags}" {build}'
