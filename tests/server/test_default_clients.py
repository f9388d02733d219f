"""What real clients send without being asked to: it breaks none of them, and what would have an effect that
does not exist here is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel

from foredraft.server.settings import KeySettings, ModelSettings, ServerSettings
from http_server import Running, client_of, serving

HELLO = [{"role": "user", "content": "hello"}]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def ask(client: openai.OpenAI, **options: Any) -> Any:
    given = {"messages": HELLO, "max_tokens": 12, "temperature": 0, **options}
    return client.chat.completions.create(model="fake", **given)


def text(client: openai.OpenAI, **options: Any) -> str:
    content: str = ask(client, **options).choices[0].message.content
    return content


# --- chat completions ----------------------------------------------------------------------------------

NEUTRAL: list[dict[str, Any]] = [
    {"store": False},
    {"store": None},
    {"metadata": {"trace": "7"}},
    {"metadata": None},
    {"service_tier": "auto"},
    {"service_tier": "default"},
    {"reasoning_effort": "none"},
    {"reasoning_effort": None},
    {"verbosity": "medium"},
    {"modalities": ["text"]},
    {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
    {"prompt_cache_retention": "in_memory"},
    {"audio": None, "functions": None, "function_call": None, "web_search_options": None},
    {"n": None, "stream": None, "stream_options": None, "stop": None, "seed": None},
    {"logit_bias": {}, "logprobs": False, "frequency_penalty": 0, "presence_penalty": 0, "top_p": 1},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tools": [], "tool_choice": "none"},
    {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
    {"response_format": {"type": "text"}},
    {"max_completion_tokens": 12},
    {"max_tokens": None, "max_completion_tokens": 12},
]


@pytest.mark.parametrize("options", NEUTRAL, ids="-".join)
def test_what_changes_nothing_is_accepted(client: openai.OpenAI, options: dict[str, Any]) -> None:
    body = {name: value for name, value in options.items() if value is None}
    given = {name: value for name, value in options.items() if name not in body}
    assert text(client, **given, extra_body=body) == text(client)


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "512"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort", "'none', 'minimal'"),
        ({"modalities": ["text", "audio"]}, "modalities", "only reads text and images"),
        ({"audio": {"voice": "ash", "format": "wav"}}, "audio", "only reads text and images"),
        ({"functions": [{"name": "f"}]}, "functions", "tools"),
        ({"function_call": "auto"}, "function_call", "tool_choice"),
        ({"web_search_options": {}}, "web_search_options", "searches and other servers"),
        ({"parallel_tool_calls": False}, None, "parallel_tool_calls needs tools"),
        ({"max_completion_tokens": 5}, None, "max_tokens and max_completion_tokens"),
        ({"messages": [{**HELLO[0], "tool_calls": [{}]}]}, "messages.0", "only messages of the assistant"),
        ({"messages": [{**HELLO[0], "tool_call_id": "c"}]}, "messages.0", "only messages of the role 'tool'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "image_url": "a"}]}]},
            "messages.0.content.0.image_url",
            "parts of a message's content",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]},
            "messages.0.audio",
            "only reads text and images",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]},
            "messages.0.function_call",
            "tool_calls",
        ),
    ],
)
def test_what_would_change_something_is_refused(
    client: openai.OpenAI, options: dict[str, Any], param: str | None, message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client, **options)
    assert caught.value.type == "invalid_request_error"
    if param is not None:
        assert caught.value.param == param


def test_a_stream_s_options(client: openai.OpenAI) -> None:
    for options in ({}, {"include_usage": False}, {"include_obfuscation": False, "include_usage": True}):
        assert list(ask(client, stream=True, stream_options=options))


def test_an_answer_goes_back_as_it_came(client: openai.OpenAI) -> None:
    """As the client's own object, and as the dict that people make of it."""
    message = ask(client).choices[0].message
    plain = [*HELLO, {"role": "assistant", "content": message.content}, {"role": "user", "content": "and?"}]
    expected = text(client, messages=plain)
    for back in (message, message.model_dump(), {**message.model_dump(), "annotations": []}):
        assert text(client, messages=[*HELLO, back, plain[-1]]) == expected


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the client, about its own object
def test_a_parsed_answer_goes_back_as_it_came(client: openai.OpenAI) -> None:
    class Size(BaseModel):
        width: int

    asked: Any = {"model": "fake", "messages": HELLO, "temperature": 0, "max_tokens": 100}
    message = client.chat.completions.parse(**asked, response_format=Size).choices[0].message
    assert isinstance(message.parsed, Size)
    assert text(client, messages=[*HELLO, message, HELLO[0]])


