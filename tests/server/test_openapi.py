"""The OpenAPI document, and requests that are made up from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis

from fake_embedder import FakeEmbedder
from foredraft.config import OtherPrograms
from foredraft.server.console.library import Library
from foredraft.server.console.parts import Parts
from foredraft.server.settings import ServerSettings
from http_server import Running, serving
from hub_server import running_hub
from openapi_cases import EMBEDDER, LIMITS, RERANKER, Attack, attack, attacks, document

EXAMPLES, NIGHTLY_EXAMPLES = 6, 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its settings cannot be saved: a key, once made, would refuse all requests after it. Its models folder
    and its Hub are empty.
    """
    folder = tmp_path_factory.mktemp("settings")
    file = folder / "foredraft.toml"
    file.touch(0o400)
    settings = ServerSettings(limits=LIMITS, cache_dir=folder / "cache")
    with running_hub() as hub:
        parts = Parts(settings_file=file, library=Library(OtherPrograms()), hub=hub.endpoint)
        embedders = {EMBEDDER: FakeEmbedder(), RERANKER: FakeEmbedder("reranker")}
        with serving(settings=settings, console=parts, embedders=embedders) as running:
            yield running


def test_the_document_is_valid() -> None:
    schemathesis.openapi.from_dict(document()).validate()


def test_the_document_says_which_answers_are_errors() -> None:
    schemas: Any = document()["components"]["schemas"]
    assert not {"HTTPValidationError", "ValidationError"} & set(schemas)
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            assert set(operation["responses"]) - {"4XX", "5XX"} in ({"200"}, {"204"})
            for status in ("4XX", "5XX"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                name = "AnthropicError" if path.startswith("/v1/messages") else "Error"
                assert schema == {"$ref": f"#/components/schemas/{name}"}
                assert name in schemas


@pytest.mark.parametrize("what", attacks("fake"), ids=str)
def test_no_request_is_the_server_s_fault(server: Running, what: Attack, is_nightly: bool) -> None:
    statuses = attack(server.url, what, NIGHTLY_EXAMPLES if is_nightly else EXAMPLES)
    if what.kind == "reaching":
        assert statuses[200]
    if what.kind == "misfitting":
        assert not statuses[200]
    assert soon_idle(server)


def soon_idle(server: Running) -> bool:
    """Whether nothing runs: streams that were left early end before the next round."""
    for _ in range(200):
        if all(engine.idle for engine in server.engines.values()):
            return True
        time.sleep(0.02)
    return False
