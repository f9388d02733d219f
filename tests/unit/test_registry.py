"""Names become drafters and backends; a plugin comes in by the same door as what is built in."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from foredraft import registry
from foredraft.config import Stage, parse_speculation
from foredraft.errors import ConfigError, ModelFormatError, SpeculationStringError
from foredraft.installation import add_extra, platform_without_llama_cpp
from foredraft.protocols import Drafter, DrafterContext
from foredraft.testing import ScriptedDrafter, drafter_context, run_drafter

BUILT_IN = {
    "draft-model",
    "grammar",
    "ngram-cache",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-simple",
    "prediction",
    "recycle",
    "suffix",
}

PLUGIN = '''
"""A drafter that proposes the last token again."""
from foredraft.config import read_options
from foredraft.testing import ScriptedDrafter


def create(context, options):
    times = read_options("stutter", options, {"times": 2})["times"]
    return ScriptedDrafter(lambda tokens: [tokens[-1]] * times, name="stutter")


class Backend:
    name = "stub"

    def accepts(self, path):
        return path.suffix == ".stub"

    def load(self, path, options):
        raise NotImplementedError


BACKEND = Backend()
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution with a drafter, as pip leaves one on the path."""
    (tmp_path / "foredraft_stutter.py").write_text(PLUGIN)
    info = tmp_path / "foredraft_stutter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foredraft-stutter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[foredraft.drafters]\nstutter = foredraft_stutter:create\n"
        "[foredraft.backends]\nstub = foredraft_stutter:BACKEND\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._installed.cache_clear()
    yield
    sys.modules.pop("foredraft_stutter", None)
    registry._installed.cache_clear()


def test_built_in_drafters() -> None:
    assert set(registry.drafter_names()) >= BUILT_IN
    assert registry.drafter_names() == sorted(registry.drafter_names())


@pytest.mark.parametrize("name", sorted(BUILT_IN - {"draft-model"}))
def test_every_built_in_drafter_can_be_made(name: str) -> None:
    drafter = registry.create_drafter(Stage(name), drafter_context())
    assert drafter.name == name
    drafter.close()


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(SpeculationStringError, match="no drafter named 'sufix'") as caught:
        registry.check_speculation(parse_speculation("suffix;sufix"))
    assert caught.value.hint is not None
    assert all(name in caught.value.hint for name in ("auto", "off", *BUILT_IN))


@pytest.mark.usefixtures("plugin")
def test_a_plugins_drafter() -> None:
    assert "stutter" in registry.drafter_names()
    assert "foredraft_stutter" not in sys.modules  # imported on first use
    registry.check_speculation(parse_speculation("stutter:times=3"))
    drafter = registry.create_drafter(Stage("stutter", {"times": "3"}), drafter_context())
    drafts = run_drafter(drafter, [5, 5, 5, 5, 5], prompt=1)
    assert [draft.tokens for draft in drafts] == [(5, 5, 5)]
    with pytest.raises(SpeculationStringError, match="no option 'n'"):
        registry.create_drafter(Stage("stutter", {"n": "3"}), drafter_context())


@pytest.mark.usefixtures("plugin")
def test_a_plugins_backend(tmp_path: Path) -> None:
    path = tmp_path / "model.stub"
    path.touch()
    assert registry.backend_for(path).name == "stub"
    assert registry.backend_for(tmp_path / "model.gguf").name == "llamacpp"


def test_without_the_plugin_its_name_is_unknown() -> None:
    assert "stutter" not in registry.drafter_names()


def test_a_drafter_for_this_process() -> None:
    def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
        return ScriptedDrafter(lambda tokens: None, name="mine")

    registry.register_drafter("mine", create)
    try:
        assert "mine" in registry.drafter_names()
        assert registry.create_drafter(Stage("mine"), drafter_context()).name == "mine"
        for taken in ("mine", "suffix", "auto", "off"):
            with pytest.raises(ConfigError, match=f"already a drafter named '{taken}'"):
                registry.register_drafter(taken, create)
    finally:
        registry.unregister_drafter("mine")
    assert "mine" not in registry.drafter_names()


def test_a_file_no_backend_reads(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"{}")
    with pytest.raises(ModelFormatError, match="not a model that any installed backend can read"):
        registry.backend_for(path)


def test_the_line_that_installs_what_is_missing() -> None:
    error = registry.missing_dependency("xllamacpp", "Running a GGUF model")
    assert (
        error.message == "Running a GGUF model needs the Python package 'xllamacpp', which is not installed."
    )
    assert error.hint == f"Install it with: {add_extra('llamacpp')}"


@pytest.mark.parametrize(
    ("system", "machine", "abi", "name"),
    [
        ("Linux", "x86_64", "cpython-312-x86_64-linux-musl", "Linux with musl (x86_64)"),
        ("Linux", "riscv64", "cpython-312-riscv64-linux-gnu", "Linux on riscv64"),
        ("Windows", "ARM64", None, "Windows on arm64"),
        ("FreeBSD", "amd64", None, "FreeBSD on amd64"),
    ],
)
def test_where_there_is_no_compiled_llama_cpp(
    system: str, machine: str, abi: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: abi)
    hint = registry.missing_dependency("xllamacpp", "Running a GGUF model").hint or ""
    assert f"no compiled one for {name}." in hint
    assert "--llama-library" in hint
    assert "documentation: llama-library" in hint
    assert add_extra("llamacpp") in hint
    assert registry.missing_dependency("torch", "Running it").hint == f"Install it with: {add_extra('torch')}"


@pytest.mark.parametrize(
    ("system", "machine", "abi"),
    [
        ("Linux", "x86_64", "cpython-312-x86_64-linux-gnu"),
        ("Linux", "aarch64", "cpython-312-aarch64-linux-gnu"),
        ("Darwin", "arm64", "cpython-312-darwin"),
        ("Windows", "AMD64", None),
    ],
)
def test_where_there_is_one(system: str, machine: str, abi: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: abi)
    assert platform_without_llama_cpp() == ""
