"""docs/server-settings.md is true: its example is read, and its tables are the settings."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from foredraft.server.image_settings import ImageSettings
from foredraft.server.settings import KeySettings, Limits, ModelSettings, SamplingDefaults, ServerSettings
from foredraft.server.settings_file import NEEDS_RESTART, parse_settings

PAGE = Path(__file__).parents[3] / "docs" / "server-settings.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = {
    "Top level": ServerSettings,
    "Models": ModelSettings,
    "Limits": Limits,
    "Images": ImageSettings,
    "Keys": KeySettings,
}


def section(title: str) -> str:
    parts = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(f"{title}\n"))


def rows(title: str) -> dict[str, str]:
    """Key → default as written."""
    return dict(re.findall(r"^\| `(\w+)` \|[^|]*\| *([^|]*?) *\|", section(title), re.MULTILINE))


def examples() -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_second_example_is_valid() -> None:
    settings = parse_settings(examples()[1], PAGE)
    assert list(settings.models) == ["eyes", "base", "search", "base-vectors"]
    assert settings.models["eyes"].mmproj is not None
    assert settings.models["base"].rope_scaling == "yarn"
    assert [(adapter.name, adapter.scale) for adapter in settings.models["base"].adapters] == [("sql", 0.8)]
    assert settings.models["base-vectors"].embeddings == "last"


def test_the_example_is_valid_and_shows_every_table() -> None:
    example, _ = examples()
    settings = parse_settings(example, PAGE)
    assert list(settings.models) == ["smollm", "coder"]
    assert settings.find_model("gpt-4o-mini") == "smollm"
    assert settings.models["coder"].sampling.given() == {"temperature": 0.2, "top_p": 0.95}
    assert [(key.name, key.effective_scope) for key in settings.keys] == [
        ("alice", "alice"),
        ("nightly-tests", "ci"),
    ]
    assert settings.limits.max_waiting == 32


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_is_documented(title: str) -> None:
    assert list(rows(title)) == [field.name for field in fields(SECTIONS[title])]


@pytest.mark.parametrize("title", SECTIONS)
def test_defaults_are_documented(title: str) -> None:
    for field in fields(SECTIONS[title]):
        written = rows(title)[field.name]
        if written.startswith("`"):
            assert json.loads(written.strip("`")) == plain_default(field), field.name
        else:
            # Said in words, or a table, or required.
            assert plain_default(field) in (None, {}, [], MISSING), field.name


def plain_default(field: Field[Any]) -> object:
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if isinstance(value, Limits | ImageSettings | SamplingDefaults):
        return {}
    return list(value) if isinstance(value, tuple) else value


def test_sampling_values_are_documented() -> None:
    assert [
        field.name for field in fields(SamplingDefaults) if f"`{field.name}`" not in section("Models")
    ] == []


def test_what_needs_a_restart_is_documented() -> None:
    *_, last = section("Editing while the server runs").split("Models, keys, images and limits")
    assert set(re.findall(r"`(\w+)`", last)) == set(NEEDS_RESTART)
