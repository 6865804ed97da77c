"""The sans-IO connection: which bytes make which requests, what is refused, and in which order answers go out."""

from collections.abc import Callable

import pytest

from tests.protocols.http.parts import MOST_BODY, Bench
from tests.support.http import Answer, Answers, request
from yirangmq.core.errors import NotAllowed, QuotaExceeded
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.types import Request, Response

HOST = b"Host: a\r\n"
GET = b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n"
WAIT = b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n"
HOLD = request("POST", "/hold", b"x")
CHUNKED = (
    b"POST /echo HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    b'5\r\nhello\r\n6;why="because"\r\n world\r\n0\r\nX-Trailer: dropped\r\n\r\n'
)


def answers(data: bytes) -> list[Answer]:
    reader = Answers()
    reader.feed(data)
    return reader.complete


def statuses(data: bytes) -> list[int]:
    return [answer.status for answer in answers(data)]


# -- requests -------------------------------------------------------------------------------------------------------


def test_request_has_the_method_path_query_headers_and_body_that_were_sent() -> None:
    bench = Bench()
    sent = bench.receive(
        b"POST /echo?a=1&b=%20 HTTP/1.1\r\nHOST: x\r\nX-Two: 1\r\nx-two:  2 \t\r\nX-Empty:\r\nCookie: a=1\r\n"
        b"Cookie: b=2\r\nX-High: \xe9\r\nContent-Length: 5\r\n\r\nhello"
    )
    [seen] = bench.stage.seen
    assert (seen.method, seen.path, seen.query, seen.body, seen.peer) == (
        "POST",
        "/echo",
        "a=1&b=%20",
        b"hello",
        "test:1",
    )
    assert seen.headers == {
        "host": "x", "x-two": "1, 2", "x-empty": "", "cookie": "a=1; b=2", "x-high": "é", "content-length": "5",
    }  # fmt: skip
    [answer] = answers(sent)
    assert (answer.status, answer.body) == (200, b"hello")
    assert answer.headers == {
        "cache-control": "private, no-cache",
        "x-path": "/echo",
        "content-length": "5",
        "date": "Thu, 01 Jan 1970 00:00:00 GMT",
        "connection": "keep-alive",
        "keep-alive": "timeout=72",
        "x-content-type-options": "nosniff",
    }
    assert bench.wire.end == ""


