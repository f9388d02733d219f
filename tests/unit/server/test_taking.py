"""Settings that a running server takes from its file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.server.pool import ModelPool
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.server.taking import LiveSettings, take_settings

NAMED = ModelSettings(path="named.gguf")


def beside_named(settings: ServerSettings) -> ServerSettings:
    """As the command line does it: its model is there, too."""
    return replace(settings, models={"named": NAMED, **settings.models})


def edit(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (0, len(text)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "foredraft.toml"
    edit(path, "[models.filed]\npath = 'filed.gguf'\n")
    return path


def test_an_edit_of_which_the_server_can_make_nothing(file: Path) -> None:
    live = LiveSettings(file, beside_named)
    before = live.current
    edit(file, "[models.filed]\npath = 'filed.gguf'\naliases = ['named']\n")
    assert live.poll() is None, "the edit may still go on"
    found = live.poll()
    assert isinstance(found, ConfigError)
    assert "Two models are named" in found.message
    assert live.poll() is None, "it is said once"
    assert live.current == before
    assert isinstance(live.reread(), ConfigError)
    edit(file, "[models.filed]\npath = 'filed.gguf'\nthreads = 2\n")
    live.poll()
    found = live.poll()
    assert isinstance(found, ServerSettings)
    assert list(found.models) == ["named", "filed"]


def test_where_the_settings_of_a_model_are(file: Path) -> None:
    live = LiveSettings(file, beside_named)
    assert live.where("filed") == f"{file}, [models.filed]"
    assert live.where("named") == "Model named"


def test_what_needs_a_restart_stays(caplog: pytest.LogCaptureFixture) -> None:
    def load(_: ModelSettings) -> Engine:
        raise NotImplementedError

    before = ServerSettings(models={"named": NAMED})
    pool = ModelPool(before, load)
    others = {"host": "0.0.0.0", "cache_dir": Path("/elsewhere"), "port": 1, "log_format": "off"}
    take_settings(pool, replace(before, idle_timeout_s=3.0, **others))  # type: ignore[arg-type]
    assert pool.settings == replace(before, idle_timeout_s=3.0)
    assert "Restart the server to change host, port, cache_dir, log_format." in caplog.text
