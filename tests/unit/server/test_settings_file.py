"""Reading the settings file, comparing two versions of it, and noticing edits."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import ConfigError
from foredraft.server.settings import KeySettings, Limits, ModelSettings, ServerSettings
from foredraft.server.settings_file import (
    SettingsChange,
    SettingsWatcher,
    diff,
    parse_settings,
    read_settings,
)

HASH = "sha256:" + "a" * 64
KEY = f'[[keys]]\nname = "alice"\nhash = "{HASH}"\n'


def parse(text: str) -> ServerSettings:
    return parse_settings(text, Path("foredraft.toml"))


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert error.value.message.startswith("foredraft.toml")
    return error.value


# --- reading -------------------------------------------------------------------------------------------


def test_an_empty_file_is_the_defaults() -> None:
    assert parse("") == ServerSettings()
    assert parse("# nothing\n") == ServerSettings()


def test_every_part_arrives() -> None:
    settings = parse(
        'host = "::1"\ncors_origins = ["https://a.example"]\nidle_timeout_s = 5\n'
        "[limits]\nmax_n = 2\n"
        '[models."org/m.Q4_0"]\npath = "m"\naliases = ["x", "y"]\nsampling = { temperature = 1 }\n' + KEY
    )
    model = settings.models["org/m.Q4_0"]
    assert settings.host == "::1"
    assert settings.cors_origins == ("https://a.example",)
    assert settings.idle_timeout_s == 5
    assert settings.limits == Limits(max_n=2)
    assert (model.path, model.aliases, model.sampling.temperature) == ("m", ("x", "y"), 1)
    assert settings.keys == (KeySettings(name="alice", hash=HASH),)


@pytest.mark.parametrize(
    ("text", "where", "guess"),
    [
        ("hots = 1", "the top level", "'host'"),
        ("[limits]\nmax_wait = 1", "[limits]", "'max_waiting'"),
        ('[models.m]\npath = "x"\nthread = 1', "[models.m]", "'threads'"),
        (
            '[models.m]\npath = "x"\n[models.m.sampling]\ntemprature = 1',
            "[models.m.sampling]",
            "'temperature'",
        ),
        (KEY + "requests_a_minute = 1", "[[keys]] number 1", "'requests_per_minute'"),
        (KEY + KEY + "scop = 1", "[[keys]] number 2", "'scope'"),
        ("model = 1", "the top level", "'models'"),
    ],
)
def test_unknown_keys(text: str, where: str, guess: str) -> None:
    error = refused(text)
    assert f"{where}: there is no key" in error.message
    assert f"Did you mean {guess}?" in (error.hint or "")


def test_an_unknown_key_like_nothing_lists_the_valid_ones() -> None:
    hint = refused("[limits]\nzzz = 1").hint or ""
    assert "Did you mean" not in hint
    assert "max_body_bytes" in hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = '80'", "the top level: port='80'"),
        ("cors_origins = 'x'", "cors_origins='x'"),
        ("cache_dir = 5", "cache_dir=5"),
        ("cache_dir = ''", "cache_dir=''"),
        ("cache_dir = '~no-such-user-here/x'", "cache_dir"),
        ("llama_library = ''", "llama_library=''"),
        ("host = 1979-05-27", "host="),
        ("limits = 5", "[limits]: 5 is not a table"),
        ("limits = [1]", "[limits]: (1,) is not a table"),
        ("[limits]\nmax_n = 0", "[limits]: max_n=0"),
        ("models = 5", "[models]: 5 is not a table"),
        ("[models]\nm = 5", "[models.m]: 5 is not a table"),
        ("[models.m]\nthreads = 1", "[models.m]: path is missing"),
        ("[models.m]\npath = 5", "[models.m]: path=5"),
        ("[models.m]\npath = 'x'\ndraft_model = 5", "draft_model=5"),
        ("[models.m]\npath = 'x'\nthreads = 1.5", "[models.m]: threads=1.5"),
        ("[models.m]\npath = 'x'\nspeculate = 'sufix'", "[models.m]: There is no drafter named 'sufix'"),
        ("[models.m]\npath = 'x'\nsampling = 1", "[models.m.sampling]: 1 is not a table"),
        ("[models.m]\npath = 'x'\nsampling.top_p = nan", "[models.m.sampling]: top_p is nan"),
        ("keys = 5", "[[keys]]: 5 is not a list of tables"),
        ("keys = [5]", "[[keys]] number 1: 5 is not a table"),
        ("[keys]\nname = 'x'", "[[keys]]: {'name': 'x'} is not a list"),
        ("[[keys]]\nname = 'x'", "[[keys]] number 1: hash is missing"),
        (f"[[keys]]\nhash = '{HASH}'", "[[keys]] number 1: name is missing"),
        (KEY + KEY, "Two keys are named 'alice'"),
    ],
)
def test_values_that_do_not_fit(text: str, says: str) -> None:
    error = refused(text)
    assert says in error.message
    assert error.hint


@pytest.mark.parametrize(
    "text",
    ["host", "host = ", "a = 1\na = 2", "x = " + "9" * 5000, "x = " + "[" * 5000, "\0", "d = 2024-13-01"],
)
def test_what_is_not_toml(text: str) -> None:
    assert "is not valid TOML" in refused(text).message


@given(
    st.dictionaries(
        st.sampled_from(["host", "port", "models", "limits", "keys", "cors_origins", "cache_dir", "metrics"]),
        st.sampled_from(
            ["1", "-1", "0.5", "nan", "true", '""', '"x"', "[]", "[[]]", "{}", "[{}]", "{a={}}", "12:00:00"]
        ),
    )
)
def test_any_toml_is_read_or_refused(values: dict[str, str]) -> None:
    text = "".join(f"{key} = {value}\n" for key, value in values.items())
    try:
        settings = parse(text)
    except ConfigError:
        assert refused(text).hint
    else:
        assert isinstance(settings, ServerSettings)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no settings file"):
        read_settings(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(Path("a\0b"))
    (tmp_path / "latin.toml").write_bytes(b'host = "\xe9"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_settings(tmp_path / "latin.toml")


def test_a_byte_order_mark_is_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "foredraft.toml"
    path.write_bytes(b"\xef\xbb\xbfport = 1\r\n")
    assert read_settings(path).port == 1


def test_paths_count_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.gguf").touch()
    path = tmp_path / "foredraft.toml"
    path.write_text(
        'cache_dir = "cache"\nllama_library = "lib/libllama.so"\n'
        '[models.a]\npath = "models/m.gguf"\ndraft_model = "./small.gguf"\n'
        '[models.b]\npath = "owner/name"\n[models.c]\npath = "/abs/m.gguf"\n[models.d]\npath = "'
        + "x" * 5000
        + '"'
    )
    settings = read_settings(path)
    assert settings.cache_dir == tmp_path / "cache"
    assert settings.llama_library == tmp_path / "lib" / "libllama.so"
    assert settings.models["a"].path == str(tmp_path / "models" / "m.gguf")
    assert settings.models["a"].draft_model == str(tmp_path / "small.gguf")
    assert settings.models["b"].path == "owner/name"
    assert settings.models["c"].path == "/abs/m.gguf"
    assert parse('cache_dir = "~/x"').cache_dir == Path.home() / "x"


# --- what changed --------------------------------------------------------------------------------------


def test_nothing_changed() -> None:
    assert not diff(ServerSettings(), ServerSettings())
    assert diff(ServerSettings(), ServerSettings()) == SettingsChange()


def test_what_an_edit_changed() -> None:
    model = ModelSettings(path="m.gguf")
    old = ServerSettings(models={"gone": model, "same": model, "renamed": model, "slower": model})
    new = ServerSettings(
        host="::1",
        port=1,
        limits=Limits(max_n=1),
        keys=(KeySettings(name="alice", hash=HASH),),
        models={
            "new": model,
            "same": ModelSettings(path="m.gguf"),
            "renamed": replace(model, aliases=("x",)),
            "slower": replace(model, threads=1),
        },
    )
    assert diff(old, new) == SettingsChange(
        added=("new",),
        removed=("gone",),
        changed=("renamed", "slower"),
        reload=("slower",),
        live=("limits", "keys"),
        restart=("host", "port"),
    )


@pytest.mark.parametrize(
    "change", [{"added": ("m",)}, {"removed": ("m",)}, {"live": ("limits",)}, {"restart": ("port",)}]
)
def test_any_change_is_one(change: dict[str, tuple[str, ...]]) -> None:
    assert SettingsChange(**change)


# --- noticing edits ------------------------------------------------------------------------------------


class File:
    """A settings file whose every edit has a time of its own: clocks of file systems are coarse."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._time = 1_000_000_000
        self.write(KEY)

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self._time += 1
        os.utime(self.path, (self._time, self._time))


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "foredraft.toml")


