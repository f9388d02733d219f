"""A separate program that multiplies by weights packed for AMX and compares with plain ones. For `amx.py`.

    python -I amx_check.py FOLDER     the folder of llama.cpp's libraries

Writes the name of each type of weights whose products are right, one a line, as soon as it is checked. The
compiler bug ends the process, so it is a separate one. Needs only Python and the libraries.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_XS": 23}
"""ggml.h's numbers of the types with AMX kernels in llama.cpp."""

ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)
"""Numbers of rows: one, which has its own kernel; few (Foredraft's kernels, if compiled in); and both sides
of a tile of 16 and of two.
"""

NEAR = 0.01
"""Maximum difference from plain weights, as a fraction of the largest result: F16 is rounded differently."""

_INPUTS, _OUTPUTS = 256, 64
_THREADS = 2
_F32 = 0
_Handle = ctypes.c_void_p
_Floats = ctypes.Array[ctypes.c_float]


class _Context(ctypes.Structure):
    """ggml_init_params: tensors without memory."""

    _fields_ = (("size", ctypes.c_size_t), ("memory", _Handle), ("no_alloc", ctypes.c_bool))


class Factors(NamedTuple):
    """Weights, with all inputs of one output after the other, and rows of inputs."""

    weights: _Floats
    rows: _Floats


class Ggml:
    """The functions of ggml that the check needs."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError if a library cannot be loaded, AttributeError if it lacks a function."""
        suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
        stem = "" if sys.platform == "win32" else "lib"
        base, self._cpu = (
            ctypes.CDLL(str(folder / f"{stem}{name}{suffix}"), mode=ctypes.RTLD_GLOBAL)
            for name in ("ggml-base", "ggml-cpu")
        )
        self._base = base
        self.init = self._function("ggml_init", _Handle, _Context)
        self.free = self._function("ggml_free", None, _Handle)
        self.tensor = self._function(
            "ggml_new_tensor_2d", _Handle, _Handle, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
        )
        self.place = self._function("ggml_backend_alloc_ctx_tensors_from_buft", _Handle, _Handle, _Handle)
        self.drop = self._function("ggml_backend_buffer_free", None, _Handle)
        copied = (_Handle, _Handle, ctypes.c_size_t, ctypes.c_size_t)
        self.write = self._function("ggml_backend_tensor_set", None, *copied)
        self.read = self._function("ggml_backend_tensor_get", None, *copied)
        self.quantize = self._function(
            "ggml_quantize_chunk",
            ctypes.c_size_t,
            *(ctypes.c_int, _Handle, _Handle, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, _Handle),
        )
        self.product = self._function("ggml_mul_mat", _Handle, _Handle, _Handle, _Handle)
        self.graph = self._function("ggml_new_graph", _Handle, _Handle)
        self.expand = self._function("ggml_build_forward_expand", None, _Handle, _Handle)
        self.compute = self._function("ggml_backend_graph_compute", ctypes.c_int, _Handle, _Handle)
        self.plain = self._function("ggml_backend_cpu_buffer_type", _Handle)()
        self.backend = self._function("ggml_backend_cpu_init", _Handle)()
        self._function("ggml_backend_cpu_set_n_threads", None, _Handle, ctypes.c_int)(self.backend, _THREADS)

    def buffers(self, kind: bytes) -> int | None:
        """The buffer type with this name, such as AMX's; None if this build or processor has none."""
        registry = self._function("ggml_backend_cpu_reg", _Handle)()
        device = self._function("ggml_backend_reg_dev_get", _Handle, _Handle, ctypes.c_size_t)(registry, 0)
        address = self._function("ggml_backend_reg_get_proc_address", _Handle, _Handle, ctypes.c_char_p)
        name = self._function("ggml_backend_buft_name", ctypes.c_char_p, _Handle)
        extra = address(registry, b"ggml_backend_dev_get_extra_bufts")
        if not extra:
            return None
        listed = ctypes.CFUNCTYPE(ctypes.POINTER(_Handle), _Handle)(extra)(device)
        at = 0
        while listed and listed[at]:
            if name(listed[at]) == kind:
                return int(listed[at])
            at += 1
        return None

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._base, name, None) or getattr(self._cpu, name)
        function.restype, function.argtypes = result, arguments
        return function


def right(ggml: Ggml, buffers: int) -> Iterator[str]:
    """The names of the types whose products in such buffers are close to those of plain weights, and whose
    rows do not depend, bit for bit, on the other rows.
    """
    numbers = random.Random(1)  # noqa: S311 - not for security
    factors = Factors(_floats(numbers, _INPUTS * _OUTPUTS), _floats(numbers, _INPUTS * max(ROWS)))
    for name, number in TYPES.items():
        plain = product(ggml, ggml.plain, number, factors, max(ROWS))
        found = {count: product(ggml, buffers, number, factors, count) for count in ROWS}
        most = max(map(abs, plain))
        near = all(abs(a - b) <= NEAR * most for a, b in zip(found[max(ROWS)], plain, strict=True))
        if near and all(values == found[max(ROWS)][: len(values)] for values in found.values()):
            yield name


def _floats(numbers: random.Random, count: int) -> _Floats:
    return (ctypes.c_float * count)(*(numbers.uniform(-1, 1) for _ in range(count)))


def product(ggml: Ggml, kind: int, number: int, factors: Factors, count: int) -> list[float]:
    """The first `count` rows multiplied by the weights, stored in buffers of this `kind` as a type with this
    `number`: the outputs of one row after the other.
    """
    weights, rows = factors
    contexts = [ggml.init(_Context(size=1 << 20, memory=None, no_alloc=True)) for _ in range(2)]
    matrix = ggml.tensor(contexts[0], number, _INPUTS, _OUTPUTS)
    buffers = [ggml.place(contexts[0], kind)]
    packed = ctypes.create_string_buffer(4 * len(weights))
    ggml.write(matrix, packed, 0, ggml.quantize(number, weights, packed, 0, _OUTPUTS, _INPUTS, None))
    inputs = ggml.tensor(contexts[1], _F32, _INPUTS, count)
    outputs = ggml.product(contexts[1], matrix, inputs)
    graph = ggml.graph(contexts[1])
    ggml.expand(graph, outputs)
    buffers.append(ggml.place(contexts[1], ggml.plain))
    ggml.write(inputs, rows, 0, 4 * _INPUTS * count)
    ggml.compute(ggml.backend, graph)
    result = (ctypes.c_float * (_OUTPUTS * count))()
    ggml.read(outputs, result, 0, 4 * len(result))
    for buffer in buffers:
        ggml.drop(buffer)
    for context in contexts:
        ggml.free(context)
    return list(result)


def main() -> None:
    """Write the types whose products are right; nothing without AMX."""
    ggml = Ggml(Path(sys.argv[1]))
    buffers = ggml.buffers(b"AMX")
    for name in right(ggml, buffers) if buffers else ():
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
