"""Facts about llama.cpp and the machine for `foredraft doctor`.

Importing this module does not load llama.cpp; calling its functions does.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foredraft import cpu_info
from foredraft.backends.llamacpp import binding, graphs, kernels, log
from foredraft.backends.llamacpp.binding import lib

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

_GPU_TYPES = (1, 2)  # ggml-backend.h: a GPU with its own memory, and one that shares the host's


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that llama.cpp can use. `memory_bytes` is its whole memory."""

    name: str
    description: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The llama.cpp library in use: `name` and `path`; `gpu_offload` is whether it was built to use a GPU,
    `features` the processor features it was built with (among `FLAGS`), `kernels` a description of
    Foredraft's kernels that work in it, or else `without_kernels` why there are none.
    """

    name: str
    path: str
    gpu_offload: bool
    features: tuple[str, ...]
    devices: tuple[Device, ...]
    kernels: str = ""
    without_kernels: str = ""


def llama_cpp_facts(cache: Path | None = None) -> LlamaCpp:
    """Query llama.cpp, with the kernels attached (`cache` as in `kernels.attach`). Raises
    MissingDependencyError, or BackendError if it does not load.
    """
    library = binding.library()
    log.install()
    kernels.attach(cache)
    built_with = set(re.findall(r"(\w+) = 1\b", (lib.llama_print_system_info() or b"").decode()))
    return LlamaCpp(
        name=library.name,
        path=str(library.path),
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
        features=tuple(name for name in FLAGS.values() if name in built_with),
        devices=tuple(_gpus()),
        kernels=", ".join(filter(None, (kernels.describe(), graphs.describe()))),
        without_kernels=kernels.left_out(),
    )


def _gpus() -> Iterator[Device]:
    """The GPUs known to ggml."""
    for device in map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count())):
        if lib.ggml_backend_dev_type(device) not in _GPU_TYPES:
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        described = _text(lib.ggml_backend_dev_description(device))
        yield Device(_text(lib.ggml_backend_dev_name(device)), described, total.value)


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


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
