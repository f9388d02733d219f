from __future__ import annotations

import sys
import threading
import time

import pytest

from foredraft.errors import BackendError, MissingDependencyError
from foredraft.library import FoundModel, search
from foredraft.library.hub_search import Variant
from hub_server import Hub
from safetensors_factory import SHARDS, one_file, sharded


@pytest.fixture
def hub(empty_hub: Hub) -> Hub:
    empty_hub.repositories |= {
        "owner/Tiny-GGUF": {
            "Tiny-Q8_0.gguf": b"x" * 3000,
            "Tiny-Q4_K_M-00001-of-00002.gguf": b"x" * 1500,
            "Tiny-Q4_K_M-00002-of-00002.gguf": b"x" * 500,
            "mmproj-Tiny-f16.gguf": b"x" * 10,
            "README.md": b"# Tiny",
        },
        "owner/gated": {"Tiny-Q4_0.gguf": b"x"},
        "other/Tiny-One-GGUF": {"model.gguf": b"x" * 7},
        "other/Tiny": sharded(),
        "other/Large": one_file(),
    }
    empty_hub.downloads_of = {"owner/Tiny-GGUF": 1234, "other/Tiny-One-GGUF": 5678, "other/Tiny": 9}
    return empty_hub


def test_what_is_found_has_downloads_and_sizes(hub: Hub) -> None:
    assert search("tiny gguf", endpoint=hub.endpoint) == [
        FoundModel("other/Tiny-One-GGUF", 5678, [Variant("model.gguf", 7)], gated=False),
        FoundModel("owner/Tiny-GGUF", 1234, [Variant("Q4_K_M", 2010), Variant("Q8_0", 3010)], gated=False),
    ]


def test_so_many(hub: Hub) -> None:
    assert [model.repository for model in search("tiny", limit=1, endpoint=hub.endpoint)] == [
        "other/Tiny-One-GGUF"
    ]


def test_safetensors(hub: Hub) -> None:
    [found] = search("tiny", safetensors=True, endpoint=hub.endpoint)
    weights = sum(len(sharded()[name]) for name in SHARDS)
    assert (found.repository, found.variants) == ("other/Tiny", [Variant("safetensors", weights)])


def test_a_gated_model_is_shown_without_sizes(hub: Hub) -> None:
    assert search("gated", endpoint=hub.endpoint) == [FoundModel("owner/gated", 0, [], gated=True)]


def test_nothing_is_found(hub: Hub) -> None:
    assert search("zebra", endpoint=hub.endpoint) == []


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[1]", b"[{}]", b"\xff\xfe"])
def test_another_server_in_the_hubs_place(hub: Hub, body: bytes) -> None:
    hub.listing = body
    with pytest.raises(BackendError, match="does not answer as the Hub does"):
        search("tiny", endpoint=hub.endpoint)


def test_offline() -> None:
    with pytest.raises(BackendError, match="connection to the Hub failed") as caught:
        search("tiny", endpoint="http://127.0.0.1:9")
    assert caught.value.hint == "Check the network."
    assert "Errno" not in caught.value.message


def test_offline_by_choice(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BackendError, match="offline mode") as caught:
        search("tiny", endpoint=hub.endpoint)
    assert caught.value.hint == "Unset HF_HUB_OFFLINE."


def test_what_cannot_be_looked_up_is_shown_without_sizes(hub: Hub) -> None:
    hub.listing = b'[{"id": "owner/\xc3\xa9", "downloads": null}]'
    [found] = search("tiny", endpoint=hub.endpoint)
    assert (found.repository, found.downloads, found.variants) == ("owner/é", 0, [])


def test_without_the_hub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match="Searching the Hub needs"):
        search("tiny")


def test_a_hub_that_hangs_is_asked_by_threads_that_hold_up_nothing(hub: Hub) -> None:
    hub.hang_on = "/api/models/owner/Tiny-GGUF"
    results: list[object] = []
    caller = threading.Thread(target=lambda: results.append(search("tiny", endpoint=hub.endpoint)))
    caller.start()
    while hub.hang_on not in [path for path, _ in hub.requests]:
        time.sleep(0.01)
    asking = [thread for thread in threading.enumerate() if thread.name == "foredraft-hub"]
    assert asking
    assert all(thread.daemon for thread in asking)
    hub.go_on.set()
    caller.join(20)
    assert len(results) == 1


def test_after_an_error_no_more_repositories_are_asked_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": f"owner/n-{number}"} for number in range(50)]
    asked: list[object] = []

    def fails(row: dict[str, object], **_options: object) -> FoundModel:
        asked.append(row["id"])
        raise BackendError("no connection")

    monkeypatch.setattr("foredraft.library.hub_search._listed", lambda *_args, **_options: rows)
    monkeypatch.setattr("foredraft.library.hub_search._found", fails)
    with pytest.raises(BackendError, match="no connection"):
        search("tiny", endpoint=hub.endpoint)
    assert len(asked) <= 16
