"""History steps back while live records pass, and takes what it can when none do."""

from hypothesis import given
from hypothesis import strategies as st

from yirangmq.topics.catchup import LIVE_SECONDS, CatchupRateLimiter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_catchup_rate_limit_does_not_apply_without_live_records() -> None:
    courtesy = CatchupRateLimiter(1000, Clock())
    courtesy.sent(1_000_000)
    assert courtesy.wait() == 0


def test_catchup_rate_limit_waits_for_the_bytes_sent_while_records_are_live() -> None:
    clock = Clock()
    courtesy = CatchupRateLimiter(1000, clock)
    courtesy.live()
    assert courtesy.wait() == 0
    courtesy.sent(100)
    assert round(courtesy.wait(), 6) == 0.1
    clock.now += 0.06
    assert round(courtesy.wait(), 6) == 0.04
    clock.now += LIVE_SECONDS
    assert courtesy.wait() == 0, "no live record for a while"


def test_catchup_rate_limit_of_zero_is_no_limit() -> None:
    courtesy = CatchupRateLimiter(0, Clock())
    courtesy.live()
    courtesy.sent(10**9)
    assert not courtesy.is_throttling
    assert courtesy.wait() == 0


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, LIVE_SECONDS / 2)), min_size=1, max_size=50))
def test_catchup_rate_limit_is_exceeded_by_no_more_than_one_step(steps: list[tuple[int, float]]) -> None:
    """But for one step: it is known how large one was when it is done."""
    clock, rate = Clock(), 10_000
    courtesy = CatchupRateLimiter(rate, clock)
    begin, sent = clock.now, 0
    for size, idle in steps:
        clock.now += idle
        courtesy.live()
        while (wait := courtesy.wait()) > 0:
            clock.now += wait + 1e-9
            courtesy.live()
        assert sent <= (clock.now - begin) * rate + 1e-3
        courtesy.sent(size)
        sent += size
