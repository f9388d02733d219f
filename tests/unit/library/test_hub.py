from __future__ import annotations

import errno
import re
import shutil
import sys
from collections import namedtuple
from typing import TYPE_CHECKING

import filelock
import pytest

from foredraft.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    MissingDependencyError,
    ModelError,
    ModelNotFoundError,
)
from foredraft.installation import add_extra
from foredraft.library import list_models, pull, transfer
from hub_server import Hub

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = {quantization: bytes(range(256)) * 800 + quantization.encode() for quantization in ("Q4_0", "Q8_0")}
REPOSITORY = {
    "README.md": b"# Tiny",
    "Tiny-Q8_0.gguf": CONTENT["Q8_0"],
    "Tiny-Q4_0.gguf": CONTENT["Q4_0"],
    "BF16/Tiny-BF16-00001-of-00002.gguf": b"1" * 3000,
    "BF16/Tiny-BF16-00002-of-00002.gguf": b"2" * 2000,
}


@pytest.fixture
def hub(empty_hub: Hub) -> Hub:
    """A Hub with one repository."""
    empty_hub.repositories["owner/Tiny-GGUF"] = dict(REPOSITORY)
    return empty_hub


class Watch:
    """A progress callback that remembers, and can interrupt as Ctrl-C does."""

    def __init__(self, interrupt_at: float = 2.0) -> None:
        self.interrupt_at = interrupt_at
        self.calls: list[tuple[int, int, str]] = []

    def __call__(self, done: int, total: int, file: str) -> None:
        self.calls.append((done, total, file))
        if done >= self.interrupt_at * total:
            raise KeyboardInterrupt


def leftovers(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.part"))


def test_pull_named_quantization(hub: Hub, tmp_path: Path) -> None:
    watch = Watch()
    path = pull("owner/Tiny-GGUF", "q8_0", folder=tmp_path, endpoint=hub.endpoint, progress=watch)
    assert path == tmp_path / "owner/Tiny-GGUF/Tiny-Q8_0.gguf"
    assert path.read_bytes() == CONTENT["Q8_0"]
    assert leftovers(tmp_path) == []
    assert watch.calls[0][0] == 0
    assert watch.calls[-1] == (path.stat().st_size, path.stat().st_size, path.name)
    assert [model.name for model in list_models(tmp_path) if model.source == "pulled"] == [
        "owner/Tiny-GGUF:Q8_0"
    ]


def test_preferred_quantization(hub: Hub, tmp_path: Path) -> None:
    assert pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint).name == "Tiny-Q4_0.gguf"


def test_the_only_model_is_taken_whatever_it_is(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["owner/One"] = {"model.gguf": b"small", "mmproj.gguf": b"projector"}
    assert pull("owner/One", folder=tmp_path, endpoint=hub.endpoint).read_bytes() == b"small"


def test_split_model(hub: Hub, tmp_path: Path) -> None:
    watch = Watch()
    path = pull("owner/Tiny-GGUF", "bf16", folder=tmp_path, endpoint=hub.endpoint, progress=watch)
    assert path == tmp_path / "owner/Tiny-GGUF/BF16/Tiny-BF16-00001-of-00002.gguf"
    assert [file.read_bytes() for file in sorted(path.parent.glob("*.gguf"))] == [b"1" * 3000, b"2" * 2000]
    assert {total for _, total, _ in watch.calls} == {5000}
    assert watch.calls[-1][:2] == (5000, 5000)


def test_pulling_again_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    hub.requests.clear()
    pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    assert hub.downloads == []


def test_a_file_that_changed_on_the_hub_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    path = pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    changed = CONTENT["Q4_0"][::-1]  # of the same size
    hub.repositories["owner/Tiny-GGUF"]["Tiny-Q4_0.gguf"] = changed
    assert pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint) == path
    assert path.read_bytes() == changed


def test_interrupted_pull_is_continued_by_the_next(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint, progress=Watch(interrupt_at=0.3))
    assert list(tmp_path.rglob("*.gguf")) == []
    (partial,) = leftovers(tmp_path)
    kept = partial.stat().st_size
    assert 0 < kept < len(CONTENT["Q4_0"])
    watch = Watch()
    path = pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint, progress=watch)
    assert path.read_bytes() == CONTENT["Q4_0"]
    assert hub.downloads[-1][1] == f"bytes={kept}-"
    assert watch.calls[0][0] == kept
    assert leftovers(tmp_path) == []


def test_dropped_connections_are_taken_up_again(hub: Hub, tmp_path: Path) -> None:
    hub.drop_after = [70_000, 0, 50_000]
    path = pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    assert path.read_bytes() == CONTENT["Q4_0"]
    assert [where for _, where in hub.downloads] == [None, "bytes=70000-", "bytes=70000-", "bytes=120000-"]


def test_a_server_that_goes_on_dropping_is_given_up(hub: Hub, tmp_path: Path) -> None:
    hub.drop_after = [70_000] + [0] * 10
    with pytest.raises(BackendError, match=r"connection to the Hub failed.*") as caught:
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    assert "the same command continues" in str(caught.value)
    assert len(hub.downloads) == 1 + transfer.FRUITLESS_ATTEMPTS
    hub.drop_after.clear()
    assert pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint).read_bytes() == CONTENT["Q4_0"]
    assert hub.downloads[-1][1] == "bytes=70000-"


