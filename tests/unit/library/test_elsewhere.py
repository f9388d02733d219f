from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import other_programs
from foredraft.config import OtherPrograms
from foredraft.errors import ModelNotFoundError
from foredraft.library import catalogue, list_models, resolve, size_of, stem_of, survey
from foredraft.library.elsewhere import usual_places
from foredraft.library.stored import StoredModel
from other_programs import cached, ollama, put
from safetensors_factory import SHARDS, one_file, sharded

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture(autouse=True)
def no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", "foredraft_no_such_package")


@pytest.fixture
def places(tmp_path: Path) -> OtherPrograms:
    return OtherPrograms(
        ollama=(tmp_path / "ollama",), lmstudio=(tmp_path / "lmstudio",), huggingface=(tmp_path / "hub",)
    )


class Library:
    """What is listed and what names mean, with a models folder that is empty at first."""

    def __init__(self, own: Path, places: OtherPrograms) -> None:
        self.own = own
        self.places = places
        [self.ollama], [self.lmstudio], [self.hub] = places.ollama, places.lmstudio, places.huggingface
        self.said: list[str] = []

    def models(self) -> dict[str, StoredModel]:
        self.said.clear()
        return {model.name: model for model in list_models(self.own, self.places, self.said.append)}

    def find(self, name: str) -> Path:
        return resolve(name, self.own, self.places)


@pytest.fixture
def library(tmp_path: Path, places: OtherPrograms) -> Library:
    return Library(tmp_path / "models", places)


# --- Ollama --------------------------------------------------------------------------------------------


def test_models_of_ollama(library: Library) -> None:
    blob = ollama(library.ollama, f"{LIBRARY}/llama3.2/3b", b"GGUF llama")
    ollama(library.ollama, f"{LIBRARY}/qwen3/latest", b"GGUF qwen")
    ollama(library.ollama, "registry.ollama.ai/someone/own/v1", b"GGUF own")
    ollama(library.ollama, "hf.co/owner/Tiny-GGUF/Q8_0", b"GGUF tiny")
    models = library.models()
    assert set(models) == {"llama3.2:3b", "qwen3:latest", "someone/own:v1", "hf.co/owner/Tiny-GGUF:Q8_0"}
    llama = models["llama3.2:3b"]
    assert (llama.path, llama.source, llama.quantization, llama.size_bytes, llama.complete) == (
        blob,
        "ollama",
        "Q4_K_M",
        10,
        True,
    )
    for name in ("llama3.2:3b", "LLAMA3.2:3B", "llama3.2", blob.name):
        assert library.find(name) == blob
    assert stem_of(blob) == "llama3.2:3b"
    assert size_of(blob) == 10
    assert library.find("qwen3") == models["qwen3:latest"].path
    assert library.said == []


def test_one_blob_with_two_names_is_not_ambiguous(library: Library) -> None:
    blob = ollama(library.ollama, f"{LIBRARY}/llama3.2/3b")
    ollama(library.ollama, f"{LIBRARY}/llama3.2/latest")
    assert set(library.models()) == {"llama3.2:3b", "llama3.2:latest"}
    assert library.find("llama3.2") == library.find("llama") == blob


def test_two_tags_are_ambiguous_without_one(library: Library) -> None:
    ollama(library.ollama, f"{LIBRARY}/llama3.2/1b", b"GGUF one")
    ollama(library.ollama, f"{LIBRARY}/llama3.2/3b", b"GGUF three")
    with pytest.raises(ModelNotFoundError, match=r"any of 2 models: llama3\.2:1b, llama3\.2:3b\."):
        library.find("llama3.2")


def test_what_ollama_has_and_cannot_be_used_is_said(library: Library) -> None:
    tuned = ("model", "adapter")
    ollama(library.ollama, f"{LIBRARY}/tuned/latest", kinds=tuned)
    ollama(library.ollama, f"{LIBRARY}/cloud/latest", kinds=("license",))
    whole = ollama(library.ollama, f"{LIBRARY}/whole/latest", b"GGUF whole")
    gone = ollama(library.ollama, f"{LIBRARY}/gone/latest", b"GGUF gone")
    gone.unlink()
    short = ollama(library.ollama, f"{LIBRARY}/short/latest", b"GGUF short")
    short.write_bytes(b"GGUF")
    damaged = library.ollama / "manifests" / LIBRARY / "damaged"
    for tag, content in {
        "not-json": b"{",
        "no-object": b"[]",
        "layers": b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../../x"}]}',
        "deep": b"[" * 100_000,
        "long": b" " * 2_000_000,
        "layers-are-text": b'{"layers": "x"}',
        "layers-are-a-number": b'{"layers": 1}',
    }.items():
        put(damaged / tag, content)
    (damaged / "a-folder").mkdir()
    put(library.ollama / "manifests" / "stray")
    models = library.models()
    assert set(models) == {"whole:latest", "gone:latest", "short:latest"}
    assert models["whole:latest"].path == whole
    assert not models["gone:latest"].complete
    assert not models["short:latest"].complete
    assert "Ollama's tuned:latest was left out: it has an adapter, which is not supported." in library.said
    assert sum("damaged:" in said for said in library.said) == 7


