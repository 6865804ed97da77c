"""Spans for messages that carry a trace, collected by the library's own exporter."""

import subprocess
import sys
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from yirangmq.broker.queues import Queues
from yirangmq.core.events import TraceStep
from yirangmq.format.envelope import NewMessage
from yirangmq.observe.traces import TraceExporter
from yirangmq.testing import START_MS, ManualClock, open_for_test

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
NANO = 1_000_000


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> TraceExporter:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return TraceExporter(provider)


@pytest.fixture
def queues(clock: ManualClock, traces: TraceExporter) -> Queues:
    queues = open_for_test(clock=clock)
    queues.add_listener(traces.on_events)
    queues.context.event_buffer.is_traced = True
    return queues


def trace_ids(spans: Sequence[ReadableSpan]) -> list[str]:
    return [f"{span.context.trace_id:032x}" for span in spans if span.context is not None]


def test_trace_follows_a_message_from_its_producer_to_its_ack(
    queues: Queues, clock: ManualClock, exporter: InMemorySpanExporter
) -> None:
    queues.publish("mail", NewMessage(payload=1, attributes={"traceparent": f"00-{TRACE}-{SPAN}-01"}))
    clock.advance(500)
    [held] = queues.lease("mail")
    clock.advance(2_000)
    queues.ack(held.lease_id)
    published, processed = exporter.get_finished_spans()
    assert trace_ids([published, processed]) == [TRACE, TRACE]
    for span in (published, processed):
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == SPAN
    assert (published.name, published.kind) == ("publish mail", SpanKind.PRODUCER)
    assert (processed.name, processed.kind) == ("process mail", SpanKind.CONSUMER)
    assert processed.start_time == (START_MS + 500) * NANO
    assert processed.end_time == (START_MS + 2_500) * NANO
    assert processed.attributes is not None
    assert dict(processed.attributes) == {
        "messaging.system": "yirangmq",
        "messaging.destination.name": "mail",
        "messaging.message.id": "m-1",
        "messaging.operation.name": "process",
        "yirangmq.outcome": "ok",
        "yirangmq.attempt": 1,
    }


def test_trace_id_alone_is_carried_too(queues: Queues, exporter: InMemorySpanExporter) -> None:
    queues.publish("mail", NewMessage(payload=1, trace_id=TRACE))
    queues.publish("mail", NewMessage(payload=1, trace_id="0AF76519-16cd-43dd-8448-eb211c80319c"))
    assert trace_ids(exporter.get_finished_spans()) == [TRACE, TRACE]


def test_trace_id_of_another_form_is_kept_as_an_attribute(queues: Queues, exporter: InMemorySpanExporter) -> None:
    queues.publish("mail", NewMessage(payload=1, trace_id="order 17"))
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert span.attributes is not None
    assert span.attributes["yirangmq.trace_id"] == "order 17"


def test_trace_is_not_recorded_for_messages_without_a_trace(queues: Queues, exporter: InMemorySpanExporter) -> None:
    queues.publish("mail", NewMessage(payload=1, type="note", attributes={"a": 1}))
    queues.ack(queues.lease("mail")[0].lease_id)
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(("outcome", "status"), [("ok", "UNSET"), ("release", "UNSET"), ("TIMEOUT", "ERROR")])
def test_trace_span_of_a_failed_attempt_is_an_error(
    traces: TraceExporter, exporter: InMemorySpanExporter, outcome: str, status: str
) -> None:
    traces.on_events([TraceStep("mail", "m-1", '{"traceId":"x"}', "process", 2, START_MS, START_MS + 1, outcome)])
    [span] = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode[status]


@pytest.mark.parametrize(
    "header", ["", "[]", "{", '{"traceId":7,"attributes":[]}', '{"attributes":{"traceparent":"x"}}']
)
def test_trace_header_that_is_invalid_starts_a_trace_of_its_own(
    traces: TraceExporter, exporter: InMemorySpanExporter, header: str
) -> None:
    traces.on_events([TraceStep("mail", "m-1", header, "publish", 0, START_MS, START_MS)])
    [span] = exporter.get_finished_spans()
    assert span.parent is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("", False),
        ("from opentelemetry import trace", False),
        ("from opentelemetry import trace; trace.set_tracer_provider(trace.NoOpTracerProvider())", False),
        (
            "from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider; "
            "trace.set_tracer_provider(TracerProvider())",
            True,
        ),
    ],
)
def test_trace_collection_is_on_only_with_a_configured_tracer_provider(before: str, found: bool) -> None:
    program = f"{before}\nfrom yirangmq.observe.traces import load\nprint(load() is not None)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{found}\n"
