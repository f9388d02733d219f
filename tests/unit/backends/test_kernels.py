"""Foredraft's kernels in llama.cpp: right, the same for a row alone as for many, and left out where unfit."""

from __future__ import annotations

import ctypes
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

import gguf_factory
from foredraft import cpu_info
from foredraft.backends.llamacpp import binding, kernel_check, kernels, log
from foredraft.backends.llamacpp.kernel_check import BF16, F16, F32, Floats, Product, attended, multiplied
from foredraft.backends.llamacpp.kernels import LeftOutError, NativeLibrary
from foredraft.backends.llamacpp.native import build
from foredraft.errors import ChildDiedError, ChildTimeoutError
from foredraft.isolation.pool import ChildPool
from llamacpp_cases import opened
from matrix import nightly

INSTRUCTIONS = cpu_info.instructions_of(cpu_info.first_processor())
LEVEL = next(iter(kernels.levels_of(INSTRUCTIONS)), None) if build.is_supported() else None


def compiled(level: str) -> Path:
    """The library of a level; skips the test where there is none of these sources."""
    try:
        return kernels.library_of(level).path
    except LeftOutError as reason:
        pytest.skip(str(reason))


def copied(level: str, folder: Path) -> NativeLibrary:
    """A level's library of the test's own, which leaves the process's alone. These are attached before:
    models find what is in llama.cpp's list when it is first asked for.
    """
    kernels.attach()
    shutil.copy(compiled(level), folder / "kernels.so")
    return NativeLibrary(folder / "kernels.so")


needed = pytest.mark.skipif(LEVEL is None, reason="there are no kernels for this machine")


@pytest.fixture(scope="module", params=build.LEVELS)
def native(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NativeLibrary]:
    """The kernels of each level that this processor can run, attached."""
    level: str = request.param
    if not build.is_supported() or not kernels.instructions_of(level) <= INSTRUCTIONS:
        pytest.skip("not on this machine")
    own = copied(level, tmp_path_factory.mktemp(level))
    own.attach(binding.library().handle)
    yield own
    own.detach()


# --- attention -----------------------------------------------------------------------------------------


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
    slope: float = 0.0
    """What a cell's score loses for each cell between it and the row."""


def attention_of(case: Case, spread: float = 1.0) -> kernel_check.Attention:
    numbers = np.random.default_rng(7)
    total = case.cells + case.hidden
    queries = spread * numbers.normal(size=(case.heads, case.rows, case.size))
    keys, values = (
        rounded(numbers.normal(size=(case.groups, total, case.size)).astype(np.float32), kind)
        for kind in case.types
    )
    own = np.arange(case.cells - case.rows, case.cells)
    distance = own[:, None] - np.arange(total)[None]
    mask = np.where(distance >= 0, -case.slope * distance, -np.inf)
    return kernel_check.Attention(
        queries.astype(np.float32), keys, values, mask.astype(np.float32), case.types, case.softcap
    )


def rounded(values: Floats, kind: int) -> Floats:
    """As a cache of this type keeps them."""
    if kind == F16:
        return values.astype(np.float16).astype(np.float32)
    if kind == BF16:
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return values


def in_fp64(attention: kernel_check.Attention) -> npt.NDArray[np.float64]:
    """The same in fp64; shape (rows, heads, size)."""
    heads, _, size = attention.queries.shape
    shared = heads // len(attention.keys)
    keys, values = (np.repeat(x.astype(np.float64), shared, 0) for x in (attention.keys, attention.values))
    scores = np.einsum("hrd,hcd->hrc", attention.queries.astype(np.float64), keys) * size**-0.5
    if attention.softcap:
        scores = attention.softcap * np.tanh(scores / attention.softcap)
    scores = scores + attention.mask[None]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    found: npt.NDArray[np.float64] = np.einsum("hrc,hcd->rhd", weights, values)
    return found


