"""LoRA adapters over HTTP: chosen as models, listed with their parents, unknown ones refused."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import gguf_adapters
import gguf_factory
from foredraft.errors import ConfigError
from foredraft.server.settings import AdapterSettings, ModelSettings, ServerSettings
from foredraft.server.settings_edit import set_model
from foredraft.server.settings_file import parse_settings
from foredraft.testing import FakeModel
from http_server import Running, serving, writing_logits
from served_process import served

ADAPTERS = tuple(AdapterSettings(name=name, path=f"{name}.gguf") for name in ("sql", "terse"))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    def model() -> FakeModel:
        return FakeModel(258, logits=writing_logits(), adapters=("sql", "terse"))

    with serving("base", model=model, adapters=ADAPTERS) as running:
        yield running


def ask(url: str, model: str | None, prompt: str = "A long time ago") -> httpx.Response:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
    return httpx.post(f"{url}/v1/completions", json=body | ({"model": model} if model else {}), timeout=60)


def test_a_request_chooses_its_adapter_as_model(server: Running) -> None:
    answers = {name: ask(server.url, name).json() for name in ("base", "sql", "terse")}
    assert [answer["model"] for answer in answers.values()] == ["base", "sql", "terse"]
    assert len({answer["choices"][0]["text"] for answer in answers.values()}) == 3
    again = {name: ask(server.url, name).json() for name in ("terse", "sql", "base")}
    for name, answer in again.items():
        assert answer["choices"] == answers[name]["choices"], "not from another adapter's cells"
    assert again["terse"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert ask(server.url, None).json()["choices"] == answers["base"]["choices"]


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_every_api_has_them(api: str, server: Running) -> None:
    message = [{"role": "user", "content": "Hello"}]
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("chat/completions", {"messages": message}),
        "responses": ("responses", {"input": "Hello"}),
        "messages": ("messages", {"messages": message, "max_tokens": 8}),
    }
    address, body = asked[api]
    reply = httpx.post(f"{server.url}/v1/{address}", json={**body, "model": "sql"}, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == "sql"


def test_they_are_listed_with_their_parent(server: Running) -> None:
    listed = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [(it["id"], it.get("parent")) for it in listed] == [
        ("base", None),
        ("sql", "base"),
        ("terse", "base"),
    ]
    assert httpx.get(f"{server.url}/v1/models/terse").json()["parent"] == "base"


def test_an_unknown_name_is_not_found(server: Running) -> None:
    reply = ask(server.url, "sqll")
    assert reply.status_code == 404
    assert "base, sql, terse" in reply.json()["error"]["message"]


def test_the_field_of_other_servers_says_what_to_send(server: Running) -> None:
    body = {"prompt": "a", "lora": [{"id": 0, "scale": 1.0}]}
    reply = httpx.post(f"{server.url}/v1/completions", json=body)
    assert reply.status_code == 400
    assert "as model" in reply.text


def test_an_adapter_that_is_added_while_its_model_answers_waits_for_it() -> None:
    """Its requests are never answered by the model alone."""

    def model() -> FakeModel:
        return FakeModel(258, logits=writing_logits(end=-99.0), adapters=("sql",), context_length=100_000)

    added = ServerSettings(
        models={
            "base": ModelSettings(path="base", adapters=ADAPTERS[:1]),
            "other": ModelSettings(path="other"),
        }
    )
    coming = [added]
    with serving("base", "other", model=model, reload=lambda: coming.pop() if coming else None) as running:
        body = {"model": "base", "prompt": "A", "max_tokens": 90_000, "stream": True}
        with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=60) as busy:
            assert busy.status_code == 200
            lines = busy.iter_lines()
            while ask(running.url, "sql").status_code == 404:  # until the settings are taken
                next(lines)
            refused = ask(running.url, "sql")
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) > 0
            assert "sql is not loaded yet" in refused.json()["error"]["message"]
        for _ in range(100):  # until the server knows that the client has gone
            found = ask(running.url, "sql")
            if found.status_code == 200:
                break
            time.sleep(0.1)
        assert found.json()["model"] == "sql"
        assert found.json()["choices"] != ask(running.url, "base").json()["choices"]


@pytest.mark.parametrize("api", ["embeddings", "rerank"])
def test_who_asks_an_adapter_for_a_vector_reads_its_name(api: str, server: Running) -> None:
    body = (
        {"model": "sql", "input": "a"}
        if api == "embeddings"
        else {"model": "sql", "query": "a", "documents": ["b"]}
    )
    reply = httpx.post(f"{server.url}/v1/{api}", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("sql ")


# --- the settings ----------------------------------------------------------------------------------------

FILE = """\
[models.base]
path = "base.gguf"

