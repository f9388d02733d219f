from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

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
