"""Clients that come together, go away, or send nonsense."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from foredraft import Engine, SamplingParams
from http_server import Running, serving, writing_model

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"]


def body(text: str, **options: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 60, "temperature": 0, **options}


def answer(server: Running, text: str) -> str:
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body(text), timeout=30)
    return str(reply.json()["choices"][0]["message"]["content"])


def test_clients_at_once_get_the_answers_they_get_alone(server: Running) -> None:
    texts = [f"question {n}" for n in range(12)]
    with ThreadPoolExecutor(12) as together:
        answers = list(together.map(lambda text: answer(server, text), texts))
    with Engine(writing_model()) as engine:
        for text, got in zip(texts, answers, strict=True):
            alone = engine.generate([{"role": "user", "content": text}], SamplingParams(max_tokens=60))
            assert got == alone.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(stream: bool) -> None:
    with serving(end=-40.0, context_length=1_000_000, sequences=2) as running:
        url = f"{running.url}/v1/chat/completions"
        with httpx.Client(timeout=2) as client:
            if stream:
                with client.stream("POST", url, json=body("go on", stream=True, max_tokens=None)) as reply:
                    assert next(reply.iter_lines())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.post(url, json=body("go on", max_tokens=None), timeout=0.5)
        engine = running.engines["fake"]
        deadline = time.monotonic() + 10
        while not engine.idle:
            assert time.monotonic() < deadline, "the request is still running"
            time.sleep(0.01)


def test_the_server_stops_while_a_stream_is_running() -> None:
    got: list[str] = []
    begun = threading.Event()

    def read(url: str) -> None:
        with httpx.stream("POST", url, json=body("go on", stream=True, max_tokens=4000), timeout=30) as reply:
            for line in reply.iter_lines():
                got.append(line)
                begun.set()

    with serving(end=-40.0) as running:
        reader = threading.Thread(target=read, args=(f"{running.url}/v1/chat/completions",))
        reader.start()
        assert begun.wait(10)
    reader.join(10)
    assert not reader.is_alive()
    assert got[-2] == "data: [DONE]" or json.loads(got[-2].removeprefix("data: "))["error"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"messages": 3}', b"\xff\xfe", b'{"messages":[{"role":[]}]}', b"1e999"],
)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"]
)
def test_nonsense_is_refused_in_openai_s_form(server: Running, path: str, content: bytes) -> None:
    reply = httpx.post(f"{server.url}{path}", content=content, headers={"content-type": "application/json"})
    assert 400 <= reply.status_code < 500
    assert reply.json()["error"]["message"]


def test_paths_that_are_not_there(server: Running) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405)):
        reply = httpx.request(method, f"{server.url}{path}")
        assert reply.status_code == status
        assert reply.json()["error"]["type"]


def test_tokens_there_and_back(server: Running) -> None:
    tokens = httpx.post(f"{server.url}/tokenize", json={"content": "héllo"}).json()["tokens"]
    assert httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}).json() == {"content": "héllo"}
    pieces = httpx.post(f"{server.url}/tokenize", json={"content": "hé", "with_pieces": True}).json()[
        "tokens"
    ]
    assert pieces == [{"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert httpx.post(f"{server.url}/detokenize", json={"tokens": [9999]}).status_code == 400


def test_health_and_the_state_of_speculation(server: Running) -> None:
    answer(server, "hello")
    health = httpx.get(f"{server.url}/health").json()
    assert health["status"] == "ok"
    assert health["models"]["fake"] is True
    state = httpx.get(f"{server.url}/v1/speculation").json()["fake"]
    assert state["exact"] is True
