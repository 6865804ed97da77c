"""Lost answers, lost requests, lost servers: what was confirmed is there exactly once, and giving up is said."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.parts import BadLine, Connect
from tests.support.server import RunningServer
from tests.support.wait import PATIENCE, STALL_SECONDS
from yirangmq import NewMessage, NotAllowed, Unreachable
from yirangmq.client import blocking_transport
from yirangmq.client.connection import ReconnectingConnection
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, ManualClock
from yirangmq.wire.frames import FrameKind


@pytest.fixture
def queues(line: BadLine, connecting: Connect) -> Any:
    return connecting(line.address)


def everything(queues: Any) -> list[Any]:
    got: list[Any] = []
    while batch := queues.lease("mail", 500):
        got += [delivery.value() for delivery in batch]
    return got


# -- lost answers ---------------------------------------------------------------------------------------------------


def test_retry_of_a_publish_with_a_lost_answer_stores_once_and_reports_no_duplicate(queues: Any, line: BadLine) -> None:
    line.lose_answer(FrameKind.PUBLISH)
    stored = queues.publish("mail", "once")
    assert (stored.id, stored.duplicate, line.losses) == ("m-1", False, 1)
    assert everything(queues) == ["once"]


def test_retry_repeats_a_publish_lease_or_ack_whose_request_was_lost(queues: Any, line: BadLine) -> None:
    line.lose_request(FrameKind.PUBLISH, FrameKind.LEASE, FrameKind.ACK)
    assert queues.publish("mail", "once").duplicate is False
    [delivery] = queues.lease("mail")
    queues.ack(delivery.lease_id)
    assert (queues.counts("mail").done, line.losses) == (1, 3)


def test_dedup_reports_a_real_duplicate_also_after_a_lost_answer(queues: Any, line: BadLine) -> None:
    queues.publish("mail", NewMessage(payload="first", deduplication_key="k"))
    line.lose_answer(FrameKind.PUBLISH)
    stored = queues.publish("mail", NewMessage(payload="second", deduplication_key="k"))
    assert (stored.id, stored.duplicate, line.losses) == ("m-1", True, 1)
    assert everything(queues) == ["first"]


def test_retry_of_publish_many_with_losses_stores_every_message_once_and_in_order(queues: Any, line: BadLine) -> None:
    for _ in range(5):
        line.lose_answer(FrameKind.PUBLISH)
        line.lose_request(FrameKind.PUBLISH)
    stored = queues.publish_many("mail", range(3000))
    assert line.losses >= 5
    assert [(one.id, one.duplicate) for one in stored] == [(f"m-{n}", False) for n in range(1, 3001)]
    assert everything(queues) == list(range(3000))


def test_retry_of_ack_nack_extend_and_release_with_lost_answers_applies_each_once(queues: Any, line: BadLine) -> None:
    queues.publish_many("mail", range(4))
    acked, nacked, extended, released = queues.lease("mail", 4)
    line.lose_answer(FrameKind.ACK, FrameKind.NACK, FrameKind.EXTEND, FrameKind.RELEASE)
    queues.ack(acked.lease_id)
    queues.nack(nacked.lease_id, delay=60)
    queues.extend(extended.lease_id, 60)
    queues.release(released.lease_id)
    counts = queues.counts("mail")
    assert (counts.done, counts.delayed, counts.leased, counts.ready, line.losses) == (1, 1, 1, 1, 4)


def test_retry_of_a_lease_with_a_lost_answer_gets_the_next_message_and_the_lost_lease_expires(
    queues: Any, line: BadLine, clock: ManualClock
) -> None:
    queues.publish_many("mail", ["lost", "found"])
    line.lose_answer(FrameKind.LEASE)
    assert [delivery.value() for delivery in queues.lease("mail")] == ["found"]
    assert queues.counts("mail").leased == 2
    clock.advance(31_000)
    queues.sweep()
    clock.advance(1_000)
    assert sorted(everything(queues)) == ["found", "lost"]


def test_retry_repeats_a_call_or_ping_with_a_lost_answer(queues: Any, line: BadLine) -> None:
    queues.publish("mail", 1)
    line.lose_answer(FrameKind.CALL, FrameKind.PING)
    assert queues.drop("mail", ["m-1"]) == [None]
    assert queues.ping() > 0
    assert queues.counts("mail").dropped == 1


# -- lost servers ---------------------------------------------------------------------------------------------------


def test_reconnect_after_repeated_cuts_loses_and_repeats_no_message(server: RunningServer, connecting: Connect) -> None:
    queues = connecting(server.unix, retries=100)
    over = threading.Event()

    def trouble() -> None:
        """It ends: where everything is slow no connection would live long enough to get on."""
        for _ in range(50):
            if over.wait(0.02):
                return
            server.cut()

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        stored = queues.publish_many("mail", range(10_000))
    finally:
        over.set()
        thread.join()
    assert not any(one.duplicate for one in stored)
    assert everything(queues) == list(range(10_000))


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock) -> Iterator[list[RunningServer]]:
    """Two servers, each with a store of its own."""
    servers = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        servers.append(RunningServer(MemoryStore(), tmp_path / name, clock).start())
    yield servers
    for server in servers:
        server.stop()


def test_reconnect_finds_a_restarted_server(server: RunningServer, connecting: Connect) -> None:
    queues = connecting(server.unix)
    queues.publish("mail", 1)
    server.stop()
    server.start()
    queues.publish("mail", 2)
    assert everything(queues) == [1, 2]


def test_reconnect_tries_several_addresses_in_turn(
    pair: list[RunningServer], connecting: Connect, tmp_path: Path
) -> None:
    one, two = pair
    queues = connecting(f"unix:{tmp_path / 'nobody.sock'},{one.unix},{two.tcp}", retries=1)
    queues.publish("mail", "one")
    one.stop()
    queues.publish("mail", "two")
    one.start()
    assert everything(queues) == ["two"]
    two.stop()
    assert everything(queues) == ["one"]


def test_unreachable_error_names_every_address_with_its_reason_and_hides_the_token(
    server: RunningServer, connecting: Connect, tmp_path: Path
) -> None:
    nobody = f"unix:{tmp_path / 'nobody.sock'}"
    with pytest.raises(Unreachable) as caught:
        connecting(f"{nobody},tcp://localhost:1?token=hush", retries=1)
    text = str(caught.value)
    assert caught.value.code == "unreachable"
    assert f"{nobody}: No such file or directory; tcp://localhost:1: " in text
    assert "refused" in text
    assert "(tried 2 times)" in text
    assert "hush" not in text


def test_unreachable_error_of_publish_many_holds_the_receipts_confirmed_before(
    server: RunningServer, connecting: Connect
) -> None:
    queues = connecting(server.unix, retries=0)

    def messages() -> Iterator[int]:
        for n in range(10_000):
            if n == 5_000:
                server.stop()
            yield n

    with pytest.raises(Unreachable) as caught:
        queues.publish_many("mail", messages())
    confirmed = [one.id for one in caught.value.receipts if one is not None]
    assert confirmed == [f"m-{n}" for n in range(1, len(confirmed) + 1)]
    assert 0 < len(confirmed) <= len(caught.value.receipts) < 10_000
    server.start()
    assert everything(connecting(server.unix))[: len(confirmed)] == list(range(len(confirmed)))


def test_unreachable_is_raised_when_a_server_does_not_answer_in_time(connecting: Connect) -> None:
    with socket.create_server(("localhost", 0)) as deaf, pytest.raises(Unreachable) as caught:
        connecting(f"tcp://localhost:{deaf.getsockname()[1]}", timeout=0.05, retries=0)
    assert "no answer within 0.05 seconds" in str(caught.value)


def test_retry_repeats_a_request_to_a_server_that_falls_silent(
    server: RunningServer, connecting: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = connecting(server.unix, timeout=0.2, retries=50)
    asleep, awake = threading.Event(), threading.Event()
    pause = ReconnectingConnection.pause

    async def ask_again(courier: ReconnectingConnection, tries: int, why: Exception) -> None:
        awake.set()
        await pause(courier, tries, why)

    def fall_silent() -> None:
        asleep.set()
        awake.wait(STALL_SECONDS / 2)

    monkeypatch.setattr(ReconnectingConnection, "pause", ask_again)
    server.do(fall_silent)
    assert asleep.wait(PATIENCE)
    try:
        assert queues.publish("mail", 1).duplicate is False
        assert awake.is_set()
    finally:
        awake.set()
    assert everything(queues) == [1]


def test_timeout_does_not_end_the_wait_for_an_answer_that_takes_several_reads(
    server: RunningServer, connecting: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_transport, "SOCKET_TIMEOUT_SECONDS", 0.05)
    queues = connecting(server.unix, timeout=PATIENCE, retries=0)
    assert queues.call("wait", seconds=0.3) == "waited"
    assert queues.lease("mail", wait=0.3) == []
    assert queues.publish("mail", 1).duplicate is False


def test_timeout_does_not_end_a_long_method_while_the_server_responds(
    server: RunningServer, connecting: Connect
) -> None:
    queues = connecting(server.unix, timeout=2, retries=0)
    assert queues.call("wait", seconds=4.2) == "waited"


def test_dedup_by_a_given_message_id_is_reported_after_a_server_restart(
    server: RunningServer, connecting: Connect
) -> None:
    queues = connecting(server.unix)
    queues.publish("mail", NewMessage(payload=1, id="mine"))
    server.stop()
    server.start()
    assert queues.publish("mail", NewMessage(payload=1, id="mine")).duplicate


def test_closed_client_raises_unreachable_with_the_reason(server: RunningServer, connecting: Connect) -> None:
    queues = connecting(server.unix)
    queues.close()
    with pytest.raises(Unreachable, match="closed"):
        queues.publish("mail", 1)


# -- tokens ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningServer]:
    server = RunningServer(MemoryStore(), tmp_path, token="sesame").start()
    yield server
    server.stop()


def test_token_that_is_wrong_or_missing_is_not_retried(guarded: RunningServer, connecting: Connect) -> None:
    for options in ({}, {"token": "open"}):
        with pytest.raises(NotAllowed):
            connecting(guarded.tcp, retries=10_000, **options)


def test_token_that_is_right_is_accepted_as_option_or_in_the_address(
    guarded: RunningServer, connecting: Connect
) -> None:
    assert connecting(guarded.tcp, token="sesame").publish("mail", 1).id == "m-1"
    assert connecting(f"{guarded.tcp}?token=sesame", ids=CountingIds("n")).publish("mail", 1).id == "n-1"
    assert connecting(guarded.unix, ids=CountingIds("o")).publish("mail", 1).id == "o-1"
