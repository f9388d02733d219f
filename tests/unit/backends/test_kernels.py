"""Foredraft's kernels in llama.cpp: right, the same for a row alone as for many, and named."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp._ggml as ggml_python
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from foredraft.backends.llamacpp import amx_check, kernels
from foredraft.backends.llamacpp.amx_check import Ggml
from matrix import nightly

Floats = npt.NDArray[np.float32]
LIBRARIES = Path(ggml_python.libggml._name).parent
F32, F16, BF16 = 0, 1, 30
_Handle = ctypes.c_void_p

with_attention = pytest.mark.skipif(not kernels.has("attention"), reason="llama.cpp was built without")


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml(LIBRARIES)


@dataclass(frozen=True)
class Case:
    """Attention of `rows` rows, the last ones of `cells` cells, each of which sees those up to its own."""

    rows: int
    cells: int
    size: int = 64
    heads: int = 6
    groups: int = 2
    types: tuple[int, int] = (BF16, F16)
    softcap: float = 0.0
    hidden: int = 0
    """Cells behind the last row, which nobody sees."""


class Attention:
    """One graph of ggml's flash attention."""

    def __init__(self, ggml: Ggml, case: Case) -> None:
        self.ggml, self.case = ggml, case
        self.tensor = ggml._function(
            "ggml_new_tensor_4d", _Handle, _Handle, ctypes.c_int, *[ctypes.c_int64] * 4
        )
        self.attend = ggml._function("ggml_flash_attn_ext", _Handle, *[_Handle] * 5, *[ctypes.c_float] * 3)
        numbers = np.random.default_rng(7)
        total = case.cells + case.hidden
        self.q = numbers.normal(size=(case.heads, case.rows, case.size)).astype(np.float32)
        self.k, self.v = (
            _rounded(numbers.normal(size=(case.groups, total, case.size)).astype(np.float32), kind)
            for kind in case.types
        )

    def run(self, rows: slice = slice(None)) -> Floats:
        """Shape (rows, heads, size), of these rows alone."""
        case, ggml = self.case, self.ggml
        q = np.ascontiguousarray(self.q[:, rows])
        mask = self.mask()[rows].astype(np.float16)
        contexts = [ggml.init(amx_check._Context(size=1 << 20, memory=None, no_alloc=True))]
        total = case.cells + case.hidden
        tensors = [
            self.tensor(contexts[0], F32, case.size, q.shape[1], case.heads, 1),
            self.tensor(contexts[0], case.types[0], case.size, total, case.groups, 1),
            self.tensor(contexts[0], case.types[1], case.size, total, case.groups, 1),
            self.tensor(contexts[0], F16, total, q.shape[1], 1, 1),
        ]
        scale = case.size**-0.5
        out = self.attend(contexts[0], *tensors, scale, 0.0, case.softcap)
        graph = ggml.graph(contexts[0])
        ggml.expand(graph, out)
        buffer = ggml.place(contexts[0], ggml.plain)
        written: tuple[npt.NDArray[Any], ...] = (
            q,
            _bytes(self.k, case.types[0]),
            _bytes(self.v, case.types[1]),
            mask,
        )
        for tensor, values in zip(tensors, written, strict=True):
            ggml.write(tensor, values.ctypes.data, 0, values.nbytes)
        ggml.compute(ggml.backend, graph)
        result = np.empty((q.shape[1], case.heads, case.size), np.float32)
        ggml.read(out, result.ctypes.data, 0, result.nbytes)
        ggml.drop(buffer)
        ggml.free(contexts[0])
        return result

    def mask(self) -> Floats:
        case = self.case
        own = np.arange(case.cells - case.rows, case.cells)
        cells = np.arange(case.cells + case.hidden)
        return np.where(cells[None] <= own[:, None], 0.0, -np.inf).astype(np.float32)

    def expected(self) -> npt.NDArray[np.float64]:
        """The same in fp64."""
        case = self.case
        shared = case.heads // case.groups
        k, v = (np.repeat(x.astype(np.float64), shared, 0) for x in (self.k, self.v))
        scores = np.einsum("hrd,hcd->hrc", self.q.astype(np.float64), k) * case.size**-0.5
        if case.softcap:
            scores = case.softcap * np.tanh(scores / case.softcap)
        scores = scores + self.mask()[None]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found: npt.NDArray[np.float64] = np.einsum("hrc,hcd->rhd", weights, v)
        return found