STREAMS = {
    "plain": GET,
    "body": request("POST", "/echo", b"hello") * 2,
    "chunked": CHUNKED + GET,
    "pipelined": GET + request("POST", "/echo", b"a" * 50) + CHUNKED + request("HEAD", "/echo") + GET,
    "old": b"GET /echo HTTP/1.0\r\n\r\n",
    "old that stays": b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2,
    "empty lines between": b"\r\n\r\n" + GET + b"\r\n" + GET,
    "absolute": b"GET http://a.example/echo?x HTTP/1.1\r\n" + HOST + b"\r\n",
    "upgrade that is not taken": b"GET /echo HTTP/1.1\r\n"
    + HOST
    + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    + GET,
    "last one, and more": b"GET /echo HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n" + GET,
    "expecting": b"POST /echo HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello" + GET,
    "refused, read and dropped": request("POST", "/nowhere", b"x" * 30) + GET,
    "broken after a good one": GET + b"GET /echo HTTP/1.1\r\nBad Header: x\r\n\r\n" + GET,
    "broken chunk": GET + b"POST /echo HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "two ends of a body": b"POST /echo HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", STREAMS)
def test_parser_gives_the_same_responses_for_any_split_of_the_bytes(name: str) -> None:
    stream = STREAMS[name]
    whole = Bench()
    wanted = whole.receive(stream)
    assert wanted
    for cut in range(1, len(stream)):
        bench = Bench()
        assert bench.receive(stream[:cut]) + bench.receive(stream[cut:]) == wanted, (cut, stream[:cut])
        assert bench.stage.seen == whole.stage.seen
        assert bench.wire.end[:2] == whole.wire.end[:2]
    bench = Bench()
    assert b"".join(bench.receive(bytes([byte])) for byte in stream) == wanted
    assert bench.shared.held == 0


def test_parser_example_streams_give_the_statuses_their_names_say() -> None:
    told = {
        name: [a.status for a in answers(Bench().receive(data)) if name != "pipelined"]
        for name, data in STREAMS.items()
    }
    assert told == {
        "plain": [200],
        "body": [200, 200],
        "chunked": [200, 200],
        "pipelined": [],  # a HEAD among them: looked at below
        "old": [200],
        "old that stays": [200, 200],
        "empty lines between": [200, 200],
        "absolute": [200],
        "upgrade that is not taken": [200, 200],
        "last one, and more": [200],
        "expecting": [200, 200],
        "refused, read and dropped": [404, 200],
        "broken after a good one": [200, 400],
        "broken chunk": [200, 400],
        "two ends of a body": [400],
    }


def test_chunked_body_is_read_as_one_body() -> None:
    bench = Bench()
    [answer] = answers(bench.receive(CHUNKED))
    assert answer.body == b"hello world"
    assert "x-trailer" not in bench.stage.seen[0].headers


def test_head_request_is_answered_with_the_length_and_no_body() -> None:
    bench = Bench()
    sent = bench.receive(request("HEAD", "/large") + GET)
    assert sent.startswith(b"HTTP/1.1 200 OK\r\ncache-control: private, no-cache\r\ncontent-length: 500000\r\n")
    assert sent.count(b"HTTP/1.1 200 OK") == 2
    assert len(sent) < 1000


def test_head_request_does_not_wait_as_the_get_does() -> None:
    bench = Bench()
    assert b"204 No Content" in bench.receive(request("HEAD", "/wait"))
    assert bench.stage.waiting == []


def test_content_length_is_absent_from_a_response_without_a_body() -> None:
    sent = Bench().receive(request("GET", "/nothing"))
    assert sent.startswith(b"HTTP/1.1 204 No Content\r\ncache-control: private, no-cache\r\ndate: ")
    assert b"content-length" not in sent


@pytest.mark.parametrize("status", [204, 304])
def test_content_length_and_body_are_omitted_for_status_204_and_304(status: int) -> None:
    bench = Bench()
    bench.receive(HOLD)
    bench.stage.held[0].answer(Response(status, b"not to be sent"))
    assert b"content-length" not in bench.wire.sent
    assert bench.wire.sent.endswith(b"\r\n\r\n")


def test_options_star_lists_the_methods_of_the_whole_server() -> None:
    from yirangmq.protocols.http.router import MountedRoutes

    bench = Bench()
    bench.shared.routes = MountedRoutes(bench.stage.routes())
    [answer] = answers(bench.receive(b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n"))
    assert (answer.status, answer.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")


# -- refusals -------------------------------------------------------------------------------------------------------


def _with(*lines: bytes, start: bytes = b"POST /echo HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"Host: a", *lines, b"", b""])


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        (b"GET /echo HTTP/1.1\r\n\r\n", 400),
        (_with(b"Host: b"), 400),
        (_with(b"Content-Length: 3", b"Content-Length: 3") + b"abc", 400),
        (_with(b"Content-Length: 3", b"Content-Length: 4") + b"abc", 400),
        (_with(b"Content-Length: 3, 3") + b"abc", 400),
        (_with(b"Content-Length: -3") + b"abc", 400),
        (_with(b"Content-Length: +3") + b"abc", 400),
        (_with(b"Content-Length: 0x3") + b"abc", 400),
        (_with(b"Content-Length: 3 3") + b"abc", 400),
        (_with(b"Content-Length:") + b"abc", 400),
        (_with(b"Content-Length: 99999999999999999999"), 400),
        (_with(b"Content-Length: 3", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: chunked", b"Content-Length: 3") + b"0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: xchunked") + b"0\r\n\r\n", 501),
        (_with(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", 501),
        (_with(b"Transfer-Encoding: \x0bchunked") + b"0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding : chunked") + b"0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: chunked", start=b"POST /echo HTTP/1.0") + b"0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: chunked") + b"-1\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: chunked") + b"1\nx\r\n0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: chunked") + b"1\r\nxx\r\n0\r\n\r\n", 400),
        (_with(b"Transfer-Encoding: chunked") + b"ffffffffffffffffff\r\n", 400),
        (_with(b"Upgrade: h2c", b"Connection: upgrade", b"Content-Length: 3") + b"abc", 400),
        (_with(b"Expect: 200-ok", b"Content-Length: 3"), 417),
        (b"GET /echo HTTP/1.1\nHost: a\n\n", 400),
        (_with(b"X: a\nY: b"), 400),
        (_with(b"X: a\r Y: b"), 400),
        (_with(b"X: a", b" folded"), 400),
        (_with(b"X: \x00"), 400),
        (_with(b"X: \x01"), 400),
        (_with(b"X: \x7f"), 400),
        (_with(b"X\xe9: a"), 400),
        (_with(b"X y: a"), 400),
        (_with(b": a"), 400),
        (_with(b"no colon"), 400),
        (_with(start=b"GET /a b HTTP/1.1"), 400),
        (_with(start=b"GET /\xc3\xa9 HTTP/1.1"), 400),
        (_with(start=b"GET /\xff HTTP/1.1"), 400),
        (_with(start=b"GET /\x00 HTTP/1.1"), 400),
        (_with(start=b"GET echo HTTP/1.1"), 400),
        (_with(start=b"GET * HTTP/1.1"), 400),
        (_with(start=b"GET ftp://a/echo HTTP/1.1"), 400),
        (_with(start=b"GET /echo#part HTTP/1.1"), 400),
        (_with(start=b"GET /echo"), 505),
        (_with(start=b"GET /echo HTTP/1.2"), 400),
        (_with(start=b"GET /echo HTTP/2.0"), 505),
        (_with(start=b"GET /echo HTTP/0.9"), 505),
        (_with(start=b"GET /echo http/1.1"), 400),
        (_with(start=b"CONNECT a:80 HTTP/1.1"), 501),
        (_with(start=b"TRACE /echo HTTP/1.1"), 501),
        (_with(start=b"PROPFIND /echo HTTP/1.1"), 501),
        (_with(start=b"FLY /echo HTTP/1.1"), 501),
        (_with(start=b"get /echo HTTP/1.1"), 501),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 501),
        (b"\x00" * 100, 501),
        (b"\n" + GET, 200),  # an empty line before a request is passed over, as the standard wishes
    ],
)  # fmt: skip
def test_parser_rejects_an_ambiguous_or_invalid_head_and_reads_nothing_after_it(stream: bytes, status: int) -> None:
    bench = Bench()
    sent = bench.receive(stream + GET + GET)
    if status == 200:
        assert statuses(sent) == [200, 200, 200]
        return
    [answer] = answers(sent)
    assert answer.status == status
    assert answer.headers["connection"] == "close"
    assert answer.body.strip()
    assert bench.wire.end == "unclean"
    assert bench.stage.seen == []
    assert bench.receive(GET) == b""
    assert bench.shared.held == 0


@pytest.mark.parametrize("where", [b"/echo%c", b"/echo?%c", b"http://a/echo%c"], ids=["path", "query", "absolute"])
def test_request_target_with_a_byte_outside_visible_ascii_is_rejected(where: bytes) -> None:
    for byte in {*range(256)} - {*range(0x20, 0x7F)} | {ord("#")}:
        bench = Bench()
        sent = bench.receive(b"GET " + where.replace(b"%c", bytes([byte])) + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        assert statuses(sent)[0] >= 400, byte
        assert bench.stage.seen == []


LIMITS = HttpLimits(target_bytes=100, header_bytes=1000, header_count=10)


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        (request("GET", "/echo?" + "x" * 94), 200),
        (request("GET", "/echo?" + "x" * 95), 414),
        (b"GET /" + b"x" * 100_000, 414),
        (request("GET", "/echo", headers={f"x-{i}": "1" for i in range(9)}), 200),
        (request("GET", "/echo", headers={f"x-{i}": "1" for i in range(10)}), 431),
        (request("GET", "/echo", headers={"x": "1" * 986}), 200),
        (request("GET", "/echo", headers={"x": "1" * 987}), 431),
        (b"GET /echo HTTP/1.1\r\nx: " + b"1" * 100_000, 431),
        (b"GET /echo HTTP/1.1\r\n" + b"x" * 100_000, 431),
        (b"GET /echo HTTP/1.1\r\nx:" + b" " * 100_000, 431),
        (b"\r\n" * 50_000, 431),
        (_with(b"Transfer-Encoding: chunked") + b"0\r\nx: " + b"1" * 100_000, 431),
        (_with(b"Transfer-Encoding: chunked") + b"0\r\n" + b"x: 1\r\n" * 11 + b"\r\n", 431),
        (_with(b"Transfer-Encoding: chunked") + b"1;" + b"x" * 100_000, 431),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 1000, 10**9], ids=["byte by byte", "in parts", "whole"])
