from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from foredraft.library import catalogue
from foredraft.library.catalogue import (
    DEFAULT_FILE,
    DEFAULT_PACKAGE,
    default_model,
    list_models,
    models_dir,
    size_of,
    stem_of,
)
from foredraft.library.stored import is_model_name, quantization_of
from safetensors_factory import SHARDS, one_file, sharded, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", "foredraft_no_such_package")


def put(folder: Path, name: str, size: int = 10) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_default_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "bundled_model_package"
    put(package, DEFAULT_FILE)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", package.name)
    assert default_model() == package / DEFAULT_FILE
    assert package.name not in sys.modules


@pytest.mark.usefixtures("no_default")
def test_no_default_model_without_the_package() -> None:
    assert default_model() is None


@pytest.mark.model
def test_the_real_default_model_is_there() -> None:
    path = default_model()
    assert path is not None
    assert path.parent.name == DEFAULT_PACKAGE


@pytest.mark.parametrize(
    ("stem", "quantization"),
    [
        ("Qwen3-0.6B-Q4_K_M", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1", "Q4_1"),
        ("model-q8_0", "Q8_0"),
        ("model-UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("model-IQ3_XXS", "IQ3_XXS"),
        ("model-bf16", "BF16"),
        ("model-Q6_K-00001-of-00002", "Q6_K"),
        ("gpt-oss-20b-mxfp4", "MXFP4"),
        ("model-4bit", ""),
        ("FAQ4_0", ""),
        ("Q4-report", ""),
    ],
)
def test_quantization_is_read_from_the_name(stem: str, quantization: str) -> None:
    assert quantization_of(stem) == quantization


def test_projectors_and_importance_matrices_are_no_models() -> None:
    assert is_model_name("model-Q4_0.GGUF")
    assert not is_model_name("mmproj-model-f16.gguf")
    assert not is_model_name("model.imatrix.gguf")
    assert not is_model_name("model.safetensors")


@pytest.mark.usefixtures("no_default")
def test_listing(tmp_path: Path) -> None:
    folder = models_dir(tmp_path)
    put(folder, "own.gguf", 7)
    put(folder, "someone/Tiny-GGUF/Tiny-Q4_0.gguf", 20)
    put(folder, "someone/Tiny-GGUF/mmproj-Tiny.gguf")
    put(folder, "someone/Tiny-GGUF/.Tiny-Q8_0.gguf.0123.part")
    put(folder, ".quantize-abc/own.gguf")
    put(folder, "someone/Big-GGUF/Q6_K/Big-Q6_K-00001-of-00002.gguf", 30)
    put(folder, "someone/Big-GGUF/Q6_K/Big-Q6_K-00002-of-00002.gguf", 5)
    put(folder, "someone/Half-GGUF/Half-Q6_K-00001-of-00002.gguf", 3)
    found = {model.name: model for model in list_models(folder)}
    assert set(found) == {
        "own",
        "someone/Tiny-GGUF:Q4_0",
        "someone/Big-GGUF:Q6_K",
        "someone/Half-GGUF:Q6_K",
    }
    own, big = found["own"], found["someone/Big-GGUF:Q6_K"]
    assert (own.source, own.repository, own.quantization, own.size_bytes) == ("local", "", "", 7)
    assert (big.source, big.repository, big.quantization) == ("pulled", "someone/Big-GGUF", "Q6_K")
    assert big.size_bytes == 35
    assert big.complete
    assert not found["someone/Half-GGUF:Q6_K"].complete


@pytest.mark.usefixtures("no_default")
def test_folders_of_safetensors_are_one_model_each(tmp_path: Path) -> None:
    folder = models_dir(tmp_path)
    many = write(folder / "someone/Many", sharded())
    own = write(folder / "My-1.5B", one_file())
    write(folder / "someone/Broken", {**sharded(), "model.safetensors.index.json": b"{"})
    write(folder, {"config.json": b"{}", "lone.safetensors": b"x"})  # the models folder itself is none
    found = {model.name: model for model in list_models(folder)}
    assert set(found) == {"someone/Many:safetensors", "someone/Broken:safetensors", "My-1.5B"}
    pulled, local = found["someone/Many:safetensors"], found["My-1.5B"]
    assert (pulled.path, pulled.source, pulled.repository) == (many, "pulled", "someone/Many")
    assert (pulled.format, pulled.quantization, pulled.complete) == ("safetensors", "BF16", True)
    assert pulled.size_bytes == size_of(many) == sum(len(sharded()[name]) for name in SHARDS)
    assert (local.path, local.source, local.stem) == (own, "local", "My-1.5B")
    assert not found["someone/Broken:safetensors"].complete


@pytest.mark.usefixtures("no_default")
@pytest.mark.parametrize("with_index", [True, False])
def test_a_folder_without_all_its_files_is_incomplete(tmp_path: Path, with_index: bool) -> None:
    folder = models_dir(tmp_path)
    many = write(folder / "someone/Many", sharded())
    (many / SHARDS[1]).unlink()
    if not with_index:
        (many / "model.safetensors.index.json").unlink()
    (found,) = list_models(folder)
    assert not found.complete
    assert found.size_bytes == len(sharded()[SHARDS[0]])


def test_the_name_of_what_was_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "My-1.5B", one_file())
    assert stem_of(folder) == stem_of(folder / "config.json") == "My-1.5B"
    assert stem_of(tmp_path / "Big.Q6_K-00001-of-00002.gguf") == "Big.Q6_K"


def test_weights_that_transformers_does_not_read_do_not_count(tmp_path: Path) -> None:
    """Mistral's repositories hold everything twice."""
    folder = write(tmp_path, {**one_file(), "consolidated.safetensors": b"x" * 5000})
    assert size_of(folder) == len(one_file()["model.safetensors"])
    assert size_of(folder / "config.json") == size_of(folder)


@pytest.mark.usefixtures("no_default")
def test_a_missing_folder_holds_nothing(tmp_path: Path) -> None:
    assert list_models(tmp_path / "nowhere") == []
