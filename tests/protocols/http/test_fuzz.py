"""Machine-made streams: nearly right, wrong, and cut anywhere. Whatever comes, the connection stays sane."""

import random
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.http.parts import TOKENS, Bench, answer_all
from tests.support.http import Answers, request
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.types import Response

streams = st.lists(st.sampled_from(TOKENS) | st.binary(max_size=8), max_size=25).map(b"".join)
MANY = settings(max_examples=5 * settings().max_examples)
"""They are quick."""
SMALL = HttpLimits(
    target_bytes=200, header_bytes=500, header_count=8, pipelined=3, request_memory=200, total_memory=100_000
)


def play(stream: bytes, cuts: list[int], limits: HttpLimits) -> Bench:
    """Feed it, answer what is held, read on, until nothing moves."""
    bench = Bench(limits)
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        if bench.connection.resume(0.0):
            bench.receive(stream[start:end])
        else:  # as the socket does: nothing is read until there is room
            answer_all(bench)
            assert bench.connection.resume(0.0) or bench.wire.end or bench.stage.waiting
            bench.receive(stream[start:end])
    answer_all(bench)
    return bench


@MANY
@given(streams, st.lists(st.integers(0, 10_000), max_size=6))
def test_fuzz_any_byte_stream_gets_valid_http_and_never_a_500(stream: bytes, cuts: list[int]) -> None:
    bench = play(stream, cuts, SMALL)
    if b"HEAD" not in stream:
        Answers().feed(bench.wire.sent)  # it is HTTP
    assert b"HTTP/1.1 500" not in bench.wire.sent
    bench.connection.check(1e6)
    bench.connection.release()
    assert bench.shared.held == 0


@MANY
@given(streams, st.integers(0, 2**32))
def test_fuzz_any_split_of_a_stream_gives_the_same_responses(stream: bytes, seed: int) -> None:
    dice = random.Random(seed)
    whole = play(stream, [], HttpLimits())
    parts = play(stream, [dice.randrange(len(stream) + 1) for _ in range(5)], HttpLimits())
    assert parts.wire.sent == whole.wire.sent
    assert parts.stage.seen == whole.stage.seen
    assert bool(parts.wire.end) == bool(whole.wire.end)


class Asked(NamedTuple):
    path: str
    body: bytes
    is_chunked: bool


asked = st.builds(Asked, st.sampled_from(["/echo", "/hold"]), st.binary(max_size=40), st.booleans())


def _bytes(one: Asked) -> bytes:
    if not one.is_chunked:
        return request("POST", one.path, one.body)
    head = request("POST", one.path, headers={"Transfer-Encoding": "chunked"})
    pieces = [one.body[at : at + 7] for at in range(0, len(one.body), 7)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@MANY
@given(st.lists(asked, min_size=1, max_size=12), st.integers(0, 2**32))
def test_fuzz_pipelining_gives_each_request_its_own_response_in_any_order_of_work(many: list[Asked], seed: int) -> None:
    dice = random.Random(seed)
    bench = Bench()
    stream = b"".join(_bytes(one) for one in many)
    places = sorted({0, len(stream), *(dice.randrange(len(stream)) for _ in range(6))})
    todo: list[int] = []
    for start, end in pairwise(places):
        before = len(bench.stage.held)
        bench.receive(stream[start:end])
        todo += range(before, len(bench.stage.held))
        dice.shuffle(todo)
        while todo and dice.random() < 0.5:
            number = todo.pop()
            bench.stage.held[number].answer(Response(200, b"%d" % number))
    for number in todo:
        bench.stage.held[number].answer(Response(200, b"%d" % number))
    holds = iter(range(len(many)))
    wanted = [one.body if one.path == "/echo" else b"%d" % next(holds) for one in many]
    answers = Answers()
    answers.feed(bench.wire.sent)
    assert [answer.body for answer in answers.complete] == wanted
    assert bench.shared.held == 0
