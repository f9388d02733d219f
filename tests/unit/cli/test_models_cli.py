from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import pytest
from click.testing import CliRunner, Result

import gguf_factory
import other_programs
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.cli import cli, paths
from foredraft.errors import (
    BackendError,
    ConfigError,
    MissingDependencyError,
    ModelFormatError,
    ModelNotFoundError,
)
from foredraft.installation import add_extra
from foredraft.library import catalogue, usual_places
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


def test_list_shows_other_programs_models_and_what_was_left_out(cache: Path, own_cache: Path) -> None:
    places = usual_places()
    blob = other_programs.ollama(places.ollama[0], "registry.ollama.ai/library/llama3.2/3b", b"x" * 2_500_000)
    other_programs.put(places.lmstudio[0] / "publisher/Tiny-GGUF/Tiny-Q8_0.gguf", b"x" * 999)
    hub = own_cache / "huggingface" / "hub"  # below XDG_CACHE_HOME
    snapshot = other_programs.cached(hub, "owner/Many", sharded())
    other_programs.ollama(
        places.ollama[0], "registry.ollama.ai/library/tuned/latest", kinds=("model", "adapter")
    )
    result = run("list")
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["llama3.2:3b", "Q4_K_M", "2.5", "MB", "Ollama"],
        ["publisher/Tiny-GGUF:Q8_0", "Q8_0", "999", "B", "LM", "Studio"],
        ["owner/Many:safetensors", "BF16", "77.2", "kB", "Hugging", "Face", "cache"],
    ]
    assert result.stderr == (
        "Note: Ollama's tuned:latest was left out: it has an adapter, which is not supported.\n"
    )
    assert [model["source"] for model in run_json("list")] == ["ollama", "lmstudio", "huggingface"]
    assert paths.locate("llama3.2") == blob
    assert paths.locate("owner/many") == snapshot


def test_names_that_look_like_markup_are_shown_as_they_are(cache: Path) -> None:
    gguf_factory.tiny_llama(other_programs.put(cache / "models" / "[red]a[b].gguf"))
    assert run("list").stdout.splitlines()[1].startswith("[red]a[b]")


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "{0}/a"}, "a"),
        ({"HUGGINGFACE_HUB_CACHE": "{0}/b"}, "b"),
        ({"HF_HOME": "{0}/c"}, "c/hub"),
        ({"XDG_CACHE_HOME": "{0}/d"}, "d/huggingface/hub"),
        ({"HF_HUB_CACHE": "{0}/a", "HF_HOME": "{0}/c"}, "a"),
        ({"XDG_CACHE_HOME": ""}, None),
    ],
)
def test_the_place_of_the_hub_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    expected = usual_places().huggingface if folder is None else (tmp_path / folder,)
    assert paths.other_programs().huggingface == expected


def test_the_place_of_ollamas_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.other_programs().ollama == usual_places().ollama
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert paths.other_programs().ollama == (tmp_path,)
    monkeypatch.setenv("OLLAMA_MODELS", "~/models")
    assert paths.other_programs().ollama == (Path.home() / "models",)


# --- rm ------------------------------------------------------------------------------------------------


@pytest.fixture
def pulled(cache: Path) -> Path:
    return other_programs.put(cache / "models" / "owner" / "Tiny-GGUF" / "Tiny-Q4_0.gguf", b"x" * 2_500_000)


def test_rm(pulled: Path, cache: Path) -> None:
    result = run("rm", "tiny-q4_0", "--yes")
    assert result.stdout == "Deleted owner/Tiny-GGUF:Q4_0, 2.5 MB\n"
    assert result.stderr == f"owner/Tiny-GGUF:Q4_0: 1 file, 2.5 MB, in {pulled.parent}\n"
    assert list((cache / "models").iterdir()) == []
    with pytest.raises(ModelNotFoundError, match="no model 'tiny-q4_0'"):
        run("rm", "tiny-q4_0", "--yes")