def test_head_limits_reject_a_too_large_target_header_or_trailer_with_414_or_431(
    stream: bytes, status: int, step: int
) -> None:
    bench = Bench(LIMITS)
    sent = b""
    for at in range(0, len(stream), step):
        sent += bench.receive(stream[at : at + step])
        if sent:
            break
    assert statuses(sent) == [status]
    assert bool(bench.wire.end) == (status != 200)


def test_body_limit_rejects_a_too_large_content_length_before_the_body() -> None:
    bench = Bench()
    [answer] = answers(bench.receive(_with(b"Content-Length: %d" % (MOST_BODY + 1))))
    assert (answer.status, answer.headers["x-shape"], answer.headers["connection"]) == (413, "ours", "close")
    assert bench.wire.end == "unclean"
    fitting = Bench()
    assert statuses(fitting.receive(request("POST", "/echo", b"x" * MOST_BODY))) == [200]


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "br", "gzip, identity", "identity, gzip", "nonsense"])
def test_content_encoding_of_a_body_is_rejected_each_time_and_the_connection_stays_open(coding: str) -> None:
    bench = Bench()
    packed = request("POST", "/echo", b"\x1f\x8b", {"Content-Encoding": coding})
    for _ in range(3):
        bench.wire.sent = b""
        [answer, after] = answers(bench.receive(packed + GET))
        assert (answer.status, answer.headers["x-shape"], after.status) == (415, "ours", 200)
        assert answer.headers["accept-encoding"] == "identity"
        assert b"content-encoding" in answer.body
    assert [seen.method for seen in bench.stage.seen] == ["GET"] * 3
    assert bench.shared.held == 0


