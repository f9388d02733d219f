from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import numpy.typing as npt
import pytest

import gguf_factory
import gguf_hybrids
from foredraft.backends.llamacpp import gguf_converted, kernels
from foredraft.backends.llamacpp.binding import lib
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
from gguf_parts import write

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
    params = lib.llama_model_default_params()
    params.use_extra_bufts = False  # other tests of this process may attach the kernels yet
    model = lib.llama_model_load_from_file(str(out).encode(), params)
    assert model
    lib.llama_model_free(model)


THEN_LOADED = """
import sys
from pathlib import Path
from foredraft.backends.llamacpp import kernels
from foredraft.backends.llamacpp.loading import load_model
from foredraft.backends.llamacpp.quantize import quantize
from foredraft.config import ModelOptions

source, out = map(Path, sys.argv[1:])
quantize(source, out, "q4_0", threads=1)
load_model(out, ModelOptions(probe=False)).close()
print(kernels.left_out())
"""


def test_the_kernels_can_be_attached_afterwards(tiny: Path, tmp_path: Path) -> None:
    """To llama.cpp, which keeps the list of buffer types that it first looked at."""
    kernels.attach()
    if kernels.in_use() is None:
        pytest.skip(kernels.left_out())
    command = [sys.executable, "-c", THEN_LOADED, str(tiny), str(tmp_path / "out.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


ERRORS = {
    **dict.fromkeys(("F32",), 0.0),
    **dict.fromkeys(("F16",), 0.0003),
    **dict.fromkeys(("BF16",), 0.003),
    **dict.fromkeys(("Q8_0", "MXFP4_MOE"), 0.007),
    **dict.fromkeys(("Q6_K",), 0.03),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M"), 0.05),
    **dict.fromkeys(("Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M"), 0.1),
    **dict.fromkeys(("IQ3_S", "IQ3_M", "Q3_K_S", "Q3_K_M", "Q3_K_L"), 0.2),
    **dict.fromkeys(("Q2_K",), 0.4),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), 0.9),
}
"""The largest relative error of a matrix of normally distributed numbers, by the type of the file."""

UNREADABLE = {"Q1_0", "Q2_0"}
"""Types that the gguf package does not know."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows have room for the blocks of every type."""
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("wide") / "wide.gguf", embd=256, layers=1)


@pytest.mark.parametrize("type_name", sorted(set(quantizable_types()) - UNREADABLE))
def test_the_numbers_are_nearly_the_same(wide: Path, tmp_path: Path, type_name: str) -> None:
    quantize(wide, tmp_path / "out.gguf", type_name)
    before, after = numbers(wide), numbers(tmp_path / "out.gguf")
    assert after.keys() == before.keys()
    for name, values in before.items():
        error = np.linalg.norm(after[name] - values) / np.linalg.norm(values)
        assert error <= (ERRORS[type_name] if name.endswith("weight") else 0), name
    assert read_gguf(tmp_path / "out.gguf").file_type == type_name


