"""Mixed traffic for a server: one function for each kind of request, which checks the answer it gets.

A request that is asked twice with the same settings must get the same text twice: the first is remembered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from server_client import Answer, chat_body, stream_answer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEMPERATURE, SEEDS = 0.8, 3
LONG_PROMPT = 6_000
"""Characters of a long prompt: about 1,500 tokens."""

LARGE_TEXT = 300_000
"""Characters of a text to tokenize."""

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
BAD: tuple[tuple[str, bytes], ...] = (
    (CHAT, b"{"),
    (CHAT, b"[]"),
    (CHAT, b'{"messages": []}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "no_such_field": 1}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "model": "no such model"}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "grammar": "root ::= ("}'),
    (COMPLETIONS, b'{"prompt": [1e9], "max_tokens": 1}'),
    (COMPLETIONS, b'{"prompt": "' + b"a " * 50_000 + b'", "max_tokens": 1}'),
    ("/v1/responses", b'{"input": "x", "previous_response_id": "r"}'),
    ("/v1/messages", b'{"model": "x", "messages": []}'),
    ("/detokenize", b'{"tokens": [-1]}'),
    ("/v1/no/such/path", b"{}"),
)
"""Requests that get an error of the client's, 400 to 499."""


class Wrong(Exception):  # noqa: N818 - it is not what went wrong, but that the server was wrong
    """An answer that is not what it has to be."""


@dataclass(slots=True)
class Traffic:
    """What the requests are made of. `model` is a name that the server knows."""

    client: httpx.AsyncClient
    prompts: Sequence[str]
    model: str
    tokens: int
    texts: dict[str, str] = field(default_factory=dict)

    def prompt(self, rng: random.Random) -> str:
        """One of the prompts."""
        return rng.choice(self.prompts)

    def long_text(self, rng: random.Random, length: int) -> str:
        """Prompts joined until they are that long, and cut there."""
        text = self.prompt(rng)
        while len(text) < length:
            text += "\n\n" + self.prompt(rng)
        return text[:length]

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request that is in order. Raises Wrong."""
        reply = await self.client.post(path, json=dict(body))
        if reply.status_code != 200:
            raise Wrong(f"{path}: {reply.status_code} {reply.text[:200]}")
        answer: dict[str, Any] = reply.json()
        return answer

    def same(self, body: Mapping[str, Any], text: str, *, whole: bool = True) -> None:
        """Compare with the text that the same request got before. Raises Wrong."""
        key = json.dumps([body["messages"], body["temperature"], body.get("seed"), body["max_tokens"]])
        before = self.texts.setdefault(key, text) if whole else self.texts.get(key, text)
        if text != before and (whole or not before.startswith(text)):
            raise Wrong(f"another text than before: {text[:80]!r}, {before[:80]!r}")


Kind = Callable[[Traffic, random.Random], Awaitable[None]]


def _chat(traffic: Traffic, rng: random.Random) -> dict[str, Any]:
    prompt = traffic.prompt(rng)
    if rng.random() < 0.5:
        return chat_body(prompt, traffic.tokens)
    return chat_body(prompt, traffic.tokens, temperature=TEMPERATURE, seed=rng.randrange(SEEDS))


def _whole(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if not key.startswith("stream")}


async def streamed(traffic: Traffic, rng: random.Random) -> None:
    """A chat that is streamed."""
    body = _chat(traffic, rng)
    traffic.same(body, _good(await stream_answer(traffic.client, body)).text)


async def leaving(traffic: Traffic, rng: random.Random) -> None:
    """A chat whose client goes away."""
    body = _chat(traffic, rng)
    answer = _good(await stream_answer(traffic.client, body, leave_after=rng.randrange(1, traffic.tokens)))
    traffic.same(body, answer.text, whole=not answer.left)


def _good(answer: Answer) -> Answer:
    if answer.error:
        raise Wrong(f"stream: {answer.error}")
    return answer


async def whole(traffic: Traffic, rng: random.Random) -> None:
    """A chat that is not streamed."""
    body = _chat(traffic, rng)
    answer = await traffic.post(CHAT, _whole(body))
    traffic.same(body, answer["choices"][0]["message"]["content"])


async def several(traffic: Traffic, rng: random.Random) -> None:
    """Two answers to one chat."""
    body = chat_body(traffic.prompt(rng), traffic.tokens, temperature=TEMPERATURE, seed=7)
    answer = await traffic.post(CHAT, {**_whole(body), "n": 2})
    if len(answer["choices"]) != 2:
        raise Wrong(f"n=2 gave {len(answer['choices'])} answers")
    traffic.same(body, answer["choices"][0]["message"]["content"])


async def completed(traffic: Traffic, rng: random.Random) -> None:
    """Two texts to go on with."""
    prompts = [traffic.prompt(rng), traffic.prompt(rng)]
    body = {"prompt": prompts, "max_tokens": traffic.tokens, "temperature": 0, "logprobs": 1}
    answer = await traffic.post(COMPLETIONS, body)
    if len(answer["choices"]) != 2:
        raise Wrong(f"two prompts gave {len(answer['choices'])} answers")


async def schema(traffic: Traffic, rng: random.Random) -> None:
    """JSON that has to follow a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    body = {**_whole(_chat(traffic, rng)), "response_format": form}
    choice = (await traffic.post(CHAT, body))["choices"][0]
    if choice["finish_reason"] == "stop" and set(json.loads(choice["message"]["content"])) != {"name", "age"}:
        raise Wrong(f"not what the schema says: {choice['message']['content'][:200]}")


