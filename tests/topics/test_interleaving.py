"""Publishing, recovering, lagging, reading, leaving, in every order the machine can think of: each subscriber gets
every sequence it wants once and in order, and what waits for it stays within its bounds."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.topic_pipes import Client, PublisherHarness, small
from yirangmq.core.errors import QueueError
from yirangmq.core.topic_filter import ALL, Filter, make_filter
from yirangmq.core.topics import NewRecord, Start, SubscriberState

TOPICS = ("a", "b", "c")
FILTERS = (ALL, make_filter(["b"]), make_filter(["a", "c*"]), make_filter(["nothing"]))
MOST_CLIENTS = 4


class Expected:
    """What one client must have: everything wanted from ``next`` on."""

    def __init__(self, client: Client, filter: Filter) -> None:
        self.client = client
        self.filter = filter
        self.next = 0
        self.begins: list[int] = []


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
        expected = Expected(client, filter)
        expected.next = {Start.BEGINNING: 1, Start.NEW: last + 1, Start.SEQUENCE: at}[start]
        client.follow(filter, start, at=at)
        self.expected.append(expected)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), count=st.sampled_from([1, 100, 1000, 100_000]))
    def read(self, data: st.DataObject, count: int) -> None:
        data.draw(st.sampled_from(self.expected)).client.read(count)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        """What comes before the answer is to be dropped, so everything on the way is read first."""
        chosen = data.draw(st.sampled_from(self.expected))
        client = chosen.client
        last = self.stage.publisher.ensure_open().feed.log.last
        after = data.draw(st.integers(max(0, chosen.next - 1), max(last, chosen.next - 1)))
        is_online = client.subscriber.state is SubscriberState.ONLINE
        try:
            self.stage.publisher.recover(client.subscriber, after, "", 7)
        except QueueError:
            assert not is_online or after > last
            return
        assert is_online
        while client.pipe.waiting or client.pipe.inside:  # no worker has had a turn since
            client.read(100_000)
        self.check(chosen, whole=False)
        client.records.clear()
        client.since = 0
        chosen.next = after + 1

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

    def check(self, one: Expected, *, whole: bool) -> None:
        wanted = [n for n, topic in enumerate(self.published, 1) if n >= one.next and one.filter.wants(topic)]
        got = one.client.sequences
        assert got == (wanted if whole else wanted[: len(got)])

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
