"""Trace context of a message, for OpenTelemetry.

It is read from the attribute ``traceparent`` (W3C), or from ``traceId``. The library is used only where the process has
loaded it and set up a tracer provider; ``observe.traces`` and ``consumer.worker_pool`` make the spans."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider


def provider() -> "TracerProvider | None":
    """The one that somebody has set up in this process, which loads the library; None otherwise."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    found = trace.get_tracer_provider()
    return None if isinstance(found, trace.NoOpTracerProvider | trace.ProxyTracerProvider) else found


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
