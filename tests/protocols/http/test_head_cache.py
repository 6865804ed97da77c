"""Blocks of headers that were seen before: who knows them reads what the parser would have read, and nothing else."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocols.http.parts import TOKENS, Bench, answer_all
from tests.support.http import request
from yirangmq.protocols.http.head_cache import MAX_TABLE_ENTRIES, HeadCache

PLAIN = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"
POSTED = request("POST", "/echo", b"hello")


def boxed(path: bytes) -> bytes:
    return b"GET /box/%b HTTP/1.1\r\nHost: a\r\n\r\n" % path


def heads(head_cache: HeadCache, data: bytes) -> tuple[str, str, str, bytes] | None:
    found = head_cache.read(data, 8192)
    return None if found is None else (found.head.method, found.head.path, found.head.query, found.body)


def taught(*pieces: bytes) -> Bench:
    bench = Bench()
    for piece in pieces:
        bench.receive(piece)
    return bench


def test_head_cache_hits_for_the_same_headers_with_another_method_path_or_body() -> None:
    head_cache = taught(PLAIN, POSTED).shared.head_cache
    assert heads(head_cache, PLAIN.replace(b"/echo", b"/hold/7?a=%20")) == ("GET", "/hold/7", "a=%20", b"")
    assert heads(head_cache, POSTED.replace(b"hello", b"\r\n\r\nx")) == ("POST", "/echo", "", b"\r\n\r\nx")
    assert heads(head_cache, PLAIN.replace(b"GET", b"DELETE")) == ("DELETE", "/echo", "", b"")


@pytest.mark.parametrize(
    "data",
    [
        PLAIN[:-1],
        PLAIN + b"G",
        PLAIN + PLAIN,
        POSTED[:-1],
        POSTED + b"x",
        PLAIN.replace(b"Host: a", b"Host: b"),
        PLAIN.replace(b"/echo", b"/e cho"),
        PLAIN.replace(b"/echo", b"/echo#a"),
        PLAIN.replace(b"/echo", b"/ech\xc3\xa9"),
        PLAIN.replace(b"/echo", b"http://a/echo"),
        PLAIN.replace(b"/echo", b"/\techo"),
        PLAIN.replace(b"/echo", b"/" + b"x" * 9000),
        PLAIN.replace(b"1.1", b"1.0"),
        PLAIN.replace(b"GET", b"get"),
        PLAIN.replace(b"GET", b"CONNECT"),
        b"\r\n" + PLAIN,
        b"",
    ],
)
def test_head_cache_misses_for_incomplete_extra_or_altered_bytes(data: bytes) -> None:
    assert heads(taught(PLAIN, POSTED).shared.head_cache, data) is None


@pytest.mark.parametrize(
    "first",
    [
        b"GET /echo HTTP/1.1\nHost: a\r\nX: y\r\n\r\n",  # a bare line end hides Host from whoever looks for CRLF
        b"GET /echo HTTP/1.1\r\nX: y\r\n\r\n",
        b"GET /echo HTTP/1.0\r\nX: y\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nX: y\r\n\n\nGET /wait HTTP/1.1\r\nX: y\r\n\r\n",
    ],
)
def test_head_cache_does_not_store_heads_the_parser_rejects(first: bytes) -> None:
    assert heads(taught(first).shared.head_cache, b"GET /echo HTTP/1.1\r\nX: y\r\n\r\n") is None


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: close",
        b"Connection: upgrade\r\nUpgrade: h2c",
        b"Expect: 100-continue",
        b"Transfer-Encoding: chunked",
        b"Content-Encoding: identity",
    ],
)
def test_head_cache_does_not_store_heads_with_connection_expect_or_coding_headers(line: bytes) -> None:
    asked = b"GET /echo HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n"
    assert heads(taught(asked).shared.head_cache, asked) is None


@pytest.mark.parametrize("after", [b"", b"/open"], ids=["last", "last but one"])
def test_head_cache_hits_with_the_route_for_a_path_that_differs_only_in_an_id(after: bytes) -> None:
    bench = taught(PLAIN, boxed(b"a/one" + after))
    found = bench.shared.head_cache.read(boxed(b"a/two" + after), 8192)
    assert found is not None
    assert found.route is not None
    assert found.head.path == (b"/box/a/two" + after).decode()
    bench.stage.seen.clear()
    assert b"x-path: /box/a/two" + after + b"\r\n" in bench.receive(boxed(b"a/two" + after))
    assert [one.path for one in bench.stage.seen] == [found.head.path]


@pytest.mark.parametrize(
    "path",
    [
        b"b/two",
        b"a/",
        b"a/two?x=y",
        b"a/t%77o",
        b"a/two/",
        b"a/two/shut",
        b"a/two/open/open",
        b"a//open",
        b"a/" + b"x" * 300,
    ],
    ids=str,
)
def test_head_cache_has_no_route_for_a_path_that_differs_in_more_than_an_id(path: bytes) -> None:
    head_cache = taught(PLAIN, boxed(b"a/one"), boxed(b"a/one/open")).shared.head_cache
    found = head_cache.read(boxed(path), 8192)
    assert found is None or found.route is None


def test_head_cache_hits_with_the_route_from_the_third_request_on() -> None:
    bench = taught(PLAIN)
    routes = [bench.shared.head_cache.read(PLAIN, 8192)]
    for _ in range(2):
        bench.receive(PLAIN)
        routes.append(bench.shared.head_cache.read(PLAIN, 8192))
    assert [found is not None and found.route is not None for found in routes] == [False, False, True]
    assert [one.path for one in bench.stage.seen] == ["/echo"] * 3


def test_head_cache_is_cleared_at_its_maximum_size() -> None:
    bench = Bench()
    for number in range(MAX_TABLE_ENTRIES + 1):
        bench.receive(PLAIN.replace(b"Host: a", b"Host: %d" % number))
    assert heads(bench.shared.head_cache, PLAIN.replace(b"Host: a", b"Host: 1")) is None
    assert heads(bench.shared.head_cache, PLAIN.replace(b"Host: a", b"Host: %d" % MAX_TABLE_ENTRIES)) is not None


def test_head_cache_hit_still_rejects_a_body_over_the_limit() -> None:
    large = request("POST", "/echo", b"x" * 5000)
    first = taught(large).wire.sent
    known = taught(PLAIN, large.replace(b"/echo", b"/nothing"), large)
    assert known.wire.sent.endswith(first)
    known.connection.release()
    assert known.shared.held == 0


ONES = [
    PLAIN, POSTED, request("POST", "/hold", b"x" * 300), request("PUT", "/nothing", b"x" * 30),
    b"GET /wait HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    boxed(b"a/1"), boxed(b"a/2"), boxed(b"a/1/open"), boxed(b"b/open"), boxed(b"b/open/open"),
]  # fmt: skip
bent = st.builds(
    lambda one, at, put: one[: at % (len(one) + 1)] + put + one[at % (len(one) + 1) :],
    st.sampled_from(ONES), st.integers(0, 400), st.sampled_from([b"", *TOKENS]),
)  # fmt: skip


@given(st.lists(bent | st.sampled_from(ONES), max_size=6))
@example([b"GET /echo HTTP/1.1\nHost: a\r\nX: y\r\n\r\n", b"GET /echo HTTP/1.1\r\nX: y\r\n\r\n"])
def test_head_cache_gives_the_same_requests_and_responses_as_the_parser(pieces: list[bytes]) -> None:
    """A connection that knows all that was ever learnt, beside one where everything comes in two parts and so goes to
    the parser."""
    teacher = Bench()
    for piece in [*ONES, *ONES, *pieces]:
        Bench(beside=teacher).receive(piece)
    for memory in (teacher.stage.seen, teacher.stage.held, teacher.stage.waiting):
        memory.clear()
    known, parsed = Bench(beside=teacher), Bench()
    for piece in pieces:
        known.receive(piece)
        parsed.receive(piece[:1])
        parsed.receive(piece[1:])
    answer_all(known)
    answer_all(parsed)
    assert known.stage.seen == parsed.stage.seen
    assert known.wire.sent == parsed.wire.sent
    assert bool(known.wire.end) == bool(parsed.wire.end)
