"""Facts about llama.cpp and the machine for `foredraft doctor`.

Importing this module does not load llama.cpp; calling its functions does.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foredraft import cpu_info
from foredraft.backends.llamacpp import binding, graphs, kernels, log
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.devices import GPU, Device, devices

FLAGS = {
    "f16c": "F16C",
    "fma": "FMA",
    "avx2": "AVX2",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
"""Linux's and llama.cpp's names of the processor features that matter for llama.cpp's speed."""


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The llama.cpp library in use: see `binding.Library`. `gpu_offload`: whether it has a GPU to put layers
    on; `features`: the processor features it was built with, among `FLAGS`. `unloaded`: the devices' files
    beside it that do not load, each with the reason. `kernels`: describes those of Foredraft that work, or
    else `without_kernels` says why there are none.
    """

    name: str
    path: str
    gpu_offload: bool
    features: tuple[str, ...]
    devices: tuple[Device, ...]
    kernels: str = ""
    without_kernels: str = ""
    chosen: bool = False
    built_for: tuple[str, ...] = ()
    unloaded: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def llama_cpp_facts(cache: Path | None = None, chosen: Path | None = None) -> LlamaCpp:
    """Query llama.cpp, or the library `chosen` in its place, with the kernels attached (`cache` as in
    `kernels.attach`). Raises MissingDependencyError, ConfigError, or BackendError if it does not load.
    """
    binding.choose(chosen)
    library = binding.library()
    log.install()
    kernels.attach(cache)
    found = devices()
    built_with = set(re.findall(r"(\w+) = 1\b", (lib.llama_print_system_info() or b"").decode()))
    return LlamaCpp(
        name=library.name,
        path=str(library.path),
        gpu_offload=any(device.kind == GPU for device in found),
        features=tuple(name for name in FLAGS.values() if name in built_with),
        devices=found,
        chosen=library.chosen,
        built_for=library.built_for,
        unloaded=tuple(_unloaded(library.path)) if library.chosen else (),
        said=library.said,
        kernels=", ".join(filter(None, (kernels.describe(), graphs.describe()))),
        without_kernels=kernels.left_out(),
    )


def _unloaded(library: Path) -> Iterator[str]:
    """The devices' files beside the library that do not load, which ggml passes over in silence."""
    suffix = ".dll" if sys.platform == "win32" else ".so"
    for file in sorted(library.parent.glob(f"*ggml-*{suffix}")):
        try:
            ctypes.CDLL(str(file))
        except OSError as error:
            yield f"{file.name}: {error}"


def processor_features() -> tuple[str, ...] | None:
    """The processor's features among `FLAGS`, by llama.cpp's names; None if unknown."""
    instructions = cpu_info.instructions_of(cpu_info.first_processor())
    return tuple(name for flag, name in FLAGS.items() if flag in instructions) if instructions else None


def processor_name() -> str:
    """The processor's name as far as the system reports one."""
    return cpu_info.processor_name() or "unknown"


def memory_bytes() -> int:
    """The machine's memory in bytes; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 0
