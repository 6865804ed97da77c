"""Answers out of bytes, however they come, and what each means."""

import pytest

from yirangmq.webhooks.http_client import (
    KEPT_BODY_BYTES,
    MAX_BODY,
    MAX_HEAD,
    MAX_HOLD_SECONDS,
    BadResponse,
    NoResponse,
    WebhookResponse,
    response_outcome,
    retry_after,
)

NOW = 1_768_296_060.0
"""Tue, 13 Jan 2026 09:21:00 GMT"""


def fed(data: bytes, step: int = 1) -> WebhookResponse:
    answer = WebhookResponse()
    for begin in range(0, len(data), step):
        answer.feed(data[begin : begin + step])
    return answer


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "status", "body", "keeps_alive"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", 503, b"", True),
    ],
)
def test_webhook_response_is_parsed_for_any_split_of_the_bytes(
    data: bytes, status: int, body: bytes, keeps_alive: bool, step: int
) -> None:
    answer = fed(data, step)
    assert (answer.is_complete, answer.status, answer.body, answer.keeps_alive) == (True, status, body, keeps_alive)


def test_webhook_response_without_a_length_ends_with_its_connection() -> None:
    answer = fed(b"HTTP/1.1 200 OK\r\n\r\nsome")
    assert not answer.is_complete
    answer.on_connection_end()
    assert (answer.is_complete, answer.body, answer.keeps_alive) == (True, b"some", False)


def test_webhook_response_body_without_an_end_is_read_and_kept_only_to_its_limits() -> None:
    answer = fed(b"HTTP/1.1 200 OK\r\n\r\n", 100)
    while not answer.is_complete:
        answer.feed(b"x" * 10_000)
    assert len(answer.body) == KEPT_BODY_BYTES < MAX_BODY
    assert not answer.keeps_alive


def test_webhook_response_that_is_invalid_empty_incomplete_or_too_long_is_rejected() -> None:
    with pytest.raises(BadResponse):
        fed(b"SSH-2.0-hello\r\n")
    with pytest.raises(NoResponse):
        WebhookResponse().on_connection_end()
    half = fed(b"HTTP/1.1 200 OK\r\n")
    with pytest.raises(BadResponse, match="in the middle"):
        half.on_connection_end()
    with pytest.raises(BadResponse, match="too long"):
        fed(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * MAX_HEAD, 1000)


# -- meaning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        *((status, "") for status in (200, 299)),
        *((status, "REJECTED") for status in (400, 404, 410)),
        *((status, "HANDLER_ERROR") for status in (199, 302, 408, 425, 429, 500)),
    ],
)
def test_webhook_status_decides_the_reason_of_the_outcome(status: int, reason: str) -> None:
    outcome = response_outcome(status, {}, b"", NOW)
    assert outcome.reason == reason
    assert outcome.is_endpoint_failure == (reason == "HANDLER_ERROR")


def test_webhook_response_text_is_kept_in_part() -> None:
    assert response_outcome(400, {}, b" \xff bad \n", NOW).text == "the webhook answered 400: \ufffd bad"
    assert len(response_outcome(400, {}, b"x" * 9_000, NOW).text) < 300


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        ("9" * 30, MAX_HOLD_SECONDS),
        ("Tue, 13 Jan 2026 09:22:00 GMT", 60),
        ("Tue, 13 Jan 2026 09:20:00 GMT", 0),
        ("Tue, 13 Jan 2099 09:20:00 GMT", MAX_HOLD_SECONDS),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(given: str, seconds: float | None) -> None:
    assert retry_after(given, NOW) == seconds


def test_retry_after_is_honoured_for_503_and_not_for_500() -> None:
    assert response_outcome(503, {"retry-after": "7"}, b"", NOW)[2:] == (7, 7)
    assert response_outcome(500, {"retry-after": "7"}, b"", NOW)[2:] == (None, 0)
