"""The keys of a front, which follow the settings file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from foredraft.errors import ConfigError
from foredraft.scale.following import Following
from foredraft.server.auth import hash_key
from foredraft.server.settings import ServerSettings
from foredraft.server.settings_file import read_settings

ANN, BOB = hash_key("ann"), hash_key("bob")


def written(file: Path, *keys: tuple[str, str], model: str = "one.gguf", more: str = "") -> ServerSettings:
    """The settings in the file, which then has these keys."""
    tables = "".join(f'[[keys]]\nname = "{name}"\nhash = "{digest}"\n{more}' for name, digest in keys)
    file.write_text(f'{tables}[models.one]\npath = "{model}"\n')
    return read_settings(file)


def polled(following: Following) -> ServerSettings | ConfigError | None:
    """What is found once an edit has settled."""
    found = following.poll()
    return following.poll() if found is None else found


def names(found: object) -> list[str]:
    assert isinstance(found, ServerSettings)
    return [key.name for key in found.keys]


def test_a_key_that_is_revoked_or_new_counts_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "foredraft.toml"
    first = written(file, ("ann", ANN), ("bob", BOB))
    following = Following(first, file)
    assert names(following.start()) == ["ann", "bob"]
    assert polled(following) is None
    written(file, ("bob", BOB), more="requests_per_minute = 3\n", model="another.gguf")
    with caplog.at_level(logging.WARNING, "foredraft.server.scale"):
        found = polled(following)
    assert isinstance(found, ServerSettings)
    assert names(found) == ["bob"]
    assert found.keys[0].requests_per_minute == 3
    assert found.models == first.models
    assert "Deploy again to change models.one" in caplog.text


def test_a_front_that_is_started_again_begins_with_the_keys_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "foredraft.toml"
    first = written(file, ("ann", ANN), ("bob", BOB))
    written(file, ("bob", BOB))
    assert names(Following(first, file).start()) == ["bob"]


@pytest.mark.parametrize("again", [False, True])
def test_a_file_without_keys_opens_nothing(tmp_path: Path, again: bool) -> None:
    file = tmp_path / "foredraft.toml"
    first = written(file, ("ann", ANN))
    following = Following(first, file)
    if not again:
        following.start()
    written(file)
    if again:
        assert names(following.start()) == ["ann"]
    else:
        error = polled(following)
        assert isinstance(error, ConfigError)
        assert "no longer has any keys" in str(error)
    assert polled(following) is None  # said once
    written(file, ("bob", BOB))
    assert names(polled(following)) == ["bob"]


def test_a_file_that_is_on_another_machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "foredraft.toml"
    first = written(file, ("ann", ANN))
    file.unlink()
    following = Following(first, file)
    with caplog.at_level(logging.WARNING, "foredraft.server.scale"):
        assert following.start() == first
    assert "is not on this machine" in caplog.text
    assert Following(first, None).start() == first
    written(file, ("bob", BOB))
    assert names(polled(following)) == ["bob"]
