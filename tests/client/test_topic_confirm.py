"""When the position of a durable topic subscription reaches the server: while records are processed, and at the end."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.client.parts import Connect
from tests.client.topic_parts import TOPIC_FACES
from tests.support.server import RunningServer
from tests.support.server_process import Daemon, until
from tests.support.wait import PATIENCE, soon
from yirangmq.client.connect import connect, connect_async
from yirangmq.client.cursors import CURSOR_RECORDS, CURSOR_SECONDS, CursorFile, ServerCursorKeeper
from yirangmq.client.values import TopicRecord
from yirangmq.core.errors import Replaced
from yirangmq.stores.memory import MemoryStore
from yirangmq.topics.ports import TopicSettings

BACKLOG = 400
"""Small enough for one read of the client, and below ``CURSOR_RECORDS``."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    made = RunningServer(MemoryStore(), tmp_path, topics=TopicSettings()).start()
    yield made
    made.stop()


@pytest.fixture(params=TOPIC_FACES)
def connecting(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda address, **options: stack.enter_context(
            TOPIC_FACES[request.param](address, **{"consumer": "tester", "timeout": 10} | options)
        )


@pytest.fixture
def observer(server: RunningServer) -> Iterator[Any]:
    with connect(server.unix) as client:
        yield client.topics


def confirmed(topics: Any, name: str = "ledger") -> int:
    """What the server knows of the subscriber."""
    return int(next((row["confirmed"] for row in topics.subscribers() if row["name"] == name), 0))


def buffered(records: Any) -> int:
    core = records._core if hasattr(records, "_core") else records.target
    return len(core.ready)


class Stop(Exception):
    """Ends a callback."""


class SlowReader:
    """Asks the server at each record, until the cursor moves, where it is: never at the record in work."""

    def __init__(self, topics: Any) -> None:
        self._topics = topics
        self.records: Any = None
        self.first: int | None = None
        self.seen: list[int] = []
        self.is_over = False

    def __call__(self, record: TopicRecord) -> None:
        self.seen.append(record.sequence)
        if self.first is None:
            self.first = buffered(self.records)  # no read of the network is needed for these
        for _ in range(20):
            found = confirmed(self._topics)
            assert found < record.sequence
        if found >= 5:
            self.is_over = True

    def check(self) -> None:
        assert self.first is not None
        assert self.first > 100
        assert self.is_over
        assert len(self.seen) < self.first


@pytest.mark.parametrize("how", ["iterator", "run", "next"])
def test_cursor_advances_while_a_slow_program_processes_buffered_records(
    server: RunningServer, connecting: Connect, observer: Any, how: str
) -> None:
    observer.publish_many([("a", n) for n in range(BACKLOG)])
    reader = SlowReader(observer)

    def callback(record: TopicRecord) -> None:
        reader(record)
        if reader.is_over:
            raise Stop

    with connecting(server.unix).topics.subscribe("a", name="ledger", start="beginning", idle=1) as records:
        reader.records = records
        if how == "run":
            with pytest.raises(Stop):
                records.run(callback)
        elif how == "iterator":
            for record in records:
                reader(record)
                if reader.is_over:
                    break
        else:
            while not reader.is_over:
                reader(records.next())
    reader.check()
    assert confirmed(observer) == reader.seen[-1] - 1


def test_cursor_of_an_asyncio_subscription_advances_although_the_program_blocks_the_event_loop(
    server: RunningServer, observer: Any
) -> None:
    """The loop gets a turn when the position is due, not only when the client waits for records."""
    observer.publish_many([("a", n) for n in range(BACKLOG)])
    reader = SlowReader(observer)

    async def read() -> None:
        async with (
            connect_async(server.unix) as client,
            client.topics.subscribe("a", name="ledger", start="beginning", idle=1) as records,
        ):
            reader.records = type("Held", (), {"_core": records})
            async for record in records:
                reader(record)
                if reader.is_over:
                    break

    asyncio.run(read())
    reader.check()


def test_cursor_advances_by_batches_and_never_past_the_batch_in_work(
    server: RunningServer, connecting: Connect, observer: Any
) -> None:
    observer.publish_many([("a", n) for n in range(BACKLOG)])
    ends = [0]
    with connecting(server.unix).topics.subscribe("a", name="ledger", start="beginning", idle=0.5) as records:
        for batch in records.batches():
            assert confirmed(observer) in ends
            ends.append(batch[-1].sequence)
            observer.publish("a", 0)
            if len(ends) == 20:
                break
    assert confirmed(observer) == ends[-2]


def test_cursor_is_confirmed_over_a_new_connection_if_the_old_one_is_lost_meanwhile(
    server: RunningServer, connecting: Connect, observer: Any
) -> None:
    observer.publish_many([("a", n) for n in range(BACKLOG)])
    with connecting(server.unix).topics.subscribe(
        "a", name="ledger", start="beginning", idle=1, reconnect=0.01
    ) as records:
        seen = [records.next().sequence]
        local = buffered(records)
        assert local > 100
        server.stop()
        server.start()
        with connect(server.unix) as client:
            while min(confirmed(client.topics) for _ in range(20)) < 5:
                seen.append(records.next().sequence)
                assert len(seen) < local
        seen += [record.sequence for record in records]
    assert seen == [*range(1, BACKLOG + 1)]


def test_cursor_file_is_written_while_a_slow_program_processes_buffered_records(
    server: RunningServer, connecting: Connect, observer: Any, tmp_path: Path
) -> None:
    observer.publish_many([("a", n) for n in range(BACKLOG)])
    file = CursorFile(tmp_path / "cursor")
    with connecting(server.unix).topics.subscribe(
        "a", cursor_file=tmp_path / "cursor", start="beginning", idle=1
    ) as records:
        for record in records:
            assert all(confirmed(observer) == 0 for _ in range(20))
            found = file.read()
            assert found is None or found.sequence < record.sequence
            if found is not None and found.sequence >= 5:
                break
        assert buffered(records) > 0


def test_cursor_of_a_replaced_subscriber_is_left_to_the_one_that_has_the_name(
    server: RunningServer, connecting: Connect, observer: Any
) -> None:
    """The first subscriber does not connect again, although it has records in its buffer."""
    observer.publish_many([("a", n) for n in range(BACKLOG)])
    with connecting(server.unix).topics.subscribe("a", name="ledger", start="beginning", idle=1) as first:
        assert first.next().sequence == 1
        with connecting(server.unix).topics.subscribe("a", name="ledger", start="beginning", idle=1) as second:
            with pytest.raises(Replaced):
                first.run(lambda record: confirmed(observer))
            assert [record.sequence for record in second][-1] == BACKLOG
    assert confirmed(observer) == BACKLOG


@pytest.mark.parametrize("how", ["confirm", "leave"])
def test_cursor_of_an_asyncio_subscription_is_confirmed_although_its_inbox_is_full(
    server: RunningServer, observer: Any, how: str
) -> None:
    """The reply follows megabytes of records that the program has not taken."""
    observer.publish_many([("a", bytes(10_000)) for _ in range(3000)])

    async def read() -> None:
        async with (
            connect_async(server.unix, timeout=PATIENCE) as client,
            client.topics.subscribe("a", name="ledger", start="beginning") as records,
        ):
            assert await records.next()
            transport: Any = records._topic_connection.transport
            await soon(lambda: transport._is_paused)
            if how == "confirm":
                await records.confirm()
            else:
                assert await records.next()

    asyncio.run(asyncio.wait_for(read(), PATIENCE / 2))
    assert confirmed(observer) == 1


def test_cursor_keeper_sends_a_position_by_time_or_by_number_but_not_each_one() -> None:
    now = [100.0]
    keeper = ServerCursorKeeper(lambda: now[0])
    assert keeper.due_in(0) is None
    assert keeper.due_in(1) == 0
    keeper._requested, keeper._requested_at = 1, now[0]
    assert keeper.due_in(1) is None
    assert keeper.due_in(2) == pytest.approx(CURSOR_SECONDS)
    assert keeper.due_in(1 + CURSOR_RECORDS) == 0
    now[0] += CURSOR_SECONDS
    assert keeper.due_in(2) == 0


# -- as processes ------------------------------------------------------------------------------------------------------

SUBSCRIBER = """
import signal, sys, yirangmq
address, how, ending = sys.argv[1:]
if ending == "SIGTERM":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))

def work(record):
    print(record.sequence, flush=True)
    if not sys.stdin.readline():  # the record is processed when the test says so
        sys.exit(1)

with yirangmq.connect(address) as client:
    with client.topics.subscribe("a", name="ledger", start="beginning") as records:
        if how == "run":
            records.run(work)
        else:
            for record in records:
                work(record)
"""


@contextmanager
def subscriber(line: list[str]) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], int], Callable[[], None]]]:
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        out, put = process.stdout, process.stdin
        assert out is not None
        assert put is not None

        def go() -> None:
            put.write(b"\n")
            put.flush()

        try:
            yield process, lambda: int(_line(out)), go
        finally:
            process.kill()


