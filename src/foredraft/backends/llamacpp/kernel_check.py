"""Tries Foredraft's kernels with a llama.cpp library, in a process of its own, before any other uses them.

What a mismatch of the two would do cannot be foreseen: it may compute wrong numbers or end the process. So a
product with every type of weights and an attention are computed through ggml's graphs, by the kernels and by
ggml itself, and compared; and a tensor is filled. `kernels` calls `fault` in a child process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foredraft.backends.llamacpp import abi, binding
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.kernels import LeftOutError, NativeLibrary

Floats = npt.NDArray[np.float32]

TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
"""ggml's numbers of the types of weights that there are kernels for."""

F32, F16, BF16 = 0, 1, 30

NEAR = 0.01
"""Maximum difference, as a fraction of the largest result: rows are quantised differently."""

INPUTS = 512
ROWS = (1, 3, 18)
FILLED = (3, 301, 1)
CELLS, HEADS, GROUPS, SIZE = 70, 6, 2, 64
_CPU = 0  # ggml-backend.h: GGML_BACKEND_DEVICE_TYPE_CPU
_META = 1 << 20


class Product(NamedTuple):
    """Weights, shape (outputs, inputs), stored as a type; and rows, shape (matrices, rows, inputs)."""

    number: int
    weights: Floats
    rows: Floats


class Attention(NamedTuple):
    """Queries, shape (heads, rows, size); keys and values, (groups, cells, size); and what is added to the
    scores, (rows, cells). The last two are stored as the `types`.
    """

    queries: Floats
    keys: Floats
    values: Floats
    mask: Floats
    types: tuple[int, int] = (BF16, F16)
    softcap: float = 0.0


def fault(library: str, native: str) -> str:
    """What is wrong with the kernels in this file on the llama.cpp library (empty: the packaged one); an
    empty text if nothing is.
    """
    binding.choose(Path(library) if library else None)
    kernels = NativeLibrary(Path(native))
    products = list(_products(kernels.handle.foredraft_panel()))
    attention = _attention()
    plain = [multiplied(product, lib.ggml_backend_cpu_buffer_type()) for product in products]
    attended_to = attended(attention)
    try:
        kernels.attach(binding.library().handle)
    except LeftOutError as reason:
        return str(reason)
    for product, expected in zip(products, plain, strict=True):
        found = multiplied(product, kernels.handle.foredraft_buffer_type())
        if not _near(found, expected):
            name = next(name for name, number in TYPES.items() if number == product.number)
            return f"their products with {name} are wrong on this llama.cpp"
    if not _near(attended(attention), attended_to):
        return "their attention is wrong on this llama.cpp"
    if not np.array_equal(filled(2.5), np.full(FILLED, np.float32(2.5))):
        return "what they fill is wrong on this llama.cpp"
    return ""


def _products(panel: int) -> Iterator[Product]:
    numbers = np.random.default_rng(1)
    for number in TYPES.values():
        weights = numbers.normal(size=(4 * panel, INPUTS)).astype(np.float32)
        for rows in ROWS:
            yield Product(number, weights, numbers.normal(size=(1, rows, INPUTS)).astype(np.float32))


def _attention(rows: int = 3) -> Attention:
    numbers = np.random.default_rng(2)
    queries = numbers.normal(size=(HEADS, rows, SIZE)).astype(np.float32)
    keys, values = numbers.normal(size=(2, GROUPS, CELLS, SIZE)).astype(np.float32)
    hidden = np.arange(CELLS)[None] > CELLS - rows + np.arange(rows)[:, None]
    return Attention(queries, keys, values, np.where(hidden, -np.inf, 0.0).astype(np.float32))


def _near(found: Floats, expected: Floats) -> bool:
    return bool(np.abs(found - expected).max() <= NEAR * np.abs(expected).max())