def test_parsed_calls_go_back_as_they_came() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    with serving(script=call) as running, client_of(running) as client:
        message = ask(client, tools=[FUNCTION], tool_choice="required", max_tokens=60).choices[0].message
        (made,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": made.id, "content": "12"}
        back = message.to_dict()
        back["tool_calls"][0] |= {"index": 0}
        back["tool_calls"][0]["function"] |= {"parsed_arguments": {}}
        for one in (message, back):
            assert ask(client, messages=[*HELLO, one, result], tools=[FUNCTION]).choices
        back["tool_calls"][0]["function"]["argument"] = "{}"
        with pytest.raises(openai.BadRequestError, match="Did you mean 'arguments'"):
            ask(client, messages=[*HELLO, back, result], tools=[FUNCTION])


def test_completions_with_what_the_client_leaves_null(client: openai.OpenAI) -> None:
    options: Any = {"model": "fake", "prompt": "hello", "max_tokens": 5, "temperature": 0}
    nothing = dict.fromkeys(
        ("n", "best_of", "echo", "logprobs", "suffix", "stop", "stream", "user", "logit_bias")
    )
    answer = client.completions.create(**options, extra_body=nothing)
    assert answer.choices[0].text == client.completions.create(**options).choices[0].text


# --- responses -----------------------------------------------------------------------------------------


def test_responses_take_the_same_hints(client: openai.OpenAI) -> None:
    options: Any = {"model": "fake", "input": "hello", "max_output_tokens": 5, "temperature": 0}
    plain = client.responses.create(**options).output_text
    hints: Any = {"prompt_cache_retention": "in_memory", "safety_identifier": "s", "metadata": {"a": "b"}}
    assert client.responses.create(**options, **hints).output_text == plain
    nothing = {"context_management": None, "moderation": None, "prompt_cache_retention": None}
    assert client.responses.create(**options, extra_body=nothing).output_text == plain


# --- Anthropic's ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def claude(server: Running) -> Any:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def message(options: dict[str, Any]) -> dict[str, Any]:
    """A request; this client has no name for the temperature."""
    body = {"temperature": 0, **options.get("extra_body", {})}
    return {"model": "fake", "messages": HELLO, "max_tokens": 12, **options, "extra_body": body}


@pytest.mark.parametrize(
    "options",
    [
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"metadata": {"user_id": "u"}, "service_tier": "auto"},
        {
            "system": [
                {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
            ]
        },
        {
            "extra_headers": {"anthropic-beta": "interleaved-thinking-2025-05-14"},
            "extra_query": {"beta": "true"},
        },
        {"extra_body": {"container": None, "inference_geo": None, "context_management": None}},
        {"extra_body": {"mcp_servers": []}},
        {"tools": [], "stop_sequences": []},
    ],
)
def test_what_agents_send_is_accepted(claude: anthropic.Anthropic, options: dict[str, Any]) -> None:
    whole = claude.messages.create(**message(options))
    assert [block.type for block in whole.content] == ["text"]
    with claude.messages.stream(**message(options)) as stream:
        streamed = stream.get_final_message()
    assert [block.to_dict()["text"] for block in streamed.content] == [whole.content[0].text]
    back = [{"role": "assistant", "content": streamed.content}, HELLO[0]]
    assert claude.messages.create(**message({**options, "messages": [*HELLO, *back]})).content


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"thinking": {"type": "on"}}, "thinking: .*'disabled', 'enabled'"),
        ({"extra_body": {"container": "c"}}, "container: .*containers are not supported"),
        ({"extra_body": {"mcp_servers": [{"type": "url"}]}}, "mcp_servers: .*your own tools"),
    ],
)
def test_what_agents_cannot_have_is_refused(
    claude: anthropic.Anthropic, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=expected) as caught:
        claude.messages.create(**message(options))
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_anthropic_s_client_lists_the_models(claude: anthropic.Anthropic) -> None:
    listed = claude.models.list()
    assert [(model.id, model.type, model.display_name) for model in listed] == [
        ("fake", "model", "fake"),
        ("other", "model", "other"),
    ]
    assert (listed.has_more, listed.first_id, listed.last_id) == (False, "fake", "other")
    assert claude.models.retrieve("other").created_at.year >= 2024


# --- HTTP ----------------------------------------------------------------------------------------------


def test_a_model_s_name_may_have_slashes() -> None:
    name = "org/model-1B"
    with serving(name, "plain") as running, client_of(running) as client:
        assert [model.id for model in client.models.list()] == [name, "plain"]
        assert client.models.retrieve(name).id == name
        for path in (name, name.replace("/", "%2F")):
            assert httpx.get(f"{running.url}/v1/models/{path}").json()["id"] == name
            assert httpx.post(f"{running.url}/v1/models/{path}/unload").json()["id"] == name
            assert httpx.post(f"{running.url}/v1/models/{path}/load").json() == {"id": name, "loaded": True}
        answer = client.chat.completions.create(model=name, messages=HELLO, max_tokens=2)  # type: ignore[arg-type]
        assert answer.model == name
        with pytest.raises(openai.NotFoundError, match="no model 'org/other'"):
            client.models.retrieve("org/other")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake", "/health", "/metrics"])
