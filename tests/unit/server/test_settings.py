"""Settings are valid or not made at all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from foredraft.config import Speculation, Stage
from foredraft.errors import ConfigError, quoted
from foredraft.server.settings import (
    KeySettings,
    Limits,
    ModelSettings,
    SamplingDefaults,
    ServerSettings,
)

HASH = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def refused(kind: type[Any], **values: Any) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        kind(**values)
    return error.value


def test_nothing_needs_to_be_set() -> None:
    settings = ServerSettings()
    assert (settings.host, settings.cors_origins, settings.keys) == ("127.0.0.1", (), ())
    assert settings.limits == Limits()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""),
        ("host", 1),
        ("port", 65536),
        ("port", -1),
        ("port", "8080"),
        ("port", True),
        ("port", 80.0),
        ("default_model", "missing"),
        ("default_model", {}),
        ("admin_key_hash", 1),
        ("cors_origins", "https://a.example"),
        ("cors_origins", ("a.example",)),
        ("cors_origins", ("https://a.example/",)),
        ("cors_origins", ("https://A.example",)),
        ("cors_origins", ("https://a.example:x",)),
        ("cors_origins", ("https://[",)),
        ("cors_origins", ("https://me@a.example",)),
        ("cors_origins", (None,)),
        ("memory_budget_bytes", 0),
        ("idle_timeout_s", 0),
        ("idle_timeout_s", math.nan),
        ("idle_timeout_s", math.inf),
        ("idle_timeout_s", 1e10),
        ("cache_dir", "text"),
        ("llama_library", "text"),
        ("remember", 1),
        ("prefix_cache_gb", -1),
        ("prefix_cache_gb", "4"),
        ("prefix_cache_gb", True),
        ("prefix_cache_gb", math.inf),
        ("log_format", "xml"),
        ("log_format", 1),
        ("metrics", "yes"),
    ],
)
def test_values_that_do_not_fit(name: str, value: Any) -> None:
    error = refused(ServerSettings, **{name: value})
    assert name in error.message
    assert f"{name} must be " in (error.hint or "")


@pytest.mark.parametrize(
    "origin", ["*", "https://a.example", "http://localhost:3000", "http://[::1]:3000", "app://x"]
)
def test_origins(origin: str) -> None:
    assert ServerSettings(cors_origins=(origin,)).cors_origins == (origin,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_waiting", -1),
        ("max_body_bytes", 0),
        ("max_prompt_tokens", 0),
        ("max_completion_tokens", "many"),
        ("max_n", 0),
        ("max_stop", 1.5),
        ("max_logit_bias", True),
        ("max_schema_bytes", -1),
        ("request_timeout_s", 0),
        ("request_timeout_s", math.inf),
        ("request_timeout_s", 1e10),
        ("request_timeout_s", 10**400),
        ("request_timeout_s", "1"),
    ],
)
def test_limits_that_do_not_fit(name: str, value: Any) -> None:
    error = refused(Limits, **{name: value})
    assert f"{name}={quoted(value)}" in error.message
    assert name in (error.hint or "")


# --- models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", ""),
        ("path", 1),
        ("path", "a\0b"),
        ("aliases", "one"),
        ("aliases", ("two words",)),
        ("aliases", ("",)),
        ("aliases", (1,)),
        ("aliases", ("x" * 129,)),
        ("speculate", 1),
        ("speculate", ""),
        ("speculate", "no-such-drafter"),
        ("draft_model", ""),
        ("context_length", -1),
        ("sequences", 0),
        ("threads", "2"),
        ("gpu_layers", -2),
        ("memory", "disk"),
        ("kv_type", 16),
        ("pinned", "yes"),
        ("sampling", {}),
    ],
)
def test_models_that_do_not_fit(name: str, value: Any) -> None:
    error = refused(ModelSettings, **({"path": "m.gguf"} | {name: value}))
    assert name in str(error) or "peculation" in str(error) or "drafter" in str(error)
    assert error.hint


@pytest.mark.parametrize("speculate", ["suffix:max=99", "auto;ngram-mod:tokens=3", "draft-model:max=4"])
def test_options_of_drafters_are_checked(speculate: str) -> None:
    error = refused(ModelSettings, path="m.gguf", speculate=speculate)
    assert error.setting == "speculate"


def test_a_draft_model_joins_what_speculates() -> None:
    draft = Stage("draft-model", {"model": "a,b;c.gguf"})
    model = ModelSettings(path="m.gguf", draft_model="a,b;c.gguf")
    assert model.speculation() == Speculation(True, (draft,))
    chosen = ModelSettings(path="m.gguf", speculate="suffix", draft_model="a,b;c.gguf")
    assert chosen.speculation() == Speculation(False, (Stage("suffix"), draft))


@pytest.mark.parametrize("speculate", ["off", "draft-model:model=x.gguf"])
def test_a_draft_model_that_contradicts(speculate: str) -> None:
    error = refused(ModelSettings, path="m.gguf", speculate=speculate, draft_model="d.gguf")
    assert "contradict" in error.message


def test_only_what_matters_for_loading_means_another_load() -> None:
    model = ModelSettings(path="m.gguf")
    same = ModelSettings(
        path="m.gguf", aliases=("x",), pinned=True, sampling=SamplingDefaults(temperature=1.0)
    )
    assert same.loads_like(model)
    for values in ({"path": "n.gguf"}, {"threads": 2}, {"speculate": "off"}, {"draft_model": "d.gguf"}):
        changed: dict[str, Any] = {"path": "m.gguf", **values}
        assert not ModelSettings(**changed).loads_like(model)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", -1.0), ("top_p", 2.0), ("top_k", 1.5), ("max_tokens", 0)]
)
def test_sampling_that_does_not_fit(name: str, value: Any) -> None:
    assert name in refused(SamplingDefaults, **{name: value}).message


def test_only_what_was_given_is_a_default() -> None:
    assert SamplingDefaults(temperature=0.0, top_k=0).given() == {"temperature": 0.0, "top_k": 0}
    assert SamplingDefaults().given() == {}


def test_finding_a_model() -> None:
    models = {"a": ModelSettings(path="a.gguf", aliases=("gpt",)), "b": ModelSettings(path="b.gguf")}
    settings = ServerSettings(models=models)
    found = [settings.find_model(name) for name in ("a", "b", "gpt", "c", None)]
    assert found == ["a", "b", "a", None, "a"]
    assert ServerSettings(models=models, default_model="b").find_model(None) == "b"
    # An alias may be the default, and the answer is still a key of `models`.
    by_alias = ServerSettings(models=models, default_model="gpt")
    assert by_alias.find_model(None) == "a"
    assert ServerSettings().find_model(None) is None


@pytest.mark.parametrize("name", ["", "two words", "tab\t", "x" * 129])
def test_names_of_models_that_do_not_fit(name: str) -> None:
    assert "models" in refused(ServerSettings, models={name: ModelSettings(path="a")}).message


@pytest.mark.parametrize("alias", ["b", "same"])
def test_names_are_used_once(alias: str) -> None:
    models = {
        "a": ModelSettings(path="a", aliases=(alias,)),
        "b": ModelSettings(path="b", aliases=("same",)),
    }
    assert repr(alias) in refused(ServerSettings, models=models).message


# --- keys ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""),
        ("name", "two words"),
        ("name", "-x"),
        ("name", "x" * 65),
        ("name", "x\n"),
        ("name", "admin"),
        ("name", "local"),
        ("name", 1),
        ("scope", 1),
        ("scope", "x\n"),
        ("scope", "x" * 129),
        ("requests_per_minute", 0),
        ("max_concurrent", 0.5),
    ],
)
def test_keys_that_do_not_fit(name: str, value: Any) -> None:
    error = refused(KeySettings, **({"name": "alice", "hash": HASH} | {name: value}))
    assert f"{name}={quoted(value)}" in error.message


@pytest.mark.parametrize("value", ["ft-secret", "sha256:" + "A" * 64, HASH + "0", HASH + "\n", 51_423])
def test_what_is_no_hash_is_not_repeated(value: Any) -> None:
    """It may be the key itself."""
    for error in (
        refused(KeySettings, name="alice", hash=value),
        refused(ServerSettings, admin_key_hash=value),
    ):
        assert "hash" in error.message
        assert repr(value) not in str(error)
        assert str(value) not in str(error)


def test_the_scope_is_the_name_unless_said() -> None:
    assert KeySettings(name="alice", hash=HASH).effective_scope == "alice"
    assert KeySettings(name="alice", hash=HASH, scope="team").effective_scope == "team"
    assert KeySettings(name="alice", hash=HASH, scope="").effective_scope == ""


def test_keys_are_told_apart() -> None:
    alice = KeySettings(name="alice", hash=HASH)
    same_name = KeySettings(name="alice", hash=OTHER)
    same_key = KeySettings(name="bob", hash=HASH)
    assert "'alice'" in refused(ServerSettings, keys=(alice, same_name)).message
    assert "alice and bob" in refused(ServerSettings, keys=(alice, same_key)).message
    assert "admin" in refused(ServerSettings, keys=(alice,), admin_key_hash=HASH).message
    both = ServerSettings(keys=(alice, KeySettings(name="bob", hash=OTHER)))
    assert [key.name for key in both.keys] == ["alice", "bob"]
