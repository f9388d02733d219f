from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.errors import ModelNotFoundError
from foretoken.library import catalogue
from foretoken.library.names import resolve


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models folder with two repositories and a file of the user's own; no bundled model."""
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", "foretoken_no_such_package")
    folder = tmp_path / "models"
    for name in (
        "someone/Tiny-GGUF/Tiny-Q4_0.gguf",
        "someone/Tiny-GGUF/Tiny-Q8_0.gguf",
        "other/Large-GGUF/Large-Q6_K-00001-of-00002.gguf",
        "other/Large-GGUF/Large-Q6_K-00002-of-00002.gguf",
        "own-model.gguf",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("someone/Tiny-GGUF:Q8_0", "Tiny-Q8_0.gguf"),
        ("Tiny-GGUF:q8_0", "Tiny-Q8_0.gguf"),
        ("someone/tiny-gguf", "Tiny-Q4_0.gguf"),
        ("tiny-q8_0", "Tiny-Q8_0.gguf"),
        ("Tiny-Q8_0.gguf", "Tiny-Q8_0.gguf"),
        ("someone/Tiny-GGUF/Tiny-Q4_0.gguf", "Tiny-Q4_0.gguf"),
        ("own", "own-model.gguf"),
        ("large", "Large-Q6_K-00001-of-00002.gguf"),
        ("Large-Q6_K", "Large-Q6_K-00001-of-00002.gguf"),
    ],
)
def test_names(folder: Path, name: str, file: str) -> None:
    assert resolve(name, folder).name == file


def test_none_is_the_default(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match=r"foretoken\[demo\]"):
        resolve(None, folder)
    package = tmp_path / "another_model_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / catalogue.DEFAULT_FILE).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", package.name)
    assert resolve(None, folder) == package / catalogue.DEFAULT_FILE
    assert resolve("smollm2", folder) == package / catalogue.DEFAULT_FILE


def test_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = folder / "own-model.gguf"
    assert resolve(str(own), folder / "nowhere") == own
    second = folder / "other/Large-GGUF/Large-Q6_K-00002-of-00002.gguf"
    assert resolve(str(second), folder).name == "Large-Q6_K-00001-of-00002.gguf"
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    assert resolve("~/own-model.gguf", folder) == own


def test_folders(folder: Path, tmp_path: Path) -> None:
    assert resolve(str(folder / "other/Large-GGUF"), folder).name == "Large-Q6_K-00001-of-00002.gguf"
    with pytest.raises(ModelNotFoundError, match=r"2 models: Tiny-Q4_0\.gguf, Tiny-Q8_0\.gguf"):
        resolve(str(folder / "someone/Tiny-GGUF"), folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFoundError, match="holds no GGUF model"):
        resolve(str(tmp_path / "empty"), folder)


def test_a_folder_of_the_same_name_does_not_hide_a_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own-model").mkdir()
    assert resolve("own-model", folder) == folder / "own-model.gguf"


def test_ambiguous_beginning(folder: Path) -> None:
    (folder / "own-other.gguf").touch()
    with pytest.raises(ModelNotFoundError, match="any of 2 models: own-model, own-other"):
        resolve("own", folder)


def test_several_quantizations_and_none_preferred(folder: Path) -> None:
    tiny = folder / "someone/Tiny-GGUF"
    (tiny / "Tiny-Q4_0.gguf").rename(tiny / "Tiny-Q3_K_S.gguf")
    (tiny / "Tiny-Q8_0.gguf").rename(tiny / "Tiny-Q6_K.gguf")
    with pytest.raises(ModelNotFoundError, match=r"Tiny-GGUF:Q3_K_S, someone/Tiny-GGUF:Q6_K"):
        resolve("someone/Tiny-GGUF", folder)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("own-modell", r"Did you mean own-model"),
        ("onw-model", r"Did you mean own-model"),
        ("somone/Tiny-GGUF:Q8_0", r"Did you mean someone/Tiny-GGUF:Q8_0"),
        ("lrage", r"Did you mean Large-"),
    ],
)
def test_misspelt_names(folder: Path, name: str, suggestion: str) -> None:
    with pytest.raises(ModelNotFoundError, match=suggestion) as caught:
        resolve(name, folder)
    assert caught.value.hint is not None
    assert "foretoken models pull" in caught.value.hint


def test_a_model_is_suggested_once(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("onw-model", folder)
    assert caught.value.message.count("own-model") == 1


def test_misspelt_paths(folder: Path) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"There is no file .*own-modl\.gguf\. Did you mean .*own-model"
    ):
        resolve(str(folder / "own-modl.gguf"), folder)


@pytest.mark.parametrize("name", ["", "  ", "entirely-different"])
def test_nothing_near(folder: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name, folder)
    assert "Did you mean" not in caught.value.message


def test_a_folder_of_safetensors_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError):
        resolve(str(tmp_path), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert resolve(str(tmp_path), tmp_path / "models") == tmp_path
