"""Heads in several files: they are found and loaded as one, and a missing part is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguf_factory
import gguf_heads
from foredraft import Engine
from foredraft.backends.llamacpp import BACKEND
from foredraft.config import ModelOptions
from foredraft.errors import ModelNotFoundError
from foredraft.library.catalogue import list_models, models_dir
from foredraft.library.heads import head_of, resolve_head
from foredraft.types import HeadRows, Logits, Rows

CHOSEN = range(50, 200)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return gguf_factory.tiny_llama(tmp_path / "m.gguf", layers=4)


def split_head(path: Path) -> Path:
    return gguf_heads.tiny_eagle3(path, chosen=CHOSEN, split_tensors=6)


def parts(head: Path) -> list[Path]:
    return sorted(head.parent.glob("*-of-*.gguf"))


def logits_of(target: Path, head: Path) -> Logits:
    watch = BACKEND.features_for(target, head)
    model = BACKEND.load(target, ModelOptions(threads=1, gpu_layers=0, probe=False, watch=watch))
    loaded = model.load_head(head, sequences=1)
    model.forward([Rows(0, 0, (20, 21, 22), 1)])
    logits = loaded.forward([HeadRows(0, 1, (21, 22), model.features()[:2], 2)]).copy()
    loaded.close()
    model.close()
    return logits


def test_a_split_head_is_the_whole_one(target: Path, tmp_path: Path) -> None:
    whole = gguf_heads.tiny_eagle3(tmp_path / "whole.gguf", chosen=CHOSEN)
    first = split_head(tmp_path / "head.gguf")
    assert len(parts(first)) == 3
    expected = logits_of(target, whole)
    assert np.isfinite(expected).sum() == 2 * len(CHOSEN)
    for part in (first, parts(first)[-1]):  # whichever is named
        np.testing.assert_array_equal(logits_of(target, part), expected)


def test_it_is_found_beside_its_model(target: Path, own_cache: Path) -> None:
    for name in ("m-eagle3.gguf", "m.head.gguf"):
        first = split_head(target.with_name(name))
        with Engine.load(target, threads=1, gpu_layers=0, cache_dir=own_cache, remember=False) as engine:
            assert engine.setup.head == str(first)
        for part in parts(first):
            part.unlink()


def test_it_has_one_name_and_is_no_model(own_cache: Path) -> None:
    folder = models_dir(own_cache)
    (folder / "a").mkdir(parents=True)
    first = split_head(folder / "a" / "m.head.gguf")
    for name in ("m.head", "M.Head", first.name, first.stem, str(parts(first)[1])):
        assert resolve_head(name, folder) == first
    assert [model for model in list_models(folder) if model.source != "bundled"] == []


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_part_is_named(target: Path, own_cache: Path, number: int) -> None:
    first = split_head(target.with_name("m-eagle3.gguf"))
    missing = parts(first)[number]
    missing.unlink()
    found = head_of(target, models_dir(own_cache), BACKEND.weights_hash)
    assert found is not None
    with pytest.raises(ModelNotFoundError, match=f"m-eagle3 is split into 3 files, and .*{missing.name} is"):
        BACKEND.features_for(target, found)
    for setting in ("auto", f"heads:model={found}"):
        options = {"threads": 1, "gpu_layers": 0, "cache_dir": own_cache, "remember": False}
        with Engine.load(target, speculate=setting, **options) as engine:  # type: ignore[arg-type]
            [note] = engine.notes
            assert missing.name in note
            assert len(engine.generate([5], max_tokens=3, ignore_eos=True).tokens) == 3