@pytest.fixture
def watcher(file: File) -> SettingsWatcher:
    return SettingsWatcher(file.path)


def settled(watcher: SettingsWatcher) -> ServerSettings | ConfigError | None:
    assert watcher.poll() is None
    return watcher.poll()


def test_making_a_watcher_reads_the_file(file: File, watcher: SettingsWatcher) -> None:
    assert watcher.current == read_settings(file.path)
    file.write("port = 'x'")
    with pytest.raises(ConfigError, match="port"):
        SettingsWatcher(file.path)


def test_an_edit_is_noticed_once(file: File, watcher: SettingsWatcher) -> None:
    assert settled(watcher) is None
    file.write("port = 1\n" + KEY)
    new = settled(watcher)
    assert isinstance(new, ServerSettings)
    assert (new.port, watcher.current) == (1, new)
    assert settled(watcher) is None


def test_an_edit_that_is_still_going_on_is_not_read(file: File, watcher: SettingsWatcher) -> None:
    for text in ("", KEY[:20], "port = 1\n"):
        file.write(text)
        assert watcher.poll() is None
    file.write("port = 2\n" + KEY)
    new = settled(watcher)
    assert isinstance(new, ServerSettings)
    assert new.port == 2


def test_a_wrong_edit_is_said_once_and_changes_nothing(file: File, watcher: SettingsWatcher) -> None:
    before = watcher.current
    file.write("prot = 1\n" + KEY)
    error = settled(watcher)
    assert isinstance(error, ConfigError)
    assert "'prot'" in error.message
    assert settled(watcher) is None
    assert watcher.current is before
    file.write("port = 1\n" + KEY)
    assert isinstance(settled(watcher), ServerSettings)


