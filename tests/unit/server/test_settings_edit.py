"""Edits of the settings file change what they mean to and nothing else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from foredraft.errors import ConfigError
from foredraft.server.settings import KeySettings
from foredraft.server.settings_edit import add_key, remove_key, set_admin_key
from foredraft.server.settings_file import read_settings

ALICE = KeySettings(name="alice", hash="sha256:" + "a" * 64)
BOB = KeySettings(
    name="bob", hash="sha256:" + "b" * 64, scope='a "team" \\ é', requests_per_minute=6, max_concurrent=2
)
CAROL = KeySettings(name="carol", hash="sha256:" + "c" * 64, scope="")
ADMIN = "sha256:" + "d" * 64
TOP = """\
# My server.
port = 8081   # not 8080
cors_origins = [
  "https://a.example",
]

[models.m]
path = "m.gguf"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "foredraft.toml"


def names(path: Path) -> list[str]:
    return [key.name for key in read_settings(path).keys]


def test_a_file_that_does_not_exist_is_made(path: Path) -> None:
    add_key(path, ALICE)
    assert path.read_text() == f'[[keys]]\nname = "alice"\nhash = "{ALICE.hash}"\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_are_appended_as_they_are(path: Path) -> None:
    path.write_text(TOP)
    path.chmod(0o644)
    for key in (ALICE, BOB, CAROL):
        add_key(path, key)
    assert read_settings(path).keys == (ALICE, BOB, CAROL)
    assert path.read_text().startswith(TOP + "\n[[keys]]\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "# only a comment", TOP, TOP.rstrip("\n"), TOP.replace("\n", "\r\n")])
def test_removing_what_was_added_leaves_the_file_as_it_was(path: Path, text: str) -> None:
    path.write_bytes(text.encode())
    for key in (ALICE, BOB):
        add_key(path, key)
    remove_key(path, "bob")
    remove_key(path, "alice")
    end = "\r\n" if "\r\n" in text else "\n"
    wanted = text if text.endswith("\n") or not text else text + end
    assert path.read_bytes().decode() == wanted


def test_line_ends_stay(path: Path) -> None:
    path.write_bytes(b"port = 1\r\n")
    add_key(path, ALICE)
    set_admin_key(path, ADMIN)
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n") == 6


@pytest.mark.parametrize("name", ["alice", "bob", "carol"])
def test_one_key_is_removed_and_its_neighbours_stay(path: Path, name: str) -> None:
    text = f"""\
[[keys]]
name = "alice"  # of the first floor
hash = "{ALICE.hash}"

# Bob is new here.
[[ keys ]]
name = "bob"
# half the day
requests_per_minute = 5
hash = "{BOB.hash}"
[["keys"]]
hash = "{CAROL.hash}"
name = 'carol'

[limits]
max_n = 3
# the end
"""
    path.write_text(text)
    before = read_settings(path)
    assert remove_key(path, name) == 2
    after = read_settings(path)
    assert after.keys == tuple(key for key in before.keys if key.name != name)
    assert after.limits == before.limits
    left = path.read_text()
    assert "# the end" in left
    assert ("# half the day" in left) is (name != "bob")
    assert set(left.splitlines()) < set(text.splitlines())


def test_the_last_key(path: Path) -> None:
    add_key(path, ALICE)
    assert remove_key(path, "alice") == 0
    assert (path.read_text(), names(path)) == ("", [])


def test_a_name_is_used_once(path: Path) -> None:
    add_key(path, ALICE)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="already has a key named 'alice'"):
        add_key(path, KeySettings(name="alice", hash=BOB.hash))
    with pytest.raises(ConfigError, match="alice and eve have the same key"):
        add_key(path, KeySettings(name="eve", hash=ALICE.hash))
    assert path.read_bytes() == before


def test_removing_what_is_not_there(path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no settings file"):
        remove_key(path, "alice")
    assert not path.exists()
    add_key(path, ALICE)
    with pytest.raises(ConfigError, match="no key named 'bob'") as error:
        remove_key(path, "bob")
    assert "'alice'" in (error.value.hint or "")


@pytest.mark.parametrize("text", ["port = 'x'\n", "port = \n", "prot = 1\n"])
def test_a_wrong_file_is_not_edited(path: Path, text: str) -> None:
    path.write_text(text)
    for edit in (
        lambda: add_key(path, ALICE),
        lambda: remove_key(path, "alice"),
        lambda: set_admin_key(path, ADMIN),
    ):
        with pytest.raises(ConfigError):
            edit()
    assert path.read_text() == text


INLINE = f'keys = [{{ name = "alice", hash = "{ALICE.hash}" }}]\n'
IN_A_STRING = f'''\
[[keys]]
name = "alice"
hash = "{ALICE.hash}"
[models.m]
path = """
[[keys]]
"""
'''


@pytest.mark.parametrize("text", [INLINE, IN_A_STRING])
def test_what_cannot_be_edited_is_left_alone(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match="Nothing was changed") as error:
        remove_key(path, "alice")
    assert "by hand" in (error.value.hint or "")
    assert path.read_text() == text


def test_keys_written_inline_cannot_be_joined(path: Path) -> None:
    path.write_text(INLINE)
    with pytest.raises(ConfigError, match="Nothing was changed"):
        add_key(path, BOB)
    assert path.read_text() == INLINE


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text(TOP)
    path.symlink_to(real)
    add_key(path, ALICE)
    assert path.is_symlink()
    assert names(real) == ["alice"]


def test_a_file_that_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("foredraft.server.settings_edit.write_atomically", refuse)
    with pytest.raises(ConfigError, match="cannot be written: Permission denied"):
        add_key(path, ALICE)


# --- the admin key -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", TOP, "port = 1\n", "[limits]\nmax_n = 1\n"])
def test_the_admin_key_is_set_replaced_and_removed(path: Path, text: str) -> None:
    path.write_text(text)
    before = read_settings(path)
    set_admin_key(path, ALICE.hash)
    assert read_settings(path).admin_key_hash == ALICE.hash
    set_admin_key(path, ADMIN)
    assert read_settings(path).admin_key_hash == ADMIN
    assert path.read_text().count("admin_key_hash") == 1
    assert path.read_text().endswith(text)
    set_admin_key(path, None)
    assert read_settings(path) == before


def test_the_admin_key_where_it_was(path: Path) -> None:
    path.write_text(f'port = 1\nadmin_key_hash = "{ADMIN}"\nhost = "::1"\n')
    set_admin_key(path, ALICE.hash)
    assert path.read_text() == f'port = 1\nadmin_key_hash = "{ALICE.hash}"\nhost = "::1"\n'


def test_no_admin_key_to_remove(path: Path) -> None:
    path.write_text(TOP)
    with pytest.raises(ConfigError, match="no admin key"):
        set_admin_key(path, None)
    with pytest.raises(ConfigError, match="There is no settings file"):
        set_admin_key(path.with_name("other.toml"), None)
