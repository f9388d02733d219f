"""The OpenAPI document, and requests that are made up from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis

from foredraft.server.settings import ServerSettings
from http_server import Running, serving
from openapi_cases import LIMITS, Attack, attack, attacks, document

EXAMPLES, NIGHTLY_EXAMPLES = 6, 20


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(settings=ServerSettings(limits=LIMITS)) as running:
        yield running


def test_the_document_is_valid() -> None:
    schemathesis.openapi.from_dict(document()).validate()


def test_the_document_says_which_answers_are_errors() -> None:
    schemas: Any = document()["components"]["schemas"]
    assert not {"HTTPValidationError", "ValidationError"} & set(schemas)
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            assert {"200", "4XX", "5XX"} == set(operation["responses"])
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
