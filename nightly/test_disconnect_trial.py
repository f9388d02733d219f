"""Clients that leave in the middle, beside others that stay, and bodies that are damaged: for a whole night.

No answer of those who stay is another than it is alone, nothing is left of those who went, and every damaged
body is its client's fault, in the words of the API that it was sent to.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from http_server import Running, serving
from malformed_bodies import fault, malformed, send

CLIENTS = 8
LEAVING = 0.3
"""Of all requests, those whose client goes before the answer is over."""


def bodies() -> list[dict[str, Any]]:
    """Greedy and seeded, with stop strings, penalties, log-probabilities and several answers."""
    base = {"max_tokens": 80, "stream": True, "seed": 5}
    further: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9},
        {"temperature": 0, "logprobs": True, "top_logprobs": 3},
        {"temperature": 1, "stop": ["abc", "e e", "th"], "frequency_penalty": 0.4},
        {"temperature": 0.7, "n": 2, "ignore_eos": True},
        {"temperature": 0, "prediction": {"type": "content", "content": "what was expected of it"}},
    ]
    asked = [[{"role": "user", "content": f"question {number}"}] for number in range(3)]
    return [{**base, **more, "messages": messages} for more in further for messages in asked]


def answer(server: Running, body: dict[str, Any], *, leave_after: int | None = None) -> Any:
    """(text of each answer, log-probabilities, finish reasons); None if its client left."""
    texts: dict[int, str] = {}
    scores: list[Any] = []
    ends: dict[int, str] = {}
    url = f"{server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as reply:
        assert reply.status_code == 200, reply.read()
        for number, line in enumerate(reply.iter_lines()):
            if leave_after is not None and number >= leave_after:
                return None
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                index, delta = choice["index"], choice["delta"]
                texts[index] = texts.get(index, "") + (delta.get("content") or "")
                scores += (choice.get("logprobs") or {}).get("content") or []
                if choice["finish_reason"]:
                    ends[index] = choice["finish_reason"]
    return texts, scores, ends


def wait_until_idle(server: Running) -> None:
    """Nothing runs, waits, or is held in the cache any more."""
    engine = server.engines["fake"]
    until = time.monotonic() + 60
    while not engine.idle or engine.kv_tokens:
        assert time.monotonic() < until, "something of a client that left is still there"
        time.sleep(0.01)


@pytest.fixture
def server() -> Iterator[Running]:
    with serving(speculate="auto") as running:
        yield running


def test_nobody_gets_another_s_answer_and_nothing_is_left(server: Running, seconds: float) -> None:
    every = bodies()
    alone = [answer(server, body) for body in every]
    until, counting, left = time.monotonic() + seconds / 2, threading.Lock(), 0
    numbers = itertools.count()

    def ask(client: int) -> list[str]:
        nonlocal left
        rng, faults = random.Random(client), []
        while time.monotonic() < until:
            number, which = next(numbers), rng.randrange(len(every))
            leave = rng.randrange(1, 40) if rng.random() < LEAVING else None
            found = answer(server, every[which], leave_after=leave)
            if found is None:
                with counting:
                    left += 1
            elif found != alone[which]:
                faults.append(f"request {number}: {every[which]}: {found}")
        return faults

    with ThreadPoolExecutor(CLIENTS) as clients:
        faults = [fault for found in clients.map(ask, range(CLIENTS)) for fault in found]
    assert not faults
    assert left, "nobody left: the trial was too short"
    wait_until_idle(server)
    assert [answer(server, body) for body in every] == alone


def test_every_damaged_body_is_its_client_s_fault(server: Running, seconds: float) -> None:
    until, faults = time.monotonic() + seconds / 2, []
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for seed in itertools.count():
            if time.monotonic() > until and seed:
                break
            for request in malformed(200, seed=seed, model="fake"):
                wrong = fault(send(http, request), request.path)
                if wrong:
                    faults.append(f"seed {seed}: {request.path}: {request.wrong}: {wrong}")
    assert not faults
    wait_until_idle(server)
