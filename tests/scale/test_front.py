"""The front and its replicas, which are in this process: every surface is that of a server of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from foredraft.scale.front import with_plain_id
from foredraft.scale.message import Facts, Forwarded, Parts
from foredraft.scale.replica import Replica
from foredraft.server.auth import hash_key, new_key
from foredraft.server.settings import KeySettings, Limits, ModelSettings, ServerSettings
from foredraft.server.telemetry import Telemetry
from fronted import Fronted, fronted
from http_server import serving

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
CHAT = {"model": "one", "messages": HELLO, "max_tokens": 40, "temperature": 0}


@pytest.fixture(scope="module")
def front() -> Iterator[Fronted]:
    with fronted("one", "two") as running:
        yield running


@pytest.fixture
def client(front: Fronted) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0, timeout=30)


def events(text: str) -> list[Any]:
    """The data of server-sent events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# --- the same answers ----------------------------------------------------------------------------------


def test_a_chat_is_what_a_server_of_its_own_answers(front: Fronted) -> None:
    with serving("one", "two") as alone:
        there = httpx.post(f"{alone.url}/v1/chat/completions", json=CHAT)
    here = httpx.post(f"{front.url}/v1/chat/completions", json=CHAT, headers={"x-request-id": "mine"})
    assert here.status_code == 200
    assert here.json()["choices"] == there.json()["choices"]
    assert here.headers["x-request-id"] == "mine"


def test_openais_client(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="one", messages=HELLO, max_tokens=30, temperature=0)
    stream = client.chat.completions.create(
        model="one", messages=HELLO, max_tokens=30, temperature=0, stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert streamed == whole.choices[0].message.content
    assert client.responses.create(model="two", input="hello", max_output_tokens=20).output_text
    assert client.completions.create(model="two", prompt="hello", max_tokens=20).choices[0].text


def test_anthropics_client(front: Fronted) -> None:
    client = anthropic.Anthropic(base_url=front.url, api_key="none", max_retries=0, timeout=30)
    with client.messages.stream(model="one", messages=HELLO, max_tokens=30) as stream:
        assert stream.get_final_text()
    assert client.messages.count_tokens(model="one", messages=HELLO).input_tokens > 0


def test_the_replicas_take_turns_and_the_model_chooses_the_deployment(front: Fronted) -> None:
    before = [len(front.replicas[name].asked) for name in ("one", "two")]
    for _ in range(2):
        httpx.post(f"{front.url}/v1/chat/completions", json=CHAT | {"model": "two"}).raise_for_status()
    httpx.post(f"{front.url}/v1/chat/completions", json={**CHAT, "model": None}).raise_for_status()
    after = [len(front.replicas[name].asked) for name in ("one", "two")]
    assert [after[0] - before[0], after[1] - before[1]] == [1, 2]  # without a name it is the first model


def test_what_the_front_answers_itself(front: Fronted) -> None:
    assert httpx.get(f"{front.url}/health").json() == {"status": "ok", "models": {"one": True, "two": True}}
    listed = httpx.get(f"{front.url}/v1/models").json()
    assert [(entry["id"], entry["loaded"]) for entry in listed["data"]] == [("one", True), ("two", True)]
    assert (listed["first_id"], listed["last_id"]) == ("one", "two")
    assert httpx.get(f"{front.url}/v1/models/two").json()["id"] == "two"
    states = httpx.get(f"{front.url}/v1/speculation").json()
    assert set(states) == {f"{name}@replica-{number}" for name in ("one", "two") for number in (0, 1)}
    paths = httpx.get(f"{front.url}/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/messages", "/v1/embeddings"} <= set(paths)
    assert httpx.get(f"{front.url}/docs").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/console/overview"), ("POST", "/v1/models/one/load")],
)
def test_what_shows_one_process_says_what_to_use(front: Fronted, method: str, path: str) -> None:
    answer = httpx.request(method, f"{front.url}{path}")
    assert answer.status_code == 501
    assert answer.json()["error"]["code"] == "one_process_only"
    assert "/v1/speculation" in answer.json()["error"]["message"]


# --- errors --------------------------------------------------------------------------------------------


def test_errors_of_the_front_and_of_a_replica_look_alike(front: Fronted) -> None:
    with serving("one", "two") as alone:
        for path, body in (
            ("/v1/chat/completions", CHAT | {"model": "none"}),
            ("/v1/messages", CHAT | {"model": "none"}),
            ("/v1/chat/completions", CHAT | {"temperature": -1}),
            ("/v1/chat/completions", CHAT | {"messages": []}),
            ("/v1/messages", CHAT | {"max_tokens": 0}),
            ("/v1/chat/completions", [1]),
            ("/v1/nonesuch", CHAT),
            ("/chat/completions", CHAT),
        ):
            there, here = (httpx.post(f"{url}{path}", json=body) for url in (alone.url, front.url))
            assert (here.status_code, here.json()) == (there.status_code, there.json()), (path, body)
            assert here.status_code >= 400
        there, here = (
            httpx.post(f"{url}/v1/completions", content=b"{", headers={"content-type": "application/json"})
            for url in (alone.url, front.url)
        )
        assert (here.status_code, here.json()) == (there.status_code, there.json())


