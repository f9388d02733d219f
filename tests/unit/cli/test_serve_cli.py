"""`foredraft serve` before it serves."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import gguf_factory
from foredraft.backends.llamacpp import binding
from foredraft.cache_folder import FORMER_NAME
from foredraft.cli import run_command
from foredraft.server.request_log import log
from foredraft.server.settings import ServerSettings


def test_a_settings_file_of_the_former_name_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may say which keys are asked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{FORMER_NAME}.toml").write_text("")
    assert run_command(["serve"]) == 2
    assert "Rename the file: mv foretoken.toml foredraft.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "written"),
    [([], True), (["--log-format", "json"], True), (["--log-format", "off"], False), (["--quiet"], False)],
)
def test_a_line_for_each_request_unless_it_is_to_be_quiet(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    written: bool,
) -> None:
    def serving(*arguments: object, **options: object) -> None:
        log({"method": "POST", "path": "/x", "status": 400})
        logging.getLogger("foredraft.server.errors").error("It broke.")

    monkeypatch.setattr("foredraft.server.run.run_server", serving)
    gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    assert run_command(["serve", str(tmp_path / "tiny.gguf")]) == 0, "whose handlers are not used again"
    capsys.readouterr()
    assert run_command(["serve", str(tmp_path / "tiny.gguf"), *flags]) == 0
    said = capsys.readouterr().err
    assert ("/x" in said) == written
    assert "It broke." in said, "faults are told whatever is asked"
    if "json" in flags:
        assert [json.loads(line)["time"] for line in said.splitlines()]


def test_a_model_answers_to_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ServerSettings] = []
    monkeypatch.setattr("foredraft.server.run.run_server", lambda settings, **_: seen.append(settings))
    monkeypatch.chdir(tmp_path)
    for name in ("tiny.gguf", "other.gguf"):
        gguf_factory.tiny_llama(tmp_path / name)
    (tmp_path / "foredraft.toml").write_text(
        '[models.mine]\npath = "tiny.gguf"\naliases = ["./other.gguf"]\n', encoding="utf-8"
    )
    assert run_command(["serve", "tiny.gguf", "./other.gguf"]) == 0
    [settings] = seen
    assert [settings.find_model(name) for name in ("tiny", "tiny.gguf")] == ["tiny", "tiny"]
    assert settings.find_model("other") == "other"
    assert settings.find_model("./other.gguf") == "mine", "the settings file's names come first"


def test_a_file_with_spaces_in_its_name_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ServerSettings] = []
    monkeypatch.setattr("foredraft.server.run.run_server", lambda settings, **_: seen.append(settings))
    monkeypatch.chdir(tmp_path)
    gguf_factory.tiny_llama(tmp_path / "My Model.gguf")
    assert run_command(["serve", "My Model.gguf"]) == 0
    assert list(seen[0].models) == ["My-Model"]


def test_the_library_is_that_of_the_flag_or_of_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ServerSettings] = []
    monkeypatch.setattr("foredraft.server.run.run_server", lambda settings, **_: seen.append(settings))
    chosen: list[Path | None] = []
    monkeypatch.setattr(binding, "choose", chosen.append)
    monkeypatch.chdir(tmp_path)
    gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    (tmp_path / "foredraft.toml").write_text('llama_library = "libllama.so"\n')
    assert run_command(["serve", "tiny.gguf"]) == 0
    assert run_command(["serve", "tiny.gguf", "--llama-library", "other.so"]) == 0
    assert chosen == [tmp_path / "libllama.so", Path("other.so")]
    assert [settings.llama_library for settings in seen] == chosen


def test_a_library_that_does_not_exist_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    assert run_command(["serve", str(model), "--llama-library", str(tmp_path / "libllama.so")]) == 2
    assert "There is no llama.cpp library" in capsys.readouterr().err
