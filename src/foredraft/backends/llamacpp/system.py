"""Facts about llama.cpp and the machine for `foredraft doctor`.

Importing this module does not import llama_cpp; calling its functions does.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foredraft import cpu_info, installation
from foredraft.errors import BackendError
from foredraft.registry import missing_dependency

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.amx import Amx

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
    """The installed llama.cpp: `gpu_offload` is whether it was built to use a GPU, `features` the processor
    features it was built with (among `FLAGS`), `kernels` a description of Foredraft's kernels in it, and
    `amx` whether AMX is used (None: not available). `build` is the command that builds it with all of them.
    """

    version: str
    gpu_offload: bool
    features: tuple[str, ...]
    devices: tuple[Device, ...]
    amx: Amx | None = None
    kernels: str = ""
    build: str = ""


def llama_cpp_facts() -> LlamaCpp:
    """Query the installed llama.cpp. Raises MissingDependencyError, or BackendError if it does not load."""
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as lib

        from foredraft.backends.llamacpp import amx, graphs, kernels, log
    except ModuleNotFoundError as exc:
        raise missing_dependency("llama_cpp", "Running GGUF models") from exc
    except (ImportError, OSError, RuntimeError) as exc:
        raise BackendError(
            f"llama-cpp-python is installed but cannot be loaded: {exc}.",
            hint="Rebuild it: " + installation.add("--force-reinstall", "--no-cache-dir", "llama-cpp-python"),
        ) from exc
    log.install()
    built_with = set(re.findall(r"(\w+) = 1\b", lib.llama_print_system_info().decode()))
    return LlamaCpp(
        version=llama_cpp.__version__,
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
        features=tuple(name for name in FLAGS.values() if name in built_with),
        devices=_devices(lib._lib),
        amx=amx.settled(),
        kernels=", ".join(filter(None, (kernels.describe(), graphs.describe()))),
        build=kernels.build_command(),
    )


def _devices(library: Any) -> tuple[Device, ...]:
    """The GPUs known to ggml (ggml-backend.h). Empty if the library cannot be queried."""
    handle, size = ctypes.c_void_p, ctypes.c_size_t
    try:
        count = library.ggml_backend_dev_count
        device_at, kind = library.ggml_backend_dev_get, library.ggml_backend_dev_type
        name, description = library.ggml_backend_dev_name, library.ggml_backend_dev_description
        memory = library.ggml_backend_dev_memory
    except AttributeError:
        return ()
    count.restype, device_at.restype, device_at.argtypes = size, handle, [size]
    kind.restype, kind.argtypes = ctypes.c_int, [handle]
    name.restype, name.argtypes = ctypes.c_char_p, [handle]
    description.restype, description.argtypes = ctypes.c_char_p, [handle]
    memory.restype, memory.argtypes = None, [handle, ctypes.POINTER(size), ctypes.POINTER(size)]
    found: list[Device] = []
    for device in map(device_at, range(count())):
        if kind(device) in _GPU_TYPES:
            free, total = size(), size()
            memory(device, ctypes.byref(free), ctypes.byref(total))
            found.append(Device(_text(name(device)), _text(description(device)), total.value))
    return tuple(found)


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
