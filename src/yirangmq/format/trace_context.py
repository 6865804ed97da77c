"""Trace context of a message, for OpenTelemetry.

It is read from the attribute ``traceparent`` (W3C), or from ``traceId``. The library is used only if the process has
loaded it and set up a tracer provider. ``observe.traces`` and ``consumer.worker_pool`` create the spans."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider


def provider() -> "TracerProvider | None":
    """Return the tracer provider that is set up in this process; None if there is none.

    Setting one up loads the library, so this function does not load it."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    found = trace.get_tracer_provider()
    return None if isinstance(found, trace.NoOpTracerProvider | trace.ProxyTracerProvider) else found


def parent_of(header: dict[str, Any]) -> "Context | None":
    """Return the context of the parent span: the producer's span, or a trace of which only the id is known."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attributes = header.get("attributes")
    parent = attributes.get("traceparent") if isinstance(attributes, dict) else None
    if isinstance(parent, str):
        return TraceContextTextMapPropagator().extract({"traceparent": parent})
    number = _trace_number(header.get("traceId"))
    if not number:
        return None
    # Only the trace id is known. The lower 64 bits of it serve as the id of the parent span, which must not be 0.
    span = trace.SpanContext(number, number & (2**64 - 1) or 1, True, trace.TraceFlags(trace.TraceFlags.SAMPLED))
    return trace.set_span_in_context(trace.NonRecordingSpan(span))


def _trace_number(text: object) -> int:
    """Parse 32 hexadecimal digits, ignoring dashes. Return 0 for any other value."""
    digits = text.replace("-", "") if isinstance(text, str) else ""
    if len(digits) != 32 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
        return 0
    return int(digits, 16)