CASES = [
    *(Case(rows, 200) for rows in (1, 2, 3, 4, 5, 8, 13, 70)),
    *(Case(4, cells) for cells in (4, 7, 16, 17, 600)),
    *(Case(3, 90, size) for size in (32, 80, 96, 128, 256)),
    *(Case(5, 90, types=types) for types in ((BF16, BF16), (F16, F16), (F16, BF16), (F32, F32))),
    Case(5, 90, heads=9, groups=3),
    Case(5, 90, heads=4, groups=4),
    Case(1, 90, heads=9, groups=3),
    Case(5, 90, hidden=166),
    Case(1, 3, hidden=29),
    Case(5, 90, size=96, heads=4, groups=4, slope=0.125),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_right(native: NativeLibrary, case: Case) -> None:
    attention = attention_of(case)
    np.testing.assert_allclose(attended(attention), in_fp64(attention), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_alone_has_the_bits_it_has_among_others(native: NativeLibrary, case: Case) -> None:
    attention = attention_of(case)
    together = attended(attention)
    for row in range(min(case.rows, 9)):
        alone = attention._replace(
            queries=np.ascontiguousarray(attention.queries[:, row : row + 1]),
            mask=attention.mask[row : row + 1],
        )
        assert attended(alone).tobytes() == together[row : row + 1].tobytes()


@pytest.mark.parametrize(
    "case", [Case(3, 90, softcap=2.0), Case(3, 90, size=40), Case(3, 90, size=512)], ids=str
)
def test_what_there_is_no_kernel_for_is_left_to_llama_cpp(native: NativeLibrary, case: Case) -> None:
    attention = attention_of(case)
    np.testing.assert_allclose(attended(attention), in_fp64(attention), atol=0.02, rtol=0.02)


def test_scores_that_differ_widely(native: NativeLibrary) -> None:
    attention = attention_of(Case(4, 300), spread=40.0)
    np.testing.assert_allclose(attended(attention), in_fp64(attention), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("number", [-np.inf, 0.0, 2.5])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 97), (2, 49_157, 1), (5, 3, 64)])
def test_what_is_filled_is_filled_whole(
    native: NativeLibrary, shape: tuple[int, int, int], number: float
) -> None:
    found = kernel_check.filled(number, shape)
    assert found.shape == shape
    assert np.array_equal(found, np.full(shape, number, np.float32))


# --- products ------------------------------------------------------------------------------------------

WHOLE_BLOCKS = {"Q4_K", "Q5_K", "Q6_K"}
"""Types whose inputs come in blocks of 256."""


def product_of(name: str, outputs: int, inputs: int, rows: tuple[int, int]) -> Product:
    numbers = np.random.default_rng(3)
    weights = numbers.normal(size=(outputs, inputs)).astype(np.float32)
    given = numbers.normal(size=(*rows, inputs)).astype(np.float32)
    given[-1, -1, 32:64] = 0.0
    return Product(kernel_check.TYPES[name], weights, given)


def kept(product: Product) -> npt.NDArray[np.float64]:
    """The weights as their type keeps them, in fp64."""
    stored = kernel_check.quantized(product).reshape(len(product.weights), -1)
    values = dequantize(stored, GGMLQuantizationType(product.number))
    return np.asarray(values, np.float64).reshape(product.weights.shape)


@pytest.mark.parametrize("name", kernel_check.TYPES)
def test_products_are_those_of_the_weights(native: NativeLibrary, name: str) -> None:
    product = product_of(name, 64, 512, (2, 3))
    expected = product.rows.astype(np.float64) @ kept(product).T
    found = multiplied(product, native.handle.foredraft_buffer_type())
    assert np.abs(found - expected).max() <= 0.01 * np.abs(expected).max()


@pytest.mark.parametrize("name", kernel_check.TYPES)
@pytest.mark.parametrize(("inputs", "panels"), [(576, 12), (256, 1), pytest.param(1536, 21, marks=nightly)])
def test_rows_alone_have_the_bits_they_have_among_others(
    native: NativeLibrary, name: str, inputs: int, panels: int, is_nightly: bool
) -> None:
    if name in WHOLE_BLOCKS and inputs % 256:
        pytest.skip("its inputs come in blocks of 256")
    outputs = panels * native.handle.foredraft_panel()
    few = range(1, 27) if is_nightly else (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 25)
    product = product_of(name, outputs, inputs, (1, 130))
    buffers = native.handle.foredraft_buffer_type()
    together = multiplied(product, buffers)
    for rows in (*few, 63, 64, 65):
        found = multiplied(product._replace(rows=np.ascontiguousarray(product.rows[:, :rows])), buffers)
        assert found.tobytes() == np.ascontiguousarray(together[:, :rows]).tobytes(), rows


