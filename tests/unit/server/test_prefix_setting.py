"""`prefix_cache_gb`: a server goes on with a conversation of the one before it, and with nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gguf_factory
from foredraft import SamplingParams
from foredraft.cli import serve
from foredraft.errors import ConfigError
from foredraft.server.run import loader, size_on_disk
from foredraft.server.settings import ModelSettings, ServerSettings

PROMPT = [3, *range(40, 140)]


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    model = ModelSettings(path=str(path), threads=1, gpu_layers=0, context_length=256)
    return ServerSettings(models={"tiny": model}, cache_dir=tmp_path / "cache", prefix_cache_gb=0.1)


def cached(settings: ServerSettings, scope: str) -> int:
    """Tokens that a server which begins now needs not compute."""
    with loader(settings)(settings.models["tiny"]) as engine:
        done = engine.generate(PROMPT, SamplingParams(max_tokens=4), scope=scope)
    return done.usage.cached_tokens


def test_a_server_goes_on_where_the_last_one_was(settings: ServerSettings) -> None:
    assert cached(settings, "alice") == 0
    assert cached(settings, "bob") == 0
    assert cached(settings, "alice") == len(PROMPT) - 1


def test_it_needs_remembering() -> None:
    with pytest.raises(ConfigError, match="contradict each other"):
        ServerSettings(prefix_cache_gb=1.0, remember=False)
    assert ServerSettings(remember=False).prefix_cache_gb == 0


def overlaid(arguments: list[str], **in_file: Any) -> ServerSettings:
    """The settings of a file with the command line's on top."""
    options = serve.serve.make_context("serve", arguments).params
    for name in ("models", "settings_file", "allow_public"):
        options.pop(name)
    overlay = serve._overlay((), options)
    return overlay(ServerSettings(models={"m": ModelSettings(path="m.gguf")}, **in_file))


@pytest.mark.parametrize(("flag", "in_file", "used"), [("2.5", 1.0, 2.5), ("0", 1.0, 0.0), (None, 1.0, 1.0)])
def test_the_command_line_goes_before_the_file(flag: str | None, in_file: float, used: float) -> None:
    arguments = ["--prefix-cache-gb", flag] if flag else []
    assert overlaid(arguments, prefix_cache_gb=in_file).prefix_cache_gb == used


@pytest.mark.parametrize(
    ("flags", "in_file", "used"), [([], 0.0, 4.0), ([], 1.0, 1.0), (["--prefix-cache-gb", "2"], 1.0, 2.0)]
)
def test_a_folder_that_is_named_keeps_prefixes(
    tmp_path: Path, flags: list[str], in_file: float, used: float
) -> None:
    settings = overlaid(["--cache-dir", str(tmp_path), *flags], prefix_cache_gb=in_file)
    assert (settings.cache_dir, settings.prefix_cache_gb) == (tmp_path, used)


def test_a_folder_keeps_nothing_where_nothing_is_to_be_remembered(tmp_path: Path) -> None:
    folder = ["--cache-dir", str(tmp_path)]
    assert overlaid(folder, remember=False).prefix_cache_gb == 0
    assert overlaid([*folder, "--no-remember"]).prefix_cache_gb == 0


def test_sizes_are_known_before_loading(settings: ServerSettings, tmp_path: Path) -> None:
    measure = size_on_disk(settings)
    assert measure(settings.models["tiny"]) == (tmp_path / "tiny.gguf").stat().st_size
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "config.json").write_text("{}")
    (repository / "model.safetensors").write_bytes(bytes(1234))
    assert measure(ModelSettings(path=str(repository))) == 1234
    assert measure(ModelSettings(path=str(tmp_path / "nothing.gguf"))) == 0
