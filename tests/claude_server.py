"""Servers whose model says what it is told, and Anthropic's client of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anthropic
import numpy as np
import pytest

import http_server
from foredraft.templates.chat import ChatTemplate
from foredraft.templates.traits import TemplateTraits
from foredraft.testing import FakeModel, FakeTokenizer
from foredraft.types import Logits
from http_server import END, Running, serving

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 5}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
QUESTION: list[Any] = [{"role": "user", "content": "how is the weather in Oslo?"}]
CUE = "assistant: "

PLAIN = None
HERMES = """{% if tools %}tools: {{ tools | tojson }}
{% endif %}
{% for message in messages %}
{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}

{% endfor %}
{% if add_generation_prompt %}assistant: {% endif %}"""
LLAMA3 = HERMES.replace("<tool_call>", "<|python_tag|>").replace("</tool_call>", "")
TEMPLATES = {"no tools": PLAIN, "hermes": HERMES, "llama3": LLAMA3}


class TemplateTokenizer(FakeTokenizer):
    """A tokenizer with a chat template of its own."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self.chat_template = template
        self._template = ChatTemplate(template, bos_token="", eos_token="")

    @property
    def template_traits(self) -> TemplateTraits:  # type: ignore[override]
        return self._template.traits

    def apply_chat_template(
        self, messages: Sequence[Any], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, **variables)


def replying_model(reply: Callable[[str], str], template: str | None) -> FakeModel:
    """A model that answers a prompt with what `reply` makes of it."""

    def logits(prefix: Sequence[int]) -> Logits:
        prompt, _, said = bytes(token for token in prefix if token < END).rpartition(CUE.encode())
        answer = [*reply(prompt.decode("utf-8", "replace")).encode(), END]
        row = np.zeros(258, np.float32)
        row[: ord(" ") + 1] = -20.0  # a constraint allows white space nearly everywhere
        row[answer[min(len(said), len(answer) - 1)]] = 30.0
        return row

    model = FakeModel(258, logits=logits, context_length=8192)
    if template is not None:
        model.tokenizer = TemplateTokenizer(template)
    return model


@contextmanager
def talking(
    monkeypatch: pytest.MonkeyPatch, reply: str | Callable[[str], str], template: str | None = HERMES
) -> Iterator[tuple[anthropic.Anthropic, Running]]:
    """A client of a server with such a model."""

    def model(**_: Any) -> FakeModel:
        return replying_model((lambda _: reply) if isinstance(reply, str) else reply, template)

    monkeypatch.setattr(http_server, "writing_model", model)
    with serving() as running, client_of(running) as claude:
        yield claude, running


def client_of(running: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0, timeout=30)


def request(**options: Any) -> dict[str, Any]:
    """A greedy request. This client has no parameter for the temperature any more."""
    given = {"model": "fake", "messages": QUESTION, "max_tokens": 200, "tools": [WEATHER, NOW], **options}
    given["extra_body"] = {"temperature": 0, **options.get("extra_body", {})}
    return {name: value for name, value in given.items() if value is not None}


def both(claude: anthropic.Anthropic, **options: Any) -> tuple[Any, Any]:
    """The message of an answer in one piece, and the one that the client makes of a stream."""
    whole = claude.messages.create(**request(**options))
    with claude.messages.stream(**request(**options)) as stream:
        streamed = stream.get_final_message()
    return whole, streamed


def shown(message: Any) -> list[Any]:
    """The blocks of a message without the ids of calls, which differ from answer to answer."""
    return [
        block.text if block.type == "text" else (block.type, block.name, block.input)
        for block in message.content
    ]


def seen(running: Running) -> str:
    """The longest piece of a prompt that the model has read."""
    model: Any = running.engines["fake"].model
    longest = max((rows for batch in model.forwards for rows in batch), key=lambda rows: len(rows.tokens))
    return bytes(token for token in longest.tokens if token < 256).decode()


def call(name: str, template: str | None, **arguments: Any) -> str:
    """A call as a model with this template writes it."""
    if template is LLAMA3:
        return json.dumps({"name": name, "parameters": arguments})
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
