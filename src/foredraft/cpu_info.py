"""The processor of this machine, as Linux describes it in /proc/cpuinfo; elsewhere little is known.

What a forward costs on one, and in which order its kernels add up, says nothing of another.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

CPU_INFO = Path("/proc/cpuinfo")

VECTORS = (
    *("amx", "avx", "f16c", "fma"),
    *("asimd", "bf16", "fphp", "i8mm", "neon", "sme2", "smeb", "smef", "smei", "sve"),
    "rv",
)
"""How the names of instructions begin (Linux's) that decide how fast matrices are multiplied. A new kernel
knows more names of others, and that must not make it another processor."""


def first_processor() -> dict[str, str]:
    """The fields of the first processor, names in lower case; none where the system does not say."""
    try:
        with CPU_INFO.open(encoding="utf-8", errors="replace") as file:
            return fields_of("".join(takewhile(str.strip, file)))  # one of what may be hundreds
    except OSError:
        return {}


def fields_of(info: str) -> dict[str, str]:
    """The fields of the first processor of a /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in info.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields


def instructions_of(fields: Mapping[str, str]) -> frozenset[str]:
    """Linux's names of the instructions that it has."""
    return frozenset((fields.get("flags") or fields.get("features") or fields.get("isa") or "").split())


def name_of(fields: Mapping[str, str]) -> str:
    """Its name, or its maker's numbers, or nothing."""
    if name := fields.get("model name") or fields.get("cpu model") or fields.get("uarch"):
        return name
    numbers = (fields.get(f"cpu {field}", "") for field in ("implementer", "part", "variant"))
    return " ".join(filter(None, numbers))  # ARM has no names for its own


def processor_name() -> str:
    """The name of this machine's processor, as good as the system knows it; possibly none."""
    return name_of(first_processor()) or platform.processor() or platform.machine()


class Processor(NamedTuple):
    """Its name, and the instructions of `VECTORS` that it has. Empty where the system does not say."""

    name: str
    instructions: str


def processor_of(fields: Mapping[str, str]) -> Processor:
    """The processor that has these fields in /proc/cpuinfo."""
    found = sorted(flag for flag in instructions_of(fields) if flag.startswith(VECTORS))
    return Processor(name_of(fields), " ".join(found))


@cache
def this_processor() -> Processor:
    """The processor of this machine, as good as the system knows it. Raises nothing."""
    return processor_of(first_processor())._replace(name=processor_name())
