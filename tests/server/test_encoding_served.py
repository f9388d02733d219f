"""The server while images are encoded: other requests go on, and what nobody waits for is not encoded."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image as Pillow

from foredraft.images import Image, PreparedImage
from foredraft.server.image_settings import ImageSettings
from foredraft.server.settings import Limits, ServerSettings
from foredraft.testing import FakeModel, FakeVision
from http_server import Running, serving


class SlowVision(FakeVision):
    """Encodes an image only once `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.go = threading.Event()

    def prepare(self, image: Image) -> PreparedImage:
        self.begun += 1
        assert self.go.wait(30)
        return super().prepare(image)


@dataclass(slots=True)
class Slow:
    running: Running
    vision: SlowVision
    threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)

    def ask(self, path: str, body: dict[str, Any], timeout: float = 20.0) -> httpx.Response:
        given = {"model": "fake", "max_tokens": 4, **body}
        return httpx.post(self.running.url + path, json=given, timeout=timeout)

    def chat(self, content: object, **more: Any) -> httpx.Response:
        return self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}, **more)


@pytest.fixture
def slow() -> Iterator[Slow]:
    vision = SlowVision()
    with serving(model=lambda: FakeModel(258, vision=vision)) as running:
        yield Slow(running, vision)
        vision.go.set()


def url(seed: int, side: int = 16) -> str:
    noise = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    out = io.BytesIO()
    Pillow.fromarray(noise).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def pictures(*urls: str) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": one}} for one in urls]


def until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_text_is_answered_while_images_of_many_requests_wait(slow: Slow) -> None:
    waiting = [slow.threads.submit(slow.chat, pictures(url(n), url(n + 50))) for n in range(8)]
    until(lambda: slow.vision.begun == 1)
    assert slow.chat("hello").status_code == 200
    assert slow.vision.begun == 1  # one at a time
    slow.vision.go.set()
    assert [one.result().status_code for one in waiting] == [200] * 8
    assert slow.vision.prepared == 16


def test_images_of_clients_that_have_gone_are_not_encoded(slow: Slow) -> None:
    def leave(first: int) -> None:
        with pytest.raises(httpx.ReadTimeout):
            slow.chat(pictures(*[url(n) for n in range(first, first + 3)]), timeout=0.5)

    list(slow.threads.map(leave, (0, 10, 20, 30)))
    time.sleep(0.3)  # the server notices
    slow.vision.go.set()
    assert slow.chat(pictures(url(99))).status_code == 200
    assert slow.vision.prepared == 2  # that which had begun, and the last one


@pytest.mark.parametrize("sides", [[520], [260] * 4])
def test_images_without_room_in_the_context_are_refused_before_they_are_encoded(
    slow: Slow, sides: list[int]
) -> None:
    refused = slow.chat(pictures(*[url(n, side) for n, side in enumerate(sides)]))
    assert refused.status_code == 400
    assert "context" in refused.json()["error"]["message"]
    assert slow.vision.begun == 0


def test_counting_tokens_encodes_nothing(slow: Slow) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": url(1).partition(",")[2]}
    turn = {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "x"}]}
    counted = slow.ask("/v1/messages/count_tokens", {"messages": [turn]})
    assert counted.json()["input_tokens"] > 6
    assert slow.vision.begun == 0


def test_an_image_of_several_answers_is_encoded_once(slow: Slow) -> None:
    slow.vision.go.set()
    body = {"messages": [{"role": "user", "content": pictures(url(1), url(1))}], "n": 3}
    assert len(slow.ask("/v1/chat/completions", body).json()["choices"]) == 3
    assert slow.vision.prepared == 1


def test_pictures_of_all_requests_have_a_bound_together() -> None:
    vision = SlowVision()
    settings = ServerSettings(
        images=ImageSettings(max_pixels=256, max_total_pixels=600), limits=Limits(max_waiting=2)
    )
    with serving(settings=settings, model=lambda: FakeModel(258, vision=vision)) as running:
        slow = Slow(running, vision)
        asking = [slow.threads.submit(slow.chat, pictures(url(n))) for n in range(2)]  # 512 pixels
        until(lambda: vision.begun == 1)
        time.sleep(0.3)
        gone = slow.threads.submit(slow.chat, pictures(url(3)), timeout=0.5)
        asking.append(slow.threads.submit(slow.chat, pictures(url(4))))
        time.sleep(0.3)
        refused = slow.chat(pictures(url(5)))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert "Retry-After" in refused.headers
        assert slow.chat("hello").status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            gone.result()
        time.sleep(0.3)  # the server notices
        asking.append(slow.threads.submit(slow.chat, pictures(url(6))))  # has the place of the one that left
        time.sleep(0.3)
        vision.go.set()
        assert [one.result().status_code for one in asking] == [200] * 4
        assert vision.prepared == 4
        tiny = pictures(*[url(n, 4) for n in range(20)])  # more of them than of the largest
        assert slow.chat(tiny).status_code == 200


def test_unloading_waits_for_the_image_that_is_being_encoded_only(slow: Slow) -> None:
    asking = [slow.threads.submit(slow.chat, pictures(url(n), url(n + 50))) for n in range(3)]
    until(lambda: slow.vision.begun == 1)
    unloading = slow.threads.submit(httpx.post, f"{slow.running.url}/v1/models/fake/unload", timeout=20)
    time.sleep(0.3)
    assert not unloading.done()
    slow.vision.go.set()
    assert unloading.result().status_code < 300
    assert slow.vision.prepared == 1
    assert {one.result().status_code for one in asking} == {503}
