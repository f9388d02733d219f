"""The processor of this machine, from Linux's /proc/cpuinfo; other systems report little more than a name.

It is part of the cache keys of costs, exactness and stored KV cells: costs and summation order differ between
processors.
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
"""Prefixes of Linux's names for the instruction sets that matter for matrix products. Other flags are left
out: a newer Linux kernel lists more of them, and the processor must still compare equal."""


def first_processor() -> dict[str, str]:
    """The fields of the first processor, names in lower case; empty if /proc/cpuinfo cannot be read."""
    try:
        with CPU_INFO.open(encoding="utf-8", errors="replace") as file:
            return fields_of("".join(takewhile(str.strip, file)))  # the first of possibly hundreds
    except OSError:
        return {}


def fields_of(info: str) -> dict[str, str]:
    """The fields of the first processor in the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in info.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields


def instructions_of(fields: Mapping[str, str]) -> frozenset[str]:
    """Linux's names of the processor's instruction sets."""
    return frozenset((fields.get("flags") or fields.get("features") or fields.get("isa") or "").split())


def name_of(fields: Mapping[str, str]) -> str:
    """The processor's name, or its vendor's numbers, or an empty text."""
    if name := fields.get("model name") or fields.get("cpu model") or fields.get("uarch"):
        return name
    numbers = (fields.get(f"cpu {field}", "") for field in ("implementer", "part", "variant"))
    return " ".join(filter(None, numbers))  # ARM processors have no name in /proc/cpuinfo


def processor_name() -> str:
    """The name of this machine's processor as far as the system reports one; may be empty."""
    return name_of(first_processor()) or platform.processor() or platform.machine()


class Processor(NamedTuple):
    """A processor's name and its instruction sets among `VECTORS`. Empty where the system reports none."""

    name: str
    instructions: str


def processor_of(fields: Mapping[str, str]) -> Processor:
    """The processor described by fields of /proc/cpuinfo."""
    found = sorted(flag for flag in instructions_of(fields) if flag.startswith(VECTORS))
    return Processor(name_of(fields), " ".join(found))


@cache
def this_processor() -> Processor:
    """The processor of this machine, as far as the system reports it. Never raises."""
    return processor_of(first_processor())._replace(name=processor_name())
