"""Which processor this is: what a forward costs on one says nothing of another."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

VECTORS = (
    *("amx", "avx", "f16c", "fma"),
    *("asimd", "bf16", "fphp", "i8mm", "neon", "sme2", "smeb", "smef", "smei", "sve"),
    "rv",
)
"""How the names of instructions begin (Linux's) that decide how fast matrices are multiplied. A new kernel
knows more names of others, and that must not make it another processor."""

CPU_INFO = Path("/proc/cpuinfo")


class Processor(NamedTuple):
    """Its name, and the instructions of `VECTORS` that it has. Empty where the system does not say."""

    name: str
    instructions: str


def processor_of(info: str) -> Processor:
    """The first processor of a /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in info.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    flags = fields.get("flags") or fields.get("features") or fields.get("isa") or ""
    found = sorted({flag for flag in flags.split() if flag.startswith(VECTORS)})
    return Processor(_name(fields), " ".join(found))


def _name(fields: Mapping[str, str]) -> str:
    if name := fields.get("model name") or fields.get("cpu model") or fields.get("uarch"):
        return name
    numbers = (fields.get(f"cpu {field}", "") for field in ("implementer", "part", "variant"))
    return " ".join(filter(None, numbers))  # ARM has no names for its own


@cache
def this_processor() -> Processor:
    """The processor of this machine, as good as the system knows it. Raises nothing."""
    try:
        with CPU_INFO.open(encoding="utf-8", errors="replace") as file:
            first = "".join(takewhile(str.strip, file))  # one of what may be hundreds
    except OSError:
        first = ""
    found = processor_of(first)
    return found if found.name else found._replace(name=platform.processor() or platform.machine())
