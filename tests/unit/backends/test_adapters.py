"""LoRA adapters of GGUF models: what is computed with them, and which files are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_adapters
import gguf_factory
from foredraft.backends.llamacpp import BACKEND, adapters, kernels
from foredraft.backends.llamacpp.adapter_file import check_fits, read_adapter
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.config import ModelOptions
from foredraft.errors import (
    BackendError,
    ConfigError,
    ForedraftError,
    ModelFormatError,
    UnsupportedModelError,
)
from foredraft.library.adapter_files import adapters_of, named_adapter
from foredraft.types import Logits, Rows
from model_cases import text_tokens

TEXT = text_tokens(12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    base = gguf_factory.tiny_llama(folder / "base.gguf", weight_type="q8_0", mixing=0.5)
    gguf_adapters.lora(folder / "one.gguf", base, rank=3, seed=1)
    gguf_adapters.lora(folder / "two.gguf", base, rank=16, seed=2, half=True)
    return folder


def load(folder: Path, base: str = "base.gguf", **files: Any) -> LlamaCppModel:
    options = ModelOptions(
        threads=1,
        gpu_layers=0,
        sequences=3,
        probe=False,
        context_length=256,
        adapters=adapters_of({name: [str(folder / it) for it in each] for name, each in files.items()}),
    )
    model = BACKEND.load(folder / base, options)
    assert isinstance(model, LlamaCppModel)
    return model


@pytest.fixture
def model(folder: Path) -> Iterator[LlamaCppModel]:
    found = load(folder, one=["one.gguf"], two=["two.gguf"], both=["one.gguf", "two.gguf:0.5"])
    yield found
    found.close()


def logits_of(model: LlamaCppModel, adapter: str = "", seq: int = 0) -> Logits:
    model.release(seq)
    model.adapt(seq, adapter)
    return model.forward([Rows(seq, 0, TEXT, len(TEXT))]).copy()


def near(found: Logits, expected: Logits) -> bool:
    return bool(np.abs(found - expected).max() < 0.06 * np.abs(expected).max())


def merged(folder: Path, path: Path, *parts: tuple[str, float]) -> Path:
    """The base with adapters multiplied into its weights."""
    tensors = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(folder / "base.gguf").tensors
    }
    for name, scale in parts:
        reader = gguf.GGUFReader(folder / name)
        found = {tensor.name: tensor.data.astype(np.float32) for tensor in reader.tensors}
        for tensor in {full.rpartition(".")[0] for full in found}:
            a, b = found[f"{tensor}.lora_a"], found[f"{tensor}.lora_b"]
            tensors[tensor] = tensors[tensor] + scale * 8.0 / a.shape[0] * b @ a
    writer = gguf.GGUFWriter(path, "llama")
    for field in gguf.GGUFReader(folder / "base.gguf").fields.values():
        if field.name.startswith(("GGUF.", "general.architecture")):
            continue
        element = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("adapter", "parts"),
    [
        ("one", [("one.gguf", 1.0)]),
        ("two", [("two.gguf", 1.0)]),
        ("both", [("one.gguf", 1.0), ("two.gguf", 0.5)]),
    ],
)
def test_it_computes_what_the_merged_weights_do(
    adapter: str, parts: list[tuple[str, float]], folder: Path, model: LlamaCppModel, tmp_path: Path
) -> None:
    merged(folder, tmp_path / "merged.gguf", *parts)
    whole = load(tmp_path, "merged.gguf")
    try:
        assert near(logits_of(model, adapter), logits_of(whole))
        assert not near(logits_of(model), logits_of(whole))
    finally:
        whole.close()


def test_a_forward_with_several_adapters_has_the_bits_of_one_for_each(model: LlamaCppModel) -> None:
    alone = [logits_of(model, adapter) for adapter in ("two", "", "one")]
    for seq, adapter in enumerate(("two", "", "one")):
        model.release(seq)
        model.adapt(seq, adapter)
    rows = [Rows(seq, 0, TEXT, len(TEXT) - seq) for seq in (2, 0, 1)]
    found = model.forward(rows)
    expected = np.concatenate([alone[seq][seq:] for seq in (2, 0, 1)])
    assert np.array_equal(found, expected)
    assert [model.length(seq) for seq in range(3)] == [len(TEXT)] * 3


def changes_as_llama_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_context: object) -> int:
        raise adapters._UnknownError("for this test")

    monkeypatch.setattr(adapters, "_size", unknown)


@pytest.mark.parametrize("exchanged", [True, False])
def test_graphs_are_those_of_the_adapter(
    *, exchanged: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns through adapters and sizes, so that every graph is used again after others."""
    if not exchanged:
        changes_as_llama_does(monkeypatch)
    model = load(folder, one=["one.gguf"], two=["two.gguf"])
    try:
        if exchanged and kernels.in_use() is not None:
            assert model._adapters.exchanged
        expected = {name: logits_of(model, name) for name in ("", "one", "two")}
        for turn in range(24):
            name = ("", "one", "two", "one")[turn % 4]
            count = (1, 3, 1, 12)[turn // 4 % 4]
            model.release(0)
            model.adapt(0, name)
            found = model.forward([Rows(0, 0, TEXT[:count], count)])
            assert near(found, expected[name][:count]), (turn, name, count)
    finally:
        model.close()


def test_a_sequence_with_cells_keeps_its_adapter(model: LlamaCppModel) -> None:
    logits_of(model, "one")
    with pytest.raises(BackendError, match="holds cells"):
        model.adapt(0, "two")
    model.release(0)
    with pytest.raises(BackendError, match="without an adapter three"):
        model.adapt(0, "three")


def test_keys_tell_files_and_scales_apart(folder: Path) -> None:
    keys = [
        load(folder, it=files).adapters["it"]
        for files in (["one.gguf"], ["one.gguf:0.5"], ["two.gguf"], ["one.gguf", "two.gguf"])
    ]
    assert len(set(keys)) == 4
    assert load(folder, other=["one.gguf"]).adapters == {"other": keys[0]}


def test_memory_has_adapters(model: LlamaCppModel) -> None:
    assert model.info.memory["adapters"] > 1000


def quantised(path: Path, whole: Path, *sides: str) -> Path:
    """The adapter with its matrices of these sides, "a" and "b", in Q8_0, and the others in F16."""
    reader = gguf.GGUFReader(whole)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        values = tensor.data.astype(np.float32)
        if tensor.name[-1] in sides:
            writer.add_tensor(tensor.name, gguf.quantize(values, q8_0), raw_dtype=q8_0)
        else:
            writer.add_tensor(tensor.name, values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("sides", ["a", "ab"])
def test_quantised_adapters_are_computed_with(sides: str, folder: Path, tmp_path: Path) -> None:
    """As llama.cpp's converter writes them: B stays in F16 where the rank is no whole block."""
    rank = 32 if "b" in sides else 3
    whole = gguf_adapters.lora(tmp_path / "whole.gguf", folder / "base.gguf", rank=rank, half=True)
    quantised(tmp_path / "quantised.gguf", whole, *sides)
    model = load(folder, whole=[str(whole)], quantised=[str(tmp_path / "quantised.gguf")])
    try:
        found, expected, plain = (logits_of(model, name) for name in ("quantised", "whole", ""))
        away, change = np.linalg.norm(found - expected), np.linalg.norm(plain - expected)
        assert away < 0.1 * change, (away, change)
        one, other = model._loaded["whole"].signature, model._loaded["quantised"].signature
        assert one != other, "they are compared apart"
    finally:
        model.close()


@pytest.mark.parametrize(
    ("name", "multiplied"),
    [
        ("blk.0.shortconv.in_proj.weight", True),
        ("blk.0.shortconv.conv.weight", False),
        ("blk.0.ssm_conv1d.weight", False),
        ("blk.0.ssm_out.weight", True),
        ("blk.0.ssm_a", False),
        ("blk.0.ssm_alpha.weight", True),
        ("blk.0.attn_q_norm.weight", False),
        ("per_layer_token_embd.weight", False),
        ("position_embd.weight", False),
        ("blk.0.time_mix_w1.weight", True),
        ("blk.0.time_mix_lerp_fused.weight", False),
    ],
)
def test_only_matrices_of_linear_layers_are_changed(
    name: str, multiplied: bool, folder: Path, tmp_path: Path
) -> None:
    base = gguf_adapters.lora(tmp_path / "base.gguf", folder / "base.gguf", **_matrix(name))
    adapter = gguf_adapters.lora(tmp_path / "adapter.gguf", folder / "base.gguf", **_pair(name, 32, 48))
    with nullcontext() if multiplied else pytest.raises(UnsupportedModelError, match="is no matrix of"):
        check_fits(read_adapter(adapter), read_gguf(base))


def _matrix(name: str) -> dict[str, Any]:
    """How a file is made that holds this matrix, of ones."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor(name, np.ones((48, 32), np.float32))

    return {"edit": edit, "targets": "nothing"}


# --- what is refused ------------------------------------------------------------------------------------


def _alora(writer: gguf.GGUFWriter) -> None:
    writer.add_array("adapter.alora.invocation_tokens", [1, 2])


def _norm(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(64, np.float32))


def _half_pair(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("output.weight.lora_a", np.ones((4, 64), np.float32))


def _pair(name: str, inputs: int, outputs: int, *more: int, kind: Any = np.float32) -> dict[str, Any]:
    """How a file is made that also holds these matrices, all ones."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor(f"{name}.lora_a", np.ones((*more, 4, inputs), kind))
        writer.add_tensor(f"{name}.lora_b", np.ones((*more, outputs, 4), np.float32))

    return {"edit": edit, "targets": "nothing"}


def _special(options: dict[str, Any]) -> Callable[[Path, Path], object]:
    return lambda path, base: gguf_adapters.lora(path, base, **options)


def written(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("{}")


WRONG: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "missing": (lambda path, base: path, "There is no adapter"),
    "text": (lambda path, base: path.write_text("hello"), "is not a GGUF file"),
    "model": (lambda path, base: gguf_factory.tiny_llama(path), "is not a LoRA adapter"),
    "architecture": (
        lambda path, base: gguf_adapters.lora(path, base, architecture="qwen3"),
        "architecture qwen3",
    ),
    "shape": (
        lambda path, base: gguf_adapters.lora(
            path, gguf_factory.tiny_llama(path.with_suffix(".other"), embd=32, heads=2)
        ),
        "does not fit base.gguf",
    ),
    "layers": (
        lambda path, base: gguf_adapters.lora(
            path, gguf_factory.tiny_llama(path.with_suffix(".other"), layers=3)
        ),
        "the model has no blk.2",
    ),
    "alora": (lambda path, base: gguf_adapters.lora(path, base, edit=_alora), "aLoRA"),
    "norm": (lambda path, base: gguf_adapters.lora(path, base, edit=_norm), "attn_norm"),
    "pair": (lambda path, base: gguf_adapters.lora(path, base, edit=_half_pair), "needs two matrices"),
    "pair for a norm": (_special(_pair("blk.0.attn_norm.weight", 64, 1)), "attn_norm.weight is no matrix of"),
    "embeddings": (_special(_pair("token_embd.weight", 384, 64)), "token_embd.weight is no matrix of"),
    "three sides": (_special(_pair("blk.0.attn_q.weight", 64, 64, 2)), "does not fit"),
    "whole numbers": (_special(_pair("blk.0.attn_q.weight", 64, 64, kind=np.int32)), "is of i32"),
    "alpha": (_special({"alpha": float("nan")}), "alpha is no number"),
    "empty": (lambda path, base: gguf_adapters.lora(path, base, targets="nothing"), "is empty"),
    "folder": (lambda path, base: path.mkdir(), "is a folder"),
    "peft": (
        lambda path, base: written(path / "adapter_config.json"),
        "in PEFT's format",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_file_is_refused_with_its_reason(name: str, folder: Path, tmp_path: Path) -> None:
    make, message = WRONG[name]
    make(tmp_path / "wrong.gguf", folder / "base.gguf")
    with pytest.raises(ForedraftError, match=message) as caught:
        load(folder, it=[str(tmp_path / "wrong.gguf")])
    assert caught.value.hint


def test_damaged_files_are_refused_or_read(folder: Path, tmp_path: Path) -> None:
    """Cut off, and with damaged bytes of the header: an error of ours, or an adapter; never a crash."""
    whole, numbers = (folder / "two.gguf").read_bytes(), np.random.default_rng(0)
    damaged = tmp_path / "damaged.gguf"
    refused = 0
    for turn in range(12):
        data = bytearray(whole)
        if turn < 4:
            data = data[: len(data) * (turn + 1) // 5]
        else:
            for place in numbers.integers(8, 900, 3):
                data[place] = int(numbers.integers(256))
        damaged.write_bytes(data)
        try:
            load(folder, it=[str(damaged)]).close()
        except ForedraftError:
            refused += 1
    assert refused >= 4


def test_a_scale_that_overflows_is_refused(folder: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"one\.gguf cannot be loaded: at a scale of 100000"):
        load(folder, it=["one.gguf:1e5"])
    load(folder, it=["one.gguf:2"]).close()


@pytest.mark.parametrize("scale", ["x", "nan", "inf", "", "1e39", "-1e7"])
def test_a_scale_is_a_number(scale: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match="not an adapter scale"):
        adapters_of({"it": f"{folder / 'one.gguf'}:{scale}"})


def test_names_of_adapters(folder: Path) -> None:
    file = folder / "one.gguf"
    assert named_adapter(str(file)).name == "one"
    assert named_adapter(f"sql={file}:2").files == ((file, 2.0),)
    assert named_adapter(f"sql={file}:2").name == "sql"
    with pytest.raises(ConfigError, match="not a name"):
        adapters_of({"with space": file})
