"""One run without processes: a feed whose loop, workers and clients take a step when the seed says so. The server is
killed (its folder as it lies there is all that the next one has), clients are killed and come again, read slowly, are
cut off while they recover; two more ask for recoveries in any state, once for each, and trust the answer; the log is
trimmed as far as nobody needs it. The same seed is the same run, always."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

from benchmarks.soak.judge import Seen, Verdict, judge, seen
from tests.support.topic_pipes import Client, PublisherHarness
from yirangmq.core.topic_filter import Filter, make_filter, masked
from yirangmq.core.topics import NewRecord, Retention, Start, SubscriberState
from yirangmq.protocols.feed import FeedDialect
from yirangmq.protocols.native.topics import NATIVE
from yirangmq.stores.log.log import LogSettings
from yirangmq.topics.catchup import CatchupWorker
from yirangmq.topics.live import FROM_FIRST
from yirangmq.topics.ports import CatchupPacing, Dialect, TopicSettings

TOPICS = ("a", "a.b", "b", "c.d.e")
FILTERS: tuple[tuple[str, ...], ...] = ((), ("a",), ("a*",), ("b", "c.+.e"), ("nobody",))


class Durable:
    """A durable subscriber that keeps what it had, and how far it is, whatever becomes of it."""

    def __init__(self, name: str, filter: Filter) -> None:
        self.name = name
        self.filter = filter
        self.had: list[Seen] = []
        self.doubled = 0
        """Records that came twice over one connection."""
        self._client: Client | None = None
        self._taken = 0
        self._life: list[int] = []

    def connect(self, stage: PublisherHarness, chance: random.Random) -> None:
        self._client = stage.client(chance.choice((80, 500, 4000, 1 << 20)))
        self._taken, self._life = 0, []
        self._client.follow(self.filter, Start.BEGINNING, name=self.name)

    @property
    def is_there(self) -> bool:
        return self._client is not None and self._client.pipe.is_open

    @property
    def has_all(self) -> bool:
        """It is live, and nothing is on its way."""
        client = self._client
        if client is None or client.subscriber.state is not SubscriberState.ONLINE:
            return False
        return not client.pipe.waiting and not client.pipe.inside

    def read(self, count: int) -> None:
        if self._client is None:
            return
        self._client.read(count)
        last = self.had[-1].sequence if self.had else 0
        for record in self._client.records[self._taken :]:
            if self._life and record.sequence <= self._life[-1]:
                self.doubled += 1
            self._life.append(record.sequence)
            if record.sequence > last:  # the rest is what it had, and had not confirmed when it was killed
                self.had.append(seen(record))
        self._taken = len(self._client.records)

    def confirm(self, stage: PublisherHarness) -> None:
        if self._client is not None and self._client.subscriber.is_following and self._life:
            stage.publisher.confirm(self._client.subscriber, self._life[-1], lambda sequence, error: None)

    def kill(self) -> None:
        if self._client is not None:
            self._client.pipe.close()
            self._client = None


class Asking:
    """A subscriber that asks for recoveries at any moment, once for each, and trusts the answer. It keeps nothing over
    the end of a connection."""

    def __init__(self, filter: Filter, dialect: Dialect) -> None:
        self.filter = filter
        self._dialect = dialect
        self._client: Client | None = None
        self._request = 0
        self.faults: list[str] = []

    def connect(self, stage: PublisherHarness, chance: random.Random) -> None:
        self._client = stage.client(chance.choice((80, 500, 4000, 1 << 20)), self._dialect)
        self._client.follow(self.filter, Start.NEW)
        self._request = 1

    @property
    def is_there(self) -> bool:
        """False also if what it was to be sent next was retired: nothing is kept for it."""
        return self._client is not None and self._client.pipe.is_open

    @property
    def has_all(self) -> bool:
        client = self._client
        assert client is not None
        is_live = client.subscriber.state is SubscriberState.ONLINE
        return is_live and not client.pipe.waiting and not client.pipe.inside

    def read(self, count: int) -> None:
        if self._client is not None:
            self._client.read(count)

    def ask(self, stage: PublisherHarness, chance: random.Random) -> None:
        client = self._client
        assert client is not None
        log = stage.publisher.ensure_open().feed.log
        after = chance.choice((FROM_FIRST, chance.randint(log.first - 1, log.last)))
        if after == FROM_FIRST and not client.answers.may_ask_for_all:
            return
        if self._dialect is NATIVE:
            self._request += 1
        request = self._request if self._dialect is NATIVE else 0
        client.answers.ask(request, None if after == FROM_FIRST else after)
        stage.publisher.recover(client.subscriber, after, "", request)

    def judge(self, truth: dict[int, Seen], first: int, last: int | None) -> None:
        """``first``: the first record that is kept. ``last``: the end of the log if nothing more is on its way."""

        def wanted(first: int, last: int) -> list[int]:
            return [n for n in range(first, last + 1) if self.filter.wants(truth[n].topic)]

        assert self._client is not None
        self.faults += self._client.answers.faults(wanted, last, first=first)
        for record in self._client.records:
            if truth[record.sequence] != seen(record):
                self.faults.append(f"{record.sequence} is not what was published")

    @property
    def verdict(self) -> Verdict:
        assert self._client is not None
        return Verdict(len(self._client.records), len(self.faults), 0, 0, 0)


class StageRun:
    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = chance = random.Random(seed)
        self._folder = folder
        self._lives = 0
        self._log = LogSettings(segment_bytes=chance.choice((2048, 4096, 16384)), durability="os", ahead=False)
        retention = Retention(None, chance.choice((1, 5000, 20_000)))
        self._settings = TopicSettings(
            buffer_bytes=chance.choice((600, 1500, 20_000)),
            commit_bytes=chance.choice((200, 1000, 10_000)),
            workers=chance.randint(1, 3),
            pacing=CatchupPacing(budget=chance.choice((50, 700, 5000)), threaded=False, live_rate_limit=0),
            retention=retention,
        )
        self._stage = PublisherHarness(self._home, self._settings, self._log)
        self._truth: dict[int, Seen] = {}
        self._last = 0
        self._number = 0
        self._retired: list[CatchupWorker] = []
        filters = chance.sample(FILTERS, chance.randint(1, 3))
        self._durables = [Durable(f"s{n}", make_filter(filter)) for n, filter in enumerate(filters)]
        for one in self._durables:
            one.connect(self._stage, chance)
        public = FeedDialect(TOPICS, chance.choice((1, 6, 15)))
        self._asking = [
            Asking(make_filter(chance.choice(FILTERS)), NATIVE),
            Asking(Filter(masked(public.mask, TOPICS), (), ""), public),
        ]
        for asking in self._asking:
            asking.connect(self._stage, chance)
        self._stage.turning.run_once()  # who they are is written down: from here on the log is kept for them

    @property
    def _subscribers(self) -> "list[Durable | Asking]":
        return [*self._durables, *self._asking]

    @property
    def _home(self) -> Path:
        return self._folder / f"life-{self._lives}"

    def play(self) -> list[Verdict]:
        deeds = [self._publish] * 4 + [self._turn] * 8 + [self._read] * 10 + [self._work] * 8 + [self._confirm] * 4
        deeds += [self._ask] * 3 + [self._kill_subscriber, self._kill_server, self._trim, self._tune]
        try:
            for _ in range(self._chance.randint(60, 300)):
                self._chance.choice(deeds)()
            return self._end()
        finally:
            self._stage.close()

    def _end(self) -> list[Verdict]:
        for _ in range(5000):
            self._turn()
            for one in self._durables:
                if not one.is_there:
                    one.connect(self._stage, self._chance)
                one.read(1 << 20)
            for asking in self._asking:
                self._connect_again(asking)
                asking.read(1 << 20)
            for worker in self._workers:
                if not worker.is_over:
                    worker.run_once(0)
            if all(one.has_all for one in self._subscribers) and self._stage.publisher.is_idle:
                break
        self._witness()
        for asking in self._asking:
            asking.judge(self._truth, self._first, self._last)
        return [*(self._verdict(one) for one in self._durables), *(asking.verdict for asking in self._asking)]

    def _verdict(self, one: Durable) -> Verdict:
        verdict = judge(self._truth, one.filter, one.had)
        return verdict._replace(duplicates=verdict.duplicates + one.doubled)

    # -- what may happen next

    def _publish(self) -> None:
        records = []
        for _ in range(self._chance.randint(1, 12)):
            self._number += 1
            size = self._chance.choice((0, 1, 40, 400, 4064, 4065) if self._chance.random() < 0.1 else (0, 1, 40))
            payload = f"{self._number} ".encode() + self._chance.randbytes(size)
            records.append(NewRecord(self._chance.choice(TOPICS), payload))
        self._stage.publish(*records)

    def _turn(self) -> None:
        if self._chance.random() < 0.5:
            self._stage.turning.step()
        else:
            self._stage.turning.run_once()

    @property
    def _workers(self) -> list[CatchupWorker]:
        """Those that are let go of end what they are at."""
        now = self._stage.publisher.ensure_open().lifecycle.workers
        return [*now, *(one for one in self._retired if one not in now and not one.is_over)]

    def _work(self) -> None:
        if self._workers:
            self._chance.choice(self._workers).run_once(0)

    def _read(self) -> None:
        one = self._chance.choice(self._subscribers)
        one.read(self._chance.choice((7, 500, 4000, 1 << 20)))

    def _ask(self) -> None:
        asking = self._chance.choice(self._asking)
        self._connect_again(asking)
        asking.ask(self._stage, self._chance)

    def _confirm(self) -> None:
        self._chance.choice(self._durables).confirm(self._stage)

    def _kill_subscriber(self) -> None:
        one = self._chance.choice(self._durables)
        one.kill()
        if self._chance.random() < 0.7:
            one.connect(self._stage, self._chance)

    def _connect_again(self, asking: Asking) -> None:
        if not asking.is_there:
            self._witness()
            asking.judge(self._truth, self._first, None)
            asking.connect(self._stage, self._chance)

    def _trim(self) -> None:
        """A server trims when its loop is at rest; names that have not been written down hold nothing yet."""
        self._stage.turning.run_once()
        self._witness()
        self._stage.publisher.ensure_open().maintenance.retain(lambda trimmed, error: None)
        self._stage.turning.run_once()

    def _tune(self) -> None:
        """Fewer workers or more, while some of them are at work."""
        self._retired += self._stage.publisher.ensure_open().lifecycle.workers
        buffer = self._chance.choice((600, 1500, 20_000))
        self._settings = replace(self._settings, workers=self._chance.randint(1, 3), buffer_bytes=buffer)
        self._stage.publisher.tune(self._settings)

    def _kill_server(self) -> None:
        self._witness()
        before = self._home
        self._lives += 1
        shutil.copytree(before, self._home)
        for one in self._durables:
            one.kill()
        for asking in self._asking:
            asking.judge(self._truth, self._first, None)
        self._retired.clear()
        self._stage.publisher.close()
        self._stage = PublisherHarness(self._home, self._settings, self._log)
        for subscriber in self._subscribers:
            subscriber.connect(self._stage, self._chance)

    @property
    def _first(self) -> int:
        return self._stage.publisher.ensure_open().feed.log.first

    def _witness(self) -> None:
        """Every record that was ever in the log."""
        log = self._stage.publisher.ensure_open().feed.log
        for record in log.reader().records(max(self._last + 1, log.first)):
            self._truth[record.sequence] = seen(record)
        self._last = log.last