def multiplied(product: Product, buffers: int) -> Floats:
    """The rows' outputs, with weights in buffers of this type; shape (matrices, rows, outputs)."""
    outputs, inputs = product.weights.shape
    matrices, rows, _ = product.rows.shape
    with _tensors() as weights, _tensors() as others:
        matrix = lib.ggml_new_tensor_4d(weights, product.number, inputs, outputs, 1, 1)
        given = lib.ggml_new_tensor_4d(others, F32, inputs, rows, matrices, 1)
        out = lib.ggml_mul_mat(others, matrix, given)
        with _placed(weights, buffers), _placed(others, lib.ggml_backend_cpu_buffer_type()):
            _write(matrix, quantized(product))
            _write(given, product.rows)
            return _computed(others, out, (matrices, rows, outputs))


def quantized(product: Product) -> npt.NDArray[np.uint8]:
    """The weights as their type stores them, in bytes."""
    outputs, inputs = product.weights.shape
    packed = np.empty(product.weights.nbytes, np.uint8)
    weights = np.ascontiguousarray(product.weights)
    size = lib.ggml_quantize_chunk(
        product.number,
        weights.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        packed.ctypes.data,
        0,
        outputs,
        inputs,
        None,
    )
    return packed[:size]


def attended(attention: Attention) -> Floats:
    """Shape (rows, heads, size)."""
    heads, rows, size = attention.queries.shape
    groups, cells, _ = attention.keys.shape
    with _tensors() as context:
        places = [
            lib.ggml_new_tensor_4d(context, F32, size, rows, heads, 1),
            lib.ggml_new_tensor_4d(context, attention.types[0], size, cells, groups, 1),
            lib.ggml_new_tensor_4d(context, attention.types[1], size, cells, groups, 1),
            lib.ggml_new_tensor_4d(context, F16, cells, rows, 1, 1),
        ]
        out = lib.ggml_flash_attn_ext(
            context, places[0], places[1], places[2], places[3], size**-0.5, 0.0, attention.softcap
        )
        with _placed(context, lib.ggml_backend_cpu_buffer_type()):
            kinds = (F32, *attention.types, F16)
            for place, values, kind in zip(places, attention[:4], kinds, strict=True):
                _write(place, stored(values, kind))
            return _computed(context, out, (rows, heads, size))


def filled(number: float, shape: tuple[int, int, int] = FILLED) -> Floats:
    """A tensor of this shape, outermost first, filled with a number."""
    with _tensors() as context:
        out = lib.ggml_fill(context, lib.ggml_new_tensor_4d(context, F32, *shape[::-1], 1), number)
        with _placed(context, lib.ggml_backend_cpu_buffer_type()):
            return _computed(context, out, shape)


def stored(values: Floats, kind: int) -> npt.NDArray[Any]:
    """Numbers as a tensor of this type has them; bf16 without rounding."""
    if kind == F16:
        return values.astype(np.float16)
    if kind == BF16:
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    return values


@contextmanager
def _tensors() -> Iterator[Any]:
    """A context for tensors without memory."""
    params = abi.ggml_init_params()
    params.mem_size, params.no_alloc = _META, True
    context = lib.ggml_init(params)
    try:
        yield context
    finally:
        lib.ggml_free(context)


@contextmanager
def _placed(context: Any, buffers: int) -> Iterator[None]:
    """Memory of this type for the context's tensors."""
    memory = lib.ggml_backend_alloc_ctx_tensors_from_buft(context, buffers)
    try:
        yield
    finally:
        lib.ggml_backend_buffer_free(memory)


def _write(tensor: Any, values: npt.NDArray[Any]) -> None:
    values = np.ascontiguousarray(values)
    lib.ggml_backend_tensor_set(tensor, values.ctypes.data, 0, values.nbytes)


def _computed(context: Any, out: Any, shape: tuple[int, ...]) -> Floats:
    graph = lib.ggml_new_graph(context)
    lib.ggml_build_forward_expand(graph, out)
    backend = lib.ggml_backend_init_by_type(_CPU, None)
    try:
        lib.ggml_backend_graph_compute(backend, graph)
    finally:
        lib.ggml_backend_free(backend)
    result = np.empty(shape, np.float32)
    lib.ggml_backend_tensor_get(out, result.ctypes.data, 0, result.nbytes)
    return result
