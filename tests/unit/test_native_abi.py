"""What `scripts/native_abi.py` finds where the kernels' headers are not llama.cpp's."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("clang.cindex", reason="libclang is not installed")

SCRIPT = Path(__file__).parents[2] / "scripts/native_abi.py"

OURS = """
#pragma once
#include <stddef.h>
namespace foredraft {
constexpr int GGML_BUILD = 7;
constexpr int F32 = 0, Q4_0_TYPE = 2;
constexpr int MUL_MAT = 29;
struct Buffer;
struct Params {
    int ith, nth;
    size_t work_bytes;
    void * work;
    bool reference;
};
struct BufferFunctions {
    void (*clear)(Buffer *, char);
    void * reset;
};
struct Buffer {
    BufferFunctions functions;
    size_t bytes;
};
struct Traits {
    virtual ~Traits() = default;
    virtual bool work_size(int threads, size_t & bytes) = 0;
    virtual bool compute_forward(Params * params) = 0;
};
struct Library {
    Buffer * (*ggml_new)(Params *, size_t);
    int (*_ZNK7context4seenEv)(const void *);
};
struct GraphLibrary {};
}
"""

THEIRS = """
#pragma once
#include <stddef.h>
enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0 };
enum ggml_op { GGML_OP_MUL_MAT = 29 };
struct ggml_compute_params { int ith, nth; size_t wsize; void * wdata; bool use_ref; };
struct ggml_backend_buffer;
struct ggml_backend_buffer_i {
    void (*clear)(ggml_backend_buffer * buffer, char value);
    int  (*reset)(ggml_backend_buffer * buffer);
};
struct ggml_backend_buffer { ggml_backend_buffer_i iface; size_t size; };
namespace ggml::cpu {
class tensor_traits {
  public:
    virtual ~tensor_traits();
    virtual bool work_size(int n, size_t & size) = 0;
    virtual bool compute_forward(ggml_compute_params * params) = 0;
};
}
extern "C" ggml_backend_buffer * ggml_new(ggml_compute_params * params, size_t size);
struct context { int seen() const; };
"""


@pytest.fixture(scope="module")
def native_abi() -> ModuleType:
    if shutil.which("c++") is None:
        pytest.skip("there is no compiler, whose headers are needed")
    spec = importlib.util.spec_from_file_location("native_abi", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def found(native_abi: ModuleType, folder: Path, *, ours: str = OURS, theirs: str = THEIRS) -> list[str]:
    native, headers = folder / "native", folder / "llama.cpp/src"
    native.mkdir()
    headers.mkdir(parents=True)
    (native / "library.h").write_text(ours)
    for name in native_abi.HEADERS:
        (headers / name).write_text("#pragma once\n")
    (headers / native_abi.HEADERS[0]).write_text(theirs)
    lines: list[str] = native_abi.differences(folder / "llama.cpp", 7, native)
    return lines


def test_the_same_in_other_words_is_no_difference(native_abi: ModuleType, tmp_path: Path) -> None:
    assert found(native_abi, tmp_path) == []


@pytest.mark.parametrize(
    ("here", "now", "said"),
    [
        ("GGML_TYPE_F16, ", "", "Q4_0_TYPE is 2; GGML_TYPE_Q4_0 is 1"),
        ("MUL_MAT = 29", "MUL_MAT = 30", "MUL_MAT is 29; GGML_OP_MUL_MAT is 30"),
        ("GGML_TYPE_Q4_0 ", "GGML_TYPE_Q4 ", "Q4_0_TYPE: llama.cpp has no GGML_TYPE_Q4_0"),
        ("void * wdata;", "", "Params (ggml_compute_params) has 32 bytes, in llama.cpp 24"),
        ("void * wdata; bool use_ref;", "bool use_ref; void * wdata;", "llama.cpp use_ref at 16"),
        ("bool use_ref;", "bool use_ref, more;", "has nothing more, llama.cpp more at 25"),
        ("buffer, char value)", "buffer, int value)", "clear at 0: (pointer, whole of 1) -> void"),
        ("ggml_backend_buffer_i iface; size_t size", "size_t size; ggml_backend_buffer_i iface", "size at 0"),
        ("int n, size_t & size", "size_t & size", "work_size at 1: (pointer) -> whole of 1"),
        ("virtual ~tensor_traits();", "", "Traits (tensor_traits) has ~ at 0"),
        (
            "params, size_t size)",
            "params)",
            "ggml_new is (pointer, whole of 8) -> pointer, in llama.cpp ",
        ),
        ("seen() const", "seen()", "_ZNK7context4seenEv: llama.cpp's headers have no such function"),
    ],
)
def test_what_is_another_is_said(
    native_abi: ModuleType, tmp_path: Path, here: str, now: str, said: str
) -> None:
    assert here in THEIRS
    assert said in "\n".join(found(native_abi, tmp_path, theirs=THEIRS.replace(here, now)))


def test_the_build_and_what_is_not_known(native_abi: ModuleType, tmp_path: Path) -> None:
    ours = OURS.replace("BUILD = 7", "BUILD = 6").replace("struct Graph", "struct New {}; struct Graph")
    assert found(native_abi, tmp_path, ours=ours) == [
        "GGML_BUILD is 6; the build is 7",
        "New: scripts/native_abi.py does not know what it is in llama.cpp",
    ]


def test_headers_that_cannot_be_read(native_abi: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot be read"):
        found(native_abi, tmp_path, theirs="struct {")


def test_every_operation_of_the_kernels_is_known_by_llama_cpp_s_name(native_abi: ModuleType) -> None:
    text = (native_abi.NATIVE / "ggml_abi.h").read_text()
    operations = re.findall(r'\{(\w+), "', text.partition("OPERATIONS[]")[2].partition(";")[0])
    assert "MUL_MAT" in operations
    assert [name for name in operations if native_abi.NUMBERS.get(name) != f"GGML_OP_{name}"] == []
