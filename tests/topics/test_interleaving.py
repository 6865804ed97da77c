"""Publishing, recovering, lagging, reading, leaving, in every order the machine can think of: each subscriber gets
every sequence it wants once and in order, and what waits for it stays within its bounds. Subscribers of both layouts
ask for recoveries at any moment, once for each, and trust the answer (P-14, P-17)."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.topic_pipes import Client, PublisherHarness, small
from yirangmq.core.topic_filter import ALL, Filter, make_filter, masked
from yirangmq.core.topics import NewRecord, Start, SubscriberState
from yirangmq.protocols.feed import FeedDialect
from yirangmq.protocols.native.topics import NATIVE
from yirangmq.topics.live import FROM_FIRST

TOPICS = ("a", "b", "c")
FILTERS = (ALL, make_filter(["b"]), make_filter(["a", "c*"]), make_filter(["nothing"]))
MASKS = (1, 6, 7)
MOST_CLIENTS = 4


class Expected:
    """What one client must have: everything wanted from ``next`` on."""

    def __init__(self, client: Client, filter: Filter) -> None:
        self.client = client
        self.filter = filter
        self.last_request = 1


class FeedMachine(RuleBasedStateMachine):
    @initialize(workers=st.integers(1, 2))
    def begin(self, workers: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.stage = PublisherHarness(Path(self.folder.name) / "topics", small(workers=workers))
        self.published: list[str] = []
        self.expected: list[Expected] = []

    @rule(topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=6), size=st.sampled_from([0, 1, 50, 300, 1400]))
    def publish(self, topics: list[str], size: int) -> None:
        self.stage.publish(*(NewRecord(topic, b"x" * size) for topic in topics))
        self.published += topics

    @rule()
    def turn_once(self) -> None:
        self.stage.turning.step()

    @rule()
    def run_once(self) -> None:
        self.stage.turning.run_once()

    @rule(worker=st.integers(0, 1), times=st.integers(1, 5))
    def work(self, worker: int, times: int) -> None:
        for _ in range(times):
            self.stage.work(worker)

    @precondition(lambda self: len(self.expected) < MOST_CLIENTS)
    @rule(
        filter=st.sampled_from(FILTERS),
        start=st.sampled_from([Start.BEGINNING, Start.NEW, Start.SEQUENCE]),
        capacity=st.sampled_from([64, 500, 5000]),
    )
    def subscribe(self, filter: Filter, start: Start, capacity: int) -> None:
        last = self.stage.publisher.ensure_open().feed.log.last
        at = max(1, last // 2)
        client = self.stage.client(capacity)
        client.follow(filter, start, at=at)
        self.expected.append(Expected(client, filter))

    @precondition(lambda self: len(self.expected) < MOST_CLIENTS)
    @rule(mask=st.sampled_from(MASKS), capacity=st.sampled_from([64, 500, 5000]))
    def subscribe_by_mask(self, mask: int, capacity: int) -> None:
        """With the public layout, which has no request numbers."""
        filter = Filter(masked(mask, TOPICS), (), f"mask={mask}")
        client = self.stage.client(capacity, FeedDialect(TOPICS, mask))
        client.follow(filter, Start.NEW)
        self.expected.append(Expected(client, filter))

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), count=st.sampled_from([1, 100, 1000, 100_000]))
    def read(self, data: st.DataObject, count: int) -> None:
        data.draw(st.sampled_from(self.expected)).client.read(count)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), is_from_first=st.booleans())
    def ask_again(self, data: st.DataObject, is_from_first: bool) -> None:
        """In any state, and whatever is on its way."""
        chosen = data.draw(st.sampled_from(self.expected))
        client = chosen.client
        last = self.stage.publisher.ensure_open().feed.log.last
        is_from_first = is_from_first and client.answers.may_ask_for_all
        after = 0 if is_from_first else data.draw(st.integers(0, last))
        if client.subscriber.dialect is NATIVE:
            chosen.last_request += 1
        request = chosen.last_request if client.subscriber.dialect is NATIVE else 0
        client.answers.ask(request, None if is_from_first else after)
        self.stage.publisher.recover(client.subscriber, FROM_FIRST if is_from_first else after, "", request)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), unsubscribes=st.booleans())
    def leave(self, data: st.DataObject, unsubscribes: bool) -> None:
        chosen = data.draw(st.sampled_from(self.expected))
        self.expected.remove(chosen)
        self.check(chosen, whole=False)
        subscriber = chosen.client.subscriber
        if unsubscribes and subscriber.is_following:
            self.stage.publisher.unsubscribe(subscriber, lambda: None)
        else:
            chosen.client.pipe.close()
            assert subscriber.state is SubscriberState.OFFLINE

    @invariant()
    def within_bounds(self) -> None:
        for one in getattr(self, "expected", []):
            assert one.client.pipe.peak <= 1500 + 200, "records never wait in memory past the buffer"
            assert one.client.pipe.error is None
            self.check(one, whole=False)

    @invariant()
    def lag_counts_the_records_that_are_wanted_and_not_sent(self) -> None:
        if not hasattr(self, "stage"):
            return
        parts = self.stage.publisher.ensure_open()
        last = parts.feed.log.last
        for one in self.expected:
            subscriber, run = one.client.subscriber, one.client.subscriber.run
            backlog = subscriber.backlog
            if backlog is None or backlog.owed is not None or (run is not None and run.announced is not None):
                unsent = range(subscriber.reached + 1, last + 1)
                wanted = sum(one.filter.wants(self.published[n - 1]) for n in unsent)
                assert parts.lifecycle.lag_of(subscriber) == wanted

    def check(self, one: Expected, *, whole: bool) -> None:
        def wanted(first: int, last: int) -> list[int]:
            return [n for n in range(first, last + 1) if one.filter.wants(self.published[n - 1])]

        assert one.client.answers.faults(wanted, len(self.published) if whole else None) == []

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        try:
            self.end()
        finally:
            self.stage.close()
            self.folder.cleanup()

    def end(self) -> None:
        """Everybody reads everything: nothing is missing, and all are live."""
        self.stage.settle(*(one.client for one in self.expected))
        for one in self.expected:
            self.check(one, whole=True)
            assert one.client.subscriber.state is SubscriberState.ONLINE
            assert not one.client.pipe.is_lent
        assert self.stage.publisher.ensure_open().feed.log.last == len(self.published)


TestInterleaving = FeedMachine.TestCase
TestInterleaving.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
