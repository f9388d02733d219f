from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_factory
from foredraft.backends.llamacpp import gguf_native
from foredraft.backends.llamacpp.gguf_file import is_gguf, read_gguf
from foredraft.backends.llamacpp.gguf_native import Array, Tensor
from foredraft.errors import (
    ForedraftError,
    ModelFormatError,
    ModelNotFoundError,
)
from foredraft.library import default_model
from foredraft.library.type_share import TypeShare

if TYPE_CHECKING:
    from pathlib import Path

HEADER_BYTES = 9000
"""The header of the tiny model ends before this."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that each example of a property test writes anew."""
    return tmp_path_factory.mktemp("scratch") / "scratch.gguf"


def test_summary(tiny: Path) -> None:
    summary = read_gguf(tiny)
    assert summary.path == tiny
    assert summary.files == (tiny,)
    assert (summary.version, summary.architecture, summary.name) == (3, "llama", "Tiny Llama")
    assert (summary.context_length, summary.block_count, summary.embedding_length) == (512, 2, 64)
    assert (summary.head_count, summary.kv_head_count) == (4, 2)
    assert (summary.vocab_size, summary.tokenizer) == (384, "gpt2")
    assert summary.has_chat_template
    assert summary.file_type == "F32"
    assert summary.size_bytes == tiny.stat().st_size
    assert not summary.is_split
    assert not summary.is_vocab_only


def test_it_agrees_with_the_reference_reader(tiny: Path) -> None:
    reader = gguf.GGUFReader(tiny)
    summary = read_gguf(tiny)
    assert summary.tensors == tuple(
        Tensor(
            tensor.name,
            tensor.tensor_type.name.lower(),
            tuple(int(length) for length in tensor.shape),
            int(tensor.n_bytes),
            int(tensor.data_offset),
            tiny,
        )
        for tensor in reader.tensors
    )
    assert summary.parameters == sum(int(tensor.n_elements) for tensor in reader.tensors)
    for key, value in summary.metadata.items():
        expected = reader.fields[key].contents()
        if isinstance(value, Array):
            assert value.length == len(expected)
            read = gguf_native.ARRAY_SHOWN if value.type == "str" else gguf_native.ARRAY_HEAD
            assert list(value.head) == expected[:read]
        else:
            assert value == expected


def test_every_kind_of_value(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "kinds")
    scalars = {
        "uint8": 200,
        "int8": -100,
        "uint16": 60_000,
        "int16": -30_000,
        "uint32": 4_000_000_000,
        "int32": -2_000_000_000,
        "uint64": 2**63,
        "int64": -(2**62),
        "float32": 0.5,
        "float64": 1e300,
        "bool": True,
        "string": "with ü",
    }
    for kind, value in scalars.items():
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    writer.add_array("test.long", list(range(100)))
    writer.add_array("test.empty", [])
    writer.add_array("test.words", ["a", "ü"])
    writer.add_array("kinds.attention.head_count", [2, 8, 4])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    summary = read_gguf(path)
    assert {key: summary.metadata[f"test.{key}"] for key in scalars} == scalars
    assert summary.metadata["test.long"] == Array("i32", 100, tuple(range(gguf_native.ARRAY_HEAD)))
    assert summary.metadata["test.words"] == Array("str", 2, ("a", "ü"))
    assert str(summary.metadata["test.words"]) == "2 × str [a, ü]"
    assert str(summary.metadata["test.long"]) == "100 × i32 [0, 1, 2, 3, 4, 5, 6, 7, …]"
    assert summary.head_count == 8
    assert (summary.name, summary.context_length, summary.file_type) == ("values", 0, "")


def test_quantization_histogram(tmp_path: Path) -> None:
    summary = read_gguf(gguf_factory.tiny_llama(tmp_path / "q.gguf", weight_type="q8_0"))
    matrices = [tensor for tensor in summary.tensors if len(tensor.shape) == 2]
    assert summary.file_type == "Q8_0"
    assert list(summary.quantization) == ["q8_0", "f32"]
    assert summary.quantization["q8_0"] == TypeShare(16, sum(tensor.size_bytes for tensor in matrices))
    assert sum(tensor.elements for tensor in matrices) * 34 / 32 == summary.quantization["q8_0"].size_bytes


