"""Who waits for one answer that usually comes at once looks out for it; for how long, and when not."""

import gc
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.server import RunningServer
from tests.support.wait import PATIENCE, until
from yirangmq.client import blocking_transport
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client
from yirangmq.core.adaptive_spin import AdaptiveSpin
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


class Watched:
    """How often somebody gave way while looking out."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        time.sleep(0)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """With another processor for the server, and answers that are always worth it, however slow this machine is."""
    watched = Watched()
    monkeypatch.setattr(blocking_transport, "yield_processor", watched)
    monkeypatch.setattr(blocking_transport, "processors", lambda: 2)
    monkeypatch.setattr(AdaptiveSpin, "seconds", property(lambda self: 0.05, lambda self, value: None))
    return watched


def publish(client: Client, count: int = 20) -> None:
    for n in range(count):
        client.publish("mail", n)
    assert [delivery.value() for delivery in client.lease("mail", count)] == list(range(count))


def test_adaptive_spin_is_used_for_a_single_answer(server: RunningServer, watched: Watched) -> None:
    with connect(server.unix) as client:
        publish(client)
    assert watched.count > 0


def test_adaptive_spin_is_off_with_stay_awake_false(server: RunningServer, watched: Watched) -> None:
    with connect(server.unix, stay_awake=False) as client:
        publish(client)
    assert watched.count == 0


def test_adaptive_spin_is_off_on_a_single_processor(
    server: RunningServer, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_transport, "processors", lambda: 1)
    with connect(server.unix) as client:
        publish(client)
    assert watched.count == 0


def test_adaptive_spin_is_off_while_a_subscription_waits(server: RunningServer, watched: Watched) -> None:
    with connect(server.unix) as client, connect(server.unix, stay_awake=False) as other:
        subscription = client.subscribe("mail", idle=0.3)
        coming = iter(subscription)
        other.publish("mail", 1)
        subscription.ack_nowait(next(coming))
        watched.count = 0
        assert next(coming, None) is None
        assert watched.count == 0


def test_adaptive_spin_ends_and_the_thread_blocks_when_no_answer_comes(server: RunningServer, watched: Watched) -> None:
    """A lease waits for a message that is late: awake for a twentieth of a second, and asleep for the rest.
    The processor time is that of this thread: the server has its own, and other tests leave work behind."""
    with connect(server.unix) as client:
        client.ping()
        before, began = time.thread_time(), time.monotonic()
        assert client.lease("mail", wait=1.5) == []
        assert time.monotonic() - began >= 1.4
        assert watched.count > 0
        assert time.thread_time() - before < 1


def test_adaptive_spin_is_off_after_three_slow_answers(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it learns from: three answers that took long, then none is looked out for."""
    watched = Watched()
    monkeypatch.setattr(blocking_transport, "yield_processor", watched)
    monkeypatch.setattr(blocking_transport, "processors", lambda: 2)
    with connect(server.unix) as client:
        for _ in range(3):
            client.lease("mail", wait=0.05)
        watched.count = 0
        client.lease("mail", wait=0.05)
        assert watched.count == 0


def test_adaptive_spin_never_exceeds_the_timeout_of_the_wait(watched: Watched) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = blocking_transport.BlockingTransport(ours, 1, None, stay_awake=True)
        slot = blocking_transport.run(line.request(FrameKind.PING, messages.Empty()))
        began = time.monotonic()
        assert blocking_transport.run(line.wait_for_data(slot, 0.005)) is False
        assert time.monotonic() - began < 0.04  # and not the twentieth of a second it would stay awake


class Interrupt(BaseException):
    """What a handler of signals raises."""


def test_interrupted_read_drops_the_connection_and_a_waiting_thread_retries_on_another(server: RunningServer) -> None:
    """Between the bytes and the word of how many they are: they are gone, so the connection is, and whoever waits for
    an answer on it gets it on another one at once."""
    with connect(server.unix, timeout=PATIENCE) as client:
        client.ping()
        [line] = [
            one for one in gc.get_objects() if isinstance(one, blocking_transport.BlockingTransport) and one.is_alive
        ]
        whole, reader, is_armed = line._socket, threading.current_thread(), [True]

        class Channel:
            def __getattr__(self, name: str) -> Any:
                return getattr(whole, name)

            def recv_into(self, *given: Any) -> int:
                count = whole.recv_into(*given)
                if count and is_armed and threading.current_thread() is reader:
                    is_armed.clear()
                    raise Interrupt
                return count

        line._socket = Channel()  # type: ignore[assignment]
        with ThreadPoolExecutor(1) as threads:

            def other() -> None:
                until(lambda: line._reading)
                client.publish("mail", 1)

            waiting = threads.submit(other)
            with pytest.raises(Interrupt):
                client.lease("none", wait=PATIENCE)
            waiting.result(PATIENCE / 2)
        assert client.counts("mail").ready == 1
