"""The console says what could draft for a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import gguf_factory
from foredraft.config import OtherPrograms
from foredraft.engine.model_facts import facts_of
from foredraft.server.app import build_app
from foredraft.server.auth import Caller, hash_key, new_key
from foredraft.server.console.library import Library
from foredraft.server.console.models import ModelsView, _context, models_topic
from foredraft.server.console.parts import Parts
from foredraft.server.console.saving import Saving
from foredraft.server.console.shapes import Reply
from foredraft.server.pool import ModelPool
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.server.settings_file import read_settings
from foredraft.server.taking import beside
from http_server import Running, serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The models folder, with a target and its drafts."""
    made = tmp_path / "cache" / "models"
    made.mkdir(parents=True)
    gguf_factory.tiny_llama(made / "target.gguf", layers=8, embd=128)
    gguf_factory.tiny_llama(made / "small.gguf")
    gguf_factory.tiny_llama(made / "other words.gguf", vocab=400)
    return made


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(settings_file=tmp_path / "foredraft.toml", library=Library(OtherPrograms()))


@pytest.fixture
def server(folder: Path, parts: Parts) -> Iterator[Running]:
    settings = ServerSettings(cache_dir=folder.parent)
    with serving("target", settings=settings, console=parts) as running:
        yield running


def drafts(server: Running) -> dict[str, dict[str, Any]]:
    reply = httpx.get(f"{server.url}/console/models/target/drafts", timeout=30)
    assert reply.status_code == 200, reply.text
    return {one["name"]: one for one in reply.json()["candidates"] if one["kind"] == "model"}


def test_candidates_are_judged_and_the_one_in_use_is_marked(server: Running) -> None:
    found = drafts(server)
    assert (found["small"]["fits"], found["small"]["code"]) == ("fits", "same_vocabulary")
    assert found["other words"]["fits"] == "translation"
    assert found["target"]["code"] == "itself"
    assert not any(one["used"] for one in found.values())
    body = {"version": "", "values": {"speculate": "auto", "draft_model": found["small"]["value"]}}
    saved = httpx.put(f"{server.url}/console/models/target/settings", json=body, timeout=30)
    assert saved.status_code == 200, saved.text
    assert [name for name, one in drafts(server).items() if one["used"]] == ["small"]


def test_who_is_not_the_admin_learns_nothing_of_folders(folder: Path, parts: Parts, tmp_path: Path) -> None:
    bob, admin = new_key(), new_key()
    small = folder / "small.gguf"
    parts.settings_file.write_text(
        f'[models.target]\npath = "{folder / "target.gguf"}"\ndraft_model = "{small}"\n'
        f'[models.other]\npath = "{folder / "target.gguf"}"\nspeculate = "draft-model:model={small},max=3"\n'
        f'[[keys]]\nname = "bob"\nhash = "{hash_key(bob)}"\n'
    )
    own = replace(read_settings(parts.settings_file), cache_dir=folder.parent, admin_key_hash=hash_key(admin))
    app = build_app(ModelPool(own, lambda _: pytest.fail("not loaded")), console=parts)
    paths = ["session", "models", "pulls", "models/target/settings", "models/other/settings"]

    async def answers(key: str) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        headers = {"x-api-key": key}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            found = [await client.get(f"/console/{path}", headers=headers) for path in paths]
            return [*found, await client.get("/console/models/target/drafts", headers=headers)]

    for reply in asyncio.run(answers(admin)):
        assert reply.status_code == 200, reply.text
        assert str(tmp_path) in reply.text or reply.url.path == "/console/pulls"
    session, models, pulls, settings, other, candidates = asyncio.run(answers(bob))
    assert pulls.status_code == 403
    for reply in (session, models, settings, other, candidates):
        assert reply.status_code == 200, reply.text
        assert str(tmp_path) not in reply.text
    assert session.json()["settings_file"] is None
    assert models.json()["stored"] == []
    assert [(one["path"], one["draft_model"]) for one in models.json()["configured"]] == [
        (None, "small.gguf"),
        (None, None),
    ]
    assert models.json()["configured"][1]["speculate"] == "draft-model:model=small.gguf,max=3"
    assert settings.json()["values"]["path"] == "target.gguf"
    pool = ModelPool(own, lambda _: pytest.fail("not loaded"))
    topic = models_topic(ModelsView(pool, parts, Saving(pool, beside(parts.settings_file, own))))

    async def follow() -> Reply | None:
        return await topic.read(Caller("bob", "bob"), None)

    followed = asyncio.run(follow())
    assert followed is not None
    assert {**followed.model_dump(mode="json"), "revision": 0} == {**models.json(), "revision": 0}


def test_a_draft_model_in_use_is_marked_and_not_offered_for_deletion(server: Running) -> None:
    def small() -> dict[str, Any]:
        models = httpx.get(f"{server.url}/console/models", timeout=30).json()
        found: list[dict[str, Any]] = [one for one in models["stored"] if one["name"] == "small"]
        return found[0]

    assert (small()["drafts_for"], small()["removable"]) == ([], True)
    body = {"version": "", "values": {"speculate": "auto", "draft_model": "small"}}
    address = f"{server.url}/console/models/target/settings"
    httpx.put(address, json=body, timeout=30).raise_for_status()
    assert (small()["drafts_for"], small()["removable"]) == (["target"], False)


def test_all_reasons_are_named(server: Running, folder: Path) -> None:
    gguf_factory.tiny_llama(folder / "large and other.gguf", layers=9, embd=128, vocab=400)
    found = drafts(server)["large and other"]
    assert (found["code"], found["also"]) == ("size", ["translated"])


def test_the_context_of_a_model_is_the_one_it_will_have(server: Running, folder: Path) -> None:
    models = httpx.get(f"{server.url}/console/models", timeout=30).json()
    trained = facts_of(folder / "target.gguf").trained_context
    [target] = models["configured"]
    assert target["state"] == "unloaded"
    assert target["context_length"] == trained <= 8192
    longer = replace(facts_of(folder / "target.gguf"), trained_context=32768)
    assert _context(ModelSettings(path="x"), longer) is None  # memory decides
    assert _context(ModelSettings(path="x", context_length=100), None) == 100
    assert _context(ModelSettings(path="x"), None) is None


def test_a_settings_file_that_was_broken_by_hand_is_told(server: Running, tmp_path: Path) -> None:
    def error() -> str:
        return str(httpx.get(f"{server.url}/console/models", timeout=30).json()["file_error"])

    assert error() == "None"
    (tmp_path / "foredraft.toml").write_text('[models.target]\npath = "target"\nthreads = = 3\n')
    assert "line 3" in error()


def test_a_budget_that_is_too_small(folder: Path, parts: Parts) -> None:
    budget = (folder / "target.gguf").stat().st_size + 1000
    settings = ServerSettings(cache_dir=folder.parent, memory_budget_bytes=budget)
    with serving("target", settings=settings, console=parts) as server:
        small = drafts(server)["small"]
    assert (small["fits"], small["code"]) == ("no", "memory")
    assert "budget" in small["why"]


def test_a_model_that_is_not_there(server: Running) -> None:
    assert httpx.get(f"{server.url}/console/models/none/drafts", timeout=30).status_code == 404


def test_a_model_whose_file_is_gone(folder: Path, server: Running) -> None:
    (folder / "target.gguf").unlink()
    reply = httpx.get(f"{server.url}/console/models/target/drafts", timeout=30)
    assert reply.status_code == 404
    assert "target" in reply.json()["error"]["message"]
