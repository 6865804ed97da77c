"""A handler's work as a span, so that what the handler itself traces hangs under the message it was for. Without the
extra ``otel``, or where nobody has set a tracer provider up, nothing is done."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from yirangmq.consumer.ports import Taken
from yirangmq.format.delivery import parent_of, provider


def handling(taken: Taken, queue: str) -> AbstractContextManager[Any]:
    """The span of one try. A handler's error is recorded in it."""
    found = provider()
    if found is None:
        return nullcontext()
    from opentelemetry import trace

    attributes: dict[str, str | int] = {
        "messaging.system": "yirangmq",
        "messaging.destination.name": queue,
        "messaging.message.id": taken.id,
        "messaging.operation.name": "handle",
        "yirangmq.attempt": taken.attempt,
    }
    tracer = found.get_tracer("yirangmq")
    return tracer.start_as_current_span(f"handle {queue}", parent_of(taken.header), trace.SpanKind.CONSUMER, attributes)