def test_the_gate_is_the_fronts() -> None:
    key, other = new_key(), new_key()
    keys = (
        KeySettings(name="ann", hash=hash_key(key), max_concurrent=2),
        KeySettings(name="bob", hash=hash_key(other), requests_per_minute=1),
    )
    settings = ServerSettings(keys=keys, limits=Limits(max_body_bytes=2000))
    with fronted("one", settings=settings) as front:
        url, ann, bob = f"{front.url}/v1/chat/completions", {"x-api-key": key}, {"x-api-key": other}
        assert httpx.post(url, json=CHAT).status_code == 401
        assert httpx.post(url, json=CHAT | {"n": 2}, headers=ann).status_code == 200
        too_many = httpx.post(url, json=CHAT | {"n": 3}, headers=ann)
        assert (too_many.status_code, "limit of 2" in too_many.text) == (400, True)
        assert httpx.post(url, json=CHAT | {"user": "x" * 3000}, headers=ann).status_code == 413
        assert [httpx.post(url, json=CHAT, headers=bob).status_code for _ in range(2)] == [200, 429]
        [first, *_] = front.replicas["one"].asked
        assert first.caller.name == "ann"
        assert key.encode() not in b"".join(value for _, value in first.headers)
        assert httpx.get(f"{front.url}/health").json() == {"status": "ok"}


def test_a_key_that_is_revoked_works_no_longer() -> None:
    keys = {name: new_key() for name in ("ann", "bob")}
    ann, bob = (KeySettings(name=name, hash=hash_key(key)) for name, key in keys.items())
    models = {"one": ModelSettings(path="one")}
    edited: list[ServerSettings] = []
    settings = ServerSettings(keys=(ann, bob))
    with fronted("one", settings=settings, reload=lambda: edited.pop() if edited else None) as front:

        def status(name: str) -> int:
            headers = {"x-api-key": keys[name]}
            return httpx.get(f"{front.url}/v1/models", headers=headers).status_code

        assert (status("ann"), status("bob")) == (200, 200)
        edited.append(ServerSettings(keys=(bob,), models=models))
        deadline = time.monotonic() + 20
        while status("ann") == 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (status("ann"), status("bob")) == (401, 200)


# --- time ----------------------------------------------------------------------------------------------


def test_the_wait_for_a_replica_counts_in_the_requests_time() -> None:
    settings = ServerSettings(limits=Limits(request_timeout_s=1.0))
    with fronted("one", settings=settings) as front:
        url, near = f"{front.url}/v1/chat/completions", front.replicas["one"]
        near.late_s = 30.0
        began = time.monotonic()
        answer = httpx.post(url, json=CHAT, timeout=30)
        assert time.monotonic() - began < 20
        assert answer.status_code == 503
        assert "waiting for a replica" in answer.json()["error"]["message"]
        near.late_s = 0.0
        asked = near.asked[-1]
        late = replace(asked, at=time.time() - 2)  # it has waited for longer than it has
        parts = [part for parts in asyncio.run(taken(near.made[0], late)) for part in parts]
        assert any(isinstance(part, Facts) and "deadline passed" in (part.error or "") for part in parts)


async def taken(replica: Replica, asked: Forwarded) -> list[Parts]:
    return [parts async for parts in replica.answer(asked)]


# --- the log and spans ---------------------------------------------------------------------------------