# --- LM Studio -----------------------------------------------------------------------------------------


def test_models_of_lm_studio(library: Library) -> None:
    folder = library.lmstudio / "publisher" / "Tiny-GGUF"
    tiny = put(folder / "Tiny-Q4_K_M.gguf")
    put(folder / "mmproj-Tiny-f16.gguf")
    put(folder / "downloading_Tiny-Q8_0.gguf.part")
    big = put(folder / "Big-Q6_K-00001-of-00002.gguf", b"x" * 30)
    put(folder / "Big-Q6_K-00002-of-00002.gguf", b"x" * 5)
    models = library.models()
    assert {name: model.source for name, model in models.items()} == {
        "publisher/Tiny-GGUF:Q4_K_M": "lmstudio",
        "publisher/Tiny-GGUF:Q6_K": "lmstudio",
    }
    assert models["publisher/Tiny-GGUF:Q6_K"].size_bytes == 35
    assert library.find("publisher/tiny-gguf") == library.find("Tiny-Q4_K_M") == tiny
    assert library.find("Big-Q6_K") == big


# --- the Hub's cache -----------------------------------------------------------------------------------


def test_models_in_the_cache_of_the_hubs_library(library: Library) -> None:
    files = {"Tiny-Q4_0.gguf": b"q4", "Q8/Tiny-Q8_0.gguf": b"q8 q8", "mmproj-f16.gguf": b"m"}
    snapshot = cached(library.hub, "owner/Tiny-GGUF", files)
    many = cached(library.hub, "owner/Many", sharded())
    cached(library.hub, "gpt2", one_file())
    cached(library.hub, "owner/encoder", {**one_file(), "config.json": b'{"architectures": ["BertModel"]}'})
    cached(library.hub, "owner/tokenizer-only", {"config.json": b"{}"})
    put(library.hub / "datasets--owner--texts" / "snapshots" / "x" / "model.gguf")
    models = library.models()
    assert {name: model.source for name, model in models.items()} == dict.fromkeys(
        ["owner/Tiny-GGUF:Q4_0", "owner/Tiny-GGUF:Q8_0", "owner/Many:safetensors", "gpt2:safetensors"],
        "huggingface",
    )
    assert models["owner/Tiny-GGUF:Q8_0"].size_bytes == 5
    assert library.find("tiny-gguf:q8_0") == snapshot / "Q8/Tiny-Q8_0.gguf"
    found = library.find("owner/many")
    assert (found, stem_of(found)) == (many, "Many")
    assert models["owner/Many:safetensors"].stem == "Many"
    assert size_of(found) == models["owner/Many:safetensors"].size_bytes
    assert library.find("gpt2").parent.parent.name == "models--gpt2"


def test_a_download_that_was_stopped_is_incomplete(library: Library) -> None:
    snapshot = cached(library.hub, "owner/Many", sharded())
    (snapshot / SHARDS[1]).resolve().unlink()
    tiny = cached(library.hub, "owner/Tiny-GGUF", {"Tiny-Q4_0.gguf": b"q4"})
    (tiny / "Tiny-Q4_0.gguf").resolve().unlink()
    assert [model.complete for model in library.models().values()] == [False, False]


def test_of_a_file_in_several_commits_the_current_one_is_taken(library: Library) -> None:
    cached(library.hub, "owner/Tiny-GGUF", {"Tiny-Q4_0.gguf": b"old", "Tiny-Q8_0.gguf": b"q8"})
    new = cached(library.hub, "owner/Tiny-GGUF", {"Tiny-Q4_0.gguf": b"new"}, commit="f" * 40)
    os.utime(new, (1, 1))
    assert library.find("Tiny-GGUF:Q4_0").read_bytes() == b"new"
    assert library.find("Tiny-GGUF:Q8_0").read_bytes() == b"q8"


# --- all of them ---------------------------------------------------------------------------------------


def test_ones_own_model_goes_first(library: Library) -> None:
    put(library.lmstudio / "owner/Tiny-GGUF/Tiny-Q4_0.gguf", b"theirs")
    own = put(library.own / "owner/Tiny-GGUF/Tiny-Q4_0.gguf", b"own")
    assert library.find("owner/Tiny-GGUF:Q4_0") == library.find("owner/Tiny-GGUF") == own


