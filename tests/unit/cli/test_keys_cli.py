"""`foredraft keys`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import Command
from foredraft.errors import AuthenticationError
from foredraft.server.auth import Authenticator
from foredraft.server.settings import ServerSettings
from foredraft.server.settings_file import read_settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings() -> ServerSettings:
    return read_settings(Path("foredraft.toml"))


def test_a_new_key_gets_in(foredraft: Command, folder: Path) -> None:
    ran = foredraft("keys", "new", "alice")
    assert ran.code == 0
    key = ran.out.removesuffix("\n")
    assert re.fullmatch(r"ft-[\w-]{43}", key)
    assert key not in ran.err
    assert "'alice' is in foredraft.toml" in ran.err
    assert key not in (folder / "foredraft.toml").read_text()
    assert Authenticator(settings().keys).check(f"Bearer {key}").name == "alice"


def test_its_limits(foredraft: Command) -> None:
    ran = foredraft(
        "keys", "new", "ci", "--scope", "team", "--rate", 60, "--concurrent", 2, "--file", "other.toml"
    )
    assert ran.code == 0
    (key,) = read_settings(Path("other.toml")).keys
    assert (key.name, key.scope, key.requests_per_minute, key.max_concurrent) == ("ci", "team", 60, 2)


def test_listing(foredraft: Command) -> None:
    key = foredraft("keys", "new", "alice", "--rate", 60).out.strip()
    foredraft("keys", "new", "own[b]", "--scope", "")
    foredraft("keys", "new", "own", "--scope", "")
    ran = foredraft("keys", "list")
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["alice", "alice", "60", "no", "limit"] in rows
    assert rows[2][0] == "own"
    assert "this computer's own" in ran.out
    assert ran.out.endswith("Admin key: none\n")
    assert key not in ran.out
    assert "sha256" not in ran.out


def test_listing_none(foredraft: Command, folder: Path) -> None:
    (folder / "foredraft.toml").write_text("port = 1\n")
    ran = foredraft("keys", "list")
    assert ran.out == (
        "There are no keys in foredraft.toml: anyone who can reach the server can use it.\nAdmin key: none\n"
    )


def test_removing(foredraft: Command) -> None:
    alice = foredraft("keys", "new", "alice").out.strip()
    bob = foredraft("keys", "new", "bob").out.strip()
    ran = foredraft("keys", "remove", "alice")
    assert (ran.code, ran.out) == (0, "Removed the key 'alice' from foredraft.toml.\n")
    assert "forget" in ran.err
    assert "last key" not in ran.err
    authenticator = Authenticator(settings().keys)
    assert authenticator.check(bob).name == "bob"
    with pytest.raises(AuthenticationError):
        authenticator.check(alice)
    assert "last key" in foredraft("keys", "remove", "bob").err


def test_the_admin_key(foredraft: Command) -> None:
    first = foredraft("keys", "admin").out.strip()
    second = foredraft("keys", "admin").out.strip()
    assert first != second
    authenticator = Authenticator((), settings().admin_key_hash)
    assert authenticator.check(second).admin
    assert not authenticator.check(first).admin
    assert "Admin key: yes" in foredraft("keys", "list").out
    assert foredraft("keys", "admin", "--remove").out == "Removed the admin key from foredraft.toml.\n"
    assert settings().admin_key_hash is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list"], "There is no settings file foredraft.toml"),
        (["remove", "alice"], "There is no settings file foredraft.toml"),
        (["admin", "--remove"], "There is no settings file foredraft.toml"),
        (["new", "two words"], "name='two words' is not valid"),
        (["new", "admin"], "name='admin' is not valid"),
        (["new", "alice", "--rate", 0], "--rate"),
        (["new", "alice", "--file", "."], "cannot be read"),
    ],
)
def test_what_cannot_be_done(foredraft: Command, folder: Path, arguments: list[object], says: str) -> None:
    ran = foredraft("keys", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert list(folder.iterdir()) == []


def test_a_name_that_is_taken(foredraft: Command) -> None:
    foredraft("keys", "new", "alice")
    ran = foredraft("keys", "new", "alice")
    assert (ran.code, ran.out) == (2, "")
    assert "already" in ran.err
