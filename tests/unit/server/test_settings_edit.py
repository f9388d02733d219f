"""Edits of the settings file change what they mean to and nothing else."""

from __future__ import annotations

import errno
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit

from foredraft.errors import ConfigError, MissingDependencyError, ModelNotFoundError, SettingsConflictError
from foredraft.server.settings import KeySettings, ModelSettings, SamplingDefaults, ServerSettings
from foredraft.server.settings_edit import (
    Condition,
    add_key,
    change_key,
    read_file,
    remove_key,
    remove_model,
    set_admin_key,
    set_default_model,
    set_model,
)
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


def test_keys_written_inline_are_edited_where_they_are(path: Path) -> None:
    path.write_text(INLINE)
    add_key(path, BOB)
    assert names(path) == ["alice", "bob"]
    remove_key(path, "alice")
    assert read_settings(path).keys == (BOB,)


def test_a_header_in_a_string_is_not_one(path: Path) -> None:
    path.write_text(IN_A_STRING)
    remove_key(path, "alice")
    assert path.read_text() == IN_A_STRING.partition("[models.m]")[1] + IN_A_STRING.partition("[models.m]")[2]


def test_what_cannot_be_edited_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(TOP)
    monkeypatch.setattr(tomlkit, "dumps", lambda _: TOP.replace("8081", "8082"))
    with pytest.raises(ConfigError, match="Nothing was changed") as error:
        add_key(path, ALICE)
    assert "by hand" in (error.value.hint or "")
    assert path.read_text() == TOP


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


# --- limits of a key -----------------------------------------------------------------------------------


def test_limits_of_a_key(path: Path) -> None:
    add_key(path, ALICE)
    add_key(path, BOB)
    change_key(path, "bob", {"requests_per_minute": None, "max_concurrent": 7, "max_priority": 0})
    [_, bob] = read_settings(path).keys
    assert (bob.requests_per_minute, bob.max_concurrent) == (None, 7)
    assert "max_priority" not in path.read_text()
    with pytest.raises(ConfigError) as error:
        change_key(path, "bob", {"max_concurrent": -1})
    assert error.value.setting == "max_concurrent"


# --- models --------------------------------------------------------------------------------------------

MODELS = """# Ours.
default_model = "big"   # for everybody

[models.small]
path = "small.gguf"  # of 2026
threads = 2

# The large one.
[models."big"]
path = "big.gguf"
aliases = [ "b" ]

[models.big.sampling]
temperature = 0.2  # calm

# Bounds.
[limits]
max_n = 3

[[keys]]
name = "alice"
hash = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
"""
END = "# the end\n"


def test_values_of_a_model_are_changed_where_they_are(path: Path) -> None:
    path.write_text(MODELS)
    set_model(path, "small", {"threads": 3})
    assert path.read_text() == MODELS.replace("threads = 2", "threads = 3")
    set_model(path, "small", {"threads": None})
    assert path.read_text() == MODELS.replace("threads = 2\n", "")


def test_a_default_is_not_written(path: Path) -> None:
    path.write_text(MODELS)
    set_model(path, "small", {"threads": 0, "aliases": [], "kv_type": "auto", "pinned": False})
    assert path.read_text() == MODELS.replace("threads = 2\n", "")


def test_a_change_to_what_is_there_leaves_every_byte(path: Path) -> None:
    path.write_text(MODELS)
    set_model(path, "big", {"aliases": ["b"], "sampling": {"temperature": 0.2}, "pinned": False})
    assert path.read_text() == MODELS


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_new_model_stands_after_the_others(path: Path, ends: str) -> None:
    path.write_bytes(MODELS.replace("\n", ends).encode())
    set_model(path, "new/one", {"path": "new.gguf", "sampling": {"top_k": 3}, "sequences": 9})
    added = '[models."new/one"]\npath = "new.gguf"\nsequences = 9\n\n[models."new/one".sampling]\ntop_k = 3\n'
    text = path.read_bytes().decode()
    assert text == MODELS.replace("# Bounds.", added + "\n# Bounds.").replace("\n", ends)
    remove_model(path, "new/one")
    assert path.read_bytes().decode() == MODELS.replace("\n", ends)


def test_sampling_is_added_and_goes_with_its_last_value(path: Path) -> None:
    path.write_text(MODELS)
    set_model(path, "small", {"sampling": {"top_p": 0.5, "top_k": 4}})
    added = "\n[models.small.sampling]\ntop_p = 0.5\ntop_k = 4\n"
    assert path.read_text() == MODELS.replace("threads = 2\n", "threads = 2\n" + added)
    set_model(path, "small", {"sampling": {"top_p": None, "top_k": None}})
    assert read_settings(path).models["small"].sampling == SamplingDefaults()
    assert "# The large one." in path.read_text()


