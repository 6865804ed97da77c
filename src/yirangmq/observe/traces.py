"""OpenTelemetry spans of messages that carry a trace: one for the publish, one for each processing.

A message carries a trace as the attribute ``traceparent`` (W3C), or as ``traceId``. Spans need the extra ``otel`` and a
tracer provider in this process, as ``opentelemetry-instrument yirangmq serve`` sets one up."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from yirangmq.core.errors import BadInput
from yirangmq.core.events import Event, TraceStep
from yirangmq.format.json_codec import loads
from yirangmq.format.trace_context import parent_of, provider

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

NANO = 1_000_000


class TraceExporter:
    """Span exporter. Pass the events of each commit to ``on_events``."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace

        self._tracer = provider.get_tracer("yirangmq")
        self._kinds = {"publish": trace.SpanKind.PRODUCER, "process": trace.SpanKind.CONSUMER}
        self._error = trace.Status(trace.StatusCode.ERROR)

    def on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TraceStep):
                self._export(event)

    def _export(self, event: TraceStep) -> None:
        header = _read(event.header)
        attributes: dict[str, str | int] = {
            "messaging.system": "yirangmq",
            "messaging.destination.name": event.queue,
            "messaging.message.id": event.id,
            "messaging.operation.name": event.step,
            "yirangmq.outcome": event.outcome,
        }
        if event.attempt:
            attributes["yirangmq.attempt"] = event.attempt
        if isinstance(header.get("traceId"), str):
            attributes["yirangmq.trace_id"] = header["traceId"]
        span = self._tracer.start_span(
            f"{event.step} {event.queue}",
            parent_of(header),
            self._kinds[event.step],
            attributes,
            start_time=event.begun_at * NANO,
        )
        if event.outcome not in ("ok", "release"):
            span.set_status(self._error)
        span.end(event.ended_at * NANO)


def load() -> TraceExporter | None:
    found = provider()
    return None if found is None else TraceExporter(found)


def _read(header: str) -> dict[str, Any]:
    try:
        found = loads(header.encode())
    except BadInput:
        return {}
    return found if isinstance(found, dict) else {}
