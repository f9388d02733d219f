"""Which processor this is: what a forward costs on one says nothing of another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from foretoken.cpu_info import first_processor, instructions_of, name_of, processor_name

VECTORS = (
    *("amx", "avx", "f16c", "fma"),
    *("asimd", "bf16", "fphp", "i8mm", "neon", "sme2", "smeb", "smef", "smei", "sve"),
    "rv",
)
"""How the names of instructions begin (Linux's) that decide how fast matrices are multiplied. A new kernel
knows more names of others, and that must not make it another processor."""


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
