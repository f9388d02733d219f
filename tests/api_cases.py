"""One question in each of the three APIs, whole and streamed, and the answer in the same words for all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from http_server import Running

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ASKED = {"role": "user", "content": "x"}


@dataclass
class Said:
    """An answer, in the same words for all APIs."""

    text: str
    calls: list[tuple[str, str]]
    reason: str
    back: list[Any]
    """The answer as its API's client hands it back, with a result for each call."""


def events(reply: httpx.Response) -> Iterator[Any]:
    for line in reply.text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def post(running: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    reply = httpx.post(f"{running.url}{path}", json={"model": "fake", "temperature": 0, **body}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply


# --- OpenAI's chat completions -------------------------------------------------------------------------


def chat(running: Running, most: int, history: list[Any], *, stream: bool, forced: bool) -> Said:
    function = {"name": "f", "parameters": CITY}
    body = {
        "messages": [ASKED, *history],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required" if forced else "auto",
        "max_tokens": most,
        "stream": stream,
    }
    reply = post(running, "/v1/chat/completions", body)
    choice = chat_folded(reply) if stream else reply.json()["choices"][0]
    message = choice["message"]
    made = message.get("tool_calls") or []
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "4"} for call in made]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in made]
    back = [message, *results]
    return Said(message["content"] or "", calls, choice["finish_reason"], back)


def chat_folded(reply: httpx.Response) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    reason = None
    for chunk in events(reply):
        for choice in chunk["choices"]:
            for field in ("content", "reasoning_content"):
                if piece := choice["delta"].get(field):
                    message[field] = message.get(field, "") + piece
            for delta in choice["delta"].get("tool_calls", ()):
                if "id" in delta:
                    message.setdefault("tool_calls", []).append(delta)
                else:
                    function = message["tool_calls"][delta["index"]]["function"]
                    function["arguments"] += delta["function"]["arguments"]
            reason = choice["finish_reason"] or reason
    return {"message": message, "finish_reason": reason}


# --- OpenAI's responses --------------------------------------------------------------------------------


def responses(running: Running, most: int, history: list[Any], *, stream: bool, forced: bool) -> Said:
    body = {
        "input": [ASKED, *history],
        "tools": [{"type": "function", "name": "f", "parameters": CITY, "strict": False}],
        "tool_choice": "required" if forced else "auto",
        "max_output_tokens": most,
        "stream": stream,
    }
    reply = post(running, "/v1/responses", body)
    answer = list(events(reply))[-1]["response"] if stream else reply.json()
    made = [item for item in answer["output"] if item["type"] == "function_call"]
    texts = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "message"]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "4"} for call in made]
    calls = [(call["name"], call["arguments"]) for call in made]
    cut_short = (answer["incomplete_details"] or {}).get("reason") == "max_output_tokens"
    assert answer["status"] == ("incomplete" if cut_short else "completed")
    for call in made:
        assert (call["status"] == "completed") == is_json(call["arguments"])
    whole = made and all(call["status"] == "completed" for call in made)
    reason = "length" if cut_short else "tool_calls" if whole else "stop"
    return Said("".join(texts), calls, reason, [*answer["output"], *results])


# --- Anthropic's messages ------------------------------------------------------------------------------

STOPS = {"max_tokens": "length", "tool_use": "tool_calls", "end_turn": "stop"}


def messages(running: Running, most: int, history: list[Any], *, stream: bool, forced: bool) -> Said:
    body = {
        "messages": [ASKED, *history],
        "tools": [{"name": "f", "input_schema": CITY}],
        "tool_choice": {"type": "any" if forced else "auto"},
        "max_tokens": most,
        "stream": stream,
    }
    body.pop("temperature", None)
    reply = post(running, "/v1/messages", body)
    message = message_folded(reply) if stream else reply.json()
    content = message["content"]
    made = [block for block in content if block["type"] == "tool_use"]
    calls = [(block["name"], json.dumps(block["input"])) for block in made]
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "4"} for block in made]
    back = [
        {"role": "assistant", "content": content},
        {"role": "user", "content": results or "go on"},
    ]
    text = "".join(block["text"] for block in content if block["type"] == "text")
    return Said(text, calls, STOPS[message["stop_reason"]], back)


def message_folded(reply: httpx.Response) -> Any:
    content: list[Any] = []
    pieces: list[str] = []
    reason = None
    for event in events(reply):
        if event["type"] == "content_block_start":
            content.append(event["content_block"])
            pieces = []
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "signature_delta":
                content[-1]["signature"] = delta["signature"]
            else:
                pieces.append(delta.get("text") or delta.get("thinking") or delta.get("partial_json"))
        elif event["type"] == "content_block_stop" and content[-1]["type"] in ("text", "thinking"):
            content[-1][content[-1]["type"]] = "".join(pieces)
        elif event["type"] == "content_block_stop":
            whole = "".join(pieces)
            content[-1]["input"] = json.loads(whole) if is_json(whole) else {}
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    return {"content": content, "stop_reason": reason}


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


Ask = Callable[..., Said]
every_api = pytest.mark.parametrize("ask", [chat, responses, messages])
every_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
