"""Every form of calls through the server, in all three APIs: read, forced, cut, and handed back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import http_server
from api_cases import CITY, Ask, Said, chat, chat_folded, every_api, every_way, messages, post, responses
from call_forms import FORMS, Form
from claude_server import replying_model
from foredraft.server.tools.detect import spoken_dialect
from http_server import Running, serving
from matrix import matrix

# What the templates of each form write, by which it is known.
MARKS = {
    "hermes": "<tool_call>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS]",
    "mistral-named": "[TOOL_CALLS][ARGS]",
    "qwen-coder": "<tool_call><function=f><parameter=a>",
    "glm": "<tool_call><arg_key>",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "deepseek-fenced": "<｜tool▁calls▁begin｜>```json",
    "harmony": "<|channel|>commentary to=functions.f",
    "phi4": "<|tool_call|><|/tool_call|>",
    "phi4-functools": "functools[",
    "granite": "<|tool_call|>",
    "command": "<|START_ACTION|>",
    "gemma": "<|tool_call>",
    "function-gemma": "<start_function_call>",
    "pythonic": "```tool_code",
    "lfm": "<|tool_call_start|>",
}
TEMPLATE = """{% if tools %}MARKS{{ tools | tojson }}{% endif %}
{% for message in messages %}{{ message.role }}- {{ message.content }}
{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{% endfor %}
{% if add_generation_prompt %}assistant: {% endif %}"""
CALL: tuple[str, dict[str, Any]] = ("f", {"city": "Oslo"})


@contextmanager
def speaking(monkeypatch: pytest.MonkeyPatch, name: str, reply: str) -> Iterator[Running]:
    """A server whose model speaks this form, and answers so."""
    template = TEMPLATE.replace("MARKS", MARKS[name])
    assert spoken_dialect(template, {"tools"}) == FORMS[name].dialect
    monkeypatch.setattr(http_server, "writing_model", lambda **_: replying_model(lambda _: reply, template))
    with serving() as running:
        yield running


def written(form: Form) -> str:
    """The call as the form's grammar lets it be written."""
    text = form.write([CALL]).removesuffix("<|call|>")
    if form.dialect.name == "pythonic":
        text = text.removeprefix("```tool_code\n").removesuffix("\n```")
    return text.removeprefix("<|python_tag|>").replace("'", '"')


@matrix(
    strength=1,
    name=FORMS,
    ask=[chat, responses, messages],
    stream=[False, True],
    ids={"stream": ["whole", "streamed"]},
)
def test_calls_are_read_forced_cut_and_taken_back(
    monkeypatch: pytest.MonkeyPatch, name: str, ask: Ask, stream: bool
) -> None:
    text = written(FORMS[name])
    with speaking(monkeypatch, name, text) as running:
        for forced in (False, True):
            said = ask(running, 400, [], stream=stream, forced=forced)
            assert (said.text, said.reason) == ("", "tool_calls"), forced
            assert [(called, json.loads(given)) for called, given in said.calls] == [CALL]
        prefix = FORMS[name].dialect.markers[0]
        for most in (3, len(prefix) + 2, len(text) * 2 // 3):
            cut = ask(running, most, [], stream=stream, forced=False)
            assert (cut.text, cut.reason) == ("", "length"), most
            assert_taken_back(ask(running, 3, cut.back, stream=stream, forced=False))
        assert_taken_back(ask(running, 3, said.back, stream=False, forced=True))


def assert_taken_back(said: Said) -> None:
    assert said.reason == "length"


THOUGHT = "<|channel|>analysis<|message|>Four?<|end|><|start|>assistant<|channel|>final<|message|>It is 4."


@every_api
@every_way
def test_channels_are_no_part_of_the_text(monkeypatch: pytest.MonkeyPatch, ask: Any, stream: bool) -> None:
    with speaking(monkeypatch, "harmony", THOUGHT) as running:
        said = ask(running, 400, [], stream=stream, forced=False)
        assert (said.text, said.reason) == ("It is 4.", "stop")
        ask(running, 400, said.back, stream=stream, forced=False)


@every_way
def test_what_the_model_thinks_is_beside_the_text(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """Also where no tools are sent; and it goes back as it came."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "2 + 2?"}], "stream": stream}
    with speaking(monkeypatch, "harmony", THOUGHT) as running:
        reply = post(running, "/v1/chat/completions", body)
        message = (chat_folded(reply) if stream else reply.json()["choices"][0])["message"]
        assert (message["content"], message["reasoning_content"]) == ("It is 4.", "Four?")
        again = [*body["messages"], message, *body["messages"]]
        post(running, "/v1/chat/completions", {**body, "messages": again})


def test_a_strict_function_of_a_schema_that_the_form_cannot_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = {**CITY, "properties": {"city": {"type": "string", "pattern": "^O"}}}
    function = {"name": "f", "parameters": parameters, "strict": True}
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": function}],
    }
    with speaking(monkeypatch, "glm", "x") as running:
        reply = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 400
    assert "cannot be enforced in the form" in reply.json()["error"]["message"]


PHI = """{% for message in messages %}
{%- if message['role'] == 'system' and 'tools' in message and message['tools'] is not none -%}
<|system|>{{ message['content'] }}<|tool|>{{ message['tools'] }}<|/tool|>
{%- else -%}
<|{{ message['role'] }}|>{{ message['content'] }}
{%- endif -%}<|end|>{% endfor %}assistant: """


@every_api
def test_a_template_that_reads_the_tools_off_the_system_message(
    monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return FORMS["phi4"].write([CALL])

    monkeypatch.setattr(http_server, "writing_model", lambda **_: replying_model(reply, PHI))
    with serving() as running:
        said = ask(running, 400, [], stream=False, forced=False)
        assert (said.text, said.reason) == ("", "tool_calls")
        ask(running, 3, said.back, stream=False, forced=False)
    [tools] = json.loads(prompts[0].partition("<|tool|>")[2].partition("<|/tool|>")[0])
    assert (tools["name"], tools["parameters"]["properties"]) == ("f", CITY["properties"])
    assert '{"city": "Oslo"}' in prompts[-1], "what was called is told"
