"""`continue_final_message`: the answer goes on from the text of the assistant's last message."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import http_server
from claude_server import HERMES, replying_model
from foredraft import Engine, SamplingParams
from foredraft.testing import FakeModel
from http_server import Running, serving, writing_model

MESSAGES = [{"role": "user", "content": "say something"}]
VLLM = {"continue_final_message": True, "add_generation_prompt": False}


def post(server: Running, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    body = {"model": "fake", "messages": MESSAGES, "max_tokens": 40, "temperature": 0, **fields}
    return httpx.post(server.url + path, json=body, timeout=30)


def answered(server: Running, **fields: Any) -> dict[str, Any]:
    response = post(server, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def text(answer: dict[str, Any]) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


def begun(said: str) -> list[dict[str, Any]]:
    return [*MESSAGES, {"role": "assistant", "content": said}]


@pytest.mark.parametrize("fields", [VLLM, {"continue_final_message": True}])
def test_two_halves_are_the_whole(server: Running, fields: dict[str, Any]) -> None:
    whole = answered(server, max_tokens=40)
    first = answered(server, max_tokens=15)
    second = answered(server, max_tokens=25, messages=begun(text(first)), **fields)
    assert text(first) + text(second) == text(whole)
    assert second["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"] + 15
    assert second["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] - 15


def test_it_is_the_engine_s_text_and_the_same_as_anthropic_s(server: Running) -> None:
    with Engine(writing_model()) as engine:
        prompt = "user: say something\nassistant: well the"
        expected = engine.generate(prompt, SamplingParams(max_tokens=40)).text
    assert text(answered(server, messages=begun("well the"), **VLLM)) == expected
    claude = post(server, "/v1/messages", messages=begun("well the")).json()
    assert claude["content"] == [{"type": "text", "text": expected}]


def test_without_it_a_new_answer_is_begun(server: Running) -> None:
    messages = begun("well the")
    with Engine(writing_model()) as engine:
        expected = engine.generate(messages, SamplingParams(max_tokens=40)).text
    for fields in ({}, {"continue_final_message": False}, {"add_generation_prompt": True}):
        assert text(answered(server, messages=messages, **fields)) == expected


def test_several_continuations_streamed_with_a_prediction(server: Running) -> None:
    rest = text(answered(server, messages=begun("well the"), **VLLM))
    prediction = {"type": "content", "content": f"well the{rest}"}
    answer = answered(server, messages=begun("well the"), prediction=prediction, n=2, **VLLM)
    assert [choice["message"]["content"] for choice in answer["choices"]] == [rest, rest]
    fields: dict[str, Any] = {**VLLM, "stream": True, "stop": [rest[20:24]]}
    response = post(server, messages=begun("well the"), **fields)
    assert response.text.rstrip().endswith("data: [DONE]")


def test_a_prediction_is_drafted_from() -> None:
    with serving(speculate="prediction") as running:
        rest = text(answered(running, messages=begun("well the"), max_tokens=80, **VLLM))
        prediction = {"type": "content", "content": f"well the{rest}"}
        fields = {**VLLM, "max_tokens": 80, "prediction": prediction}
        answer = answered(running, messages=begun("well the"), **fields)
    assert text(answer) == rest
    assert answer["speculation"]["drafters"]["prediction"]["accepted"] > 0


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"messages": MESSAGES}, "The last message is not the assistant's"),
        ({"add_generation_prompt": True}, "either continued or begun"),
        ({"continue_final_message": False}, "add_generation_prompt is false, but nothing is continued"),
        ({"tools": [TOOL]}, "cannot be combined with tools"),
        ({"response_format": {"type": "json_object"}}, "applies to the whole answer"),
        ({"regex": "[a-z]+"}, "applies to the whole answer"),
        ({"grammar": 'root ::= "a"'}, "applies to the whole answer"),
        ({"guided_choice": ["a", "b"]}, "applies to the whole answer"),
    ],
)
def test_what_cannot_be_continued(server: Running, fields: dict[str, Any], says: str) -> None:
    response = post(server, **{**VLLM, "messages": begun("well"), **fields})
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


def test_tools_that_are_not_offered_and_a_format_of_text_do_no_harm(server: Running) -> None:
    expected = text(answered(server, messages=begun("well"), **VLLM))
    more = {"tools": [TOOL], "tool_choice": "none", "response_format": {"type": "text"}}
    assert text(answered(server, messages=begun("well"), **VLLM, **more)) == expected


def test_a_template_that_changes_the_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(**_: Any) -> FakeModel:
        return replying_model(lambda _: "Yes.", HERMES.replace("message.content", "message.content | upper"))

    monkeypatch.setattr(http_server, "writing_model", model)
    with serving() as running:
        for path, fields in (("/v1/chat/completions", VLLM), ("/v1/messages", {})):
            response = post(running, path, messages=begun("well"), **fields)
            assert response.status_code == 400
            assert "changes the text of the last message" in response.json()["error"]["message"]
