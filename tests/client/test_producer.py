"""Messages sent one by one without waiting for each answer, whatever becomes of the connection."""

import asyncio
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.client.parts import FACES, BadLine, Connect, InLoop, ToTheirEnd
from tests.support.server import RunningServer
from tests.support.wait import PATIENCE, until
from yirangmq.client import producer as sender_module
from yirangmq.client.connect import connect_async
from yirangmq.core.errors import BadInput, QueueError, Unreachable
from yirangmq.core.ports import AddResult
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind, FrameReader


@pytest.fixture
def queues(everyones: Any) -> Any:
    return everyones


class Out(ToTheirEnd):
    def __init__(self, queues: Any, *given: Any, **named: Any) -> None:
        super().__init__(queues, queues.sender("mail", *given, **named))


def sent_all(out: Out, count: int) -> None:
    for number in range(count):
        out.send(number)
    out.settle()


def there(queues: Any) -> list[str]:
    return [look.message.id for look in queues.peek("mail", 1000)]


@pytest.mark.parametrize("window", [1, 3, 64])
def test_producer_settle_means_all_sent_messages_are_stored_in_order(queues: Any, window: int) -> None:
    out = Out(queues, window)
    ids = [out.send(number) for number in range(100)]
    out.settle()
    assert there(queues) == ids
    ids.append(out.send(b"bytes"))
    out.close()
    assert queues.counts("mail").ready == 101
    assert len(set(ids)) == 101


def test_producer_callback_gets_the_receipts_in_order(queues: Any) -> None:
    told: list[AddResult] = []
    out = Out(queues, 4, on_receipt=told.append)
    ids = [out.send(number) for number in range(20)]
    out.settle()
    assert [receipt.id for receipt in told] == ids
    assert not any(receipt.duplicate for receipt in told)


def test_producer_refuses_to_send_after_close(queues: Any) -> None:
    out = Out(queues)
    out.send(1)
    out.close()
    out.close()
    with pytest.raises(BadInput, match="closed"):
        out.send(2)
    assert queues.counts("mail").ready == 1


@pytest.mark.parametrize("given", [("no queue!",), ("mail", 0), ("mail", 10**9)])
def test_producer_refuses_a_bad_queue_name_or_window(queues: Any, given: tuple[Any, ...]) -> None:
    with pytest.raises(BadInput):
        queues.sender(*given)


def test_producer_refuses_an_invalid_message_at_once_and_continues(queues: Any) -> None:
    out = Out(queues)
    out.send(1)
    with pytest.raises(BadInput):
        out.send(object())
    out.send(2)
    out.close()
    assert queues.counts("mail").ready == 2


def test_producer_reports_every_refused_message_and_the_call_that_raised_sends_nothing(queues: Any) -> None:
    queues.set_policy("mail", {"quota": {"maxMessages": 3}})
    told: list[AddResult] = []
    out = Out(queues, 2, on_receipt=told.append)
    sent: list[str] = []
    refused: set[str] = set()
    unsent = 0
    for number in range(20):
        try:
            sent.append(out.send(number))
        except QueueError as error:
            refused |= error.refused.keys()
            unsent += 1
    try:
        out.settle()
    except QueueError as error:
        refused |= error.refused.keys()
    out.settle()
    assert queues.counts("mail").ready == 3
    assert [receipt.id for receipt in told] == sent[:3]
    assert refused == set(sent[3:])
    assert len(sent) + unsent == 20


def test_producer_raises_a_refusal_in_a_later_send_before_settle(client: Any) -> None:
    """Also where nobody waits for answers, and far from the end of the window."""
    client.set_policy("mail", {"quota": {"maxMessages": 1}})
    out = Out(client)
    out.send(1)
    refused = out.send(2)

    def is_refused() -> bool:
        try:
            out.send(3)
        except QueueError as error:
            return refused in error.refused
        return False

    until(is_refused)
    with suppress(QueueError):
        out.settle()


def test_producer_callback_may_send(queues: Any) -> None:
    if isinstance(queues, InLoop):
        pytest.skip("its coroutines are run from outside of the loop")
    told: list[AddResult] = []

    def tell(receipt: AddResult) -> None:
        told.append(receipt)
        if len(told) < 5:
            out.send("again")

    out = Out(queues, on_receipt=tell)
    out.send("first")
    until(lambda: (out.settle(), len(told) == 5)[1])
    assert queues.counts("mail").ready == 5


def test_producer_refuses_a_callback_that_is_not_callable(queues: Any) -> None:
    with pytest.raises(BadInput, match="on_receipt"):
        queues.sender("mail", on_receipt=5)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_producer_context_exit_raises_the_error_of_the_block_though_the_server_is_gone_and_closes(
    server: RunningServer, error: type[BaseException]
) -> None:
    with FACES["blocking"](server.unix, retries=0, timeout=1) as queues:
        sender = queues.sender("mail")

        def work() -> None:
            with sender:
                sender.send(1)
                server.stop()
                raise error

        with pytest.raises(error):
            work()
        with pytest.raises(BadInput, match="closed"):
            sender.send(2)
        server.start()