def test_an_edit_that_means_the_same_is_none(file: File, watcher: SettingsWatcher) -> None:
    file.write("# a comment\n" + KEY)
    assert settled(watcher) is None
    file.write("port = 1\n" + KEY)
    assert isinstance(settled(watcher), ServerSettings)


def test_a_file_that_is_gone_and_comes_back(file: File, watcher: SettingsWatcher) -> None:
    file.path.unlink()
    error = settled(watcher)
    assert isinstance(error, ConfigError)
    assert "There is no settings file" in error.message
    assert settled(watcher) is None
    file.write("port = 1\n" + KEY)
    assert isinstance(settled(watcher), ServerSettings)


@pytest.mark.parametrize("text", ["", "port = 1\n"])
def test_losing_every_key_takes_a_restart(file: File, watcher: SettingsWatcher, text: str) -> None:
    file.write(text)
    error = settled(watcher)
    assert isinstance(error, ConfigError)
    assert "no longer has any keys" in error.message
    assert watcher.current.keys
    file.write(KEY.replace("alice", "bob"))
    new = settled(watcher)
    assert isinstance(new, ServerSettings)
    assert [key.name for key in new.keys] == ["bob"]


def test_a_server_without_keys_may_get_one(file: File) -> None:
    file.write("")
    watcher = SettingsWatcher(file.path)
    file.write(KEY)
    new = settled(watcher)
    assert isinstance(new, ServerSettings)
    assert new.keys
