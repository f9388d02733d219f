"""OpenTelemetry: a span for each request for an answer, exported by OTLP.

Names are those of the semantic conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans), and `foredraft.…` for what they have none
for. A span has no text of a prompt or an answer, and no key. It is made when its request is over, with the
times that were noted for the log: while a request runs nothing is done for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from foredraft.errors import MissingDependencyError
from foredraft.installation import add_extra
from foredraft.server.metrics import Watch
from foredraft.server.request_log import Entry

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
}
"""`gen_ai.operation.name` by path. Other requests have no span."""

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

CLOSING_MS: Final = 5_000
"""Milliseconds that the last spans have at the server's end."""


def configured(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables ask for spans: an endpoint, or an exporter by name."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter != "none"
    return any(environment.get(name, "").strip() for name in ENDPOINTS)


def from_environment(environment: Mapping[str, str]) -> Telemetry | None:
    """What exports spans, if these variables configure it. A server whose packages for it are missing, or
    whose exporter is not known, runs without, and the log says so: these variables are often set for all
    programs of a machine.
    """
    if not configured(environment):
        return None
    try:
        telemetry = Telemetry(_exporter(environment), named=_is_named(environment))
    except MissingDependencyError as error:
        logger.warning(
            "OpenTelemetry is configured, but no spans are exported: %s %s", error.message, error.hint
        )
        return None
    logger.info("OpenTelemetry: a span for each answer is exported")
    return telemetry


def _exporter(environment: Mapping[str, str]) -> SpanExporter:
    """The exporter that OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_PROTOCOL name; by default OTLP over HTTP.
    Its other settings, such as headers and time limits, it reads itself. Raises MissingDependencyError.
    """
    name = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", ""
    )
    if name == "console":
        return _made("opentelemetry.sdk.trace.export", "ConsoleSpanExporter", add_extra("otel"))
    if name != "otlp":
        raise MissingDependencyError(
            f"The exporter OTEL_TRACES_EXPORTER={name!r} is not known.",
            hint="Use otlp, console or none.",
        )
    if protocol.strip().lower() == "grpc":
        package = "opentelemetry-exporter-otlp-proto-grpc"
        return _made("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "OTLPSpanExporter", package)
    return _made(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter", "OTLPSpanExporter", add_extra("otel")
    )


def _made(module: str, name: str, install: str) -> SpanExporter:
    try:
        exporter: SpanExporter = getattr(import_module(module), name)()
    except ImportError:
        raise MissingDependencyError(f"{module} is not installed.", hint=f"Install it: {install}") from None
    return exporter


def _is_named(environment: Mapping[str, str]) -> bool:
    attributes = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(environment.get("OTEL_SERVICE_NAME")) or "service.name=" in attributes


class Telemetry:
    """Makes a span of each request for an answer when it is over, and exports it on a thread of its own.
    `named`: whether OpenTelemetry's variables name the service, which is `foredraft` otherwise.
    """

    def __init__(self, exporter: SpanExporter, *, named: bool = False) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider: TracerProvider = TracerProvider(
            resource=Resource.create({} if named else {SERVICE_NAME: "foredraft"})
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("foredraft", version("foredraft"))
        self._parents = TraceContextTextMapPropagator()

    def begin(self, entry: Entry) -> None:
        """See Book. Nothing: the entry has the time."""

    def end(self, entry: Entry, status: int) -> None:
        """See Book."""
        operation = OPERATIONS.get(entry.route)
        if operation is None or entry.method != "POST":
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        span = self._tracer.start_span(
            f"{operation} {entry.model}" if entry.model else operation,
            context=self._parents.extract(dict(entry.headers)),
            kind=SpanKind.SERVER,
            start_time=int(1e9 * entry.at),
            attributes={
                **request_attributes(entry, operation, status),
                **(entry.measured or answer_attributes(entry.watches, entry.each)),
            },
        )
        if status >= 500 or (status < 400 and entry.error is not None):
            span.set_status(Status(StatusCode.ERROR, entry.error))
        span.end(time_ns())

    def close(self) -> None:
        """Export what is left, for at most `CLOSING_MS`."""
        self._provider.force_flush(CLOSING_MS)
        self._provider.shutdown()


def request_attributes(entry: Entry, operation: str, status: int) -> dict[str, Any]:
    """What is known of a request, whether or not it was answered."""
    known = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "foredraft",
        "gen_ai.request.model": entry.asked or entry.model,
        "gen_ai.response.model": entry.model,
        "http.request.method": entry.method,
        "url.path": entry.route,
        "http.response.status_code": status,
        "error.type": (entry.code or str(status)) if entry.error or status >= 400 else None,
        "foredraft.request.id": entry.id,
        "foredraft.caller": entry.caller,
    }
    return {name: value for name, value in known.items() if value is not None}


def answer_attributes(watches: Sequence[Watch], each: int = 1) -> dict[str, Any]:
    """What is known of a request's answers, of all together, `each` to a prompt. A prompt counts once."""
    firsts = [watch.first - watch.began for watch in watches if watch.first is not None]
    ends = [watch.end for watch in watches if watch.end is not None]
    found: dict[str, Any] = {}
    if watches:
        reasons = (str(watch.end.reason) if watch.end else "abort" for watch in watches)
        found["gen_ai.response.finish_reasons"] = list(reasons)
    if firsts:
        found["gen_ai.response.time_to_first_chunk"] = min(firsts)
    if not ends:
        return found
    drafters = [drafter for end in ends for drafter in end.speculation.drafters.values()]
    drafted, accepted = (sum(getattr(one, name) for one in drafters) for name in ("drafted", "accepted"))
    found |= {
        "gen_ai.usage.input_tokens": sum(end.usage.prompt_tokens for end in ends[::each]),
        "gen_ai.usage.cache_read.input_tokens": sum(end.usage.cached_tokens for end in ends[::each]),
        "gen_ai.usage.output_tokens": sum(end.usage.completion_tokens for end in ends),
        "gen_ai.usage.reasoning.output_tokens": sum(end.usage.reasoning_tokens for end in ends),
        "foredraft.draft.tokens": drafted,
        "foredraft.draft.accepted_tokens": accepted,
        "foredraft.rounds": sum(end.speculation.rounds for end in ends),
    }
    if drafted:
        found["foredraft.draft.acceptance"] = accepted / drafted
    if len(ends) == 1 and ends[0].speculation.estimated_speedup is not None:
        found["foredraft.estimated_speedup"] = ends[0].speculation.estimated_speedup
    return found
