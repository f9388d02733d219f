from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import pytest
from click.testing import CliRunner, Result

import gguf_factory
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.cli import cli, paths
from foredraft.errors import ConfigError, MissingDependencyError, ModelFormatError, ModelNotFoundError
from foredraft.installation import add_extra
from foredraft.library import catalogue
from hub_server import Hub, isolated_hub
from safetensors_factory import SHARDS, one_file, sharded, write

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no bundled model."""
    monkeypatch.setenv(paths.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", "foredraft_no_such_package")
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with isolated_hub(monkeypatch, tmp_path) as hub:
        hub.repositories["owner/Tiny-GGUF"] = {
            f"Tiny-{name}.gguf": name.encode() * 50_000 for name in ("Q4_0", "Q8_0")
        }
        yield hub


def run(*arguments: str | Path) -> Result:
    """Run `foredraft models ARGUMENTS`; errors come through, as they do to the command line's main."""
    words = ["models", *map(str, arguments)]
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def run_json(*arguments: str | Path) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


# --- paths ---------------------------------------------------------------------------------------------


def test_the_cache_folder_can_be_chosen(cache: Path) -> None:
    assert paths.cache_dir() == cache
    assert paths.models_dir() == cache / "models"
    assert paths.store_dir() == cache / "store"
    assert paths.history_file() == cache / "history"


def test_the_cache_folder_is_the_systems_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(paths.CACHE_VARIABLE)
    assert paths.cache_dir() == Path(platformdirs.user_cache_dir("foredraft", appauthor=False))
    monkeypatch.setenv(paths.CACHE_VARIABLE, "~/tokens")
    assert paths.cache_dir() == Path.home() / "tokens"


# --- list ----------------------------------------------------------------------------------------------


def test_empty_list_says_what_to_do(cache: Path) -> None:
    result = run("list")
    assert result.exit_code == 0
    assert f"no models in {cache / 'models'}" in result.stdout
    assert "foredraft models pull" in result.stdout
    assert run_json("list") == []


def test_list(cache: Path) -> None:
    folder = cache / "models" / "owner" / "Tiny-GGUF"
    folder.mkdir(parents=True)
    (folder / "Tiny-Q4_0.gguf").write_bytes(b"x" * 2_500_000)
    (folder / "Tiny-Q8_0-00001-of-00002.gguf").write_bytes(b"x" * 999)
    lines = [line.split() for line in run("list").stdout.splitlines()]
    assert ["owner/Tiny-GGUF:Q4_0", "Q4_0", "2.5", "MB", "pulled"] in lines
    assert ["owner/Tiny-GGUF:Q8_0", "Q8_0", "999", "B", "pulled", "(incomplete)"] in lines
    first = run_json("list")[0]
    assert first["name"] == "owner/Tiny-GGUF:Q4_0"
    assert first["path"] == str(folder / "Tiny-Q4_0.gguf")
    assert (first["size_bytes"], first["complete"], first["default"]) == (2_500_000, True, False)


def test_list_marks_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cli_model_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / catalogue.DEFAULT_FILE).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(catalogue, "DEFAULT_PACKAGE", package.name)
    assert "bundled (default)" in run("list").stdout
    assert run_json("list")[0]["default"] is True


# --- inspect -------------------------------------------------------------------------------------------


def test_inspect(tmp_path: Path) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", weight_type="q8_0")
    result = run("inspect", path)
    rows = {line[:15].strip(): line[15:].strip() for line in result.stdout.splitlines()[1:13]}
    assert result.stdout.splitlines()[0] == str(path)
    assert rows["architecture"] == "llama"
    assert rows["type"] == "Q8_0"
    assert rows["parameters"] == f"{read_gguf(path).parameters:,}"
    assert rows["attention heads"] == "4 (KV: 2)"
    assert rows["chat template"] == "yes"
    assert "output.weight" not in result.stdout
    assert "output.weight" in run("inspect", path, "--tensors").stdout


def test_inspect_by_name_as_json(cache: Path) -> None:
    (cache / "models").mkdir(parents=True)
    path = gguf_factory.tiny_llama(cache / "models" / "tiny.gguf")
    values = run_json("inspect", "TINY")
    summary = read_gguf(path)
    assert values["path"] == str(path)
    assert values["parameters"] == summary.parameters
    assert values["metadata"]["general.name"] == "Tiny Llama"
    assert values["metadata"]["tokenizer.ggml.tokens"]["length"] == 384
    assert len(values["tensors"]) == len(summary.tensors)
    assert values["quantization"]["f32"]["tensors"] == len(summary.tensors)
    assert (values["is_split"], values["is_vocab_only"]) == (False, False)


def test_inspect_split_and_vocabulary_only(tmp_path: Path) -> None:
    first = gguf_factory.tiny_llama(tmp_path / "parts.gguf", split_tensors=8)
    assert "in 3 files" in run("inspect", first).stdout
    assert "cannot generate text" in run("inspect", gguf_factory.vocab_only(tmp_path / "v.gguf")).stdout


def test_inspect_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model 'nothing'"):
        run("inspect", "nothing")
    with pytest.raises(ModelFormatError, match="not a GGUF file"):
        run("inspect", gguf_factory.not_gguf(tmp_path / "page.gguf"))


def test_inspect_a_folder_of_safetensors(tmp_path: Path) -> None:
    folder = write(tmp_path / "My-1.5B", sharded())
    for name in (folder, folder / "config.json", folder / SHARDS[1]):
        result = run("inspect", name)
        rows = {line[:15].strip(): line[15:].strip() for line in result.stdout.splitlines()[1:13]}
        assert result.stdout.splitlines()[0] == str(folder)
        assert (rows["name"], rows["architecture"], rows["type"]) == ("My-1.5B", "llama", "BF16")
        assert rows["size"].endswith("kB in 2 files")
        assert rows["parameters"] == "38,464"
    assert "norm" in run("inspect", folder, "--tensors").stdout
    values = run_json("inspect", folder)
    assert (values["path"], values["is_split"], values["is_vocab_only"]) == (str(folder), True, False)
    assert values["config"]["hidden_size"] == 64
    assert len(values["tensors"]) == 3