def test_content_encoding_of_a_large_or_chunked_body_closes_the_connection_unread() -> None:
    for how in (b"Transfer-Encoding: chunked", b"Content-Length: 70000", b"Content-Length: 5\r\nExpect: 100-continue"):
        bench = Bench()
        [answer] = answers(bench.receive(_with(b"Content-Encoding: gzip", how)))
        assert (answer.status, answer.headers["connection"], bench.wire.end) == (415, "close", "unclean")


def test_content_encoding_identity_is_accepted_and_ignored_without_a_body() -> None:
    for coding in ("identity", "Identity", ""):
        sent = Bench().receive(request("POST", "/echo", b"hello", {"Content-Encoding": coding}) * 2)
        assert [(answer.status, answer.body) for answer in answers(sent)] == [(200, b"hello")] * 2
    assert statuses(Bench().receive(request("GET", "/echo", headers={"Content-Encoding": "gzip"}))) == [200]


def test_chunked_body_is_rejected_when_it_grows_beyond_the_limit() -> None:
    bench = Bench()
    sent = bench.receive(_with(b"Transfer-Encoding: chunked"))
    piece = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    count = 0
    while not sent:
        sent = bench.receive(piece)
        count += 1
    assert statuses(sent) == [413]
    assert count == MOST_BODY // 4096 + 1
    assert bench.stage.seen == []
    assert bench.shared.held == 0


def test_keep_alive_continues_after_a_rejected_request_with_a_small_body() -> None:
    bench = Bench()
    assert statuses(bench.receive(request("PUT", "/echo", b"x" * 1000) + GET)) == [405, 200]
    assert statuses(bench.receive(request("GET", "/echo", b"a GET takes no body") + GET)) == [413, 200]
    assert bench.wire.end == ""
    assert bench.shared.held == 0


def test_body_timeout_of_a_rejected_request_sends_no_second_response() -> None:
    bench = Bench(HttpLimits(body_seconds=30))
    sent = bench.receive(_with(b"Content-Length: 1000", start=b"PUT /echo HTTP/1.1") + b"x")
    assert statuses(sent) == [405]
    bench.connection.check(100.0)
    assert bench.wire.sent == sent
    assert bench.wire.end == "unclean"


def test_keep_alive_ends_after_a_rejected_request_with_a_large_body() -> None:
    bench = Bench()
    [answer] = answers(bench.receive(_with(b"Content-Length: 10000000", start=b"PUT /nowhere HTTP/1.1")))
    assert (answer.status, answer.headers["connection"]) == (404, "close")


def test_error_response_has_the_format_of_its_api_and_hides_exception_details() -> None:
    bench = Bench()
    [first, second] = answers(bench.receive(request("GET", "/fails") + request("GET", "/breaks")))
    assert (first.status, first.body, first.headers["x-shape"]) == (500, b"internal_error: no", "ours")
    assert (second.status, second.body, second.headers["x-shape"]) == (500, b"internal_error: internal error", "ours")
    assert statuses(bench.receive(GET)) == [200]


def test_memory_limit_of_all_connections_rejects_further_bodies_with_503() -> None:
    bench = Bench(HttpLimits(total_memory=10_000))
    bench.shared.held = 9_000
    assert statuses(bench.receive(request("POST", "/echo", b"x" * 900))) == [200]
    assert statuses(bench.receive(request("POST", "/echo", b"x" * 1100))) == [503]
    sent = bench.receive(_with(b"Transfer-Encoding: chunked"))
    sent += bench.receive(b"1000\r\n" + b"x" * 4096 + b"\r\n")
    assert statuses(sent) == [503]
    assert bench.shared.held == 9_000


def _never(request: Request) -> None:
    raise NotAllowed("go away")


