"""Names of llama.cpp's mixtures of tensor types: Q4_K_M, Q8_0, F16 …"""

from __future__ import annotations

from functools import cache

from foredraft.backends.llamacpp import abi

_PREFIX = "LLAMA_FTYPE_"
_ALIASES = {"FP16": "F16", "FP32": "F32", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M"}


@cache
def file_types() -> dict[str, int]:
    """Name → number."""
    names = {one.name.removeprefix(_PREFIX): int(one) for one in abi.llama_ftype}
    return {
        name.removeprefix("MOSTLY_").removeprefix("ALL_"): number
        for name, number in names.items()
        if name != "GUESSED"
    }


def file_type_name(number: int) -> str:
    """The name of a `general.file_type`, or "" if llama.cpp has no such type."""
    return next((name for name, value in file_types().items() if value == number), "")


def file_type_number(name: str) -> int | None:
    """The number for a name, in any case and with the usual short forms, or None if there is no such type."""
    upper = name.strip().upper().replace("-", "_")
    return file_types().get(_ALIASES.get(upper, upper))
