from __future__ import annotations

import time
from collections.abc import Iterator

import openai
import pytest

from foredraft import Engine
from foredraft.server import frames
from foredraft.types import Event
from http_server import Running, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """One server for a module's tests."""
    with serving("fake", "other") as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


@pytest.fixture
def long_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that take longer than a frame, so that each crosses over by itself."""
    step = Engine.step

    def long(engine: Engine) -> list[Event]:
        time.sleep(0.003)
        return step(engine)

    monkeypatch.setattr(frames, "FRAME_S", 0.002)
    monkeypatch.setattr(Engine, "step", long)
