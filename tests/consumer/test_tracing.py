"""What a handler traces hangs under the message it worked on. A tracer provider is set up once for a whole process, so
each of these runs in one of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PROGRAM = f"""
import json, sys
{{before}}
import yirangmq

address = sys.argv[1]
with yirangmq.open(address) as queues:
    queues.publish("mail", yirangmq.NewMessage(payload=1, attributes={{{{"traceparent": "00-{TRACE}-{SPAN}-01"}}}}))
consumer = yirangmq.Consumer(address, name="tracer")

@consumer.handler("mail")
def handle(delivery):
    {{inside}}
    if delivery.attempt == 1:
        raise RuntimeError("once")

with yirangmq.open(address) as queues:
    queues.set_policy("mail", {{{{"retry": {{{{"initialDelaySec": 0, "maxDelaySec": 0}}}}}}}})
consumer.run(until_empty=True)
{{after}}
"""
PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
"""
TELL = """
rows = [
    {
        "name": span.name,
        "trace": f"{span.context.trace_id:032x}",
        "span": f"{span.context.span_id:016x}",
        "parent": f"{span.parent.span_id:016x}",
        "ok": span.status.is_ok,
        "attempt": span.attributes.get("yirangmq.attempt"),
    }
    for span in spans.get_finished_spans()
]
print(json.dumps(rows))
"""


def run(tmp_path: Path, before: str, inside: str, after: str) -> str:
    program = PROGRAM.format(before=before, inside=inside, after=after)
    command = [sys.executable, "-c", program, f"sqlite:{tmp_path / 'queue.db'}"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def test_tracing_spans_of_a_handler_are_children_of_its_message(tmp_path: Path) -> None:
    inside = 'trace.get_tracer("mine").start_span("inner").end()'
    rows: list[dict[str, Any]] = json.loads(run(tmp_path, PROVIDER, inside, TELL))
    tries = [row for row in rows if row["name"] == "handle mail"]
    assert [(row["attempt"], row["ok"]) for row in tries] == [(1, False), (2, True)]
    assert {row["trace"] for row in rows} == {TRACE}
    assert {row["parent"] for row in tries} == {SPAN}
    assert [row["parent"] for row in rows if row["name"] == "inner"] == [row["span"] for row in tries]


def test_tracing_without_a_provider_does_not_load_opentelemetry(tmp_path: Path) -> None:
    after = "print('opentelemetry' in sys.modules)"
    assert run(tmp_path, "", "pass", after).split() == ["False"]