def test_producer_settle_is_not_delayed_by_earlier_cancelled_settles(server: RunningServer) -> None:
    async def scenario() -> tuple[float, int]:
        async with connect_async(server.unix, timeout=PATIENCE) as queues, queues.sender("mail") as sender:
            await sender.send(1)
            await sender.settle()
            for number in range(20):
                await sender.send(number)
                waiting = asyncio.create_task(sender.settle())
                await asyncio.sleep(0)
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    await waiting
            began = time.monotonic()
            await sender.settle()
            return time.monotonic() - began, (await queues.counts("mail")).ready

    seconds, ready = asyncio.run(scenario())
    assert seconds < PATIENCE / 2
    assert ready == 21


def test_producer_is_refused_in_a_forked_child(server: RunningServer) -> None:
    with FACES["blocking"](server.unix) as queues, queues.sender("mail") as sender:
        sender.send(1)
        child = os.fork()
        if not child:
            try:
                sender.send(2)
            except BadInput:
                sender.close()
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        sender.settle()
        assert queues.counts("mail").ready == 1


class HandingOver:
    """A server of one queue. Its first connection turns messages away, as a node does that hands over."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.turned_away = 0
        self._listener = socket.create_server(("localhost", 0))
        self.address = f"tcp://localhost:{self._listener.getsockname()[1]}"
        self._is_first = True
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                channel, _ = self._listener.accept()
                is_first, self._is_first = self._is_first, False
                threading.Thread(target=self._talk, args=(channel, is_first), daemon=True).start()

    def _talk(self, channel: socket.socket, is_handing_over: bool) -> None:
        reader = FrameReader(1 << 24)
        with suppress(OSError), channel:
            while data := channel.recv(65536):
                for kind, number, body in reader.feed(data):
                    answer = self._answer(
                        FrameKind(kind), number, messages.read(FrameKind(kind), bytes(body)), is_handing_over
                    )
                    channel.sendall(answer)

    def _answer(self, kind: FrameKind, number: int, said: Any, is_handing_over: bool) -> bytes | bytearray:
        if kind is FrameKind.HELLO:
            return messages.frame(FrameKind.WELCOME, number, messages.Welcome("x", "n", "sync", 1 << 24))
        if kind is not FrameKind.PUBLISH:
            return b""
        if is_handing_over:
            self.turned_away += 1
            return messages.frame(
                FrameKind.ERROR, number, messages.ErrorBody("not_active", "this node is handing over")
            )
        self.stored += [message.payload for message in said.messages]
        return messages.frame(
            FrameKind.STORED, number, messages.PublishReply([message.id for message in said.messages])
        )

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize("is_slow", [False, True])
def test_producer_sends_again_in_order_elsewhere_after_a_not_active_answer(connecting: Connect, is_slow: bool) -> None:
    """``is_slow``: the server hears of each message before the next one is sent."""
    server = HandingOver()
    told: list[AddResult] = []
    out = Out(connecting(server.address), on_receipt=told.append)
    ids = []
    for number in range(20):
        ids.append(out.send(number))
        if is_slow:
            until(lambda count=number + 1: server.turned_away + len(server.stored) >= count)
    out.settle()
    assert server.turned_away
    assert server.stored == [b"%d" % number for number in range(20)]
    assert [receipt.id for receipt in told] == ids
    server.close()


def test_producer_messages_are_stored_when_the_client_closes(server: RunningServer, connecting: Connect) -> None:
    with FACES["blocking"](server.unix) as queues:
        sender = queues.sender("mail")
        for number in range(50):
            sender.send(number)
    assert connecting(server.unix).counts("mail").ready == 50


@pytest.mark.parametrize("lose", ["lose_answer", "lose_request"])
def test_producer_loses_and_repeats_nothing_when_answers_or_requests_are_lost(
    line: BadLine, connecting: Connect, lose: str
) -> None:
    client = connecting(line.address)
    told: list[AddResult] = []
    out = Out(client, 8, on_receipt=told.append)
    ids = [out.send(number) for number in range(10)]
    for _ in range(3):
        getattr(line, lose)(FrameKind.PUBLISH)
        ids += [out.send(number) for number in range(10)]
    out.settle()
    assert there(client) == ids
    assert [receipt.id for receipt in told] == ids
    assert not any(receipt.duplicate for receipt in told)


def test_producer_continues_after_a_server_restart(client: Any, server: RunningServer) -> None:
    out = Out(client)
    ids = [out.send(number) for number in range(5)]
    out.settle()
    server.stop()
    server.start()
    ids += [out.send(number) for number in range(5)]
    out.settle()
    assert there(client) == ids


def test_producer_raises_unreachable_and_keeps_unconfirmed_messages_for_a_later_settle(
    server: RunningServer, connecting: Connect
) -> None:
    client = connecting(server.unix, retries=1, timeout=1)
    out = Out(client)
    first = out.send(1)
    out.settle()
    server.stop()
    with pytest.raises(Unreachable):
        sent_all(out, 100)
    server.start()
    out.settle()
    found = there(client)
    assert found[0] == first
    assert len(found) == len(set(found))


def test_producer_limits_the_bytes_in_flight(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "MAX_UNANSWERED_BYTES", 3000)
    out = Out(client)
    core = getattr(out._it, "_core", out._it)
    for _ in range(20):
        out.send(b"x" * 1000)
        assert core._bytes <= 3000
    out.send(b"x" * 5000)  # alone on its way
    out.settle()
    assert core._bytes == 0
    assert client.counts("mail").ready == 21