def numbers(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of a file, dequantised by the gguf package."""
    found = gguf.GGUFReader(path).tensors
    return {one.name: gguf.dequantize(one.data, one.tensor_type) for one in found}


@pytest.mark.parametrize(("type_name", "error"), [("Q8_0", 0.007), ("Q1_0", 0.9), ("Q2_0", 0.9)])
@pytest.mark.filterwarnings("ignore:.*loses quality")
def test_there_and_back(wide: Path, tmp_path: Path, type_name: str, error: float) -> None:
    quantize(wide, tmp_path / "out.gguf", type_name)
    quantize(tmp_path / "out.gguf", tmp_path / "back.gguf", "f32", allow_requantize=True)
    before, after = numbers(wide), numbers(tmp_path / "back.gguf")
    found = [np.linalg.norm(after[name] - before[name]) / np.linalg.norm(before[name]) for name in before]
    assert 0 < max(found) <= error


@pytest.mark.parametrize("type_name", ["q4_k_m", "q8_0", "f16"])
def test_threads_and_pieces_change_nothing(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_name: str
) -> None:
    whole, pieces = tmp_path / "whole.gguf", tmp_path / "pieces.gguf"
    quantize(wide, whole, type_name, threads=1)
    monkeypatch.setattr(gguf_converted, "_PIECE", 5000)
    monkeypatch.setattr(gguf_converted, "_TASK", 700)
    quantize(wide, pieces, type_name, threads=3)
    assert pieces.read_bytes() == whole.read_bytes()


def test_a_recurrent_model(tmp_path: Path) -> None:
    source = gguf_hybrids.tiny_qwen35(tmp_path / "hybrid.gguf", weight_type="f16")
    quantize(source, tmp_path / "out.gguf", "q4_0")
    found = {tensor.name: tensor.type for tensor in read_gguf(tmp_path / "out.gguf").tensors}
    assert found["blk.0.ssm_out.weight"] == "q4_0"
    assert {found["blk.0.ssm_conv1d.weight"], found["blk.0.ssm_a"], found["blk.0.ssm_norm.weight"]} == {"f32"}


def test_progress_counts_every_tensor(tiny: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    quantize(tiny, tmp_path / "out.gguf", "q8_0", threads=1, progress=lambda *call: calls.append(call))
    count = len(read_gguf(tiny).tensors)
    assert calls == [(done, count) for done in range(1, count + 1)]


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


@pytest.mark.parametrize(
    ("type_name", "message"),
    [
        ("iq2-xs", "IQ2_XS needs an importance matrix"),
        ("iq3_xxs", "IQ3_XXS needs an importance matrix"),
        ("nvfp4", "llama.cpp cannot quantise a model to NVFP4"),
    ],
)
def test_types_that_there_are_but_not_to_write(
    tiny: Path, tmp_path: Path, type_name: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        quantize(tiny, tmp_path / "out.gguf", type_name, threads=1)
    assert caught.value.hint == f"Valid types: {', '.join(quantizable_types())}."
    assert file_type_name(file_type_number(type_name) or 0) not in quantizable_types()


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


def test_too_little_space_is_noticed_before_the_work(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: disk)
    with pytest.raises(CapacityError, match=r"could not be written .* it takes 0 MB \(0 MB are free\)"):
        quantize(tiny, tmp_path / "out.gguf", "q8_0", progress=lambda *_call: pytest.fail("it began"))


def changed(path: Path, name: str, values: npt.NDArray[np.float32]) -> Path:
    """The tiny model with other values at the begin of a tensor."""
    source = gguf_factory.tiny_llama(path)
    (offset,) = (tensor.offset for tensor in read_gguf(source).tensors if tensor.name == name)
    data = bytearray(source.read_bytes())
    data[offset : offset + values.nbytes] = values.tobytes()
    source.write_bytes(data)
    return source


@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "blk.1.attn_norm.weight"])
def test_numbers_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("foredraft.backends.llamacpp.quantize.trial.admit", lambda *_file: None)
    source = changed(tmp_path / "nan.gguf", name, np.array([1, np.nan], np.float32))
    with pytest.raises(ModelFormatError, match=rf"{name} has numbers that are not finite"):
        quantize(source, tmp_path / "out.gguf", "q8_0")
    assert list(tmp_path.iterdir()) == [source]


def test_numbers_that_are_too_large(tmp_path: Path) -> None:
    source = changed(tmp_path / "large.gguf", "blk.1.attn_q.weight", np.array([70_000], np.float32))
    with pytest.raises(ModelFormatError, match=r"blk\.1\.attn_q\.weight .* too large for F16"):
        quantize(source, tmp_path / "out.gguf", "f16")


def test_ctrl_c_stops_at_once_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    def press(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(tiny, tmp_path / "out.gguf", "q8_0", threads=2, progress=press)
    assert list(tmp_path.iterdir()) == []
    assert not [one for one in threading.enumerate() if "quantise" in one.name]


def test_no_part_of_a_split_source_is_overwritten(tmp_path: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "parts.gguf", split_tensors=8)
    other = sorted(tmp_path.iterdir())[-1]
    assert other != source
    with pytest.raises(ConfigError, match="is the input file"):
        quantize(source, other, "q8_0", force=True)


def test_a_part_that_sees_is_quantised_though_it_is_no_model(tmp_path: Path) -> None:
    source, out = tmp_path / "mmproj.gguf", tmp_path / "out.gguf"
    gguf_factory.unknown_architecture(source, architecture="clip")
    assert quantize(source, out, "q8_0").quantization.keys() == {"q8_0"}


def test_tensors_of_several_dimensions_and_an_alignment(tmp_path: Path) -> None:
    """Experts have three; ggml writes files with the usual alignment."""
    writer, random = gguf.GGUFWriter(tmp_path / "in.gguf", "clip"), np.random.default_rng(0)
    writer.add_custom_alignment(64)
    for name, shape in {"exps.weight": (5, 3, 64), "more.weight": (2, 3, 5, 96), "bias": (7,)}.items():
        writer.add_tensor(name, random.standard_normal(shape, dtype=np.float32))
    write(writer)
    quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0")
    before, after = numbers(tmp_path / "in.gguf"), numbers(tmp_path / "out.gguf")
    assert "general.alignment" not in read_gguf(tmp_path / "out.gguf").metadata
    for name, values in before.items():
        assert after[name].shape == values.shape
        assert np.linalg.norm(after[name] - values) <= 0.007 * np.linalg.norm(values)


def test_tensors_of_one_name(tmp_path: Path) -> None:
    """A split model can have them; ggml would end the process."""
    for part in (1, 2):
        file = gguf_factory.unknown_architecture(tmp_path / "one.gguf", architecture="clip")
        file.rename(tmp_path / f"m-{part:05d}-of-00002.gguf")
    with pytest.raises(ModelFormatError, match=r"several tensors of the name 'token_embd\.weight'"):
        quantize(tmp_path / "m-00001-of-00002.gguf", tmp_path / "out.gguf", "q8_0")


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