def test_a_model_s_weights_come_to_lie_in_panels(tmp_path: Path) -> None:
    if LEVEL is None:
        pytest.skip("there are no kernels for this machine")
    compiled(LEVEL)
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", weight_type="q4_0")
    with log.capture() as lines, opened(path, sequences=1):
        pass
    assert kernels.in_use() is not None, kernels.left_out()
    assert any("Foredraft model buffer size" in line for line in lines)


# --- where they do not fit -----------------------------------------------------------------------------


@pytest.fixture
def unattached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not asked for kernels."""
    monkeypatch.setattr(kernels, "_state", kernels._State())
    yield
    if found := kernels.in_use():
        found.native.detach()


def left_out(cache: Path | None = None) -> str:
    kernels.attach(cache)
    assert kernels.in_use() is None
    assert kernels.identity() == kernels.describe() == ""
    return kernels.left_out()


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        ("sse4_2 avx", ""),
        ("avx2 fma", ""),
        ("avx2 fma f16c", "avx2"),
        ("avx2 fma f16c avx512f avx512dq avx512bw avx512vl", "avx2"),
        ("avx2 fma f16c avx_vnni", "avxvnni avx2"),
        ("avx2 fma f16c avx512f avx512dq avx512bw avx512vl avx512_vnni amx_int8", "avx512 avx2"),
    ],
)
def test_a_processor_s_levels(flags: str, levels: str) -> None:
    assert kernels.levels_of(frozenset(flags.split())) == levels.split()


@needed
@pytest.mark.usefixtures("unattached")
def test_a_compiler_that_did_not_know_the_best_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(compiled("avx2"), tmp_path)
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    asked: list[str] = []

    def none(level: str) -> NativeLibrary:
        asked.append(level)
        raise LeftOutError("not now")

    monkeypatch.setattr(kernels, "library_of", none)
    assert left_out() == "not now"
    assert asked == ["avx2"]


@pytest.mark.usefixtures("unattached")
def test_another_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert left_out() == "there are none for this kind of machine"
    assert not kernels.are_missing()


@needed
@pytest.mark.usefixtures("unattached")
def test_an_older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_info, "first_processor", lambda: {"flags": "sse2"})
    assert "lacks AVX2" in left_out()
    assert not kernels.are_missing()


@needed
@pytest.mark.usefixtures("unattached")
def test_they_are_missing_where_they_could_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_level: str) -> NativeLibrary:
        raise LeftOutError("they were not compiled")

    monkeypatch.setattr(kernels, "library_of", none)
    assert not kernels.are_missing(), "nothing asked for them"
    assert left_out() == "they were not compiled"
    assert kernels.are_missing()


def test_installed_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(LeftOutError, match="not compiled") as left:
        kernels.library_of("avx2", tmp_path)
    assert shlex.join([sys.executable, build.__file__]) in str(left.value)


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / build.library_name("avx2")).write_bytes(b"\x7fELF")
    with pytest.raises(LeftOutError, match="cannot be loaded"):
        kernels.library_of("avx2", tmp_path)


@needed
def test_compiled_from_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LEVEL is not None
    compiled(LEVEL)
    monkeypatch.setattr(build, "sources_hash", lambda: "0123")
    with pytest.raises(LeftOutError, match="other sources"):
        kernels.library_of(LEVEL)


@pytest.fixture
def unused(tmp_path: Path) -> NativeLibrary:
    """Kernels of this processor's level, of which nothing is attached."""
    if LEVEL is None:
        pytest.skip("there are no kernels for this machine")
    return copied(LEVEL, tmp_path)