def test_admission_rejects_before_the_body_is_read() -> None:
    bench = Bench(admit=_never)
    assert statuses(bench.receive(GET)) == [403]
    assert statuses(bench.receive(request("POST", "/echo", b"small"))) == [403]
    assert bench.wire.end == ""
    assert statuses(bench.receive(_with(b"Content-Length: 90000"))) == [403]
    assert bench.wire.end == "unclean"


def test_rate_limit_response_has_retry_after_in_whole_seconds() -> None:
    def often(request: Request) -> None:
        raise QuotaExceeded("too often; try again in 1.200 s")

    [answer] = answers(Bench(admit=often).receive(GET))
    assert answer.headers["retry-after"] == "2"


# -- order ----------------------------------------------------------------------------------------------------------


def test_pipelining_runs_requests_concurrently_and_answers_in_order() -> None:
    bench = Bench()
    assert bench.receive(HOLD + HOLD + GET + HOLD) == b""
    assert len(bench.stage.held) == 3
    assert len(bench.stage.seen) == 1
    first, second, third = bench.stage.held
    third.answer(Response(200, b"third"))
    second.answer(Response(200, b"second"))
    assert bench.wire.sent == b""
    first.answer(Response(200, b"first"))
    assert [answer.body for answer in answers(bench.wire.sent)] == [b"first", b"second", b"", b"third"]


def test_pipelining_limit_bounds_the_open_requests_of_a_connection() -> None:
    bench = Bench(HttpLimits(pipelined=4))
    bench.receive(HOLD * 2000)
    assert bench.connection.is_full
    held = len(bench.stage.held)
    assert 4 <= held <= 4 + 4096 // len(HOLD)  # what one slice holds is taken
    while len(bench.stage.held) < 2000 or bench.shared.held:
        for exchange in bench.stage.held[-held:]:
            exchange.answer(Response(200))
        held = len(bench.stage.held)
        bench.connection.resume(0.0)
        held = len(bench.stage.held) - held
    assert statuses(bench.wire.sent) == [200] * 2000
    assert bench.connection.resume(0.0)


def test_pipelining_keeps_bytes_received_while_the_connection_is_full() -> None:
    """A socket may have read more before it could be told to stop."""
    bench = Bench(HttpLimits(pipelined=2))
    bench.receive(HOLD * 200)
    bench.receive(HOLD)
    bench.receive(GET[:7])
    bench.receive(GET[7:])
    for _ in range(1000):
        for exchange in bench.stage.held:
            exchange.answer(Response(200))
        if bench.connection.resume(0.0) and bench.stage.seen:
            break
    assert statuses(bench.wire.sent) == [200] * 202
    assert bench.shared.held == 0


def test_pipelining_limits_the_request_bytes_of_a_connection() -> None:
    bench = Bench(HttpLimits(request_memory=10_000))
    bench.receive(request("POST", "/hold", b"x" * 6_000) * 3)
    assert len(bench.stage.held) == 2
    bench.connection.resume(0.0)
    assert len(bench.stage.held) == 2
    bench.stage.held[0].answer(Response(200))
    bench.connection.resume(0.0)
    assert len(bench.stage.held) == 3


def test_response_sent_twice_is_discarded_the_second_time() -> None:
    bench = Bench()
    bench.receive(HOLD)
    bench.stage.held[0].answer(Response(200, b"one"))
    bench.stage.held[0].answer(Response(200, b"two"))
    assert [answer.body for answer in answers(bench.wire.sent)] == [b"one"]


def test_response_with_invalid_headers_becomes_a_500() -> None:
    bench = Bench()
    for headers in (
        (("x", "a\r\nevil: 1"),),
        (("x", "日本"),),
        (("content-length", "3"),),
        (("a b", "c"),),
        (("x", "\0"),),
    ):
        bench.receive(HOLD)
        bench.stage.held[-1].answer(Response(200, b"x", headers))
    assert statuses(bench.wire.sent) == [500] * 5
    assert b"evil" not in bench.wire.sent


# -- 100-continue ---------------------------------------------------------------------------------------------------

EXPECT = _with(b"Expect: 100-continue", b"Content-Length: 5")


def test_expect_continue_is_answered_100_before_the_body() -> None:
    bench = Bench()
    assert bench.receive(EXPECT) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert statuses(bench.receive(b"hello")) == [200]


def test_expect_continue_behind_an_open_request_is_answered_after_that_response() -> None:
    bench = Bench()
    assert bench.receive(HOLD + EXPECT) == b""
    bench.stage.held[0].answer(Response(200))
    assert bench.wire.sent.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert statuses(bench.receive(b"hello")) == [200]


