"""OpenTelemetry: the spans of requests, what they carry, and when none are made."""

from __future__ import annotations

import gzip
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from foredraft.server.telemetry import Telemetry, configured, from_environment
from http_server import Running, serving

CHAT = {"messages": [{"role": "user", "content": "secret words"}], "max_tokens": 8, "temperature": 0}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def ask(server: Running, path: str, body: object, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=30)


@contextmanager
def traced() -> Iterator[tuple[Running, InMemorySpanExporter]]:
    """A server, and its spans: after its end all of them."""
    exporter = InMemorySpanExporter()
    with serving("fake", telemetry=Telemetry(exporter)) as server:
        yield server, exporter


def spans_of(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return list(exporter.get_finished_spans())


def test_an_answer_is_one_span_with_the_conventions_names() -> None:
    before = time.time_ns()
    with traced() as (server, exporter):
        usage = ask(server, "/v1/chat/completions", {"model": "gpt-4o", **CHAT}).json()["usage"]
        httpx.get(f"{server.url}/health")
        httpx.get(f"{server.url}/v1/models")
    (span,) = spans_of(exporter)
    assert span.name == "chat fake"
    assert span.kind is SpanKind.SERVER
    assert before <= (span.start_time or 0) <= (span.end_time or 0) <= time.time_ns()
    found = dict(span.attributes or {})
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.provider.name"] == "foredraft"
    assert found["gen_ai.request.model"] == "gpt-4o"
    assert found["gen_ai.response.model"] == "fake"
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 8
    assert 0 < float(str(found["gen_ai.response.time_to_first_chunk"])) < 30
    assert found["http.response.status_code"] == 200
    assert "error.type" not in found
    assert "secret" not in span.to_json()


def test_drafts_are_counted() -> None:
    with traced() as (server, exporter):
        answer = ask(
            server, "/v1/completions", {"prompt": "abcabcabcabc", "max_tokens": 64, "temperature": 0}
        )
    drafters = answer.json()["speculation"]["drafters"]
    found = dict(spans_of(exporter)[0].attributes or {})
    drafted = sum(one["drafted"] for one in drafters.values())
    accepted = sum(one["accepted"] for one in drafters.values())
    assert drafted > 0
    assert found["foredraft.draft.tokens"] == drafted
    assert found["foredraft.draft.accepted_tokens"] == accepted
    assert found["foredraft.draft.acceptance"] == pytest.approx(accepted / drafted)
    assert found["gen_ai.operation.name"] == "text_completion"


def test_a_prompt_counts_once_for_its_answers() -> None:
    with traced() as (server, exporter):
        body = {"prompt": ["abc", "abcdefg"], "n": 2, "max_tokens": 3}
        usage = ask(server, "/v1/completions", body).json()["usage"]
    found = dict(spans_of(exporter)[0].attributes or {})
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 12
    assert found["gen_ai.response.finish_reasons"] == ("length",) * 4


def test_a_callers_trace_goes_on() -> None:
    with traced() as (server, exporter):
        ask(server, "/v1/chat/completions", CHAT, traceparent=f"00-{TRACE}-{PARENT}-01")
        ask(server, "/v1/chat/completions", CHAT, traceparent="nonsense")
    first, second = spans_of(exporter)
    assert first.parent is not None
    assert (f"{first.parent.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, PARENT)
    assert second.parent is None


def test_a_refused_request_says_why() -> None:
    with traced() as (server, exporter):
        ask(server, "/v1/chat/completions", {**CHAT, "max_tokens": -7})
        ask(server, "/v1/messages", {"model": "fake", "messages": []})
    first, second = (dict(span.attributes or {}) for span in spans_of(exporter))
    assert first["http.response.status_code"] == 400
    assert first["error.type"]
    assert "gen_ai.usage.output_tokens" not in first
    assert second["http.response.status_code"] == 400
    # The client's fault is not an error of the server, as in the conventions for HTTP.
    assert spans_of(exporter)[0].status.status_code is StatusCode.UNSET


def test_a_client_that_leaves_is_noted() -> None:
    with traced() as (server, exporter):
        body = {**CHAT, "max_tokens": 2000, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body) as stream:
            next(stream.iter_bytes())
    found = dict(spans_of(exporter)[0].attributes or {})
    assert found["gen_ai.response.finish_reasons"] == ("abort",)


# --- what the environment says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "  "}, False),
        ({"OTEL_SERVICE_NAME": "mine"}, False),
    ],
)
def test_it_is_on_where_the_standard_variables_say_so(environment: dict[str, str], wanted: bool) -> None:
    assert configured(environment) is wanted


def test_off_means_that_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert from_environment(os.environ) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "opentelemetry-exporter-otlp-proto-grpc"),
    ],
)
def test_what_cannot_export_is_said_and_the_server_runs(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert from_environment(os.environ) is None
    assert said in caplog.text


def test_without_the_packages_the_log_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert from_environment(os.environ) is None
    assert "[otel]" in caplog.text


class _Collector(BaseHTTPRequestHandler):
    """A stand-in for an OpenTelemetry collector."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.came.append((self.path, ExportTraceServiceRequest.FromString(body)))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


def test_spans_reach_a_collector_before_the_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = HTTPServer(("127.0.0.1", 0), _Collector)
    collector.came = []  # type: ignore[attr-defined]
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        telemetry = from_environment(os.environ)
        assert telemetry is not None
        with serving("fake", telemetry=telemetry) as server:
            ask(server, "/v1/chat/completions", CHAT)
    finally:
        collector.shutdown()
        collector.server_close()
    ((path, request),) = collector.came  # type: ignore[attr-defined]
    assert path == "/v1/traces"
    (resource,) = request.resource_spans
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert named["service.name"] == "foredraft"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["chat fake"]


def test_a_collector_that_is_away_delays_neither_answers_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    telemetry = from_environment(os.environ)
    assert telemetry is not None
    with serving("fake", telemetry=telemetry) as server:
        assert ask(server, "/v1/chat/completions", CHAT).status_code == 200
        began = time.monotonic()
    assert time.monotonic() - began < 15
