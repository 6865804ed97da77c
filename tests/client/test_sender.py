"""Messages sent one by one without waiting for each answer, whatever becomes of the connection."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.conftest import FACES, Connect
from tests.client.parts import BadLine, InLoop
from tests.patience import PATIENCE
from tests.servers import RunningServer
from yirangmq.client import sender as sender_module
from yirangmq.core.errors import BadInput, QueueError, Unreachable
from yirangmq.core.ports import Stored
from yirangmq.testing import CountingIds, ManualClock, open_for_test
from yirangmq.wire.frames import Kind


@pytest.fixture(params=["embedded", *FACES])
def queues(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Any]:
    """A store of our own, or a client by either face."""
    if request.param == "embedded":
        yield open_for_test(clock=clock)
        return
    server: RunningServer = request.getfixturevalue("server")
    with FACES[request.param](server.unix, ids=CountingIds(), timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def client(server: RunningServer, connecting: Connect) -> Any:
    return connecting(server.unix)


class Out:
    """A sender of a store or of either face of a client, its coroutines run to their end."""

    def __init__(self, queues: Any, *given: Any, **named: Any) -> None:
        self._it = queues.sender("mail", *given, **named)
        self._run: Callable[[Any], Any] = queues._run if isinstance(queues, InLoop) else lambda value: value

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self._run(getattr(self._it, name)(*given))


def sent_all(out: Out, count: int) -> None:
    for number in range(count):
        out.send(number)
    out.settle()


def there(queues: Any) -> list[str]:
    return [look.message.id for look in queues.peek("mail", 1000)]


@pytest.mark.parametrize("window", [1, 3, 64])
def test_what_was_sent_is_there_in_its_order_once_settled(queues: Any, window: int) -> None:
    out = Out(queues, window)
    ids = [out.send(number) for number in range(100)]
    out.settle()
    assert there(queues) == ids
    ids.append(out.send(b"bytes"))
    out.close()
    assert queues.counts("mail").ready == 101
    assert len(set(ids)) == 101


def test_receipts_are_told_in_order(queues: Any) -> None:
    told: list[Stored] = []
    out = Out(queues, 4, told=told.append)
    ids = [out.send(number) for number in range(20)]
    out.settle()
    assert [receipt.id for receipt in told] == ids
    assert not any(receipt.duplicate for receipt in told)


def test_after_the_end_nothing_more_is_sent(queues: Any) -> None:
    out = Out(queues)
    out.send(1)
    out.close()
    out.close()
    with pytest.raises(BadInput, match="closed"):
        out.send(2)
    assert queues.counts("mail").ready == 1


@pytest.mark.parametrize("given", [("no queue!",), ("mail", 0), ("mail", 10**9)])
def test_bad_terms_are_refused(queues: Any, given: tuple[Any, ...]) -> None:
    with pytest.raises(BadInput):
        queues.sender(*given)


def test_a_message_that_cannot_be_one_is_refused_at_once(queues: Any) -> None:
    out = Out(queues)
    out.send(1)
    with pytest.raises(BadInput):
        out.send(object())
    out.send(2)
    out.close()
    assert queues.counts("mail").ready == 2


def test_a_refusal_is_raised_by_one_of_the_next_calls_and_the_others_go_through(queues: Any) -> None:
    queues.set_policy("mail", {"quota": {"maxMessages": 3}})
    out = Out(queues, 2)
    raised: list[QueueError] = []
    for number in range(5):
        try:
            out.send(number)
        except QueueError as error:
            raised.append(error)
    try:
        out.settle()
    except QueueError as error:
        raised.append(error)
    assert raised
    assert queues.counts("mail").ready == 3
    out.settle()


def test_a_refusal_names_its_message(client: Any) -> None:
    client.set_policy("mail", {"quota": {"maxMessages": 1}})
    out = Out(client)
    out.send(1)
    refused = out.send(2)
    with pytest.raises(QueueError) as caught:
        out.settle()
    assert caught.value.__notes__ == [f"message {refused}"]


def test_leaving_the_client_waits_for_what_was_sent(server: RunningServer, connecting: Connect) -> None:
    with FACES["blocking"](server.unix) as queues:
        sender = queues.sender("mail")
        for number in range(50):
            sender.send(number)
    assert connecting(server.unix).counts("mail").ready == 50


@pytest.mark.parametrize("lose", ["lose_answer", "lose_request"])
def test_a_lost_connection_neither_loses_nor_doubles_anything(line: BadLine, connecting: Connect, lose: str) -> None:
    client = connecting(line.address)
    told: list[Stored] = []
    out = Out(client, 8, told=told.append)
    ids = [out.send(number) for number in range(10)]
    for _ in range(3):
        getattr(line, lose)(Kind.PUBLISH)
        ids += [out.send(number) for number in range(10)]
    out.settle()
    assert there(client) == ids
    assert [receipt.id for receipt in told] == ids
    assert not any(receipt.duplicate for receipt in told)


def test_it_outlives_its_server(client: Any, server: RunningServer) -> None:
    out = Out(client)
    ids = [out.send(number) for number in range(5)]
    out.settle()
    server.stop()
    server.start()
    ids += [out.send(number) for number in range(5)]
    out.settle()
    assert there(client) == ids


def test_where_nobody_answers_any_more_that_is_said_and_what_was_sent_is_not_forgotten(
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


def test_only_so_many_bytes_are_on_their_way(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "MOST_BYTES", 3000)
    out = Out(client)
    core = getattr(out._it, "_core", out._it)
    for _ in range(20):
        out.send(b"x" * 1000)
        assert core._bytes <= 3000
    out.send(b"x" * 5000)  # alone on its way
    out.settle()
    assert core._bytes == 0
    assert client.counts("mail").ready == 21
