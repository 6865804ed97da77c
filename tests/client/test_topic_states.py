"""The states of a subscription: every edge of the page's table, seen from the program's side over real sockets."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.client.topic_parts import TOPIC_FACES, Tampering, silent_until
from tests.support.server import RunningServer
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.client.values import Event, Missing, Moved
from yirangmq.core.errors import BadInput
from yirangmq.core.topics import SubscriberState
from yirangmq.stores.memory import MemoryStore
from yirangmq.topics.ports import TopicSettings
from yirangmq.wire.frames import Frame, FrameKind
from yirangmq.wire.records import KIND

PAGE = (Path(__file__).parents[2] / "docs" / "topics.md").read_text()
SOON = 0.05
Edge = tuple[str, str]
SUBSCRIBED: list[Edge] = [("offline", "connected"), ("connected", "online")]
CAUGHT_UP: list[Edge] = [("online", "recovering"), ("recovering", "online")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    made = RunningServer(MemoryStore(), tmp_path, topics=TopicSettings(buffer_bytes=200_000)).start()
    yield made
    made.stop()


@pytest.fixture(params=TOPIC_FACES)
def topics(request: pytest.FixtureRequest, tampering: Tampering) -> Iterator[Any]:
    with ExitStack() as stack:
        yield stack.enter_context(TOPIC_FACES[request.param](tampering.address, timeout=PATIENCE)).topics


def edges(events: list[Event]) -> list[Edge]:
    return [(str(one.before), str(one.after)) for one in events if isinstance(one, Moved)]


def taken(subscription: Any, count: int) -> None:
    for _ in range(count):
        assert subscription.next(PATIENCE) is not None


def break_at(kind: FrameKind) -> Callable[[Frame], list[Frame]]:
    """The connection is lost instead of the first such frame."""
    seen: list[FrameKind] = []

    def tamper(frame: Frame) -> list[Frame]:
        if frame.kind == kind and not seen:
            seen.append(kind)
            raise ConnectionError
        return [frame]

    return tamper


def test_client_state_goes_from_connected_to_online_and_offline_at_close(topics: Any) -> None:
    events: list[Event] = []
    with topics.subscribe(on_event=events.append) as subscription:
        topics.publish("a", 1)
        taken(subscription, 1)
        assert subscription.state is SubscriberState.ONLINE
    assert edges(events) == [*SUBSCRIBED, ("online", "offline")]


def test_client_state_is_recovering_while_earlier_records_are_sent(topics: Any) -> None:
    topics.publish_many([("a", n) for n in range(10)])
    events: list[Event] = []
    with topics.subscribe(start="beginning", on_event=events.append) as subscription:
        taken(subscription, 10)
        silent_until(subscription, SubscriberState.ONLINE)
    assert edges(events) == [*SUBSCRIBED, *CAUGHT_UP, ("online", "offline")]


def test_client_state_is_recovering_after_the_client_reports_a_gap(topics: Any, tampering: Tampering) -> None:
    lost: list[int] = []

    def lose_second(frame: Frame) -> list[Frame]:
        if int(frame.kind) == KIND:
            lost.append(1)
            return [] if len(lost) == 2 else [frame]
        return [frame]

    tampering.tamper = lose_second
    events: list[Event] = []
    with topics.subscribe(on_event=events.append) as subscription:
        topics.publish_many([("a", n) for n in range(5)])
        taken(subscription, 5)
        silent_until(subscription, SubscriberState.ONLINE)
    assert edges(events) == [*SUBSCRIBED, *CAUGHT_UP, ("online", "offline")]
    assert [type(one) for one in events].count(Missing) == 1


def test_client_state_of_a_slow_reader_is_recovering_without_a_gap_report(server: RunningServer) -> None:
    """What it has not read does not fit into the buffers on the way; blocking, so that nobody reads meanwhile."""
    events: list[Event] = []
    with (
        connect(server.unix, timeout=PATIENCE) as client,
        client.topics.subscribe(on_event=events.append) as subscription,
    ):
        for _ in range(60):
            client.topics.publish("a", bytes(100_000))
        taken(subscription, 60)
        silent_until(subscription, SubscriberState.ONLINE)
        assert subscription.duplicates == 0
    assert edges(events)[: len(SUBSCRIBED) + 2] == [*SUBSCRIBED, *CAUGHT_UP]
    assert not [one for one in events if isinstance(one, Missing)]


def test_client_state_after_a_connection_lost_while_online_is_offline_then_online_again(
    server: RunningServer, topics: Any
) -> None:
    events: list[Event] = []
    with topics.subscribe(reconnect=SOON, on_event=events.append) as subscription:
        topics.publish("a", 1)
        taken(subscription, 1)
        server.cut()
        topics.publish("a", 2)
        taken(subscription, 1)
    assert edges(events)[:5] == [*SUBSCRIBED, ("online", "offline"), *SUBSCRIBED]


def test_client_state_after_a_connection_lost_while_recovering_is_offline_then_online_again(
    topics: Any, tampering: Tampering
) -> None:
    topics.publish_many([("a", n) for n in range(10)])
    tampering.tamper = break_at(FrameKind.RECOVERY_COMPLETE)
    events: list[Event] = []
    with topics.subscribe(start="beginning", reconnect=SOON, on_event=events.append) as subscription:
        taken(subscription, 10)
        topics.publish("a", 10)
        taken(subscription, 1)
    assert edges(events)[:6] == [*SUBSCRIBED, CAUGHT_UP[0], ("recovering", "offline"), *SUBSCRIBED]


def test_client_state_after_a_connection_lost_before_the_subscription_is_offline_then_online(
    topics: Any, tampering: Tampering
) -> None:
    tampering.tamper = break_at(FrameKind.TOPIC_SUBSCRIBED)
    events: list[Event] = []
    with topics.subscribe(on_event=events.append):
        assert edges(events) == [("offline", "connected"), ("connected", "offline"), *SUBSCRIBED]


def test_client_state_after_a_refused_subscription_is_offline(topics: Any) -> None:
    events: list[Event] = []
    with pytest.raises(BadInput):
        topics.subscribe(sequence=5, on_event=events.append).connect()
    assert edges(events) == [("offline", "connected"), ("connected", "offline")]


def test_client_state_transitions_in_the_docs_are_exactly_those_of_these_tests() -> None:
    table = PAGE.partition("A client is CONNECTED, ONLINE, RECOVERING or OFFLINE:")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z, ]+) \| .* \| ([a-z]+) \|$", table, re.MULTILINE)
    shown = {(before, after) for many, after in rows for before in many.split(", ") if before != "from"}
    assert shown == {
        *SUBSCRIBED,
        *CAUGHT_UP,
        ("online", "offline"),
        ("recovering", "offline"),
        ("connected", "offline"),
    }
