"""Pulling repositories of safetensors: what is fetched, what never is, and what can go wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foredraft.errors import (
    BackendError,
    CapacityError,
    MissingDependencyError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
)
from foredraft.installation import add_extra
from foredraft.library import catalogue, list_models, pull, resolve, size_of
from hub_server import Hub
from safetensors_factory import FETCHED, SHARDS, one_file, sharded, small_files

GGUF = {"Model-Q4_0.gguf": b"GGUF" * 1000, "Model-Q8_0.gguf": b"GGUF" * 2000}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def hub(empty_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", "foredraft_no_such_package")
    empty_hub.repositories = {
        "owner/One": one_file(),
        "owner/Many": sharded(),
        "owner/Both": {**one_file(), **GGUF},
    }
    return empty_hub


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def names(folder: Path) -> set[str]:
    """Every file below the folder but locks."""
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in files if not name.endswith(".lock")}


def fetched(hub: Hub) -> list[str]:
    """The files that were asked for."""
    return [path.split("/", 5)[-1] for path, _ in hub.downloads]


# --- what is fetched -----------------------------------------------------------------------------------


def test_one_file(hub: Hub, models: Path) -> None:
    path = pull("owner/One", folder=models, endpoint=hub.endpoint)
    assert path == models / "owner/One"
    assert names(path) == {*FETCHED, "model.safetensors"}
    for name in names(path):
        assert (path / name).read_bytes() == hub.repositories["owner/One"][name]


def test_several_files(hub: Hub, models: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    path = pull("owner/Many", folder=models, endpoint=hub.endpoint, progress=lambda *call: calls.append(call))
    assert names(path) == {*FETCHED, INDEX, *SHARDS}
    size = sum(len(hub.repositories["owner/Many"][name]) for name in names(path))
    assert {total for _, total, _ in calls} == {size}
    assert calls[-1] == (size, size, SHARDS[1])
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


def test_nothing_that_could_run_code_is_fetched(hub: Hub, models: Path) -> None:
    pull("owner/One", folder=models, endpoint=hub.endpoint)
    pull("owner/Many", folder=models, endpoint=hub.endpoint)
    assert hub.downloads
    assert not [name for name in fetched(hub) if Path(name).suffix not in (".json", ".jinja", ".safetensors")]


def test_weights_are_fetched_last(hub: Hub, models: Path) -> None:
    """An interrupted pull leaves a folder that says what it is and what it lacks."""
    pull("owner/Many", folder=models, endpoint=hub.endpoint)
    assert fetched(hub)[-2:] == list(SHARDS)


def test_a_gguf_is_preferred_and_said_to_be(hub: Hub, models: Path) -> None:
    notes: list[str] = []
    path = pull("owner/Both", folder=models, endpoint=hub.endpoint, notice=notes.append)
    assert path.name == "Model-Q4_0.gguf"
    assert notes == [
        "owner/Both has GGUF files and safetensors: pulling a GGUF. For safetensors: owner/Both:safetensors"
    ]


def test_safetensors_on_request(hub: Hub, models: Path) -> None:
    notes: list[str] = []
    path = pull("owner/Both", "SafeTensors", folder=models, endpoint=hub.endpoint, notice=notes.append)
    assert path == models / "owner/Both"
    assert names(path) == {*FETCHED, "model.safetensors"}
    assert notes == []


def test_what_was_taken_is_said(hub: Hub, models: Path) -> None:
    notes: list[str] = []
    pull("owner/One", folder=models, endpoint=hub.endpoint, notice=notes.append)
    assert notes == ["owner/One has no GGUF file: pulling its safetensors, which run on PyTorch."]


# --- names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["owner/One", "One", "one:safetensors", "owner/one:safetensors", "owner/O"])
def test_it_goes_by_its_names(hub: Hub, models: Path, name: str) -> None:
    path = pull("owner/One", folder=models, endpoint=hub.endpoint)
    assert resolve(name, models) == path
    assert size_of(path) == len(hub.repositories["owner/One"]["model.safetensors"])
    (found,) = list_models(models)
    assert (found.name, found.source, found.quantization) == ("owner/One:safetensors", "pulled", "BF16")
    assert (found.size_bytes, found.complete) == (size_of(path), True)


def test_both_kinds_of_one_repository(hub: Hub, models: Path) -> None:
    gguf = pull("owner/Both", "q8_0", folder=models, endpoint=hub.endpoint)
    folder = pull("owner/Both", "safetensors", folder=models, endpoint=hub.endpoint)
    assert {model.name for model in list_models(models)} == {"owner/Both:Q8_0", "owner/Both:safetensors"}
    assert resolve("owner/Both", models) == gguf
    found = resolve("owner/Both:safetensors", models)
    assert found == folder / "config.json"
    assert resolve(str(found), models) == found
    assert size_of(found) == len(hub.repositories["owner/Both"]["model.safetensors"])


# --- interruptions -------------------------------------------------------------------------------------


def test_an_interrupted_pull_is_continued(hub: Hub, models: Path) -> None:
    def interrupt(done: int, total: int, file: str) -> None:
        if file == SHARDS[1] and done > total - 30_000:
            raise KeyboardInterrupt

    hub.drop_after = [10**9] * 7 + [20_000]  # so that it comes in two pieces
    with pytest.raises(KeyboardInterrupt):
        pull("owner/Many", folder=models, endpoint=hub.endpoint, progress=interrupt)
    (found,) = list_models(models)
    assert not found.complete
    assert found.size_bytes == len(hub.repositories["owner/Many"][SHARDS[0]])
    hub.requests.clear()
    path = pull("owner/Many", folder=models, endpoint=hub.endpoint)
    assert fetched(hub) == [SHARDS[1]]
    assert hub.downloads[0][1] == "bytes=20000-"
    assert (path / SHARDS[1]).read_bytes() == hub.repositories["owner/Many"][SHARDS[1]]
    (found,) = list_models(models)
    assert found.complete


def test_a_dropped_connection_is_taken_up_where_it_broke(hub: Hub, models: Path) -> None:
    hub.drop_after = [10**9] * 6 + [20_000] + [0] * 10
    with pytest.raises(BackendError, match="the same command continues"):
        pull("owner/Many", folder=models, endpoint=hub.endpoint)
    hub.drop_after.clear()
    hub.requests.clear()
    path = pull("owner/Many", folder=models, endpoint=hub.endpoint)
    assert [where for _, where in hub.downloads] == ["bytes=20000-", None]
    for name in SHARDS:
        assert (path / name).read_bytes() == hub.repositories["owner/Many"][name]


def test_pulling_again_downloads_nothing(hub: Hub, models: Path) -> None:
    pull("owner/Many", folder=models, endpoint=hub.endpoint)
    hub.requests.clear()
    pull("owner/Many", folder=models, endpoint=hub.endpoint)
    assert hub.downloads == []


def test_a_newer_version_in_other_files_replaces_the_old_one(hub: Hub, models: Path) -> None:
    """transformers would read `model.safetensors` before the new index."""
    path = pull("owner/One", folder=models, endpoint=hub.endpoint)
    hub.repositories["owner/One"] = sharded()
    assert pull("owner/One", folder=models, endpoint=hub.endpoint) == path
    assert names(path) == {*FETCHED, INDEX, *SHARDS}
    hub.repositories["owner/One"] = one_file()
    pull("owner/One", folder=models, endpoint=hub.endpoint)
    assert size_of(path) == len(one_file()["model.safetensors"])
    assert INDEX not in names(path)


# --- what can go wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["owner/One", "owner/Many"])
def test_damaged_data_is_thrown_away(hub: Hub, models: Path, name: str) -> None:
    hub.damage = True
    with pytest.raises(BackendError, match="arrived damaged"):
        pull(name, folder=models, endpoint=hub.endpoint)
    assert names(models) == set()


def test_damaged_weights(hub: Hub, models: Path) -> None:
    """The large files are checked as the small ones are, and those that came well are kept."""
    pull("owner/One", folder=models, endpoint=hub.endpoint)
    (models / "owner/One/model.safetensors").unlink()
    hub.damage = True
    with pytest.raises(BackendError, match=r"model\.safetensors arrived damaged"):
        pull("owner/One", folder=models, endpoint=hub.endpoint)
    assert names(models / "owner/One") == FETCHED
    assert list_models(models) == []


def test_a_missing_shard_is_found_before_the_download(hub: Hub, models: Path) -> None:
    del hub.repositories["owner/Many"][SHARDS[1]]
    with pytest.raises(ModelFormatError, match=f"incomplete: it lacks {SHARDS[1]}") as caught:
        pull("owner/Many", folder=models, endpoint=hub.endpoint)
    assert caught.value.hint
    assert fetched(hub) == [INDEX]
    assert list_models(models) == []


@pytest.mark.parametrize(
    "places", [{"x": "../../evil.safetensors"}, {"x": "modeling_evil.py"}, {"x": "pytorch_model.bin"}]
)
def test_an_index_cannot_name_other_files(hub: Hub, models: Path, places: dict[str, str]) -> None:
    files = hub.repositories["owner/Many"]
    files["../../evil.safetensors"] = b"x"
    files[INDEX] = json.dumps({"weight_map": places}).encode()
    with pytest.raises(ModelFormatError, match="it lacks"):
        pull("owner/Many", folder=models, endpoint=hub.endpoint)
    assert fetched(hub) == [INDEX]


@pytest.mark.parametrize("index", [b"no json", b"\xff\xfe", b"[]", b"{}", b'{"weight_map": {"x": 1}}'])
def test_an_index_that_says_nothing(hub: Hub, models: Path, index: bytes) -> None:
    hub.repositories["owner/Many"][INDEX] = index
    with pytest.raises(ModelFormatError):
        pull("owner/Many", folder=models, endpoint=hub.endpoint)


def test_a_gated_repository_says_how_to_get_access(hub: Hub, models: Path) -> None:
    with pytest.raises(ModelError, match="is gated") as caught:
        pull("owner/gated", "safetensors", folder=models, endpoint=hub.endpoint)
    assert "hf auth login" in str(caught.value.hint)
    assert not models.exists()


def test_gated_files_of_a_repository_that_may_be_looked_at(hub: Hub, models: Path) -> None:
    """As the real Hub does it."""
    hub.refuse_downloads, hub.refuse_with = 403, "GatedRepo"
    with pytest.raises(ModelError, match="owner/One is gated"):
        pull("owner/One", folder=models, endpoint=hub.endpoint)
    assert list_models(models) == []


def test_pickles_only(hub: Hub, models: Path) -> None:
    hub.repositories["owner/Old"] = small_files()
    with pytest.raises(ModelNotFoundError, match="pickles, which could run code"):
        pull("owner/Old", folder=models, endpoint=hub.endpoint)
    with pytest.raises(ModelNotFoundError, match="pickles, which could run code"):
        pull("owner/Old", "safetensors", folder=models, endpoint=hub.endpoint)
    assert hub.downloads == []


def test_no_safetensors(hub: Hub, models: Path) -> None:
    hub.repositories["owner/GGUF"] = GGUF
    with pytest.raises(ModelNotFoundError, match="has no weights as safetensors") as caught:
        pull("owner/GGUF", "safetensors", folder=models, endpoint=hub.endpoint)
    assert "pickles" not in str(caught.value)


def test_a_quantization_of_safetensors(hub: Hub, models: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no GGUF file") as caught:
        pull("owner/One", "q4_0", folder=models, endpoint=hub.endpoint)
    assert "foredraft models pull owner/One:safetensors" in str(caught.value.hint)
    with pytest.raises(ModelNotFoundError, match="It has: Q4_0, Q8_0, safetensors"):
        pull("owner/Both", "q2_k", folder=models, endpoint=hub.endpoint)


def test_an_adapter_is_no_model(hub: Hub, models: Path) -> None:
    hub.repositories["owner/Part"] = {"model.safetensors": one_file()["model.safetensors"]}
    with pytest.raises(ModelFormatError, match=r"has no config\.json"):
        pull("owner/Part", folder=models, endpoint=hub.endpoint)
    assert hub.downloads == []


def test_a_disk_too_small(hub: Hub, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = type("Usage", (), {"free": 5000})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with pytest.raises(CapacityError, match="is full"):
        pull("owner/Many", folder=models, endpoint=hub.endpoint)
    assert fetched(hub) == [INDEX]


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_without_torch_nothing_is_downloaded(
    hub: Hub, models: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for quantization in (None, "safetensors"):
        with pytest.raises(MissingDependencyError, match=f"{module}") as caught:
            pull("owner/One", quantization, folder=models, endpoint=hub.endpoint)
        assert caught.value.hint == f"Install it with: {add_extra('torch')}"
    assert hub.downloads == []
    assert pull("owner/Both", folder=models, endpoint=hub.endpoint).suffix == ".gguf"