def test_the_same_model_of_two_programs_is_one(library: Library) -> None:
    put(library.lmstudio / "owner/Tiny-GGUF/Tiny-Q4_0.gguf", b"same")
    cached(library.hub, "owner/Tiny-GGUF", {"Tiny-Q4_0.gguf": b"same"})
    assert library.find("Tiny-GGUF") == library.lmstudio / "owner/Tiny-GGUF/Tiny-Q4_0.gguf"


def test_different_models_of_one_name_are_listed_by_their_paths(library: Library) -> None:
    one = put(library.lmstudio / "owner/Tiny-GGUF/Tiny-Q4_0.gguf", b"one")
    two = cached(library.hub, "owner/Tiny-GGUF", {"Tiny-Q4_0.gguf": b"another"}) / "Tiny-Q4_0.gguf"
    with pytest.raises(ModelNotFoundError, match="any of 2 models") as caught:
        library.find("Tiny-GGUF:Q4_0")
    assert str(one) in caught.value.message
    assert str(two) in caught.value.message


def test_an_ambiguous_beginning_lists_some_of_very_many(library: Library) -> None:
    for number in range(40):
        ollama(library.ollama, f"{LIBRARY}/many{number:02}/latest", b"GGUF %d" % number)
    with pytest.raises(ModelNotFoundError, match=r"40 models: many00:latest, .* and 28 more\."):
        library.find("many")


def test_a_misspelt_name_of_ollamas(library: Library) -> None:
    ollama(library.ollama, f"{LIBRARY}/llama3.2/3b")
    with pytest.raises(ModelNotFoundError, match=r"Did you mean llama3\.2:3b"):
        library.find("lama3.2:3b")


def test_places_that_are_not_there(library: Library) -> None:
    assert library.models() == {}
    assert library.said == []


def test_places_that_are_files(library: Library) -> None:
    for path in (library.ollama, library.lmstudio, library.hub):
        put(path)
    assert library.models() == {}


def test_links_that_go_in_circles(library: Library) -> None:
    for folder in (library.own, library.lmstudio / "owner", library.hub / "models--o--r" / "snapshots"):
        folder.mkdir(parents=True)
        for name in ("up", "again"):
            (folder / name).symlink_to(folder)
    put(library.own / "a" / "b" / "Tiny-Q4_0.gguf")
    (library.lmstudio / "itself").symlink_to(library.lmstudio / "itself")
    assert list(library.models()) == ["a/b:Q4_0"]


def test_a_folder_that_cannot_be_read_is_said(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    put(library.lmstudio / "owner" / "Tiny-GGUF" / "Tiny-Q4_0.gguf")
    scan = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "owner":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr("foredraft.library.survey.os.scandir", refuse)
    assert library.models() == {}
    assert library.said == [f"{library.lmstudio / 'owner'} was left out: Permission denied."]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_that_nobody_writes_to_keeps_nobody_waiting(library: Library) -> None:
    for path in (
        library.ollama / "manifests" / LIBRARY / "piped" / "latest",
        library.hub / "models--owner--Tiny" / "refs" / "main",
        library.hub / "models--owner--Tiny" / "snapshots" / "x" / "config.json",
        library.hub / "models--owner--Tiny" / "snapshots" / "x" / "model.gguf",
        library.lmstudio / "owner" / "Tiny-GGUF" / "Tiny-Q4_0.gguf",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
    assert [model.complete for model in library.models().values()] == [False, False]


def test_of_a_huge_folder_a_part_is_looked_at(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MOST_ENTRIES", 50)
    for number in range(60):
        put(library.lmstudio / "owner" / f"Tiny-{number}-GGUF" / "Tiny-Q4_0.gguf")
    assert len(library.models()) <= 50
    assert library.said == [f"Only 50 files and folders of {library.lmstudio} were searched."]


def test_a_folder_is_looked_at_once_though_another_links_to_it(tmp_path: Path) -> None:
    put(tmp_path / "new/owner/Tiny-GGUF/Tiny-Q4_0.gguf")
    (tmp_path / "old").symlink_to(tmp_path / "new")
    places = OtherPrograms(lmstudio=(tmp_path / "old", tmp_path / "new"))
    assert len(list_models(tmp_path / "models", places)) == 1


def test_the_usual_places(own_cache: Path) -> None:
    places = usual_places()
    assert places.ollama == (own_cache / ".ollama/models", own_cache / "ollama")
    assert places.lmstudio == (own_cache / ".lmstudio/models", own_cache / ".cache/lm-studio/models")
    assert places.huggingface == (own_cache / ".cache/huggingface/hub",)


def test_the_stand_in_is_what_ollama_writes(tmp_path: Path) -> None:
    other_programs.ollama(tmp_path, f"{LIBRARY}/tiny/latest")
    manifest = json.loads((tmp_path / "manifests" / LIBRARY / "tiny/latest").read_text())
    assert manifest["layers"][0]["digest"].startswith("sha256:")
