"""Names of llama.cpp's mixtures of tensor types: Q4_K_M, Q8_0, F16 …"""

from __future__ import annotations

from functools import cache

from foredraft.registry import missing_dependency

_PREFIX = "LLAMA_FTYPE_"
_ALIASES = {"FP16": "F16", "FP32": "F32", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M"}


@cache
def file_types() -> dict[str, int]:
    """Name → number, read from the installed llama.cpp so that it is always current.

    Raises MissingDependencyError.
    """
    try:
        from llama_cpp import llama_cpp
    except ImportError as exc:
        raise missing_dependency("llama_cpp", "Reading GGUF files") from exc
    names = {name.removeprefix(_PREFIX): name for name in vars(llama_cpp) if name.startswith(_PREFIX)}
    return {
        name.removeprefix("MOSTLY_").removeprefix("ALL_"): int(getattr(llama_cpp, constant))
        for name, constant in names.items()
        if name != "GUESSED"
    }


def file_type_name(number: int) -> str:
    """The name of a `general.file_type`, or "" if the installed llama.cpp has no such type."""
    return next((name for name, value in file_types().items() if value == number), "")


def file_type_number(name: str) -> int | None:
    """The number for a name, in any case and with the usual short forms, or None if there is no such type."""
    upper = name.strip().upper().replace("-", "_")
    return file_types().get(_ALIASES.get(upper, upper))