def _line(out: IO[bytes]) -> bytes:
    found = out.readline()
    assert found
    return found


@pytest.mark.process
@pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("how", ["iterator", "run"])
def test_cursor_of_a_process_ended_by_a_signal_is_at_the_records_that_it_finished(
    daemon: Daemon, how: str, ending: str
) -> None:
    """After SIGTERM, which leaves ``with``, exactly; after SIGKILL within ``CURSOR_SECONDS``."""
    line = [sys.executable, "-c", SUBSCRIBER, daemon.address, how, ending]
    with connect(daemon.address, retries=100) as client:
        client.topics.publish_many([("a", n) for n in range(BACKLOG)])
        with subscriber(line) as (process, next_sequence, go):
            sequence = next_sequence()
            while min(confirmed(client.topics) for _ in range(20)) < 5:  # it moves while the process is alive
                assert sequence < BACKLOG
                go()
                sequence = next_sequence()
            process.send_signal(getattr(signal, ending))
            process.wait(PATIENCE)
        until(lambda: client.topics.subscribers()[0]["state"] == "offline")
        at = confirmed(client.topics)
        assert at < sequence
        assert ending == "SIGKILL" or at == sequence - 1
        with subscriber(line) as (process, next_sequence, go):
            assert next_sequence() == at + 1


WAITING = """
import os, signal, sys, threading, yirangmq
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
main = threading.main_thread().ident

def interrupt():  # as soon as the main thread reads from the socket
    while sys._current_frames()[main].f_code.co_name != "_read":
        pass
    os.kill(os.getpid(), signal.SIGTERM)

with yirangmq.connect(sys.argv[1]) as client:
    with client.topics.subscribe("a", name="ledger", start="beginning") as records:
        for record in records:
            if record.sequence == 2:
                threading.Thread(target=interrupt, daemon=True).start()
"""


@pytest.mark.process
def test_cursor_of_a_process_interrupted_while_it_waits_for_records_is_at_the_last_one(daemon: Daemon) -> None:
    """The signal breaks the read, and with it the connection; another connection confirms."""
    with connect(daemon.address, retries=100) as client:
        client.topics.publish_many([("a", n) for n in range(2)])
        subprocess.run([sys.executable, "-c", WAITING, daemon.address], check=True, timeout=PATIENCE)
        assert confirmed(client.topics) == 2