# what it answers customers with
[models.base.adapters.sql]
path = "adapters/sql.gguf"
scale = 0.5

[models.base.adapters.terse]
path = "/elsewhere/terse.gguf"
"""


def test_the_file_has_a_table_for_each(tmp_path: Path) -> None:
    settings = parse_settings(FILE, tmp_path / "foredraft.toml")
    assert settings.models["base"].adapters == (
        AdapterSettings(name="sql", path=str(tmp_path / "adapters/sql.gguf"), scale=0.5),
        AdapterSettings(name="terse", path="/elsewhere/terse.gguf"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE.replace("scale = 0.5", 'scale = "half"'), "scale"),
        (FILE.replace("scale = 0.5", "scale = nan"), "scale"),
        (FILE.replace("scale = 0.5", "scale = 1e39"), "a sensible size"),
        (FILE.replace("scale = 0.5", "weight = 0.5"), "there is no key 'weight'"),
        (FILE.replace('path = "adapters/sql.gguf"', ""), "path is missing"),
        (FILE.replace("adapters.terse", "adapters.base"), "Two models are named 'base'"),
        ("[models.base]\npath = 'a'\nadapters = {sql = 1}", "is not a table"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(text, tmp_path / "foredraft.toml")


def test_two_models_cannot_have_adapters_of_one_name() -> None:
    models = {name: ModelSettings(path=name, adapters=ADAPTERS) for name in ("a", "b")}
    with pytest.raises(ConfigError, match="Two models are named 'sql'"):
        ServerSettings(models=models)


def test_another_adapter_needs_the_model_again() -> None:
    one = ModelSettings(path="a", adapters=ADAPTERS[:1])
    assert not ModelSettings(path="a", adapters=ADAPTERS).loads_like(one)
    assert one.loads_like(ModelSettings(path="a", adapters=ADAPTERS[:1]))


def test_a_change_of_the_model_keeps_them(tmp_path: Path) -> None:
    file = tmp_path / "foredraft.toml"
    file.write_text(FILE)
    set_model(file, "base", {"sequences": 2, "sampling": {"temperature": 0.5}})
    text = file.read_text()
    assert "# what it answers customers with" in text
    assert (
        tomllib.loads(text)["models"]["base"]["adapters"] == tomllib.loads(FILE)["models"]["base"]["adapters"]
    )


def test_a_model_of_the_command_line_is_written_with_them(tmp_path: Path) -> None:
    file = tmp_path / "foredraft.toml"
    model = ModelSettings(path="base.gguf", adapters=ADAPTERS)
    set_model(file, "base", {"sequences": 2}, beside={"base": model})
    found = parse_settings(file.read_text(), file).models["base"]
    assert [adapter.name for adapter in found.adapters] == ["sql", "terse"]


def test_a_served_gguf_answers_with_its_adapter(tmp_path: Path) -> None:
    base = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", weight_type="q8_0", mixing=0.5)
    gguf_adapters.lora(tmp_path / "one.gguf", base)
    file = tmp_path / "foredraft.toml"
    file.write_text(
        '[models.tiny]\npath = "tiny.gguf"\nthreads = 1\n[models.tiny.adapters.one]\npath = "one.gguf"\n'
    )
    with served(file, tmp_path / "cache") as (url, _):
        texts = {name: ask(url, name).json()["choices"][0]["text"] for name in ("tiny", "one")}
        assert texts["tiny"] != texts["one"]
        [_, listed] = httpx.get(f"{url}/v1/models").json()["data"]
        assert listed["meta"]["memory_bytes"]["adapters"] > 0