def test_split_model_is_read_whole_from_any_part(tmp_path: Path, tiny: Path) -> None:
    first = gguf_factory.tiny_llama(tmp_path / "parts.gguf", split_tensors=8)
    last = tmp_path / "parts-00003-of-00003.gguf"
    summary, whole = read_gguf(last), read_gguf(tiny)
    assert summary.is_split
    assert summary.path == first
    assert len(summary.files) == 3
    assert summary.parameters == whole.parameters
    assert {tensor.name for tensor in summary.tensors} == {tensor.name for tensor in whole.tensors}
    assert summary.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    last.unlink()
    with pytest.raises(
        ModelNotFoundError, match=r"split into 3 files, and .*-00003-of-00003\.gguf is missing"
    ):
        read_gguf(first)


def test_vocabulary_only_is_no_error(tmp_path: Path) -> None:
    summary = read_gguf(gguf_factory.vocab_only(tmp_path / "v.gguf"))
    assert summary.is_vocab_only
    assert (summary.parameters, summary.vocab_size) == (0, 384)


def test_unknown_architecture_is_no_error(tmp_path: Path) -> None:
    assert read_gguf(gguf_factory.unknown_architecture(tmp_path / "u.gguf")).architecture == "nonesuch"


def test_truncated_data(tmp_path: Path, tiny: Path) -> None:
    cut = gguf_factory.truncated(tiny, tmp_path / "cut.gguf")
    with pytest.raises(ModelFormatError, match=r"is truncated: it has 251,216 bytes of at least 502,432"):
        read_gguf(cut)


def test_truncated_by_one_byte(tmp_path: Path, tiny: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-1])
    with pytest.raises(ModelFormatError, match="is truncated"):
        read_gguf(cut)


def test_not_gguf(tmp_path: Path) -> None:
    path = gguf_factory.not_gguf(tmp_path / "page.gguf")
    assert not is_gguf(path)
    with pytest.raises(ModelFormatError, match="is not a GGUF file"):
        read_gguf(path)


def test_empty_missing_and_folder(tmp_path: Path, tiny: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(ModelFormatError, match="is empty"):
        read_gguf(empty)
    with pytest.raises(ModelNotFoundError, match="There is no file"):
        read_gguf(tmp_path / "missing.gguf")
    with pytest.raises(ModelNotFoundError, match="There is no file"):
        read_gguf(tmp_path)
    assert is_gguf(tiny)
    assert not is_gguf(tmp_path / "missing.gguf")


def test_no_architecture(tmp_path: Path) -> None:
    path = tmp_path / "anonymous.gguf"
    writer = gguf.GGUFWriter(path, "")
    writer.add_tensor("weights", np.ones((2, 2), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFormatError, match="has no architecture in its header"):
        read_gguf(path)


@given(length=st.integers(min_value=0, max_value=HEADER_BYTES))
def test_cut_headers_are_refused(tiny: Path, scratch: Path, length: int) -> None:
    scratch.write_bytes(tiny.read_bytes()[:length])
    with pytest.raises(ModelFormatError):
        read_gguf(scratch)


@given(
    changes=st.lists(
        st.tuples(st.integers(min_value=4, max_value=HEADER_BYTES), st.integers(min_value=0, max_value=255)),
        min_size=1,
        max_size=8,
    )
)
def test_damaged_headers_are_read_or_refused(
    tiny: Path, scratch: Path, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(tiny.read_bytes())
    for position, value in changes:
        data[position] = value
    scratch.write_bytes(data)
    try:
        summary = read_gguf(scratch)
    except ForedraftError:
        return
    needed = max((tensor.offset + tensor.size_bytes for tensor in summary.tensors), default=0)
    assert needed <= len(data)


def test_nothing_is_printed(tmp_path: Path) -> None:
    """In a process of its own, where nothing has silenced llama.cpp before."""
    path = tmp_path / "cut.gguf"
    gguf_factory.truncated(gguf_factory.tiny_llama(tmp_path / "tiny.gguf"), path, keep=0.001)
    code = (
        "import sys; from pathlib import Path; from foredraft.backends.llamacpp.gguf_file import read_gguf\n"
        "try: read_gguf(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("ModelFormatError", "")


@pytest.mark.model
def test_the_default_model() -> None:
    path = default_model()
    assert path is not None
    summary = read_gguf(path)
    assert (summary.architecture, summary.parameters, summary.file_type) == ("llama", 134_515_008, "Q4_1")
    assert (summary.context_length, summary.vocab_size, summary.has_chat_template) == (8192, 49152, True)
