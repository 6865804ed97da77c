"""A server stays awake for the moment in which who was answered usually asks again; the clock is the test's."""

from collections.abc import Callable

from yirangmq.observe.event_loop import MAX_POLL_SECONDS, BusyPoll

QUICK = MAX_POLL_SECONDS / 3


class Loop:
    """Its turns, each a thousandth of the longest wait long."""

    def __init__(self) -> None:
        self.now = 1.0
        self.given_way = 0
        self.way_seconds = 0.0
        """How long others have the processor each time."""
        self._next: list[Callable[[], None]] = []
        self.lookout = BusyPoll(self._next.append, self._give_way, lambda: self.now)

    def _give_way(self) -> None:
        self.given_way += 1
        self.now += self.way_seconds

    def turns_awake(self, most: int = 5_000) -> int:
        """How many there are before it would fall asleep."""
        for turns in range(most):
            if not self._next:
                return turns
            self.now += MAX_POLL_SECONDS / 1000
            for call in [self._next.pop(0) for _ in range(len(self._next))]:
                call()
        raise AssertionError("it never sleeps")

    def exchange(self, seconds: float) -> None:
        """An answer, and so much later the next request."""
        self.lookout.on_reply()
        self.now += seconds
        self.lookout.on_request()
        self.turns_awake()


def used_to_quick_requests() -> Loop:
    loop = Loop()
    for _ in range(20):
        loop.exchange(QUICK)
    return loop


def test_busy_poll_is_off_at_first() -> None:
    loop = Loop()
    loop.lookout.on_reply()
    assert loop.turns_awake() == 0


def test_busy_poll_runs_between_quick_requests_and_yields_the_processor() -> None:
    loop = used_to_quick_requests()
    loop.lookout.on_reply()
    awake = loop.turns_awake()
    assert 500 < awake < 1_100  # twice what it usually takes, and no more than the longest
    assert loop.given_way == awake - 1


def test_busy_poll_ends_when_work_arrives() -> None:
    loop = used_to_quick_requests()
    loop.lookout.on_reply()
    loop.lookout.on_request()
    assert loop.turns_awake() == 1
    assert loop.given_way == 0


def test_busy_poll_is_off_after_infrequent_requests() -> None:
    loop = used_to_quick_requests()
    for _ in range(20):
        loop.exchange(0.5)
    loop.lookout.on_reply()
    assert loop.turns_awake() == 0


def test_busy_poll_runs_once_for_many_answers_in_a_row() -> None:
    loop = used_to_quick_requests()
    for _ in range(10):
        loop.lookout.on_reply()
    assert loop.turns_awake() < 1_100


def test_busy_poll_stops_when_other_processes_need_the_processor() -> None:
    loop = used_to_quick_requests()
    loop.way_seconds = MAX_POLL_SECONDS
    loop.lookout.on_reply()
    assert loop.turns_awake() == 2
    loop.way_seconds = 0
    loop.lookout.on_request()
    loop.lookout.on_reply()
    assert loop.turns_awake() == 0
