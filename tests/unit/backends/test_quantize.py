from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from llama_cpp import llama_cpp

import gguf_factory
from foredraft.backends.llamacpp.file_types import file_type_name, file_type_number
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.quantize import default_name, quantizable_types, quantize
from foredraft.errors import (
    CapacityError,
    ConfigError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-f32.gguf")


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """Let this process write no file larger than 40,000 bytes: what a full disk looks like to a program."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("type_name", "file_type", "weights"),
    [
        ("q8_0", "Q8_0", "q8_0"),
        ("Q4_0", "Q4_0", "q4_0"),
        ("q4_1", "Q4_1", "q4_1"),
        ("bf16", "BF16", "bf16"),
        ("fp16", "F16", "f16"),
        # 64 columns are too few for K-quants' blocks of 256: llama.cpp falls back to these
        ("q4_k_m", "Q4_K_M", "q5_0"),
        ("q4-k", "Q4_K_M", "q5_0"),
    ],
)
def test_types(tiny: Path, tmp_path: Path, type_name: str, file_type: str, weights: str) -> None:
    out = tmp_path / "out.gguf"
    summary = quantize(tiny, out, type_name, threads=1)
    assert summary.path == out
    assert summary.file_type == file_type
    assert next(iter(summary.quantization)) == weights
    assert summary.quantization == read_gguf(out).quantization
    assert out.stat().st_size < tiny.stat().st_size
    assert list(tmp_path.iterdir()) == [out]


def test_the_result_loads(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    quantize(tiny, out, "q4_0", threads=1)
    model = llama_cpp.llama_model_load_from_file(str(out).encode(), llama_cpp.llama_model_default_params())
    assert model
    llama_cpp.llama_model_free(model)


def test_progress_counts_every_tensor(tiny: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    quantize(tiny, tmp_path / "out.gguf", "q8_0", threads=1, progress=lambda *call: calls.append(call))
    count = len(read_gguf(tiny).tensors)
    assert calls == [(done, count) for done in range(1, count + 1)]


def test_the_log_callback_is_put_back(tiny: Path, tmp_path: Path) -> None:
    def current() -> int | None:
        callback, user_data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
        llama_cpp.llama_log_get(ctypes.byref(callback), ctypes.byref(user_data))
        return ctypes.cast(callback, ctypes.c_void_p).value

    read_gguf(tiny)
    before = current()
    quantize(tiny, tmp_path / "out.gguf", "q8_0", threads=1)
    assert before is not None
    assert current() == before


def test_split_source_becomes_one_file(tmp_path: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "parts.gguf", split_tensors=8)
    summary = quantize(source, tmp_path / "whole.gguf", "q8_0", threads=1)
    assert not summary.is_split
    assert summary.parameters == read_gguf(source).parameters


def test_existing_output_is_kept_without_force(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    with pytest.raises(ConfigError, match="exists already"):
        quantize(tiny, out, "q8_0", threads=1)
    assert out.read_text() == "precious"
    quantize(tiny, out, "q8_0", threads=1, force=True)
    assert read_gguf(out).file_type == "Q8_0"


def test_a_source_is_never_overwritten(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="is the input file"):
        quantize(tiny, tiny.parent / "." / tiny.name, "q8_0", threads=1, force=True)
    assert read_gguf(tiny).file_type == "F32"


def test_quantizing_twice_needs_consent(tmp_path: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "q8.gguf", weight_type="q8_0")
    out = tmp_path / "out.gguf"
    with pytest.raises(ConfigError, match=r"already quantised \(Q8_0\)"):
        quantize(source, out, "q4_0", threads=1)
    assert not out.exists()
    with pytest.warns(UserWarning, match="loses quality"):
        quantize(source, out, "q4_0", threads=1, allow_requantize=True)
    assert next(iter(read_gguf(out).quantization)) == "q4_0"


def test_unknown_type_lists_the_known_ones(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no weight type 'q9'") as caught:
        quantize(tiny, tmp_path / "out.gguf", "q9", threads=1)
    assert "Q4_K_M" in str(caught.value)


def test_types_that_need_an_importance_matrix(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="importance matrix"):
        quantize(tiny, tmp_path / "out.gguf", "iq2_xs", threads=1)
    assert "IQ2_XS" not in quantizable_types()


def test_unusable_sources(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(UnsupportedModelError, match="unknown model architecture: 'nonesuch'"):
        quantize(gguf_factory.unknown_architecture(tmp_path / "u.gguf"), out, "q8_0", threads=1)
    with pytest.raises(ModelFormatError, match="no weights"):
        quantize(gguf_factory.vocab_only(tmp_path / "v.gguf"), out, "q8_0", threads=1)
    with pytest.raises(ModelFormatError, match="truncated"):
        quantize(gguf_factory.truncated(tiny, tmp_path / "t.gguf"), out, "q8_0", threads=1)
    with pytest.raises(ModelNotFoundError):
        quantize(tmp_path / "missing.gguf", out, "q8_0", threads=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.gguf", "u.gguf", "v.gguf"]


def test_unusable_outputs(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        quantize(tiny, tmp_path, "q8_0", threads=1)
    with pytest.raises(ConfigError, match="There is no folder"):
        quantize(tiny, tmp_path / "nowhere" / "out.gguf", "q8_0", threads=1)


@pytest.mark.usefixtures("small_files_only")
def test_full_disk(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="could not be written"):
        quantize(tiny, tmp_path / "out.gguf", "q8_0", threads=1)
    assert list(tmp_path.iterdir()) == []


def test_other_failures_say_what_llama_cpp_said(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foredraft.backends.llamacpp.quantize._type_number", lambda _name: 999)
    with pytest.raises(ModelFormatError, match=r"could not quantise .*invalid output file type 999"):
        quantize(tiny, tmp_path / "out.gguf", "q8_0", threads=1)


@pytest.mark.parametrize(
    ("source", "type_name", "expected"),
    [
        ("model-f16", "q4_k_m", "model-Q4_K_M.gguf"),
        ("model.BF16", "q8_0", "model-Q8_0.gguf"),
        ("Model", "q4_k", "Model-Q4_K_M.gguf"),
        ("model", "fp16", "model-F16.gguf"),
        ("someone/own:v1", "q8_0", "someone-own-v1-Q8_0.gguf"),
    ],
)
def test_default_name(source: str, type_name: str, expected: str) -> None:
    assert default_name(source, type_name) == expected


def test_file_type_names() -> None:
    assert file_type_name(15) == "Q4_K_M"
    assert file_type_name(12345) == ""
    assert file_type_number("q4_k_m") == 15
    assert file_type_number(" FP32 ") == 0
    assert file_type_number("guessed") is None