def test_refused_halfway_then_continued(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint, progress=Watch(interrupt_at=0.3))
    hub.refuse_downloads = 503
    with pytest.raises(BackendError, match="HTTP 503"):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    hub.refuse_downloads = 0
    assert pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint).read_bytes() == CONTENT["Q4_0"]


def test_a_server_without_ranges_starts_over(hub: Hub, tmp_path: Path) -> None:
    hub.knows_ranges = False
    hub.drop_after = [70_000]
    path = pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    assert path.read_bytes() == CONTENT["Q4_0"]


def test_a_server_without_ranges_that_always_drops_is_given_up(hub: Hub, tmp_path: Path) -> None:
    hub.knows_ranges = False
    hub.drop_after = [70_000] * 20
    with pytest.raises(BackendError, match="connection to the Hub failed"):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    assert len(hub.downloads) == 1 + transfer.FRUITLESS_ATTEMPTS


def test_a_partial_file_of_an_earlier_version_is_not_continued(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint, progress=Watch(interrupt_at=0.3))
    changed = CONTENT["Q4_0"][::-1]
    hub.repositories["owner/Tiny-GGUF"]["Tiny-Q4_0.gguf"] = changed
    assert pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint).read_bytes() == changed
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["owner/Tiny-GGUF", "owner/Small"])
def test_damaged_data_is_thrown_away(hub: Hub, tmp_path: Path, name: str) -> None:
    hub.repositories["owner/Small"] = {"small.gguf": b"kept by git itself, so its digest is git's"}
    hub.damage = True
    with pytest.raises(BackendError, match="arrived damaged"):
        pull(name, folder=tmp_path, endpoint=hub.endpoint)
    assert leftovers(tmp_path) == []
    assert list(tmp_path.rglob("*.gguf")) == []


def test_unknown_quantization_lists_those_there_are(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="has no Q5_K_M") as caught:
        pull("owner/Tiny-GGUF", "Q5_K_M", folder=tmp_path, endpoint=hub.endpoint)
    assert "Q8_0, Q4_0, BF16" in str(caught.value)


def test_several_models_without_a_usual_quantization(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["owner/Odd"] = {"a-Q2_K.gguf": b"a", "b.gguf": b"b"}
    with pytest.raises(ModelNotFoundError, match=r"Q2_K, b\.gguf"):
        pull("owner/Odd", folder=tmp_path, endpoint=hub.endpoint)
    assert pull("owner/Odd", "b.gguf", folder=tmp_path, endpoint=hub.endpoint).read_bytes() == b"b"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("owner/nothing", ModelNotFoundError, "There is no repository owner/nothing"),
        ("owner/gated", ModelError, "is gated"),
        ("owner/not-a-hub", BackendError, "does not answer as the Hub does"),
        ("owner/texts", ModelNotFoundError, "has no GGUF file"),
        ("nameless", ConfigError, "'nameless' is not the name of a repository"),
        ("owner/../..", ConfigError, "is not the name of a repository"),
        ("owner/a b", ConfigError, "is not the name of a repository"),
    ],
)
def test_unusable_repositories(
    hub: Hub, tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    hub.repositories["owner/texts"] = {"README.md": b"words"}
    with pytest.raises(error, match=message):
        pull(name, folder=tmp_path, endpoint=hub.endpoint)
    assert list(tmp_path.iterdir()) == []


def test_names_that_lead_out_of_the_folder_are_ignored(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["owner/Evil"] = {"../../../evil.gguf": b"x", "C:\\evil.gguf": b"x", "/evil.gguf": b"x"}
    with pytest.raises(ModelNotFoundError, match="has no GGUF file"):
        pull("owner/Evil", folder=tmp_path, endpoint=hub.endpoint)


def test_no_connection(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="connection to the Hub failed"):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint="http://127.0.0.1:9")


def test_offline_mode(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BackendError, match="offline mode"):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)


def test_disk_too_small(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10, 10, 1000))
    with pytest.raises(CapacityError, match=r"is full: .*0\.00 GB are free"):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)
    assert hub.downloads == []


def test_disk_full_on_the_way(hub: Hub, tmp_path: Path) -> None:
    def fail(done: int, total: int, file: str) -> None:
        if done > 60_000:
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / file))

    with pytest.raises(CapacityError, match="is full") as caught:
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint, progress=fail)
    assert "continues where it stopped" in str(caught.value)
    assert pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint).read_bytes() == CONTENT["Q4_0"]


def test_folder_that_cannot_be_made(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(ConfigError, match="Cannot write to"):
        pull("owner/Tiny-GGUF", folder=tmp_path / "models", endpoint=hub.endpoint)


def test_two_at_once(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "owner/Tiny-GGUF"
    folder.mkdir(parents=True)
    with (
        filelock.FileLock(folder / ".Tiny-Q4_0.gguf.lock", is_singleton=False),
        pytest.raises(ConfigError, match="by another process"),
    ):
        pull("owner/Tiny-GGUF", folder=tmp_path, endpoint=hub.endpoint)


def test_without_the_hub_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=re.escape(add_extra("hub"))):
        pull("owner/Tiny-GGUF", folder=tmp_path)
