"""What OpenAI's Responses API is asked for here and cannot do: refused in OpenAI's form, streaming or not."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from http_server import Running

PLAIN = {"model": "fake", "input": "say something", "max_output_tokens": 40, "temperature": 0}


def ask(client: openai.OpenAI, **options: Any) -> Any:
    return client.responses.create(**{**PLAIN, **options})


IMAGE = {"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
UNSUPPORTED = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "stateless"),
        ({"conversation": "conv_1"}, "conversation", "stateless"),
        ({"background": True}, "background", "stateless"),
        ({"prompt": {"id": "p"}}, "prompt", "prompt templates are not supported"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"role": "king", "content": "x"}]}, "input.0.role", "role"),
        ({"input": [{"role": "user"}]}, "input.0.content", "Missing required parameter"),
        ({"input": [{"role": "user", "content": []}]}, None, "no content"),
        (
            {"input": [{"role": "user", "content": [IMAGE]}]},
            "input.0.content.0.image_url",
            r"input\.0\.content\.0: the image: this model does not see images",
        ),
        (
            {"input": [{"type": "web_search_call", "id": "r"}]},
            "input.0",
            "'web_search_call' is not supported",
        ),
        ({"input": [{**CALL, "arguments": "[]"}]}, "input.0.arguments", "a JSON object"),
        ({"input": [OUTPUT, CALL]}, None, r"input\[0\].call_id is 'c', but no earlier call has this id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0", "stateless"),
        ({"extra_body": {"input": 3}}, "input", "input"),
        ({"temperature": 3}, "temperature", "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
        ({"tools": [FUNCTION, {"type": "shell"}]}, "tools.1", "'shell' is not supported"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools.0", "'mcp' is not supported"),
        ({"tools": [{"type": "function"}]}, None, r"tools\[0\].name is None"),
        ({"tools": [{"type": "function", "function": FUNCTION}]}, None, "are beside its type"),
        ({"extra_body": {"max_tokens": 5}}, "max_tokens", "Did you mean 'max_output_tokens'"),
        ({"extra_body": {"modalities": ["audio"]}}, "modalities", "only reads text and images"),
        ({"tools": [FUNCTION, FUNCTION]}, None, r"tools\[1\].name: two functions are named 'f'"),
        ({"tools": [{**FUNCTION, "parameters": UNSUPPORTED}]}, None, "function 'f' cannot be enforced"),
        ({"tool_choice": "required"}, None, "no tools"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, None, "'g'"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "web_search_preview"}},
            None,
            "without a function's name",
        ),
        ({"tools": [FUNCTION], "tool_choice": {**ALLOWED, "tools": []}}, None, "does not list functions"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort", "'none', 'minimal'"),
        ({"max_tool_calls": 0}, "max_tool_calls", "greater than or equal to 1"),
        ({"extra_body": {"speculate": "sometimes"}}, "speculate", "speculate"),
        ({"extra_body": {"priority": "high"}}, "priority", "priority"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "'json_schema'"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format", "a name and a schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format", "a name and a schema"),
        ({"text": {"format": {"type": "json_object", "strict": True}}}, "text.format", "need the type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": UNSUPPORTED, "strict": True}}},
            None,
            "JSON schema cannot be used",
        ),
        ({"top_logprobs": 2}, None, "top_logprobs needs include"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "512"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "16"),
        ({"input": "x" * 5000}, None, "The prompt has"),
    ],
)
def test_what_cannot_be_done_is_refused(
    client: openai.OpenAI, options: dict[str, Any], param: str | None, message: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client, stream=stream, **options)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param == param


def test_stream_options_are_for_streams(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="stream to be true"):
        ask(client, stream_options={"include_obfuscation": False})


def test_nothing_can_be_fetched_later(client: openai.OpenAI) -> None:
    answer = ask(client)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_a_model_that_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="There is no model 'nonesuch'"):
        ask(client, model="nonesuch", stream=True)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"input": {}}', b'{"input":[[]]}', b"1e999"]
)
def test_nonsense_is_refused_in_openai_s_form(server: Running, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    reply = httpx.post(f"{server.url}/v1/responses", content=content, headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]
