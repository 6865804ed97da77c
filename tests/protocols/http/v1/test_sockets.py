"""The API behind the real protocol, on a real socket."""

import gzip
import http.client
import json
from collections.abc import Iterator

import pytest

from tests.support.http_server import HttpServer
from tests.support.wait import PATIENCE
from yirangmq.clock import SystemClock
from yirangmq.stores.memory import MemoryStore


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer(MemoryStore(), SystemClock()).start()
    yield made
    made.stop()


def dial(server: HttpServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)


def until_waiting(server: HttpServer, count: int) -> None:
    """Until so many leases wait; the server tells nobody, so it is asked."""
    while server.api.waiting != count:
        server.request("GET", "/v1/queues")


def test_publish_lease_and_ack_work_over_a_socket(server: HttpServer) -> None:
    assert server.request("POST", "/v1/queues/mail/messages", {"to": "ann"})[0] == 200
    _, taken = server.request("POST", "/v1/queues/mail/lease", {"waitSec": 5})
    assert taken["messages"][0]["message"]["payload"] == {"to": "ann"}
    leases = [one["lease"]["leaseId"] for one in taken["messages"]]
    assert server.request("POST", "/v1/queues/mail/ack", {"leases": leases}) == (
        200,
        {"failed": 0, "results": [{"leaseId": leases[0], "ok": True}]},
    )


def test_lease_that_waits_is_woken_by_a_message(server: HttpServer) -> None:
    line = dial(server)
    line.request("POST", "/v1/queues/mail/lease", b'{"waitSec": 20}')
    until_waiting(server, 1)
    server.request("POST", "/v1/queues/mail/messages", 1)
    assert [one["message"]["payload"] for one in json.loads(line.getresponse().read())["messages"]] == [1]
    line.close()


def test_lease_of_a_client_that_disconnects_while_waiting_takes_nothing(server: HttpServer) -> None:
    line = dial(server)
    line.request("POST", "/v1/queues/mail/lease", b'{"waitSec": 20}')
    until_waiting(server, 1)
    line.close()
    until_waiting(server, 0)
    server.request("POST", "/v1/queues/mail/messages", 1)
    _, row = server.request("GET", "/v1/queues/mail")
    assert (row["ready"], row["leased"]) == (1, 0)


def test_sse_delivers_events_as_they_happen(server: HttpServer) -> None:
    line = dial(server)
    line.request("GET", "/v1/events?kind=published")
    stream = line.getresponse()
    assert stream.getheader("Content-Type") == "text/event-stream"
    while stream.readline() != b'data: {"last":0}\n':
        pass
    server.request("POST", "/v1/queues/mail/messages", [1, 2])
    while not (told := stream.readline()).startswith(b"data: "):
        pass
    assert json.loads(told[6:])["count"] == 2
    line.close()


def test_body_limit_error_has_the_format_of_the_v1_api(server: HttpServer) -> None:
    status, document = server.request("POST", "/v1/queues/mail/lease", {"consumer": "x" * 1_100_000})
    assert (status, document["error"]["code"]) == (413, "too_large")


def test_content_encoding_gzip_is_rejected_in_the_format_of_the_v1_api_and_nothing_is_stored(
    server: HttpServer,
) -> None:
    line = dial(server)
    packing = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    line.request("POST", "/v1/queues/mail/messages", gzip.compress(b"{}"), packing)
    answer = line.getresponse()
    error = json.loads(answer.read())["error"]
    assert (answer.status, answer.getheader("Accept-Encoding")) == (415, "identity")
    assert (error["code"], error["field"]) == ("packed_body", "content-encoding")
    line.close()
    status, found = server.request("GET", "/v1/queues")
    assert (status, found["queues"]) == (200, [])


def test_head_request_is_answered_with_the_length_and_no_body(server: HttpServer) -> None:
    line = dial(server)
    line.request("GET", "/v1/queues")
    length = str(len(line.getresponse().read()))
    line.request("HEAD", "/v1/queues")
    answer = line.getresponse()
    assert (answer.status, answer.getheader("Content-Length"), answer.read()) == (200, length, b"")
    line.close()
