"""Subscribers that speak the public layout, over real sockets: what they are sent, and what the public implementation
gets wrong."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.support.loops import LOOPS, run_loop
from tests.support.topic_server import Live, live
from tests.support.wait import PATIENCE, soon
from yirangmq.clock import SystemClock
from yirangmq.core.access import AccessGrant
from yirangmq.core.topics import Gap, NewRecord
from yirangmq.protocols.context import Authenticator, RefusedClients
from yirangmq.protocols.feed import FeedServer, listen_feed_tcp, listen_feed_unix
from yirangmq.protocols.stream_server import StreamLimits
from yirangmq.stores.log.log import SegmentLog
from yirangmq.wire import feed as layout
from yirangmq.wire.feed import FeedRecoveryComplete

NAMES = {1: "TOPIC1", 2: "TOPIC2", 4: "MISC"}
pytestmark = pytest.mark.parametrize("kind", LOOPS)


class PublicSubscriber:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._scanner = layout.FeedDecoder(16 << 20)
        self.heard: list[layout.FeedMessage] = []

    def send(self, message: layout.FeedMessage) -> None:
        self.writer.write(layout.encode(message))

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                data = await self._reader.read(1 << 20)
                self.heard += self._scanner.feed(data)
                if not data:
                    break
        assert is_so(), self.heard[-3:]

    async def subscribe(self, mask: int) -> layout.FeedSubscribeOk:
        self.send(layout.FeedSubscribe(10011000, mask, 0xDEADBEEF, "demo_pub"))
        await self.until(lambda: bool(self.heard))
        answer = self.heard[0]
        assert isinstance(answer, layout.FeedSubscribeOk)
        return answer

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while data := await self._reader.read(1 << 20):
                self.heard += self._scanner.feed(data)

    @property
    def messages(self) -> list[layout.FeedTopicMessage]:
        return [one for one in self.heard if isinstance(one, layout.FeedTopicMessage)]


@asynccontextmanager
async def feeding(
    folder: Path, authenticator: Authenticator | None = None, refused: RefusedClients | None = None
) -> AsyncIterator[tuple[Live, FeedServer, int]]:
    async with live(folder) as server:
        door = FeedServer(server.topics, StreamLimits(), authenticator or Authenticator(), refused)
        server.topics.after_commit.append(door.flush)
        unix = await listen_feed_unix(door, folder / "feed.sock")
        tcp = await listen_feed_tcp(door, "127.0.0.1", 0)
        try:
            yield server, door, tcp.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        finally:
            unix.close()
            tcp.close()
            for connection in list(door.connections):
                connection.cut("over")
            await asyncio.sleep(0)


@asynccontextmanager
async def dialled(folder: Path, port: int = 0) -> AsyncIterator[PublicSubscriber]:
    if port:
        streams = await asyncio.open_connection("127.0.0.1", port)
    else:
        streams = await asyncio.open_unix_connection(str(folder / "feed.sock"))
    subscriber = PublicSubscriber(*streams)
    try:
        yield subscriber
    finally:
        subscriber.writer.close()


async def fill(server: Live, count: int, size: int = 20) -> None:
    await server.fill(count, size, ("TOPIC1", "TOPIC2", "MISC", "unseen"))


@pytest.mark.parametrize("mask", range(1, 8))
def test_feed_mask_selects_topics_live_and_in_recovery(kind: str, tmp_path: Path, mask: int) -> None:
    """The public implementation fails all of these live, and recovers every topic whatever the mask."""

    async def main() -> None:
        async with feeding(tmp_path) as (server, _, port), dialled(tmp_path, port if mask % 2 else 0) as subscriber:
            await fill(server, 40)
            answer = await subscriber.subscribe(mask)
            assert answer == layout.FeedSubscribeOk(0, mask, 40)
            subscriber.send(layout.FeedRecoveryRequest(10011000, mask, 0))
            await subscriber.until(lambda: isinstance(subscriber.heard[-1], layout.FeedRecoveryComplete))
            await fill(server, 40)
            wanted = [n for n in range(1, 81) if n % 4 and mask & (1 << (n % 4 - 1))]
            await subscriber.until(lambda: len(subscriber.messages) == len(wanted))
            assert [one.global_seq for one in subscriber.messages] == wanted
            assert {NAMES[one.topic] for one in subscriber.messages} == {
                NAMES[1 << n] for n in range(3) if mask >> n & 1
            }
            half = len(wanted) // 2
            assert subscriber.heard[1] == layout.FeedRecoveryResponse(0, 1, 40, half)
            complete = subscriber.heard[half + 2]
            assert isinstance(complete, layout.FeedRecoveryComplete)
            assert complete.total_sent == half
            for bit in NAMES:
                numbers = [one.topic_seq for one in subscriber.messages if one.topic == bit]
                assert numbers == list(range(1, len(numbers) + 1))

    run_loop(main(), LOOPS[kind])


def test_feed_catchup_while_publishing_works_over_unix_and_tcp_at_once(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            feeding(tmp_path) as (server, door, port),
            dialled(tmp_path) as near,
            dialled(tmp_path, port) as far,
        ):
            await fill(server, 4000, 500)
            publishing = asyncio.create_task(fill(server, 4000, 500))
            for subscriber in (near, far):
                await subscriber.subscribe(7)
                subscriber.heard.clear()
                subscriber.send(layout.FeedRecoveryRequest(1, 7, 100))
            for subscriber in (near, far):
                await subscriber.until(lambda s=subscriber: bool(s.messages) and s.messages[-1].global_seq == 7999)  # type: ignore[misc]
                begin = next(
                    n for n, one in enumerate(subscriber.heard) if isinstance(one, layout.FeedRecoveryResponse)
                )
                after = [one.global_seq for one in subscriber.heard[begin:] if isinstance(one, layout.FeedTopicMessage)]
                assert after == [n for n in range(101, 8000) if n % 4]
            await publishing
            assert len(door.connections) == 2

    run_loop(main(), LOOPS[kind])


def test_feed_recovery_request_of_a_subscriber_that_lags_is_answered(kind: str, tmp_path: Path) -> None:
    """P-14, P-17: it asks once, does not read meanwhile, and trusts the answer."""

    async def main() -> None:
        async with feeding(tmp_path) as (server, _, _), dialled(tmp_path) as subscriber:
            await fill(server, 49)
            await subscriber.subscribe(7)
            for _ in range(12):
                await server.publish(NewRecord("TOPIC1", b"x" * (1 << 20)))
            assert "recovery_needed" in server.states()
            subscriber.send(layout.FeedRecoveryRequest(1, 7, 0))
            await soon(lambda: server.topics.ensure_open().lifecycle.subscribers[1].waiting_requests != {})
            await subscriber.until(lambda: isinstance(subscriber.heard[-1], layout.FeedRecoveryComplete))
            [response] = [one for one in subscriber.heard if isinstance(one, layout.FeedRecoveryResponse)]
            wanted = [n for n in range(1, 62) if n % 4 or n > 49]
            assert response == layout.FeedRecoveryResponse(0, 1, 61, len(wanted))
            begin = subscriber.heard.index(response) + 1
            assert [one.global_seq for one in subscriber.heard[begin:-1]] == wanted  # type: ignore[union-attr]

    run_loop(main(), LOOPS[kind])


def test_feed_recovery_requests_under_load_are_each_answered(kind: str, tmp_path: Path) -> None:
    """P-14, P-17: each is sent right after the RECC of the one before, while it catches up with what is published."""

    async def main() -> None:
        async with feeding(tmp_path) as (server, _, port), dialled(tmp_path, port) as subscriber:
            await fill(server, 400, 500)
            publishing = asyncio.create_task(fill(server, 8000, 1000))
            await subscriber.subscribe(7)
            for start in range(2, 8):
                subscriber.heard.clear()
                subscriber.send(layout.FeedRecoveryRequest(1, 7, start - 1))
                await subscriber.until(lambda start=start: answers(subscriber, start) != [])  # type: ignore[misc]
                del subscriber.heard[: answers(subscriber, start)[0]]
                await subscriber.until(lambda: any(type(one) is FeedRecoveryComplete for one in subscriber.heard))
            await publishing
            await subscriber.until(lambda: subscriber.messages[-1].global_seq == 8399)
            assert [one.global_seq for one in subscriber.messages] == [n for n in range(7, 8400) if n % 4]

    run_loop(main(), LOOPS[kind])


def answers(subscriber: PublicSubscriber, start: int) -> list[int]:
    """Where a RECS with this start_seq came."""
    return [
        place
        for place, message in enumerate(subscriber.heard)
        if isinstance(message, layout.FeedRecoveryResponse) and message.start_seq == start
    ]


def test_feed_recovery_request_before_the_subscription_is_refused(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with feeding(tmp_path), dialled(tmp_path) as subscriber:
            subscriber.send(layout.FeedRecoveryRequest(1, 7, 5))
            await subscriber.until(lambda: bool(subscriber.heard))
            assert subscriber.heard == [layout.FeedRecoveryResponse(1, 6, 0, 0)]

    run_loop(main(), LOOPS[kind])


def test_feed_recovery_of_records_not_kept_or_not_yet_stored_is_answered_with_a_failure(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with feeding(tmp_path) as (server, _, _), dialled(tmp_path) as subscriber:
            await fill(server, 2000, 1000)
            log = server.topics.ensure_open().feed.log
            log.trim(1000)
            assert log.first > 1
            await subscriber.subscribe(7)
            subscriber.send(layout.FeedRecoveryRequest(1, 7, 5))
            subscriber.send(layout.FeedRecoveryRequest(1, 7, 5000))
            await subscriber.until(lambda: len(subscriber.heard) == 3)
            assert subscriber.heard[1:] == [
                layout.FeedRecoveryResponse(1, 6, log.first, 0),
                layout.FeedRecoveryResponse(1, 5001, log.last, 0),
            ]
            subscriber.send(layout.FeedRecoveryRequest(1, 7, 0))
            await subscriber.until(lambda: len(subscriber.heard) > 3)
            response = subscriber.heard[3]
            assert isinstance(response, layout.FeedRecoveryResponse)
            assert (response.result, response.start_seq) == (0, log.first)

    run_loop(main(), LOOPS[kind])


def test_feed_connection_of_another_protocol_or_with_a_wrong_frame_is_closed(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with feeding(tmp_path) as (_, door, _), dialled(tmp_path) as one, dialled(tmp_path) as other:
            one.writer.write(b"GET / HTTP/1.1\r\n" * 8000)
            other.send(layout.FeedTopicMessage(1, 1, 1, 1, b"x"))
            await soon(lambda: door.closed_for == {"nonsense": 1, "frame": 1} and not door.connections)

    run_loop(main(), LOOPS[kind])


def damage(log: SegmentLog, sequence: int) -> None:
    [piece] = log.reader().pieces(sequence, sequence + 1)
    with Path(log.chain[0].path).open("r+b") as file:
        file.seek(piece.offset + piece.length - 1)
        file.write(b"?")


def test_feed_recovery_over_a_gap_counts_what_it_sends_and_shows_the_gap_in_the_topic_sequences(
    kind: str, tmp_path: Path
) -> None:
    """P-17: the layout has no word for a gap. Between RECS and RECC a topic sequence that is skipped is lost."""

    async def main() -> None:
        async with feeding(tmp_path) as (server, _, _), dialled(tmp_path) as subscriber:
            await fill(server, 2000, 200)
            log = server.topics.ensure_open().feed.log
            assert isinstance(log, SegmentLog)
            damage(log, 10)
            await asyncio.to_thread(log.mend)
            assert log.gaps() == [Gap(10, 10)]
            await subscriber.subscribe(3)
            subscriber.send(layout.FeedRecoveryRequest(1, 3, 4))
            await subscriber.until(lambda: isinstance(subscriber.heard[-1], FeedRecoveryComplete))
            response, *sent, complete = subscriber.heard[1:]
            wanted = [n for n in range(5, 2001) if n % 4 in (1, 2) and n != 10]
            assert response == layout.FeedRecoveryResponse(0, 5, 2000, len(wanted))
            assert isinstance(complete, FeedRecoveryComplete)
            assert complete.total_sent == len(sent) == len(wanted)
            numbers = [one.topic_seq for one in subscriber.messages if one.topic == 2]
            assert numbers == [n for n in range(2, 501) if n != 3]

    run_loop(main(), LOOPS[kind])


def test_feed_client_that_follows_nothing_is_disconnected_after_its_timeout(kind: str, tmp_path: Path) -> None:
    """Over TCP it has the time of a frame to subscribe, over a unix socket the idle time. Subscribers may be silent."""

    async def main() -> None:
        async with (
            feeding(tmp_path) as (_, door, port),
            dialled(tmp_path, port) as remote,
            dialled(tmp_path) as local,
            dialled(tmp_path) as halfway,
            dialled(tmp_path, port) as subscriber,
            dialled(tmp_path) as maskless,
        ):
            await subscriber.subscribe(7)
            await maskless.subscribe(0)
            halfway.writer.write(layout.encode(layout.FeedSubscribe(1, 7, 0, "x"))[:-1])
            await soon(lambda: sum(one["bytesHeld"] for one in door.describe()) == 79)
            assert len(door.connections) == 5
            now = asyncio.get_running_loop().time()
            door.check_timeouts(now + 20)
            assert door.closed_for == {}
            door.check_timeouts(now + 31)
            assert door.closed_for == {"frame": 2}
            for gone in (remote, halfway):
                await gone.until_closed()
            door.check_timeouts(now + 601)
            assert door.closed_for == {"frame": 2, "idle": 2}
            for gone in (local, maskless):
                await gone.until_closed()
            door.check_timeouts(now + 10**6)
            assert len(door.connections) == 1

    run_loop(main(), LOOPS[kind])


def test_feed_frame_that_is_not_finished_in_time_ends_a_subscription(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with feeding(tmp_path) as (_, door, port), dialled(tmp_path, port) as subscriber:
            await subscriber.subscribe(7)
            subscriber.writer.write(layout.encode(layout.FeedRecoveryRequest(1, 7, 0))[:5])
            await soon(lambda: sum(one["bytesHeld"] for one in door.describe()) == 5)
            door.check_timeouts(asyncio.get_running_loop().time() + 31)
            await subscriber.until_closed()
            assert door.closed_for == {"frame": 1}

    run_loop(main(), LOOPS[kind])


def program(address: str, *queues: str, token: str = "") -> AccessGrant:
    scopes = frozenset({"publish", "consume"})
    return AccessGrant(token, scopes, queues, name="desk", addresses=(ip_network(address),))


def test_feed_client_of_an_address_that_no_program_has_is_refused(kind: str, tmp_path: Path) -> None:
    """A program that has a token as well cannot show it here. A unix socket is guarded by the mode of its file."""

    async def main() -> None:
        grants = [program("10.0.0.7", "*"), program("127.0.0.1", "*", token="0123456789abcdef")]
        refused = RefusedClients(SystemClock(), lambda events: None)
        async with (
            feeding(tmp_path, Authenticator(grants), refused) as (_, door, port),
            dialled(tmp_path, port) as remote,
            dialled(tmp_path) as local,
        ):
            await remote.until_closed()
            assert remote.heard == [layout.FeedSubscribeOk(1, 0, 0)]
            assert door.closed_for == {"not_allowed": 1}
            assert refused.counts == {("feed", "unknown"): 1}
            assert (await local.subscribe(7)).approved_topics == 7
            assert len(door.connections) == 1

    run_loop(main(), LOOPS[kind])


def test_feed_program_follows_the_topics_that_its_queues_name(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        refused = RefusedClients(SystemClock(), lambda events: None)
        async with (
            feeding(tmp_path, Authenticator([program("127.0.0.0/8", "TOPIC?")]), refused) as (server, _, port),
            dialled(tmp_path, port) as subscriber,
            dialled(tmp_path, port) as other,
        ):
            assert await subscriber.subscribe(7) == layout.FeedSubscribeOk(0, 3, 0)
            assert await other.subscribe(4) == layout.FeedSubscribeOk(1, 0, 0)
            await other.until_closed()
            assert refused.counts == {("feed", "forbidden"): 1}
            await fill(server, 8)
            await subscriber.until(lambda: len(subscriber.messages) == 4)
            assert {one.topic for one in subscriber.messages} == {1, 2}

    run_loop(main(), LOOPS[kind])


def test_feed_mask_of_zero_gets_no_records(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with feeding(tmp_path) as (server, _, _), dialled(tmp_path) as nobody, dialled(tmp_path) as somebody:
            assert (await nobody.subscribe(0)).approved_topics == 0
            assert (await somebody.subscribe(8 | 1)).approved_topics == 1
            await server.publish(NewRecord("TOPIC1", b"x"), NewRecord("TOPIC2", b"y"))
            await somebody.until(lambda: len(somebody.messages) == 1)
            nobody.send(layout.FeedRecoveryRequest(1, 0, 0))
            await nobody.until(lambda: len(nobody.heard) == 3)
            assert nobody.messages == []

    run_loop(main(), LOOPS[kind])
