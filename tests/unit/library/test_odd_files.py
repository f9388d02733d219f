"""Folders of other programs with pipes, and with names that no file can have: neither an error nor a hang."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from foredraft.config import OtherPrograms
from foredraft.errors import ModelFormatError
from foredraft.library import list_models
from foredraft.library.mmproj import find_mmproj
from foredraft.library.repository import CONFIG, INDEX, read_json
from other_programs import cached, llamacpp, ollama, put

NAMES = ("m" * 300, "a\0b", "\ud800", "", "x/../y")


def listed(places: OtherPrograms, folder: Path) -> list[str]:
    return [model.name for model in list_models(folder, places) if model.source != "bundled"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["ggufFile", "mmprojFile"])
def test_llamacpps_manifest_with_a_name_that_no_file_has(tmp_path: Path, key: str, name: str) -> None:
    good = llamacpp(tmp_path, "o/Good-GGUF", "Good-Q4_0.gguf", "mmproj-F16.gguf")
    values = {"ggufFile": {"rfilename": "Good-Q4_0.gguf"}, key: {"rfilename": name}}
    put(tmp_path / "manifest=o=Bad-GGUF=latest.json", json.dumps(values).encode())
    put(tmp_path / "o_Bad-GGUF_Good-Q4_0.gguf")
    found = listed(OtherPrograms(llamacpp=(tmp_path,)), tmp_path / "none")
    assert "o/Good-GGUF:Q4_0" in found
    assert find_mmproj(good) == tmp_path / "o_Good-GGUF_mmproj-F16.gguf"
    find_mmproj(tmp_path / "o_Bad-GGUF_Good-Q4_0.gguf")


def test_llamacpps_manifest_that_is_a_pipe(tmp_path: Path) -> None:
    good = llamacpp(tmp_path, "o/Good-GGUF", "Good-Q4_0.gguf", "mmproj-F16.gguf")
    os.mkfifo(tmp_path / "manifest=o=Bad-GGUF=latest.json")
    assert listed(OtherPrograms(llamacpp=(tmp_path,)), tmp_path / "none") == ["o/Good-GGUF:Q4_0"]
    assert find_mmproj(good) == tmp_path / "o_Good-GGUF_mmproj-F16.gguf"


def test_a_pipe_is_no_vision_file(tmp_path: Path) -> None:
    model = put(tmp_path / "m-Q4_0.gguf")
    os.mkfifo(tmp_path / "mmproj-F16.gguf")
    assert find_mmproj(model) is None
    eyes = put(tmp_path / "mmproj-F32.gguf")
    assert find_mmproj(model) == eyes


def test_ollamas_files_that_are_pipes(tmp_path: Path) -> None:
    library = "registry.ollama.ai/library"
    good = ollama(tmp_path, f"{library}/good/1b", b"GGUF good")
    os.mkfifo(tmp_path / "manifests" / library / "good" / "2b")
    (tmp_path / "manifests" / library / "good" / "3b").symlink_to("l" * 300)
    config = next(path for path in (tmp_path / "blobs").iterdir() if path != good)
    config.unlink()
    os.mkfifo(config)
    assert listed(OtherPrograms(ollama=(tmp_path,)), tmp_path / "none") == ["good:1b"]
    assert find_mmproj(good) is None


def test_a_pipe_in_the_hubs_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "o/Good-GGUF", {"Good-Q8_0.gguf": b"model"})
    reference = snapshot.parent.parent / "refs" / "main"
    reference.unlink()
    os.mkfifo(reference)
    os.mkfifo(snapshot / CONFIG)
    put(snapshot / "model.safetensors")
    assert listed(OtherPrograms(huggingface=(tmp_path,)), tmp_path / "none") == ["o/Good-GGUF:Q8_0"]
    with pytest.raises(ModelFormatError, match="regular"):
        read_json(snapshot / CONFIG)


@pytest.mark.parametrize("name", NAMES[:3])
def test_an_index_with_a_name_that_no_file_has(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "o" / "tensors"
    put(folder / CONFIG, b"{}")
    put(folder / "part.safetensors")
    put(folder / INDEX, json.dumps({"weight_map": {"a": name}}).encode())
    (found,) = [model for model in list_models(tmp_path) if model.source != "bundled"]
    assert not found.complete