def test_tables_stay_apart_without_comments_between_them(path: Path) -> None:
    path.write_text('[models.a]\npath = "a"\n\n[models.b]\npath = "b"\n\n[limits]\nmax_n = 3\n')
    set_model(path, "a", {"sampling": {"top_k": 1}})
    set_model(path, "c", {"path": "c"})
    assert path.read_text() == (
        '[models.a]\npath = "a"\n\n[models.a.sampling]\ntop_k = 1\n\n[models.b]\npath = "b"\n\n'
        '[models.c]\npath = "c"\n\n[limits]\nmax_n = 3\n'
    )
    remove_model(path, "c")
    remove_model(path, "b")
    assert path.read_text() == (
        '[models.a]\npath = "a"\n\n[models.a.sampling]\ntop_k = 1\n\n[limits]\nmax_n = 3\n'
    )


def test_a_model_is_removed_with_being_the_default(path: Path) -> None:
    path.write_text(MODELS + END)
    remove_model(path, "big")
    left = read_settings(path)
    assert (list(left.models), left.default_model) == (["small"], None)
    for kept in ("# Ours.", "# of 2026", "# The large one.", "# Bounds.", END):
        assert kept in path.read_text()
    with pytest.raises(ModelNotFoundError):
        remove_model(path, "big")
    remove_model(path, "small")
    assert read_settings(path).models == {}
    assert "# Bounds." in path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "[limits]\nmax_n = 1\n",
        'models = { a = { path = "a.gguf" } }\n',
        '[models]\na.path = "a.gguf"\na.threads = 1\n',
        '[models.a]\npath = "a.gguf"\n[limits]\nmax_n = 1\n[models.b]\npath = "b.gguf"\n',
        '[[keys]]\nname = "k"\nhash = "sha256:' + "c" * 64 + '"\n[models.a]\npath = "a.gguf"',
    ],
)
def test_models_in_every_form_of_a_file(path: Path, text: str) -> None:
    """It has the values afterwards, or says that it cannot, and then nothing has changed."""
    path.write_text(text)
    before = read_settings(path)
    new = ModelSettings(path="n.gguf", threads=3, sampling=SamplingDefaults(top_k=5))
    set_model(path, "n", {"path": "n.gguf", "threads": 3, "sampling": {"top_k": 5}})
    after = read_settings(path)
    assert after.models == {**before.models, "n": new}
    assert (after.limits, after.keys) == (before.limits, before.keys)
    if "a" in before.models:
        set_model(path, "a", {"threads": 7})
        assert read_settings(path).models["a"].threads == 7
    remove_model(path, "n")
    assert "n" not in read_settings(path).models


def test_what_runs_beside_the_file_is_written_first(path: Path) -> None:
    running = {"default": ModelSettings(path="d.gguf", sequences=2, aliases=("x",))}
    set_model(path, "new", {"path": "n.gguf"}, beside=running)
    assert list(read_settings(path).models.items()) == [
        *running.items(),
        ("new", ModelSettings(path="n.gguf")),
    ]
    set_default_model(path, "x")
    assert read_settings(path).default_model == "x"
    assert path.read_text().startswith("default_model")
    set_default_model(path, None)
    assert read_settings(path).default_model is None


def test_settings_of_what_runs_beside_the_file(path: Path) -> None:
    running = {"default": ModelSettings(path="d.gguf", sequences=2)}
    set_model(path, "default", {"threads": 2}, beside=running)
    assert read_settings(path).models == {"default": ModelSettings(path="d.gguf", sequences=2, threads=2)}


def test_who_read_another_version_writes_nothing(path: Path) -> None:
    _, missing = read_file(path)
    assert missing == ""
    set_model(path, "a", {"path": "a.gguf"}, when=Condition(missing))
    _, first = read_file(path)
    with pytest.raises(SettingsConflictError):
        set_model(path, "b", {"path": "b.gguf"}, when=Condition(missing))
    path.write_text(path.read_text() + "# by hand\n")
    before = path.read_bytes()
    edits: list[Callable[[], None]] = [
        lambda: set_model(path, "a", {"threads": 1}, when=Condition(first)),
        lambda: remove_model(path, "a", when=Condition(first)),
        lambda: set_default_model(path, "a", when=Condition(first)),
        lambda: add_key(path, ALICE, when=Condition(first)),
    ]
    for edit in edits:
        with pytest.raises(SettingsConflictError) as error:
            edit()
        assert (error.value.status, error.value.code) == (409, "settings_conflict")
    assert path.read_bytes() == before
    set_model(path, "a", {"threads": 1}, when=Condition(read_file(path)[1]))


