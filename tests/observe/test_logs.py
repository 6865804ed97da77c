"""Log lines: one JSON document each, whatever is in them."""

import io
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wait import PATIENCE
from yirangmq.core.errors import BadInput
from yirangmq.observe.logs import log, start_log, start_syslog, values


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    level = root.level
    handler = start_log("info", "json", stream)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def test_log_event_is_one_json_line_with_its_values(lines: io.StringIO) -> None:
    log.info("listening", extra=values(address="unix:/run/y.sock", clients=3))
    log.debug("not at this level")
    [line] = lines.getvalue().splitlines()
    document = json.loads(line)
    at = document.pop("at")
    assert document == {"level": "info", "event": "listening", "address": "unix:/run/y.sock", "clients": 3}
    assert at.endswith("Z")
    assert len(at) == len("2026-01-13T09:21:00.000Z")


def test_log_error_of_another_library_has_its_traceback_in_the_same_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("asyncio").exception("broken %s", "pipe")
    [line] = lines.getvalue().splitlines()
    document = json.loads(line)
    assert (document["event"], document["logger"], document["level"]) == ("broken pipe", "asyncio", "error")
    assert "ValueError: a\nb" in document["error"]


def test_log_value_that_is_no_json_is_written_as_text(lines: io.StringIO) -> None:
    log.warning("odd", extra=values(what=object, number=float("inf")))
    [line] = lines.getvalue().splitlines()
    assert json.loads(line)["number"] == "inf"


def test_log_format_text_is_one_readable_line() -> None:
    stream = io.StringIO()
    handler = start_log("info", "text", stream)
    try:
        log.info("ready", extra=values(clients=3))
    finally:
        logging.getLogger().removeHandler(handler)
    assert stream.getvalue().endswith(" info    ready  clients=3\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "is_text"), [(Terminal(), True), (io.StringIO(), False)])
def test_log_format_auto_is_text_on_a_terminal_and_json_otherwise(stream: io.StringIO, is_text: bool) -> None:
    handler = start_log("info", "auto", stream)
    try:
        log.info("ready", extra=values(clients=3))
    finally:
        logging.getLogger().removeHandler(handler)
    assert stream.getvalue().endswith(" info    ready  clients=3\n") is is_text
    assert stream.getvalue().startswith('{"at":') is not is_text


@pytest.mark.parametrize("kind", ["unix", "udp"])
def test_syslog_gets_the_same_lines(lines: io.StringIO, tmp_path: Path, kind: str) -> None:
    with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET, socket.SOCK_DGRAM) as system:
        system.bind(str(tmp_path / "log") if kind == "unix" else ("127.0.0.1", 0))
        system.settimeout(PATIENCE)
        place = system.getsockname()
        handler = start_syslog(f"unix:{place}" if kind == "unix" else f"udp:127.0.0.1:{place[1]}")
        try:
            log.warning("subscriber_lag_exceeded", extra=values(name="ledger", lag=1001))
            heard = system.recv(4096).decode()
        finally:
            logging.getLogger().removeHandler(handler)
            handler.close()
    rank, _, text = heard.partition("yirangmq: ")
    assert rank == "<28>"  # daemon, warning
    assert text == lines.getvalue().strip()
    assert json.loads(text)["lag"] == 1001


def test_syslog_that_has_gone_does_not_disturb_the_log_and_a_missing_one_is_refused(
    lines: io.StringIO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match=r"^syslog: unix:.* cannot be reached"):
        start_syslog(f"unix:{tmp_path / 'nobody'}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system:
        system.bind(str(tmp_path / "log"))
        handler = start_syslog(f"unix:{tmp_path / 'log'}")
    try:
        for n in range(3):
            log.warning("here", extra=values(n=n))
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    assert len(lines.getvalue().splitlines()) == 3
    assert capsys.readouterr().err == ""