def test_the_log_says_what_was_ignored_and_whose_model_was_left(
    front: Fronted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "foredraft.requests")
    url, near = f"{front.url}/v1/chat/completions", front.replicas["two"]
    httpx.post(url, json=CHAT | {"model": "two", "odd": 1}, headers={"x-request-id": "whole"})
    near.late_s = 5.0
    leave(front.url, CHAT | {"model": "two"})
    near.late_s = 0.0
    deadline = time.monotonic() + 20
    while not (left := [it for it in facts(caplog) if it.get("finish") == "abort"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert left[0]["model"] == "two"
    [whole] = [it for it in facts(caplog) if it["id"] == "whole"]
    assert "odd" in whole["ignored"]


def facts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Of each line of the front: replicas, whose log is off where they run by themselves, know no client."""
    lines = [record.__dict__["facts"] for record in caplog.records if "facts" in record.__dict__]
    return [line for line in lines if line["client"] is not None]


def test_a_span_is_the_fronts_with_what_the_replica_measured() -> None:
    exporter = InMemorySpanExporter()
    with fronted("one", "two", telemetry=Telemetry(exporter)) as front:
        usage = httpx.post(f"{front.url}/v1/chat/completions", json=CHAT).json()["usage"]
        httpx.post(f"{front.url}/v1/chat/completions", json=CHAT | {"model": "none"})
    answered, refused = (dict(span.attributes or {}) for span in exporter.get_finished_spans())
    assert answered["gen_ai.response.model"] == "one"
    assert answered["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert refused["error.type"] == "model_not_found"


def test_an_id_that_the_log_does_not_take_is_nearly_the_same() -> None:
    headers = [(b"host", b"a b"), (b"x-request-id", b"a b<c>" + b"x" * 200)]
    host, (_, plain) = with_plain_id(headers)
    assert host == headers[0]
    assert plain == b"a_b_c_" + b"x" * 122
    assert with_plain_id([(b"x-request-id", b"req_1.a:b-c")]) == [(b"x-request-id", b"req_1.a:b-c")]


# --- clients that leave, and replicas that end ---------------------------------------------------------


def test_a_client_that_leaves_ends_its_request(front: Fronted) -> None:
    near = front.replicas["one"]
    body = CHAT | {"stream": True, "max_tokens": 4000}
    with httpx.stream("POST", f"{front.url}/v1/chat/completions", json=body) as answer:
        texts = answer.iter_text()
        next(texts)
        assert near.running == 1
    assert ended(front)
    leaving = threading.Thread(target=leave, args=(front.url, body | {"stream": False}))
    leaving.start()
    leaving.join()
    assert ended(front)


def leave(url: str, body: object) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=0.3)


def ended(front: Fronted) -> bool:
    deadline = time.monotonic() + 10
    while any(near.running for near in front.replicas.values()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("cut", [[0], [1], [1, 0]])
@pytest.mark.parametrize("stream", [False, True])
def test_another_replica_answers_if_the_client_has_nothing_yet(
    front: Fronted, cut: list[int], stream: bool
) -> None:
    near = front.replicas["one"]
    expected = httpx.post(f"{front.url}/v1/chat/completions", json=CHAT).json()
    before, near.cut = len(near.asked), list(cut)
    answer = httpx.post(f"{front.url}/v1/chat/completions", json=CHAT | {"stream": stream})
    assert answer.status_code == 200
    assert len(near.asked) - before == 1 + len(cut)
    text = expected["choices"][0]["message"]["content"]
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events(answer.text) if event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == text
    else:
        assert answer.json()["choices"][0]["message"]["content"] == text


def test_after_three_replicas_it_is_an_error(front: Fronted) -> None:
    near = front.replicas["one"]
    before, near.cut = len(near.asked), [0, 0, 0]
    answer = httpx.post(f"{front.url}/v1/messages", json=CHAT)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert len(near.asked) - before == 3


@pytest.mark.parametrize("cut", [[1, 1], [1, 0, 1], [0, 1, 1]])
def test_a_request_that_ends_replicas_ends_two_at_most(front: Fronted, cut: list[int]) -> None:
    near = front.replicas["one"]
    before, near.cut = len(near.asked), list(cut)
    near.cut.append(1)  # a third one would be lost, too
    answer = httpx.post(f"{front.url}/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "replica_lost")
    asked = len(near.asked) - before
    near.cut = []
    assert sum(cut[:asked]) == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_stream_that_breaks_off_ends_with_an_error(front: Fronted, path: str) -> None:
    near = front.replicas["one"]
    near.cut = [3]
    asked: dict[str, Any] = {"model": "one", "stream": True}
    asked |= {"max_output_tokens" if path.endswith("responses") else "max_tokens": 4000}
    asked |= {"/v1/completions": {"prompt": "hello"}, "/v1/responses": {"input": "hello"}}.get(
        path, {"messages": HELLO}
    )
    answer = httpx.post(f"{front.url}{path}", json=asked)
    assert answer.status_code == 200
    *_, before, last = events(answer.text)
    if path == "/v1/messages":
        assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
    elif path == "/v1/responses":
        assert (last["type"], last["code"]) == ("error", "replica_lost")
        assert last["sequence_number"] == before["sequence_number"] + 1
    else:
        assert last["error"]["code"] == "replica_lost"
    assert ended(front)


def test_the_clients_say_that_a_stream_broke_off(front: Fronted, client: openai.OpenAI) -> None:
    front.replicas["one"].cut = [3]
    with pytest.raises(openai.APIError, match="has ended"):
        list(client.chat.completions.create(model="one", messages=HELLO, stream=True, max_tokens=4000))
    theirs = anthropic.Anthropic(base_url=front.url, api_key="none", max_retries=0, timeout=30)
    front.replicas["one"].cut = [3]
    with (
        pytest.raises(anthropic.APIStatusError, match="has ended"),
        theirs.messages.stream(model="one", messages=HELLO, max_tokens=4000) as stream,
    ):
        stream.get_final_text()