def test_expect_continue_of_a_too_large_body_is_rejected_and_closes_the_connection() -> None:
    bench = Bench()
    sent = bench.receive(_with(b"Expect: 100-continue", b"Content-Length: 100001"))
    assert b"100 Continue" not in sent
    assert statuses(sent) == [413]
    assert bench.wire.end == "unclean"


def test_expect_continue_is_ignored_for_http_1_0_and_for_an_empty_body() -> None:
    old = _with(b"Expect: 100-continue", b"Content-Length: 5", start=b"POST /echo HTTP/1.0")
    assert Bench().receive(old) == b""
    assert statuses(Bench().receive(_with(b"Expect: 100-continue", b"Content-Length: 0"))) == [200]


# -- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "stays"),
    [
        (GET, True),
        (_with(b"Connection: close", start=b"GET /echo HTTP/1.1"), False),
        (b"GET /echo HTTP/1.0\r\n\r\n", False),
        (b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)  # fmt: skip
def test_keep_alive_follows_the_connection_header_and_the_http_version(stream: bytes, stays: bool) -> None:
    bench = Bench()
    [answer] = answers(bench.receive(stream))
    assert answer.headers["connection"] == ("keep-alive" if stays else "close")
    assert bench.wire.end == ("" if stays else "clean")


def test_disconnect_ends_waiting_and_open_requests_and_later_listeners_run_at_once() -> None:
    bench = Bench()
    bench.receive(WAIT + HOLD)
    [waiting], [held] = bench.stage.waiting, bench.stage.held
    bench.connection.release()
    assert bench.stage.left == [waiting]
    assert waiting.is_disconnected
    assert held.is_disconnected
    waiting.answer(Response(200))
    held.answer(Response(200))
    assert bench.wire.sent == b""
    assert bench.shared.held == 0
    told: list[str] = []
    waiting.on_disconnect(lambda: told.append("late"))
    assert told == ["late"]


def test_disconnect_is_not_reported_to_a_request_already_answered() -> None:
    bench = Bench()
    bench.receive(HOLD + WAIT)
    [waiting] = bench.stage.waiting
    waiting.answer(Response(200))  # it is sent when the first one is
    waiting.on_disconnect(lambda: bench.stage.left.append(waiting))
    bench.connection.release()
    assert bench.stage.left == []


def test_half_close_ends_a_waiting_request() -> None:
    bench = Bench()
    bench.receive(WAIT)
    bench.connection.receive_eof()
    assert bench.stage.left == bench.stage.waiting
    assert bench.wire.end == "clean"


def test_half_close_still_answers_open_requests() -> None:
    bench = Bench()
    bench.receive(HOLD + HOLD)
    bench.connection.receive_eof()
    assert bench.wire.end == ""
    for exchange in bench.stage.held:
        exchange.answer(Response(200))
    assert statuses(bench.wire.sent) == [200, 200]
    assert bench.wire.end == "clean"


def test_half_close_ends_requests_behind_a_waiting_one_unanswered() -> None:
    bench = Bench()
    bench.receive(HOLD + WAIT + HOLD)
    bench.connection.receive_eof()
    assert [exchange.is_disconnected for exchange in bench.stage.held] == [False, True]
    bench.stage.held[0].answer(Response(200))
    assert statuses(bench.wire.sent) == [200]
    assert bench.wire.end == "clean"


def test_half_close_ends_an_event_stream_and_not_a_list() -> None:
    events, listing = Bench(), Bench()
    for bench, path in ((events, "/events"), (listing, "/pieces")):
        bench.receive(request("GET", path))
        bench.connection.receive_eof()
    assert events.stage.stream.is_disconnected
    assert events.wire.end == "clean"
    listing.stage.stream.write(b"more")
    listing.stage.stream.end()
    assert answers(listing.wire.sent)[0].body == b"more"
    assert listing.wire.end == "clean"


def test_half_close_drops_an_incomplete_request() -> None:
    bench = Bench()
    bench.receive(_with(b"Content-Length: 10") + b"half")
    bench.connection.receive_eof()
    assert bench.stage.seen == []
    assert bench.wire.sent == b""
    assert bench.wire.end
    assert bench.shared.held == 0


def test_stop_answers_open_requests_and_rejects_waiting_ones_with_503() -> None:
    bench = Bench()
    bench.receive(HOLD + WAIT)
    bench.connection.stop()
    assert bench.stage.left == bench.stage.waiting
    assert bench.receive(GET) == b""
    assert bench.wire.end == ""
    bench.stage.held[0].answer(Response(200))
    first, second = answers(bench.wire.sent)
    assert (first.status, first.headers["connection"]) == (200, "keep-alive")
    assert (second.status, second.headers["connection"]) == (503, "close")
    assert bench.wire.end == "clean"
    bench.connection.stop()


def test_stop_without_delay_rejects_open_requests_with_503() -> None:
    bench = Bench()
    bench.receive(HOLD + HOLD)
    bench.connection.stop()
    bench.connection.refuse_all()
    assert statuses(bench.wire.sent) == [503, 503]
    assert bench.wire.end == "clean"


def test_stop_closes_an_idle_connection() -> None:
    bench = Bench()
    bench.connection.stop()
    assert bench.wire.end == "clean"


# -- streams --------------------------------------------------------------------------------------------------------


def test_streamed_response_is_sent_in_chunks() -> None:
    bench = Bench()
    sent = bench.receive(request("GET", "/pieces") + GET)
    assert b"transfer-encoding: chunked" in sent
    stream = bench.stage.stream
    assert stream.write(b"hello")
    assert stream.write(b"")  # would be the end
    assert stream.write(b" world")
    assert bench.wire.sent.endswith(b"5\r\nhello\r\n6\r\n world\r\n")
    stream.end()
    first, second = answers(bench.wire.sent)
    assert (first.body, second.status) == (b"hello world", 200)
    assert not stream.is_disconnected


def test_streamed_response_to_http_1_0_ends_with_the_connection() -> None:
    bench = Bench()
    bench.receive(b"GET /pieces HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    bench.stage.stream.write(b"hello")
    assert bench.wire.sent.endswith(b"connection: close\r\n\r\nhello")
    assert b"chunked" not in bench.wire.sent
    assert bench.wire.end == ""
    bench.stage.stream.end()
    assert bench.wire.sent.endswith(b"hello")
    assert bench.wire.end == "clean"


def test_streamed_response_to_head_is_the_head_alone() -> None:
    bench = Bench()
    sent = bench.receive(request("HEAD", "/pieces") + GET)
    assert sent.count(b"HTTP/1.1 200") == 2
    assert bench.stage.stream.outlet is None
    assert bench.stage.stream.is_disconnected


def test_streamed_response_starts_after_the_responses_before_it() -> None:
    bench = Bench()
    bench.receive(HOLD + request("GET", "/pieces"))
    assert bench.stage.stream.outlet is None
    bench.stage.held[0].answer(Response(200))
    assert bench.stage.stream.outlet is not None


def test_streamed_response_backpressure_stops_writes_until_drained() -> None:
    bench = Bench()
    bench.receive(request("GET", "/pieces"))
    stream = bench.stage.stream
    bench.wire.room = 0
    assert not stream.write(b"more than it reads")
    assert stream.drains == 0
    bench.wire.room = 1 << 60
    bench.connection.drained()
    bench.connection.drained()
    assert stream.drains == 1
    assert stream.write(b"x")


def test_streamed_response_is_notified_of_a_disconnect() -> None:
    bench = Bench()
    bench.receive(request("GET", "/pieces"))
    bench.connection.release()
    assert bench.stage.stream.is_disconnected
    assert not bench.stage.stream.write(b"x")
    bench.stage.stream.end()
    assert not bench.wire.sent.endswith(b"0\r\n\r\n")


def test_streamed_response_after_a_disconnect_ends_at_once() -> None:
    bench = Bench()
    bench.receive(HOLD)
    bench.connection.release()
    bench.stage.held[0].answer(Response(200, b"", (), bench.stage.stream))
    assert bench.stage.stream.is_disconnected


def test_streamed_response_that_fails_aborts_without_a_final_chunk() -> None:
    class Broken:
        is_disconnected = False

        def start(self, outlet: object) -> None:
            raise ZeroDivisionError

        def drained(self) -> None:
            raise AssertionError

        def disconnected(self) -> None:
            self.is_disconnected = True

    bench = Bench()
    bench.receive(HOLD)
    broken = Broken()
    bench.stage.held[0].answer(Response(200, b"", (), broken))
    assert bench.wire.end == "aborted"
    assert not bench.wire.sent.endswith(b"0\r\n\r\n")
    assert broken.is_disconnected


def test_stop_ends_an_event_stream_and_lets_a_list_finish() -> None:
    events, listing = Bench(), Bench()
    events.receive(request("GET", "/events"))
    listing.receive(request("GET", "/pieces"))
    for bench in (events, listing):
        bench.stage.stream.write(b"x")
        bench.connection.stop()
    assert events.wire.sent.endswith(b"0\r\n\r\n")
    assert events.stage.stream.is_disconnected
    assert events.wire.end == "clean"
    assert listing.wire.end == ""
    listing.stage.stream.end()
    assert listing.wire.end == "clean"


def test_stop_ends_an_event_stream_that_starts_meanwhile_at_once() -> None:
    bench = Bench()
    bench.receive(HOLD + request("GET", "/events"))
    bench.connection.stop()
    bench.stage.held[0].answer(Response(200))
    assert [answer.body for answer in answers(bench.wire.sent)] == [b"", b""]
    assert bench.stage.stream.is_disconnected
    assert bench.wire.end == "clean"


def test_sse_ping_is_sent_on_a_silent_event_stream_and_not_on_a_silent_list() -> None:
    events, listing = Bench(), Bench()
    for bench, path in ((events, "/events"), (listing, "/pieces")):
        bench.receive(request("GET", path))
        bench.stage.stream.write(b"x")
        before = bench.wire.sent
        for now in range(1, 36):
            bench.connection.check(float(now))
        pings = bench.wire.sent[len(before) :]
        assert pings == (b"3\r\n:\n\n\r\n" * 2 if bench is events else b"")


# -- pace -----------------------------------------------------------------------------------------------------------


def test_head_timeout_is_answered_408_even_if_bytes_keep_arriving() -> None:
    bench = Bench(HttpLimits(head_seconds=30))
    bench.receive(GET[:5])
    for now in range(1, 31):
        bench.now = float(now)
        bench.receive(b"x")
        assert bench.connection.check(bench.now) == ""
    assert bench.connection.check(31.0) == "slow request"
    assert statuses(bench.wire.sent) == [408]
    assert bench.wire.end == "unclean"


def test_body_timeout_is_answered_408_below_the_minimum_rate() -> None:
    def fed(rate: int, seconds: int) -> Bench:
        bench = Bench(HttpLimits(body_seconds=30, body_rate=500))
        bench.receive(_with(b"Content-Length: 60000"))
        for now in range(1, seconds):
            bench.now = float(now)
            bench.receive(b"x" * rate)
            bench.connection.check(bench.now)
        return bench

    assert statuses(fed(600, 100).wire.sent) == []
    assert statuses(fed(600, 101).wire.sent) == [200]
    assert statuses(fed(400, 100).wire.sent) == [408]
    quick_then_dead = fed(1500, 30)
    for now in range(30, 63):  # it was quick in the first span, and brought nothing in the second
        quick_then_dead.connection.check(float(now))
    assert statuses(quick_then_dead.wire.sent) == [408]


def test_body_timeout_does_not_run_while_backpressure_pauses_reading() -> None:
    bench = Bench(HttpLimits(body_seconds=30))
    bench.receive(_with(b"Content-Length: 1000"))
    bench.connection.set_write_paused(True)
    for now in range(1, 100):
        bench.connection.check(float(now))
    bench.connection.set_write_paused(False)
    bench.connection.check(110.0)
    assert bench.wire.sent == b""
    bench.now = 110.0
    assert statuses(bench.receive(b"x" * 1000)) == [200]


@pytest.mark.parametrize("before", [b"", GET, b"\r\n"], ids=["nothing", "a request", "an empty line"])
def test_idle_timeout_closes_a_connection_between_requests(before: bytes) -> None:
    bench = Bench(HttpLimits(idle_seconds=72))
    bench.now = 1.0
    bench.receive(before)
    bench.connection.check(72.0)
    assert bench.wire.end == ""
    assert bench.connection.check(74.0) == ""
    assert bench.wire.end == "clean"


def test_idle_timeout_does_not_run_while_a_request_waits() -> None:
    bench = Bench()
    bench.receive(WAIT)
    for now in range(0, 10_000, 100):
        assert bench.connection.check(float(now)) == ""
    bench.stage.waiting[0].answer(Response(200))
    assert statuses(bench.wire.sent) == [200]
    bench.connection.check(9_950.0)
    assert bench.wire.end == ""
    bench.connection.check(10_000.0)
    assert bench.wire.end == "clean"


def test_head_timeout_is_answered_after_the_responses_before_it() -> None:
    bench = Bench()
    bench.receive(HOLD + GET[:5])
    bench.connection.check(31.0)
    assert bench.wire.sent == b""
    bench.stage.held[0].answer(Response(200))
    assert statuses(bench.wire.sent) == [200, 408]


def test_disconnect_listener_that_fails_leaves_the_others_unharmed() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    bench = Bench()
    bench.receive(WAIT + WAIT)
    act: Callable[[], None] = fail
    bench.stage.waiting[0].on_disconnect(act)
    bench.connection.release()
    assert len(bench.stage.left) == 2
