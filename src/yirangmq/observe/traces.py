"""Spans for messages that carry a trace: one when it was published, one for each time it was worked on. Needs the extra
``otel`` and a tracer provider that somebody has set up, as ``opentelemetry-instrument yirangmq serve`` does.

A message carries a trace as the attribute ``traceparent`` (W3C), or as ``traceId``."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from yirangmq.core.errors import BadInput
from yirangmq.core.events import Event, Traced
from yirangmq.format.jsontext import loads

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

NANO = 1_000_000


class Traces:
    """``hear`` is given the events of each commit."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace

        self._tracer = provider.get_tracer("yirangmq")
        self._kinds = {"publish": trace.SpanKind.PRODUCER, "process": trace.SpanKind.CONSUMER}
        self._error = trace.Status(trace.StatusCode.ERROR)

    def hear(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Traced):
                self._tell(event)

    def _tell(self, event: Traced) -> None:
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


def load() -> Traces | None:
    """Traces, if somebody has set a provider up in this process, which loads the library; None otherwise."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.NoOpTracerProvider | trace.ProxyTracerProvider):
        return None
    return Traces(provider)


def parent_of(header: dict[str, Any]) -> "Context | None":
    """What the spans hang under: the producer's span, or a trace of which only the id is known."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attributes = header.get("attributes")
    parent = attributes.get("traceparent") if isinstance(attributes, dict) else None
    if isinstance(parent, str):
        return TraceContextTextMapPropagator().extract({"traceparent": parent})
    number = _trace_number(header.get("traceId"))
    if not number:
        return None
    # Only the trace is known, not who began it: the lower half of its number stands for that.
    span = trace.SpanContext(number, number & (2**64 - 1) or 1, True, trace.TraceFlags(trace.TraceFlags.SAMPLED))
    return trace.set_span_in_context(trace.NonRecordingSpan(span))


def _trace_number(text: object) -> int:
    """32 hexadecimal digits, dashes apart, as a number; 0 where it is anything else."""
    digits = text.replace("-", "") if isinstance(text, str) else ""
    if len(digits) != 32 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
        return 0
    return int(digits, 16)


def _read(header: str) -> dict[str, Any]:
    try:
        found = loads(header.encode())
    except BadInput:
        return {}
    return found if isinstance(found, dict) else {}