async def tools(traffic: Traffic, rng: random.Random) -> None:
    """A call that has to be made."""
    body = {**_whole(chat_body(traffic.prompt(rng), 64)), "tools": [WEATHER], "tool_choice": "required"}
    choice = (await traffic.post(CHAT, body))["choices"][0]
    for call in choice["message"].get("tool_calls") or ():
        if choice["finish_reason"] == "tool_calls" and "city" not in json.loads(
            call["function"]["arguments"]
        ):
            raise Wrong(f"not what the tool takes: {call}")


async def messages(traffic: Traffic, rng: random.Random) -> None:
    """Anthropic's messages, streamed or not."""
    said = [{"role": "user", "content": traffic.prompt(rng)}]
    body = {"model": traffic.model, "messages": said, "max_tokens": traffic.tokens, "temperature": 0}
    if rng.random() < 0.5:
        await traffic.post("/v1/messages", body)
        return
    await _events(traffic, "/v1/messages", body, "message_stop")


async def responses(traffic: Traffic, rng: random.Random) -> None:
    """OpenAI's responses, streamed or not."""
    body = {"input": traffic.prompt(rng), "max_output_tokens": traffic.tokens, "temperature": 0}
    if rng.random() < 0.5:
        await traffic.post("/v1/responses", body)
        return
    await _events(traffic, "/v1/responses", body, '"type":"response.')


async def _events(traffic: Traffic, path: str, body: Mapping[str, Any], last: str) -> None:
    """A stream of events whose last one holds that text. Raises Wrong."""
    line, lines = "", []
    async with traffic.client.stream("POST", path, json={**body, "stream": True}) as reply:
        if reply.status_code != 200:
            raise Wrong(f"{path}: {reply.status_code} {(await reply.aread()).decode()[:200]}")
        async for line in reply.aiter_lines():
            lines += [line] if line.startswith("data: {") else []
    if not lines or last not in lines[-1]:
        raise Wrong(f"{path}: the stream ended with {lines[-1:]}")


async def long_prompt(traffic: Traffic, rng: random.Random) -> None:
    """A prompt that takes a while to read."""
    body = chat_body(traffic.long_text(rng, LONG_PROMPT), 16)
    _good(await stream_answer(traffic.client, body))


async def tokenized(traffic: Traffic, rng: random.Random) -> None:
    """A large text to token ids and back."""
    text = traffic.long_text(rng, LARGE_TEXT)
    tokens = (await traffic.post("/tokenize", {"content": text}))["tokens"]
    if (await traffic.post("/detokenize", {"tokens": tokens}))["content"] != text:
        raise Wrong("a text did not come back from its tokens")


async def bad(traffic: Traffic, rng: random.Random) -> None:
    """A request that has to be refused."""
    path, content = rng.choice(BAD)
    reply = await traffic.client.post(path, content=content, headers={"content-type": "application/json"})
    if not 400 <= reply.status_code < 500:
        raise Wrong(f"{path} {content[:80]!r}: {reply.status_code} {reply.text[:200]}")


async def looking(traffic: Traffic, rng: random.Random) -> None:
    """What a dashboard asks for."""
    path = rng.choice(["/metrics", "/v1/models", "/v1/speculation"])
    reply = await traffic.client.get(path)
    if reply.status_code != 200:
        raise Wrong(f"{path}: {reply.status_code} {reply.text[:200]}")


KINDS: dict[Kind, int] = {
    streamed: 6,
    whole: 3,
    leaving: 3,
    several: 2,
    completed: 2,
    schema: 2,
    tools: 1,
    messages: 2,
    responses: 2,
    long_prompt: 1,
    tokenized: 1,
    bad: 4,
    looking: 1,
}
"""How often each kind is sent, of their sum."""