def _rounded(values: Floats, kind: int) -> Floats:
    """As a cache of this type keeps them."""
    if kind == F16:
        return values.astype(np.float16).astype(np.float32)
    if kind == BF16:
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return values


def _bytes(values: Floats, kind: int) -> npt.NDArray[Any]:
    if kind == F16:
        return values.astype(np.float16)
    if kind == BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values


CASES = [
    *(Case(rows, 200) for rows in (1, 2, 3, 4, 5, 8, 13, 70)),
    *(Case(4, cells) for cells in (4, 7, 16, 17, 600)),
    *(Case(3, 90, size) for size in (32, 80, 96, 128, 256)),
    *(Case(5, 90, types=types) for types in ((BF16, BF16), (F16, F16), (F16, BF16), (F32, F32))),
    Case(5, 90, heads=9, groups=3),
    Case(5, 90, heads=4, groups=4),
    Case(5, 90, hidden=166),
    Case(1, 3, hidden=29),
]


@with_attention
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_right(ggml: Ggml, case: Case) -> None:
    attention = Attention(ggml, case)
    np.testing.assert_allclose(attention.run(), attention.expected(), atol=2e-5, rtol=1e-4)


@with_attention
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_alone_has_the_bits_it_has_among_others(ggml: Ggml, case: Case) -> None:
    if case.types[0] == case.types[1] != BF16 and case.rows >= 64:
        pytest.skip("llama.cpp's tiles")
    attention = Attention(ggml, case)
    together = attention.run()
    for row in range(min(case.rows, 9)):
        alone = attention.run(slice(row, row + 1))
        assert alone.tobytes() == together[row : row + 1].tobytes()


@with_attention
@pytest.mark.parametrize(
    "case",
    [Case(3, 90, softcap=2.0), Case(3, 90, size=40), Case(3, 90, size=512)],
    ids=str,
)
def test_what_there_is_no_kernel_for_is_left_to_llama_cpp(ggml: Ggml, case: Case) -> None:
    attention = Attention(ggml, case)
    np.testing.assert_allclose(attention.run(), attention.expected(), atol=0.02, rtol=0.02)


@with_attention
def test_scores_that_differ_widely(ggml: Ggml) -> None:
    attention = Attention(ggml, Case(4, 300))
    attention.q *= 40.0
    np.testing.assert_allclose(attention.run(), attention.expected(), atol=2e-4, rtol=1e-3)