def test_head_is_get_without_the_body(server: Running, path: str) -> None:
    head, get = httpx.head(f"{server.url}{path}"), httpx.get(f"{server.url}{path}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert httpx.head(f"{server.url}/v1/nothing").status_code == 404
    assert httpx.head(f"{server.url}/v1/chat/completions").status_code == 405


def test_a_slash_at_the_end_changes_nothing(server: Running) -> None:
    listed = httpx.get(f"{server.url}/v1/models/")
    assert (listed.status_code, listed.json()) == (200, httpx.get(f"{server.url}/v1/models").json())
    body = {"model": "fake", "messages": HELLO, "max_tokens": 2}
    for path in ("/v1/chat/completions/", "/v1/messages/"):
        assert httpx.post(f"{server.url}{path}", json=body).status_code == 200
    assert httpx.post(f"{server.url}/v1/messages/", json={}).json()["type"] == "error"
    with openai.OpenAI(base_url=f"{server.url}/v1/", api_key="none", max_retries=0) as client:
        assert text(client)


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/messages", "/v1/messages"),
        ("GET", "/models", "/v1/models"),
        ("POST", "/v1/tokenize", "/tokenize"),
    ],
)
def test_a_wrong_base_address_is_found_out(server: Running, method: str, path: str, right: str) -> None:
    reply = httpx.request(method, f"{server.url}{path}", json={})
    assert reply.status_code == 404
    assert f"There is {right}" in reply.json()["error"]["message"]
    assert "There is /" not in httpx.get(f"{server.url}/v1/embeddings").json()["error"]["message"]


def test_options_is_for_browsers_that_were_invited() -> None:
    origin = {"Origin": "http://chat.example.org", "Access-Control-Request-Method": "POST"}
    asked = {**origin, "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}
    keys = (KeySettings(name="a", hash="sha256:" + "0" * 64),)
    settings = ServerSettings(cors_origins=("http://chat.example.org",), keys=keys)
    with serving(settings=settings) as running:
        allowed = httpx.options(f"{running.url}/v1/chat/completions", headers=asked)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == origin["Origin"]
        assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    with serving() as running:
        refused = httpx.options(f"{running.url}/v1/chat/completions", headers=asked)
        assert refused.status_code == 405
        assert "POST" in refused.headers["allow"]
        assert json.loads(refused.content)["error"]["code"] == "method_not_allowed"


# --- names of models -----------------------------------------------------------------------------------

NAMES = ("gpt-4o", "claude-sonnet-4-5", "FAKE", "default", "")


@pytest.mark.parametrize("name", NAMES)
def test_one_model_answers_to_any_name_and_says_its_own(name: str) -> None:
    body = {"model": name, "max_tokens": 2}
    with serving() as running:
        for path, more in (
            ("/v1/chat/completions", {"messages": HELLO}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/messages", {"messages": HELLO}),
            ("/tokenize", {"content": "a"}),
        ):
            given = {"model": name, "content": "a"} if path == "/tokenize" else {**body, **more}
            reply = httpx.post(f"{running.url}{path}", json=given, timeout=30)
            assert reply.status_code == 200, reply.text
            assert reply.json().get("model", "fake") == "fake"
        listed = httpx.get(f"{running.url}/v1/models").json()["data"]
        assert [model["id"] for model in listed] == ["fake"], "what is listed is what is there"
        assert httpx.get(f"{running.url}/v1/models/gpt-4o").status_code == 404
        assert httpx.post(f"{running.url}/v1/models/gpt-4o/unload").status_code == 404


@pytest.mark.parametrize(
    ("models", "settings", "status"),
    [
        (("fake",), ServerSettings(any_model_name=False), 404),
        (("fake", "other"), ServerSettings(), 404),
        (("fake", "other"), ServerSettings(any_model_name=True), 404),
        (("fake",), ServerSettings(any_model_name=True), 200),
    ],
)
def test_whether_a_model_answers_to_any_name(
    models: tuple[str, ...], settings: ServerSettings, status: int
) -> None:
    with serving(*models, settings=settings) as running:
        body = {"model": "gpt-4o", "messages": HELLO, "max_tokens": 2}
        reply = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=30)
    assert reply.status_code == status
    if status == 404:
        assert f"Available: {', '.join(models)}" in reply.json()["error"]["message"]


def test_by_default_only_on_this_computer() -> None:
    models = {"fake": ModelSettings(path="fake")}
    hosts = {"127.0.0.1": "fake", "localhost": "fake", "::1": "fake", "0.0.0.0": None, "example.org": None}
    found = {host: ServerSettings(host=host, models=models).answering("gpt-4o") for host in hosts}
    assert found == hosts