# --- quantize ------------------------------------------------------------------------------------------


def test_quantize(tmp_path: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "tiny-f32.gguf")
    result = run("quantize", source, "q8_0", "--threads", "1")
    out = tmp_path / "tiny-Q8_0.gguf"
    assert result.stdout == f"{out}: 141.5 kB, 28 % of tiny-f32.gguf\n"
    assert read_gguf(out).file_type == "Q8_0"


def test_quantize_to_a_chosen_file(tmp_path: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    out = tmp_path / "chosen.gguf"
    run("quantize", source, "q4_0", "-o", out)
    with pytest.raises(ConfigError, match="exists already"):
        run("quantize", source, "q8_0", "-o", out)
    run("quantize", source, "q8_0", "-o", out, "--force")
    assert read_gguf(out).file_type == "Q8_0"


def test_quantize_twice(tmp_path: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", weight_type="q8_0")
    with pytest.raises(ConfigError, match="--allow-requantize"):
        run("quantize", source, "q4_0")
    result = run("quantize", source, "q4_0", "--allow-requantize")
    assert "Note: tiny.gguf is quantised already" in result.stderr


def test_quantize_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only a GGUF can be quantised") as caught:
        run("quantize", write(tmp_path / "My", one_file()), "q4_0")
    assert "convert_hf_to_gguf.py" in str(caught.value.hint)


# --- pull ----------------------------------------------------------------------------------------------


def test_pull_and_use(hub: Hub, cache: Path) -> None:
    result = run("pull", "owner/Tiny-GGUF:q8_0")
    path = cache / "models" / "owner" / "Tiny-GGUF" / "Tiny-Q8_0.gguf"
    assert result.stdout == f"{path}\n"
    assert "Tiny-Q8_0.gguf" in result.stderr
    assert path.read_bytes() == b"Q8_0" * 50_000
    assert [model["name"] for model in run_json("list")] == ["owner/Tiny-GGUF:Q8_0"]


def test_pull_without_a_quantization(hub: Hub) -> None:
    assert run("pull", "owner/Tiny-GGUF").stdout.rstrip().endswith("Tiny-Q4_0.gguf")


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/owner/Tiny-GGUF:q8_0",
        "https://huggingface.co/owner/Tiny-GGUF:q8_0/",
        "hf.co/owner/Tiny-GGUF:q8_0",
        "https://huggingface.co/owner/Tiny-GGUF:q8_0?library=x",
    ],
)
def test_pull_takes_the_address_of_a_repository(hub: Hub, address: str) -> None:
    assert run("pull", address).stdout.rstrip().endswith("owner/Tiny-GGUF/Tiny-Q8_0.gguf")


def test_pull_shows_no_bar_where_nothing_is_downloaded(hub: Hub) -> None:
    result = CliRunner().invoke(cli, ["models", "pull", "owner/Nonesuch"])
    assert isinstance(result.exception, ModelNotFoundError)
    assert result.stderr == ""


def test_pull_goes_on_after_an_interruption(hub: Hub, cache: Path) -> None:
    hub.drop_after = [80_000, 0, 0, 0]
    with pytest.raises(Exception, match="the same command continues"):
        run("pull", "owner/Tiny-GGUF")
    run("pull", "owner/Tiny-GGUF")
    assert hub.downloads[-1][1] == "bytes=80000-"
    (path,) = (cache / "models").rglob("*.gguf")
    assert path.read_bytes() == b"Q4_0" * 50_000


def test_pull_safetensors(hub: Hub, cache: Path) -> None:
    hub.repositories["owner/Many"] = sharded()
    result = run("pull", "owner/Many")
    path = cache / "models" / "owner" / "Many"
    assert result.stdout == f"{path}\n"
    assert "taking its safetensors, which run on PyTorch" in result.stderr
    lines = [line.split() for line in run("list").stdout.splitlines()]
    assert ["owner/Many:safetensors", "BF16", "77.2", "kB", "pulled"] in lines
    assert run("inspect", "many").stdout.splitlines()[0] == str(path)
    (path / SHARDS[1]).unlink()
    assert "pulled (incomplete)" in run("list").stdout


def test_pull_from_a_repository_with_both(hub: Hub) -> None:
    hub.repositories["owner/Tiny-GGUF"] |= one_file()
    result = run("pull", "owner/Tiny-GGUF")
    assert result.stdout.rstrip().endswith("Tiny-Q4_0.gguf")
    assert "For the others: owner/Tiny-GGUF:safetensors" in result.stderr
    result = run("pull", "owner/Tiny-GGUF:safetensors")
    assert result.stdout.rstrip().endswith("Tiny-GGUF")
    assert {model["format"] for model in run_json("list")} == {"gguf", "safetensors"}


def test_pull_safetensors_without_torch(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["owner/One"] = one_file()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError) as caught:
        run("pull", "owner/One")
    assert caught.value.hint == f"Install it with: {add_extra('torch')}"
    assert hub.downloads == []


def test_pull_errors(hub: Hub) -> None:
    with pytest.raises(ModelNotFoundError, match="no repository owner/none"):
        run("pull", "owner/none")
    with pytest.raises(ModelNotFoundError, match="It has: Q4_0, Q8_0"):
        run("pull", "owner/Tiny-GGUF:q2_k")
