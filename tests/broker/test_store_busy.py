"""Another process holds the store's lock: requests wait by a timer, the loop goes on, and a request that is refused by
its deadline is never stored."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.locked_store import Shared
from yirangmq.broker.commit_jobs import BACKOFF
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import StoreBusy
from yirangmq.core.ports import Transaction
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


@pytest.fixture(params=["sqlite", "files"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    made = Shared(request.param, tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Shared]:
    made = Shared("sqlite", tmp_path)
    yield made
    made.store.close()


def test_busy_store_lets_requests_wait_and_stores_them_in_order_once_it_is_free(shared: Shared) -> None:
    shared.client.publish("mail", b"1")
    with shared.locked():
        numbers = [shared.begin_publish(b"2")]
        shared.pass_seconds(0.5)
        numbers.append(shared.begin_publish(b"3"))
        shared.pass_seconds(0.5)
        assert shared.client.answers == []
    shared.pass_seconds(0.1)
    for number in numbers:
        [answer] = shared.client.heard(number)
        assert answer.kind is not FrameKind.ERROR
    assert shared.server.desk.is_idle
    assert shared.payloads() == [b"1", b"2", b"3"]


def test_busy_store_refuses_each_request_by_its_deadline_and_nothing_of_it_is_stored_later(shared: Shared) -> None:
    shared.client.publish("mail", b"1")
    with shared.locked():
        early = shared.begin_publish(b"early")
        shared.pass_seconds(1.5)
        late = shared.begin_publish(b"late")
        shared.pass_seconds(1.0)
        [answer] = shared.client.heard(early)
        assert (answer.kind, answer.value.code) == (FrameKind.ERROR, "store_busy")
        error = messages.error_of(answer.value.code, answer.value.text, None)
        assert isinstance(error, StoreBusy)
        assert error.retry_after == 1
        assert shared.client.heard(late) == []
        assert str(shared.server.desk.last_error) == str(error)
    shared.pass_seconds(0.1)
    assert shared.client.heard(late)[0].kind is not FrameKind.ERROR
    assert shared.server.desk.last_error is None
    assert shared.payloads() == [b"1", b"late"]


def test_busy_store_serves_consumers_that_wait_once_it_is_free(shared: Shared) -> None:
    lease = shared.client.wait_for_lease("mail", seconds=600)
    with shared.locked():
        shared.begin_publish(b"1", shared.server.client())
        shared.pass_seconds(1)
        assert shared.client.heard(lease) == []
    shared.pass_seconds(0.1)
    [answer] = shared.client.heard(lease)
    assert [bytes(message.payload) for message in answer.value.messages] == [b"1"]


def test_busy_sqlite_store_can_still_be_read(on_sqlite: Shared) -> None:
    on_sqlite.client.publish("mail", b"1")
    other = on_sqlite.server.client()
    with on_sqlite.locked():
        on_sqlite.begin_publish(b"2", other)
        assert on_sqlite.client.call("counts", queue="mail")["ready"] == 1
        assert on_sqlite.client.call("queues") == ["mail"]
        assert 'yirangmq_queue_ready{queue="mail"} 1' in on_sqlite.client.call("metrics")
        assert other.answers == []
    on_sqlite.pass_seconds(0.1)
    assert on_sqlite.client.call("counts", queue="mail")["ready"] == 2


def test_busy_store_still_reports_the_metrics_of_the_server(shared: Shared) -> None:
    shared.client.publish("mail", b"1")
    with shared.locked():
        page = shared.client.call("metrics")
    assert 'yirangmq_published_bytes_total{queue="mail"} 1' in page
    assert 'yirangmq_queue_ready{queue="mail"} 1' in shared.client.call("metrics")


def test_busy_store_lets_a_long_commit_wait_and_refuses_it_by_its_deadline(shared: Shared) -> None:
    told: list[tuple[Any, Any]] = []

    def aside(work: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        work()
        done(None, None)

    def begin() -> None:
        desk = shared.server.desk
        desk.submit_long(lambda transaction: transaction.set_note("n", "1"), lambda *given: told.append(given), aside)
        shared.server.turn()

    def noted(transaction: Transaction) -> str | None:
        return transaction.note("n")

    with shared.locked():
        begin()
        shared.pass_seconds(2.5)
        [(_, error)] = told
        assert isinstance(error, StoreBusy)
        begin()
        shared.pass_seconds(1)
        assert len(told) == 1
    assert shared.server.desk.read(noted) is None
    shared.pass_seconds(0.1)
    assert told[1:] == [(None, None)]
    assert shared.server.desk.read(noted) == "1"


def test_busy_store_of_another_thread_is_not_waited_for_long(shared: Shared) -> None:
    """A long commit on another thread: reading on the loop gives up at once, it does not wait for its end."""
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with shared.store.transaction():
            begun.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        with pytest.raises(StoreBusy):
            shared.server.desk.read(lambda transaction: transaction.queues())
        with pytest.raises(StoreBusy):
            shared.store.used_bytes()
    finally:
        over.set()
        thread.join()
    assert shared.server.desk.read(lambda transaction: transaction.queues()) == []


def test_busy_store_is_read_again_by_a_long_method_once_it_is_free(tmp_path: Path) -> None:
    """A files store cannot be read without its lock; the thread of the method waits, the loop does not."""
    shared = Shared("files", tmp_path)
    shared.client.publish("mail", b"1")
    refused: list[StoreBusy] = []

    def look(queues: Queues, given: Any) -> int:
        return queues.read(lambda transaction: transaction.counts("mail").ready)

    told: list[tuple[Any, Any]] = []
    read = shared.server.desk.read

    def noting(work: Callable[[Transaction], Any]) -> Any:
        try:
            return read(work)
        except StoreBusy as error:
            refused.append(error)
            raise

    shared.server.desk.read = noting  # type: ignore[method-assign]
    with shared.locked():
        shared.server.pages.start(look, {}, lambda *given: told.append(given))
        while not refused:
            shared.server.turns.turn()
        assert told == []
    shared.server.turn()
    assert told == [(1, None)]
    shared.store.close()


def test_backoff_of_a_locked_store_grows_from_2_to_50_ms_less_up_to_half() -> None:
    for failures, longest in enumerate([0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05], 1):
        assert BACKOFF.delay(failures, 0.0) == pytest.approx(longest / 2)
        assert BACKOFF.delay(failures, 1.0) == pytest.approx(longest)