@pytest.mark.skipif(not kernels.has("few-rows"), reason="llama.cpp was built without")
@pytest.mark.parametrize("shape", [(576, 96), (256, 32), (1536, 160)], ids=str)
def test_products_of_few_rows(ggml: Ggml, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = ggml.buffers(b"AMX")
    assert buffers
    monkeypatch.setattr(amx_check, "_INPUTS", shape[0])
    monkeypatch.setattr(amx_check, "_OUTPUTS", shape[1])
    monkeypatch.setattr(amx_check, "ROWS", (1, *range(2, 11), 12, 16, 17, 32, 33, 40))
    named = {name: number for name, number in amx_check.TYPES.items() if shape[0] % 256 == 0 or number < 10}
    monkeypatch.setattr(amx_check, "TYPES", named)
    assert list(amx_check.right(ggml, buffers)) == list(named)


PANELS = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
"""The types that are multiplied in llama.cpp's buffers for repacked weights."""

WIDTHS = {"panels": 8, "panels-vnni": 8, "panels-wide": 16}
"""Outputs of a panel."""

WIDTH = next((width for name, width in WIDTHS.items() if kernels.has(name)), 0)

with_panels = pytest.mark.skipif(not WIDTH, reason="llama.cpp was built without")


@with_panels
@pytest.mark.parametrize(("inputs", "panels"), [(576, 12), (256, 1), pytest.param(1536, 21, marks=nightly)])
def test_products_in_panels(
    ggml: Ggml, inputs: int, panels: int, is_nightly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = ggml.buffers(b"CPU_REPACK")
    assert buffers
    monkeypatch.setattr(amx_check, "_INPUTS", inputs)
    monkeypatch.setattr(amx_check, "_OUTPUTS", panels * WIDTH)
    few = range(1, 27) if is_nightly else (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 25)
    monkeypatch.setattr(amx_check, "ROWS", (*few, 63, 64, 65, 130))
    named = {name: number for name, number in PANELS.items() if inputs % 256 == 0 or number < 10}
    monkeypatch.setattr(amx_check, "TYPES", named)
    assert list(amx_check.right(ggml, buffers)) == list(named)


@with_panels
@pytest.mark.parametrize("name", PANELS)
def test_products_in_panels_are_those_of_the_weights(ggml: Ggml, name: str) -> None:
    numbers = np.random.default_rng(3)
    weights = numbers.normal(size=(64, 512)).astype(np.float32)
    rows = numbers.normal(size=(2, 3, 512)).astype(np.float32)
    rows[1, 2, 32:64] = 0.0
    found, kept = _multiplied(ggml, PANELS[name], weights, rows)
    expected = rows.astype(np.float64) @ kept.astype(np.float64).T
    assert np.abs(found - expected).max() <= 0.01 * np.abs(expected).max()


def _multiplied(ggml: Ggml, number: int, weights: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """The product of `rows`, shape (matrices, rows, inputs), with weights in repacked buffers; and these
    weights as their type keeps them.
    """
    new = ggml._function("ggml_new_tensor_4d", _Handle, _Handle, ctypes.c_int, *[ctypes.c_int64] * 4)
    contexts = [ggml.init(amx_check._Context(size=1 << 20, memory=None, no_alloc=True)) for _ in range(2)]
    outputs, inputs = weights.shape
    matrix = ggml.tensor(contexts[0], number, inputs, outputs)
    buffers = [ggml.place(contexts[0], ggml.buffers(b"CPU_REPACK"))]
    packed = ctypes.create_string_buffer(weights.nbytes)
    size = ggml.quantize(number, weights.ctypes.data, packed, 0, outputs, inputs, None)
    ggml.write(matrix, packed, 0, size)
    given = new(contexts[1], F32, inputs, rows.shape[1], rows.shape[0], 1)
    out = ggml.product(contexts[1], matrix, given)
    graph = ggml.graph(contexts[1])
    ggml.expand(graph, out)
    buffers.append(ggml.place(contexts[1], ggml.plain))
    ggml.write(given, rows.ctypes.data, 0, rows.nbytes)
    ggml.compute(ggml.backend, graph)
    found = np.empty((rows.shape[0], rows.shape[1], outputs), np.float32)
    ggml.read(out, found.ctypes.data, 0, found.nbytes)
    for buffer in buffers:
        ggml.drop(buffer)
    for context in contexts:
        ggml.free(context)
    stored = np.frombuffer(packed.raw[:size], np.uint8).reshape(outputs, -1)
    kept = dequantize(stored, GGMLQuantizationType(number))
    return found, np.asarray(kept, np.float32).reshape(outputs, inputs)


# --- what is said of them -------------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A stand-in for ggml's library, without kernels."""
    stand_in = SimpleNamespace()
    monkeypatch.setattr(kernels, "processor_library", lambda: stand_in)
    kernels.built_in.cache_clear()
    yield stand_in
    kernels.built_in.cache_clear()


def test_a_llama_cpp_without_them(library: SimpleNamespace) -> None:
    assert kernels.built_in() == kernels.describe() == ""
    assert not kernels.has("attention")


def test_those_compiled_in_are_named(library: SimpleNamespace) -> None:
    def answer() -> bytes:
        return b"3 attention few-rows panels"

    library.foredraft_kernels = answer
    assert kernels.built_in() == "3 attention few-rows panels"
    assert kernels.describe() == "attention, few rows with AMX, rows together with AVX2"
    assert kernels.has("few-rows")
    assert not kernels.has("1")


def test_a_library_of_another_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> ctypes.CDLL:
        raise OSError("no such file")

    kernels.built_in.cache_clear()
    monkeypatch.setattr(kernels, "processor_library", none)
    assert kernels.built_in() == ""
    kernels.built_in.cache_clear()


def test_the_command_names_the_header() -> None:
    assert str(kernels.HEADER) in kernels.build_command()
    assert kernels.HEADER.is_file()