def test_rm_says_what_stays(cache: Path) -> None:
    for name in ("config.json", "model.safetensors", "notes.md"):
        other_programs.put(cache / "models" / "Mine" / name, b"{}")
    result = run("rm", "Mine", "--yes")
    assert "Mine: 2 files" in result.stderr
    assert "Other files in the folder are kept: notes.md\n" in result.stderr
    assert [path.name for path in (cache / "models" / "Mine").iterdir()] == ["notes.md"]


def test_rm_deletes_nothing_where_nobody_can_be_asked(pulled: Path) -> None:
    with pytest.raises(ConfigError, match="no terminal to ask") as caught:
        run("rm", "tiny-q4_0")
    assert caught.value.hint == "Add --yes to delete."
    assert pulled.exists()


@pytest.mark.parametrize(("answer", "stays"), [("n\n", True), ("\n", True), ("y\n", False)])
def test_rm_asks(pulled: Path, monkeypatch: pytest.MonkeyPatch, answer: str, stays: bool) -> None:
    monkeypatch.setattr("foredraft.cli.models._terminal", lambda: True)
    words = ["models", "rm", "tiny-q4_0"]
    result = CliRunner().invoke(cli, words, input=answer, standalone_mode=False)
    assert "Delete this? [y/N]" in result.stderr
    assert ("Nothing was deleted." in result.stderr) is stays
    assert pulled.exists() is stays
    assert (result.return_value or 0) == int(stays)


def test_rm_of_several_deletes_all_or_none(pulled: Path, cache: Path) -> None:
    other = other_programs.put(cache / "models" / "own.gguf")
    with pytest.raises(ModelNotFoundError, match="no model 'nothing'"):
        run("rm", "own", "nothing", "--yes")
    assert other.exists()
    run("rm", "own", "own", "tiny-q4_0", "--yes")
    assert run_json("list") == []


def test_rm_of_another_programs_model(own_cache: Path) -> None:
    blob = other_programs.ollama(usual_places().ollama[0], "registry.ollama.ai/library/llama3.2/3b")
    with pytest.raises(ConfigError, match="belongs to another program"):
        run("rm", "llama3.2:3b", "--yes")
    assert blob.exists()


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


def test_what_a_file_says_is_shown_without_control_sequences(tmp_path: Path) -> None:
    path = tmp_path / "odd\x1b[2J.gguf"
    gguf_factory.unknown_architecture(path, architecture="odd\x1b]0;title\x07\x1b[31m")
    shown = run("inspect", path).stdout
    assert "odd" in shown
    assert not {"\x1b", "\x07"} & set(shown)


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


def test_quantize_writes_into_the_models_folder(tmp_path: Path, cache: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "tiny-f32.gguf")
    result = run("quantize", source, "q8_0", "--threads", "1")
    out = cache / "models" / "tiny-Q8_0.gguf"
    assert result.stdout == f"{out}: 141.5 kB, 28 % of tiny-f32\nRun it: foredraft run tiny-Q8_0\n"
    assert read_gguf(out).file_type == "Q8_0"
    assert paths.locate("tiny-q8_0") == out
    assert list(tmp_path.glob("*.gguf")) == [source]


def test_quantize_what_was_pulled_goes_beside_it(cache: Path) -> None:
    folder = cache / "models" / "owner" / "Tiny-GGUF"
    folder.mkdir(parents=True)
    gguf_factory.tiny_llama(folder / "Tiny-F32.gguf")
    assert run("quantize", "Tiny-F32", "q8_0").stdout.endswith("Run it: foredraft run owner/Tiny-GGUF:Q8_0\n")
    assert paths.locate("owner/Tiny-GGUF:Q8_0") == folder / "Tiny-Q8_0.gguf"


def test_quantize_another_programs_model_leaves_its_folder_alone(tmp_path: Path, cache: Path) -> None:
    folder = usual_places().ollama[0]
    content = gguf_factory.tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    blob = other_programs.ollama(folder, "registry.ollama.ai/someone/tiny/v1", content)
    before = sorted(folder.rglob("*"))
    run("quantize", "someone/tiny:v1", "q8_0")
    assert sorted(folder.rglob("*")) == before
    assert blob.read_bytes() == content
    assert read_gguf(paths.locate("someone-tiny-v1-Q8_0")).file_type == "Q8_0"