def test_a_model_keeps_the_mode_and_a_key_makes_it_private(path: Path) -> None:
    path.write_text(MODELS)
    path.chmod(0o644)
    set_model(path, "small", {"threads": 5})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    remove_key(path, "alice")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_read_only(path: Path) -> None:
    path.write_text(MODELS)
    path.chmod(0o444)
    with pytest.raises(ConfigError, match="cannot be written: it is read-only"):
        set_model(path, "small", {"threads": 5})
    assert path.read_text() == MODELS


def test_links_in_a_circle(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "other.toml")
    (tmp_path / "other.toml").symlink_to(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        set_model(path, "small", {"path": "s.gguf"})


def test_without_the_editor_the_command_says_how_to_install_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(MissingDependencyError) as error:
        add_key(path, ALICE)
    assert "server" in (error.value.hint or "")
    assert not path.exists()


def test_no_edit_of_several_processes_is_lost(path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom foredraft.server.settings import KeySettings\n"
        "from foredraft.server.settings_edit import add_key\n"
        "for at in range(3):\n"
        "    name = f'{sys.argv[2]}{at}'\n"
        "    key = KeySettings(name=name, hash='sha256:' + name.encode().hex().zfill(64))\n"
        "    add_key(Path(sys.argv[1]), key)\n"
    )
    editing = [subprocess.Popen([sys.executable, "-c", script, str(path), name]) for name in "abcdef"]
    assert [each.wait(60) for each in editing] == [0] * 6
    assert len(read_settings(path).keys) == 18
    assert [each.name for each in path.parent.iterdir()] == [path.name], "nothing is left beside it"


def test_a_file_that_is_mounted_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename to a mount point is refused."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr("foredraft.server.settings_edit.write_atomically", refuse)
    with pytest.raises(ConfigError, match="cannot be written: Device or resource busy") as error:
        set_model(path, "a", {"path": "a.gguf"})
    assert "mount its folder" in str(error.value.hint)


def test_what_is_not_accepted_is_not_written(path: Path) -> None:
    def refuse(settings: ServerSettings) -> None:
        raise ConfigError(f"{len(settings.models)} models are too many.")

    with pytest.raises(ConfigError, match="1 models are too many"):
        set_model(path, "a", {"path": "a.gguf"}, when=Condition(check=refuse))
    assert not path.exists()


APART = """\
# Models first.
[models.a]
path = "a.gguf"  # small

# About limits.
[limits]
max_n = 1

# The other model.
[models.b]
path = "b.gguf"
# The end.
"""


@pytest.mark.parametrize("name", ["a", "b"])
def test_comments_of_others_stay_where_tables_stand_between_the_models(path: Path, name: str) -> None:
    path.write_text(APART)
    before = read_settings(path)
    set_model(path, "c", {"path": "c.gguf"})
    remove_model(path, name)
    after = read_settings(path)
    assert list(after.models) == [each for each in "abc" if each != name]
    assert after.limits == before.limits
    comments = ["# Models first.", "# About limits.", "# The other model.", "# The end."]
    text = path.read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == comments
    assert text.index("# About limits.\n[limits]") < text.index("# The other model.")


def test_comments_in_a_list_stay_beside_their_values(path: Path) -> None:
    path.write_text(
        '[models.m]\npath = "m.gguf"\naliases = [\n  # For old clients.\n'
        '  "a",  # is a\n  "b",  # is b\n  "c",  # is c\n]\n'
    )
    for aliases in (["a", "b", "c", "d"], ["a", "b", "x", "c", "d"], ["a", "c", "d"], ["z", "c", "d"]):
        set_model(path, "m", {"aliases": aliases})
        assert list(read_settings(path).models["m"].aliases) == aliases
        assert "# For old clients.\n" in path.read_text()
        assert '"c",  # is c\n' in path.read_text()
    assert "# is b" not in path.read_text()
    set_model(path, "m", {"aliases": None})
    assert "aliases" not in path.read_text()


def test_comments_in_a_list_of_keys_stay_beside_them(path: Path) -> None:
    keys = [f'{{ name = "{name}", hash = "sha256:{name * 64}" }},  # is {name}' for name in "ab"]
    path.write_text("keys = [\n  " + "\n  ".join(keys) + "\n]\n")
    add_key(path, CAROL)
    change_key(path, "a", {"max_concurrent": 2})
    assert [each.max_concurrent for each in read_settings(path).keys] == [2, None, None]
    assert "# is a\n" in path.read_text()
    assert keys[1] in path.read_text()
    remove_key(path, "a")
    assert names(path) == ["b", "carol"]
    assert keys[1] in path.read_text()
