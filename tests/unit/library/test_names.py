from __future__ import annotations

import re
from pathlib import Path

import pytest

from foredraft.errors import ModelNotFoundError
from foredraft.library import catalogue
from foredraft.library.catalogue import install_default_model
from foredraft.library.names import resolve
from safetensors_factory import SHARDS, one_file, sharded, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models folder with two repositories and a file of the user's own; no bundled model."""
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", "foredraft_no_such_package")
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
    with pytest.raises(ModelNotFoundError, match=re.escape(install_default_model())):
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
    with pytest.raises(ModelNotFoundError, match="has no GGUF model"):
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
    assert "foredraft models pull" in caught.value.hint


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
    with pytest.raises(ModelNotFoundError, match=r"no config\.json with \*\.safetensors"):
        resolve(str(tmp_path), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert resolve(str(tmp_path), tmp_path / "models") == tmp_path


@pytest.mark.parametrize(
    "file", ["config.json", "model.safetensors.index.json", SHARDS[0], SHARDS[1]], ids=lambda name: name[-22:]
)
def test_a_file_of_a_folder_of_safetensors_is_the_folder(tmp_path: Path, file: str) -> None:
    folder = write(tmp_path / "My-1.5B", sharded())
    assert resolve(str(folder / file), tmp_path / "models") == folder
    (folder / "copy-Q4_0.gguf").touch()
    assert resolve(str(folder), tmp_path / "models") == folder / "copy-Q4_0.gguf"
    found = resolve(str(folder / file), tmp_path / "models")
    assert found == folder / "config.json"
    assert resolve(str(found), tmp_path / "models") == found


@pytest.mark.parametrize("name", [".", "config.json", "./", "inner/.."])
def test_the_folder_one_is_in(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "My-1.5B", one_file())
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder)
    assert resolve(name, tmp_path / "models") == folder


def test_what_was_found_is_not_taken_for_a_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path goes through `resolve` again on its way to the engine."""
    mine = write(tmp_path / "own", one_file())
    monkeypatch.chdir(tmp_path)
    found = resolve("./own", folder)
    assert found == mine
    assert resolve(str(found), folder) == mine


def test_a_misspelt_folder(tmp_path: Path) -> None:
    write(tmp_path / "My-1.5B", one_file())
    (tmp_path / "My-1.5").mkdir()  # nothing in it
    with pytest.raises(
        ModelNotFoundError, match=r"no file or folder .*/My-1\.5Bi\. Did you mean .*/My-1\.5B\?"
    ) as caught:
        resolve(str(tmp_path / "My-1.5Bi"), tmp_path / "models")
    assert caught.value.message.count("My-1.5") == 2


def test_safetensors_without_a_configuration_are_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lone.safetensors"
    path.touch()
    assert resolve(str(path), tmp_path / "models") == path


@pytest.mark.parametrize("name", ["My-1.5B", "my-1.5b", "my-1"])
def test_a_folder_put_into_the_models_folder_goes_by_its_name(folder: Path, name: str) -> None:
    put = write(folder / "My-1.5B", one_file())
    assert resolve(name, folder) == put


def test_folders_that_may_not_be_read_are_no_suggestions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /lost+found is for everybody but root, who runs some tests."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "model.gguf").touch()
    real = Path.is_file

    def refused(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(ModelNotFoundError, match=r"Did you mean .*model\.gguf"):
        resolve(str(tmp_path / "modell.gguf"), tmp_path)


def test_a_folder_that_may_not_be_listed_has_no_suggestions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(ModelNotFoundError, match="There is no file"):
        resolve(str(tmp_path / "modell.gguf"), tmp_path / "none")