def test_another_build_of_llama_cpp(unused: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_BUILD", 1)
    with pytest.raises(LeftOutError, match="for build 11549"):
        unused.attach(binding.library().handle)


@pytest.mark.parametrize("member", ["op", ""])
def test_another_tensor(unused: NativeLibrary, member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = unused.tensor_layout()
    other[member] += 8
    monkeypatch.setattr(NativeLibrary, "tensor_layout", lambda self: other)
    with pytest.raises(LeftOutError, match="tensor"):
        unused.attach(binding.library().handle)


def test_a_library_that_lacks_what_is_needed(unused: NativeLibrary) -> None:
    with pytest.raises(LeftOutError, match="ggml_backend_cpu_get_extra_buffer_types"):
        unused.attach(ctypes.CDLL(find_library("c")))


@needed
def test_a_refusal_leaves_kernels_that_are_attached_as_they_are(tmp_path: Path) -> None:
    """In a process of its own, which would end if they called what was not found."""
    assert LEVEL is not None
    script = (
        "import ctypes, sys; from ctypes.util import find_library; from pathlib import Path; "
        "from foredraft.backends.llamacpp import binding; "
        "from foredraft.backends.llamacpp.kernels import LeftOutError, NativeLibrary; "
        "native = NativeLibrary(Path(sys.argv[1])); native.attach(binding.library().handle)\n"
        "try: native.attach(ctypes.CDLL(find_library('c')))\n"
        "except LeftOutError as reason: print(reason)\n"
        "print(native.handle.foredraft_found_by_models()); native.detach()"
    )
    command = [sys.executable, "-c", script, str(compiled(LEVEL))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "get_extra_buffer_types" in done.stdout
    assert done.stdout.splitlines()[1:] == ["True"]


@pytest.mark.parametrize(("beside", "lacking"), [(True, "ggml_barrier"), (False, "get_extra_buffer_types")])
def test_the_processor_s_part_may_be_a_file_beside_the_library(
    unused: NativeLibrary, tmp_path: Path, beside: bool, lacking: str
) -> None:
    """As in llama.cpp's releases, which load it themselves; one elsewhere belongs to another llama.cpp."""
    compiler = shutil.which("c++") or pytest.skip("there is no compiler")
    (tmp_path / "main").mkdir()
    (tmp_path / "other").mkdir()
    main, part = (
        tmp_path / "main/libllama.so",
        tmp_path / ("main" if beside else "other") / "libggml-cpu-x.so",
    )
    for path, name in (
        (main, "ggml_tensor_overhead"),
        (part, "_Z39ggml_backend_cpu_get_extra_buffer_typesv"),
    ):
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"]
        subprocess.run(command, input=f"void {name}(void) {{}}", text=True, check=True)
    loaded = [ctypes.CDLL(str(main)), ctypes.CDLL(str(part))]
    with pytest.raises(LeftOutError, match=rf"{lacking}\w*$"):
        unused.attach(loaded[0])


def died(*, transient: bool) -> ChildDiedError:
    error = ChildDiedError("It died.")
    error.transient = transient
    return error


@needed
@pytest.mark.usefixtures("unattached")
@pytest.mark.parametrize(
    ("error", "reason", "is_kept"),
    [
        (died(transient=False), "failed: It died", True),
        (died(transient=True), "failed: It died", False),
        (ChildTimeoutError("It took too long.", hint=""), "could not be checked: It took too long", False),
    ],
    ids=["crash", "killed", "slow"],
)
def test_a_check_that_does_not_come_to_an_end(
    tmp_path: Path, error: Exception, reason: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash would come again; what a busy machine did need not."""
    assert LEVEL is not None
    compiled(LEVEL)

    def fail(*args: object, **options: object) -> str:
        raise error

    monkeypatch.setattr(ChildPool, "call", fail)
    assert left_out(tmp_path).endswith(reason)
    assert bool(list(tmp_path.rglob("*.json"))) is is_kept


@needed
@pytest.mark.usefixtures("unattached")
def test_a_result_of_the_check_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LEVEL is not None
    compiled(LEVEL)
    asked: list[object] = []

    def wrong(self: object, *args: object, **options: object) -> str:
        asked.append(args)
        return "their attention is wrong on this llama.cpp"

    monkeypatch.setattr(ChildPool, "call", wrong)
    for _ in range(2):
        assert left_out(tmp_path) == "their attention is wrong on this llama.cpp"
        monkeypatch.setattr(kernels, "_state", kernels._State())
    assert len(asked) == 1


@needed
@pytest.mark.usefixtures("unattached")
def test_a_model_was_loaded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then llama.cpp has copied its list, without the entry of these kernels."""
    assert LEVEL is not None
    compiled(LEVEL)
    monkeypatch.setattr(kernels, "_checked", lambda *_: "")
    handle = SimpleNamespace(foredraft_found_by_models=lambda: False)
    ended: list[bool] = []
    stand_in: Any = SimpleNamespace(
        handle=handle, sources="", attach=lambda library: None, detach=lambda: ended.append(True)
    )
    monkeypatch.setattr(kernels, "library_of", lambda level: stand_in)
    assert "loaded a model before" in left_out()
    assert ended


@needed
def test_the_check_finds_wrong_numbers(unused: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child process would say if products or attention were others."""
    monkeypatch.setattr(binding, "choose", lambda path: None)
    monkeypatch.setattr(kernel_check, "NativeLibrary", lambda path: unused)
    try:
        assert kernel_check.fault("", "") == ""
        unused.detach()
        right = kernel_check.multiplied
        plain = binding.lib.ggml_backend_cpu_buffer_type()

        def wrong(product: Product, buffers: int) -> Floats:
            found = right(product, buffers)
            return found if buffers == plain or product.number != kernel_check.TYPES["Q5_K"] else 1.1 * found

        monkeypatch.setattr(kernel_check, "multiplied", wrong)
        assert kernel_check.fault("", "") == "their products with Q5_K are wrong on this llama.cpp"
    finally:
        unused.detach()


# --- compiling -----------------------------------------------------------------------------------------


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "is_supported", lambda: True)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        build.build(tmp_path)


@pytest.mark.parametrize(
    ("command", "reason"), [("false", "does not know"), ("no-such-compiler", "cannot be run")]
)
def test_a_compiler_that_does_not_work(
    tmp_path: Path, command: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "is_supported", lambda: True)
    monkeypatch.setenv("CXX", command)
    with pytest.raises(build.BuildError, match=reason):
        build.build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_hash_is_that_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (*build.SOURCES.glob("*.h"), *build.SOURCES.glob("*.cpp")):
        shutil.copy(path, tmp_path)
    before = build.sources_hash()
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert build.sources_hash() == before
    (tmp_path / "lanes.h").write_text("// another")
    assert build.sources_hash() != before


@dataclass
class Compiler:
    """A stand-in for `build.run` that writes libraries which say what they were defined to be."""

    ran: list[list[str]] = field(default_factory=list)
    version: str = "12.2.0"
    defined: str = ""

    def __call__(self, command: list[str]) -> str:
        if "-mavxvnni" in command:
            raise build.BuildError("unrecognized option")
        if "--version" in command:
            return self.version
        self.ran.append(command)
        if "-c" in command:
            self.defined = " ".join(part for part in command if part.startswith("-D"))
        if "-shared" in command:
            Path(command[command.index("-o") + 1]).write_text(self.defined)
        return ""

    def compiled(self) -> bool:
        """Whether anything was since this was last asked."""
        found = any("-c" in command or "-shared" in command for command in self.ran)
        self.ran.clear()
        return found


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    stand_in = Compiler()
    monkeypatch.setattr(build, "is_supported", lambda: True)
    monkeypatch.setattr(build, "run", stand_in)
    monkeypatch.setenv("CXX", "old-c++ --flag")
    return stand_in


def test_a_compiler_that_is_too_old_for_a_level(tmp_path: Path, compiler: Compiler) -> None:
    libraries = build.build(tmp_path)
    assert [path.name for path in libraries] == ["libforedraft-avx512.so", "libforedraft-avx2.so"]
    assert {tuple(command[:2]) for command in compiler.ran} == {("old-c++", "--flag")}
    assert compiler.compiled()
    assert build.build(tmp_path) == libraries
    assert not compiler.compiled(), "all are current"
    with pytest.raises(build.BuildError, match="unrecognized"):
        build.build(tmp_path, everything=True)


def test_another_compiler_compiles_again(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.build(tmp_path)
    compiler.compiled()
    monkeypatch.setenv("CXX", "old-c++ --other")
    build.build(tmp_path)
    assert compiler.compiled()
    compiler.version = "13.1.0"
    build.build(tmp_path)
    assert compiler.compiled()
    build.build(tmp_path)
    assert not compiler.compiled()