def test_quantize_where_the_models_folder_cannot_be_made(tmp_path: Path, cache: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    other_programs.put(cache / "models")
    with pytest.raises(ConfigError, match=r"Cannot create .*models") as caught:
        run("quantize", source, "q8_0")
    assert caught.value.hint == "Name a file to write, with -o."


def test_quantize_to_a_chosen_file(tmp_path: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    out = tmp_path / "chosen.gguf"
    assert "Run it" not in run("quantize", source, "q4_0", "-o", out).stdout
    with pytest.raises(ConfigError, match="exists already"):
        run("quantize", source, "q8_0", "-o", out)
    run("quantize", source, "q8_0", "-o", out, "--force")
    assert read_gguf(out).file_type == "Q8_0"


def test_quantize_twice(tmp_path: Path) -> None:
    source = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", weight_type="q8_0")
    with pytest.raises(ConfigError, match="--allow-requantize"):
        run("quantize", source, "q4_0")
    result = run("quantize", source, "q4_0", "--allow-requantize")
    assert "Note: tiny.gguf is already quantised" in result.stderr


def test_quantize_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only a GGUF can be quantised") as caught:
        run("quantize", write(tmp_path / "My", one_file()), "q4_0")
    assert "convert_hf_to_gguf.py" in str(caught.value.hint)


# --- search --------------------------------------------------------------------------------------------


def test_search(hub: Hub) -> None:
    hub.repositories["owner/Many-Tiny-GGUF"] = {f"Tiny-Q{n}_0.gguf": b"x" * n for n in range(1, 9)}
    hub.downloads_of = {"owner/Tiny-GGUF": 12_345, "owner/Many-Tiny-GGUF": 6}
    result = run("search", "tiny", "gguf")
    assert [" ".join(line.split()) for line in result.stdout.splitlines()[:3]] == [
        "model downloads sizes",
        "owner/Tiny-GGUF 12,345 Q4_0 200.0 kB, Q8_0 200.0 kB",
        "owner/Many-Tiny-GGUF 6 Q4_0 4 B, Q8_0 8 B, Q1_0 1 B, Q2_0 2 B, 4 more",
    ]
    assert "foredraft models pull OWNER/NAME[:QUANT]" in result.stdout
    first = run_json("search", "tiny")[0]
    assert first["repository"] == "owner/Tiny-GGUF"
    assert first["variants"] == [
        {"name": "Q4_0", "size_bytes": 200_000},
        {"name": "Q8_0", "size_bytes": 200_000},
    ]


def test_search_finds_nothing(hub: Hub) -> None:
    assert run("search", "zebra").stdout == "No model with GGUF files on the Hub matches 'zebra'.\n"
    assert run("search", "--safetensors", "tiny").stdout.startswith("No model with safetensors on the Hub")


def test_search_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BackendError, match="connection to the Hub failed"):
        run("search", "tiny")


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
    assert "pulling its safetensors, which run on PyTorch" in result.stderr
    lines = [line.split() for line in run("list").stdout.splitlines()]
    assert ["owner/Many:safetensors", "BF16", "77.2", "kB", "pulled"] in lines
    assert run("inspect", "many").stdout.splitlines()[0] == str(path)
    (path / SHARDS[1]).unlink()
    assert "pulled (incomplete)" in run("list").stdout


def test_pull_from_a_repository_with_both(hub: Hub) -> None:
    hub.repositories["owner/Tiny-GGUF"] |= one_file()
    result = run("pull", "owner/Tiny-GGUF")
    assert result.stdout.rstrip().endswith("Tiny-Q4_0.gguf")
    assert "For safetensors: owner/Tiny-GGUF:safetensors" in result.stderr
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
