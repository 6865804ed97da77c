"""Whatever a line loses, doubles or breaks off, a subscriber has every wanted record once: a server in a few lines,
a line that is not to be trusted, and the rules of the subscriber between them. No connection, no clock."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from yirangmq.client.topic_tracker import Tracker
from yirangmq.client.values import TopicRecord
from yirangmq.wire import messages

EPOCH = "e" * 32
TOPICS = "abcd"
MOST_STEPS = 5000


class Server:
    """A server as in docs/wire.md: history after a sequence, counts since the latest beginning."""

    def __init__(self, chance: Random, wanted: str) -> None:
        self._chance = chance
        self._wanted = wanted
        self.log: list[TopicRecord] = []
        self._numbers = dict.fromkeys(TOPICS, 0)
        self.next = 1
        self.sent = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            topic = self._chance.choices(TOPICS, (5, 5, 5, 1))[0]
            self._numbers[topic] += 1
            number = self._numbers[topic]
            self.log.append(TopicRecord(len(self.log) + 1, number, 0, topic, None, {}, b""))

    def subscribe(self, next: int) -> Any:
        self.next, self.sent = next, 0
        return messages.TopicSubscribed(EPOCH, next, 1, len(self.log))

    def recover(self, after: int) -> Any:
        self.next, self.sent = after + 1, 0
        return messages.TopicRecoveryResponse(after + 1, len(self.log), None)

    def send(self, count: int) -> list[TopicRecord]:
        rows = [one for one in self.log[self.next - 1 : self.next - 1 + count] if one.topic in self._wanted]
        self.next = min(self.next + count, len(self.log) + 1)
        self.sent += len(rows)
        return rows

    def progress(self) -> Any:
        return messages.TopicProgress(self.next - 1, self.sent, len(self.log), 0)

    @property
    def expected(self) -> list[int]:
        return [one.sequence for one in self.log if one.topic in self._wanted]


class Subscriber:
    def __init__(self, server: Server, is_all: bool) -> None:
        self._server = server
        self.tracker = Tracker(is_all=is_all, report=lambda event: None)
        self.found: list[int] = []
        self.is_asked = False
        self.tracker.subscribed(server.subscribe(1))

    def take(self, rows: Sequence[TopicRecord]) -> None:
        if rows:
            self.found += [one.sequence for one in self.tracker.take(rows)]

    def ask(self) -> None:
        """As ``client.topic_connection`` does: once, until the answer is here."""
        if self.tracker.needed is not None:
            self.tracker.response(self._server.recover(self.tracker.needed))

    def come_again(self, chance: Random, *, is_durable: bool) -> None:
        at = self.tracker.resume_after + 1
        if is_durable:  # where it goes on is what was confirmed, anything up to the last one handed on
            at = chance.randint(1, self.tracker.reached + 1)
        self.tracker.subscribed(self._server.subscribe(at))


def damaged(chance: Random, rows: list[TopicRecord], often: float) -> list[TopicRecord]:
    """Lost or doubled, never out of order."""
    arrived: list[TopicRecord] = []
    for row in rows:
        fate = chance.random()
        arrived += [] if fate < often else [row, row] if fate < 2 * often else [row]
    return arrived


@pytest.mark.parametrize("is_durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize("wanted", ["abcd", "ad", "d"])
def test_gap_recovery_delivers_every_wanted_record_once_over_an_unreliable_connection(
    wanted: str, is_durable: bool
) -> None:
    for seed in range(150):
        chance = Random(f"{seed} {wanted} {is_durable}")
        server = Server(chance, wanted)
        subscriber = Subscriber(server, wanted == TOPICS)
        often = chance.choice([0.0, 0.01, 0.1])
        for _ in range(60):
            play(chance, server, subscriber, often, is_durable=is_durable)
        for _ in range(MOST_STEPS):  # from here on the line is good
            if subscriber.tracker.needed is None and server.next > len(server.log):
                subscriber.tracker.progress(server.progress())
                if subscriber.tracker.needed is None:
                    break
            subscriber.ask()
            subscriber.take(server.send(10))
        assert sorted(subscriber.found) == server.expected, seed
        if wanted == TOPICS:
            assert subscriber.found == server.expected, seed
        assert subscriber.tracker.reached == len(server.log), seed


def play(chance: Random, server: Server, subscriber: Subscriber, often: float, *, is_durable: bool) -> None:
    """One of the things that happen."""
    match chance.randrange(7):
        case 0:
            server.publish(chance.randrange(30))
        case 1 | 2 | 3:
            subscriber.take(damaged(chance, server.send(chance.randrange(1, 20)), often))
        case 4:
            subscriber.tracker.progress(server.progress())
        case 5:
            subscriber.ask()
        case _:
            if chance.random() < 0.3:
                server.send(chance.randrange(10))  # on its way when the connection breaks
                subscriber.come_again(chance, is_durable=is_durable)
