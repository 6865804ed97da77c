"""Log lines: one JSON document each, whatever is in them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from yirangmq.observe.logs import begin, log, values


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    level = root.level
    handler = begin("info", "json", stream)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def test_an_event_is_a_line_with_its_values(lines: io.StringIO) -> None:
    log.info("listening", extra=values(address="unix:/run/y.sock", clients=3))
    log.debug("not at this level")
    [line] = lines.getvalue().splitlines()
    document = json.loads(line)
    at = document.pop("at")
    assert document == {"level": "info", "event": "listening", "address": "unix:/run/y.sock", "clients": 3}
    assert at.endswith("Z")
    assert len(at) == len("2026-01-13T09:21:00.000Z")


def test_an_error_of_another_part_has_its_trace_in_the_same_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("asyncio").exception("broken %s", "pipe")
    [line] = lines.getvalue().splitlines()
    document = json.loads(line)
    assert (document["event"], document["logger"], document["level"]) == ("broken pipe", "asyncio", "error")
    assert "ValueError: a\nb" in document["error"]


def test_what_is_no_json_is_written_as_text(lines: io.StringIO) -> None:
    log.warning("odd", extra=values(what=object, number=float("inf")))
    [line] = lines.getvalue().splitlines()
    assert json.loads(line)["number"] == "inf"


def test_for_people_it_is_text() -> None:
    stream = io.StringIO()
    handler = begin("info", "text", stream)
    try:
        log.info("ready", extra=values(clients=3))
    finally:
        logging.getLogger().removeHandler(handler)
    assert stream.getvalue().endswith(" info    ready  clients=3\n")
