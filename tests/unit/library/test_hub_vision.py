"""A GGUF is pulled with the file of its vision, and removed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.config import OtherPrograms
from foredraft.errors import BackendError
from foredraft.library import catalogue, pull, search, to_remove
from foredraft.library.hub_search import Variant
from foredraft.library.mmproj import find_mmproj
from hub_server import Hub

NAME = "owner/Tiny-GGUF"
EYES = b"projector" * 20_000


@pytest.fixture
def hub(empty_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", "foredraft_no_such_package")
    empty_hub.repositories[NAME] = {
        "Tiny-Q4_0.gguf": b"4" * 50_000,
        "Tiny-Q8_0.gguf": b"8" * 90_000,
        "BF16/Tiny-BF16-00001-of-00002.gguf": b"1" * 3000,
        "BF16/Tiny-BF16-00002-of-00002.gguf": b"2" * 3000,
        "mmproj-F32.gguf": b"f32" * 1000,
        "mmproj-BF16.gguf": b"bf16" * 1000,
        "mmproj-F16.gguf": EYES,
    }
    return empty_hub


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def remove(name: str, folder: Path) -> Path | None:
    [removal] = to_remove([name], folder, OtherPrograms())
    removal.carry_out()
    return removal.vision


def test_the_file_comes_with_the_model_and_is_found(hub: Hub, tmp_path: Path) -> None:
    said: list[str] = []
    shown: list[tuple[int, int, str]] = []
    path = pull(
        NAME,
        folder=tmp_path,
        endpoint=hub.endpoint,
        notice=said.append,
        progress=lambda *at: shown.append(at),
    )
    assert path == tmp_path / NAME / "Tiny-Q4_0.gguf"
    assert files(tmp_path) == {"Tiny-Q4_0.gguf", "mmproj-F16.gguf"}
    assert find_mmproj(path) == path.with_name("mmproj-F16.gguf")
    assert path.with_name("mmproj-F16.gguf").read_bytes() == EYES
    assert said == ["With mmproj-F16.gguf, by which it sees images (--no-mmproj leaves it out)."]
    assert shown[-1] == (50_000 + len(EYES), 50_000 + len(EYES), "mmproj-F16.gguf")
    [found] = search("tiny", endpoint=hub.endpoint)
    assert found.variants[0] == Variant("Q4_0", 50_000 + len(EYES))


def test_without_it(hub: Hub, tmp_path: Path) -> None:
    path = pull(NAME, folder=tmp_path, endpoint=hub.endpoint, mmproj=False)
    assert files(tmp_path) == {"Tiny-Q4_0.gguf"}
    assert find_mmproj(path) is None


def test_a_quantisation_in_a_folder_of_its_own_has_it_too(hub: Hub, tmp_path: Path) -> None:
    path = pull(NAME, "BF16", folder=tmp_path, endpoint=hub.endpoint)
    assert find_mmproj(path) == tmp_path / NAME / "mmproj-F16.gguf"
    assert remove(f"{NAME}:BF16", tmp_path) == tmp_path / NAME / "mmproj-F16.gguf"
    assert files(tmp_path) == set()


def test_the_best_that_there_is(hub: Hub, tmp_path: Path) -> None:
    del hub.repositories[NAME]["mmproj-F16.gguf"]
    pull(NAME, folder=tmp_path, endpoint=hub.endpoint)
    assert files(tmp_path) == {"Tiny-Q4_0.gguf", "mmproj-BF16.gguf"}


def test_not_that_of_another_model(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[NAME]["Other-Q4_K_M.gguf"] = b"another"
    pull(NAME, "Q8_0", folder=tmp_path, endpoint=hub.endpoint)
    assert files(tmp_path) == {"Tiny-Q8_0.gguf"}


def test_it_is_continued_and_checked_like_the_model(hub: Hub, tmp_path: Path) -> None:
    hub.drop_after = [50_000, 70_000, 0, 0, 0]
    with pytest.raises(BackendError, match="the same command continues"):
        pull(NAME, folder=tmp_path, endpoint=hub.endpoint)
    assert "Tiny-Q4_0.gguf" in files(tmp_path)
    hub.damage = True
    with pytest.raises(BackendError, match=r"mmproj-F16\.gguf arrived damaged"):
        pull(NAME, folder=tmp_path, endpoint=hub.endpoint)
    assert hub.downloads[-1][1] == "bytes=70000-"
    hub.damage = False
    path = pull(NAME, folder=tmp_path, endpoint=hub.endpoint)
    assert path.with_name("mmproj-F16.gguf").read_bytes() == EYES
    hub.requests.clear()
    pull(NAME, folder=tmp_path, endpoint=hub.endpoint)
    assert hub.downloads == []


def test_it_goes_with_the_last_model_that_uses_it(hub: Hub, tmp_path: Path) -> None:
    for quantisation in ("Q4_0", "Q8_0"):
        pull(NAME, quantisation, folder=tmp_path, endpoint=hub.endpoint)
    assert remove(f"{NAME}:Q8_0", tmp_path) is None
    assert files(tmp_path) == {"Tiny-Q4_0.gguf", "mmproj-F16.gguf"}
    assert remove(f"{NAME}:Q4_0", tmp_path) == tmp_path / NAME / "mmproj-F16.gguf"
    assert not (tmp_path / "owner").exists()


def test_it_goes_with_the_last_of_several_that_go_together(hub: Hub, tmp_path: Path) -> None:
    for quantisation in ("Q4_0", "Q8_0", "BF16"):
        pull(NAME, quantisation, folder=tmp_path, endpoint=hub.endpoint)
    names = [f"{NAME}:{quantisation}" for quantisation in ("Q8_0", "BF16", "Q4_0", "Q8_0")]
    two = to_remove(names[:2], tmp_path, OtherPrograms())
    assert [removal.vision for removal in two] == [None, None]
    removals = to_remove(names, tmp_path, OtherPrograms())
    eyes = tmp_path / NAME / "mmproj-F16.gguf"
    assert [removal.vision for removal in removals] == [None, None, eyes]
    for removal in removals:
        removal.carry_out()
    assert not (tmp_path / "owner").exists()


def test_what_was_downloaded_of_it_goes_too(hub: Hub, tmp_path: Path) -> None:
    hub.drop_after = [50_000, 70_000, 0, 0, 0]
    with pytest.raises(BackendError):
        pull(NAME, folder=tmp_path, endpoint=hub.endpoint)
    assert remove(f"{NAME}:Q4_0", tmp_path) is None
    assert not (tmp_path / "owner").exists()
