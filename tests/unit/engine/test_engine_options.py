"""Options of `Engine.load`: what is accepted, and errors that say what would be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from foredraft.cache_folder import default_cache_dir
from foredraft.config import ModelOptions
from foredraft.engine.options import EngineOptions, LoadOptions, model_options
from foredraft.errors import ConfigError
from foredraft.library import usual_places


def read(**options: object) -> LoadOptions:
    """`model_options`, for values that its types forbid."""
    return model_options(cast("EngineOptions", options))


def test_nothing_given_is_the_defaults() -> None:
    folder = default_cache_dir()
    options = ModelOptions(cache_dir=folder, other_programs=usual_places())
    assert read() == (options, folder, True, 0, "")
    assert read(cache_dir=None)[1] == folder


GOOD: list[Mapping[str, Any]] = [
    {"context_length": 0, "threads": 0, "sequences": 1, "batch": 1, "ubatch": 1},
    {"context_length": 4096, "threads": 8, "sequences": 4, "batch": 2048, "ubatch": 256},
    {"gpu_layers": -1},
    {"gpu_layers": 0},
    {"gpu_layers": 99},
    {"memory": "ram", "flash_attention": "off", "kv_type": "bf16/f16"},
    {"memory": "mmap", "flash_attention": "on", "kv_type": "auto"},
    {"flash_attention": "auto", "probe": False},
    {"probe": "thorough"},
    {"progress": None, "notice": print},
    {"llama_library": None},
    {"llama_library": Path("/opt/llama/libllama.so")},
]


@pytest.mark.parametrize("options", GOOD)
def test_good_values_reach_the_backend_as_they_are(options: Mapping[str, Any]) -> None:
    assert read(**options)[0] == ModelOptions(
        cache_dir=default_cache_dir(), other_programs=usual_places(), **options
    )


def test_numbers_of_numpy_become_pythons() -> None:
    settings, _, remember, *_ = read(
        context_length=np.int64(64), gpu_layers=np.int8(-1), remember=np.bool_(0)
    )
    assert (settings.context_length, settings.gpu_layers, remember) == (64, -1, False)
    assert type(settings.context_length) is type(settings.gpu_layers) is int
    assert type(remember) is bool


@pytest.mark.parametrize("remember", [True, False])
def test_remembering_is_the_engines_affair(remember: bool) -> None:
    assert read(remember=remember)[2] is remember


@pytest.mark.parametrize(
    ("value", "size"), [(0, 0), (2, 2 * 10**9), (0.5, 5 * 10**8), (np.float32(0.5), 5 * 10**8)]
)
def test_room_for_prefixes_is_in_gigabytes(value: float, size: int) -> None:
    assert read(prefix_cache_gb=value).prefix_bytes == size


def test_what_may_not_be_remembered_is_not_kept_either() -> None:
    with pytest.raises(ConfigError, match="contradict each other") as caught:
        read(prefix_cache_gb=1, remember=False)
    assert caught.value.hint is not None
    assert read(prefix_cache_gb=0, remember=False).prefix_bytes == 0


NUMBERS = ("context_length", "sequences", "threads", "batch", "ubatch", "gpu_layers")
LEAST = {"context_length": 0, "sequences": 1, "threads": 0, "batch": 1, "ubatch": 1, "gpu_layers": -1}
BAD: list[tuple[str, object, str]] = [
    *((name, value, "whole number") for name in NUMBERS for value in ("4096", None, 2.5, True, 2**31)),
    *((name, LEAST[name] - 1, f"{LEAST[name]} to") for name in NUMBERS),
    ("gpu_layers", "all", "whole number"),
    ("memory", "disk", "'mmap', 'ram'"),
    ("memory", None, "'mmap', 'ram'"),
    ("memory", ["ram"], "'mmap', 'ram'"),
    ("flash_attention", "maybe", "'auto', 'on', 'off'"),
    ("flash_attention", True, "'auto', 'on', 'off'"),
    ("kv_type", 5, "'auto'"),
    ("kv_type", None, "'auto'"),
    ("probe", "yes", "True or False"),
    ("probe", None, "True or False"),
    ("remember", "no", "True or False"),
    ("remember", 0, "True or False"),
    ("remember", None, "True or False"),
    ("other_programs", "ollama", "None or an OtherPrograms"),
    ("other_programs", ("ollama",), "None or an OtherPrograms"),
    *(("prefix_cache_gb", value, "gigabytes") for value in (-1, "4", None, True, math.inf, math.nan)),
    ("progress", 5, "function"),
    ("notice", "loud", "function"),
    ("cache_dir", 5, "path of a folder"),
    ("cache_dir", "", "path of a folder"),
    ("cache_dir", "a\0b", "path of a folder"),
    ("cache_dir", b"/tmp", "path of a folder"),
    ("cache_dir", False, "path of a folder"),
    ("cache_dir", "~no-such-user-here/cache", "home directory"),
]


@pytest.mark.parametrize(("name", "value", "valid"), BAD)
def test_bad_values_are_refused_by_name(name: str, value: object, valid: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**{name: value})
    assert f"{name}={value!r}" in caught.value.message
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"{name} must be ")
    assert valid in caught.value.hint


def test_an_unknown_option_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="no option 'n_ctx'") as caught:
        read(n_ctx=4096)
    assert "context_length" in (caught.value.hint or "")


# --- the cache directory -------------------------------------------------------------------------------


def test_the_cache_directory_is_text_or_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    for given in (folder, str(folder)):
        settings, cache_dir, *_ = read(cache_dir=given)
        assert settings.cache_dir == cache_dir == folder
        assert isinstance(cache_dir, Path)
    assert not folder.exists(), "checking an option writes nothing"


def test_a_tilde_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert read(cache_dir="~/models")[1] == tmp_path / "models"
    assert read(cache_dir=Path("~"))[1] == tmp_path


def test_a_file_is_no_cache_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="cache_dir=") as caught:
        read(cache_dir=file)
    assert "this is a file" in (caught.value.hint or "")
