"""``queues.dead_letters``: the same operations on an opened store, a client and their asyncio forms."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import yirangmq
from tests.client.parts import FACES, BadLine
from tests.support.server import RunningServer
from tests.support.wait import PATIENCE
from yirangmq.broker.async_queues import EmbeddedAsyncDeadLetters
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queues import Queues
from yirangmq.cli.main import run as run_cli
from yirangmq.client.admin_calls import AsyncDeadLetters
from yirangmq.client.connect import connect, connect_async
from yirangmq.client.sync_client import ClientDeadLetters
from yirangmq.core.errors import BadInput, NotFound, QueueError
from yirangmq.core.ports import MoveResult
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, ManualClock, open_for_test
from yirangmq.wire.frames import FrameKind

OPERATIONS = ("sources", "list", "show", "stats", "redrive", "quarantine", "purge")


class Awaited:
    """Dead letters of an asyncio object, each operation run to its end in a loop of its own."""

    def __init__(self, open: Callable[[], Any]) -> None:
        self._open = open

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def run(*given: Any, **named: Any) -> Any:
            async with self._open() as queues:
                answer = getattr(queues.dead_letters, name)(*given, **named)
                return [view async for view in answer] if name == "list" else await answer

        return lambda *given, **named: asyncio.run(run(*given, **named))


def opened_async(path: Path) -> Awaited:
    return Awaited(partial(yirangmq.connect_async, f"sqlite:{path / 'queue.db'}"))


@pytest.fixture(params=["store", "client", "store asyncio", "client asyncio"])
def letters(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Any]:
    """a, b and c are dead letters of ``mail``; c timed out. d is one of ``post``."""
    place = f"sqlite:{tmp_path / 'queue.db'}"
    if request.param.startswith("store"):
        with yirangmq.open(place) as queues:
            bury(queues)
            if request.param == "store":
                yield queues.dead_letters
                return
        yield opened_async(tmp_path)
        return
    server: RunningServer = request.getfixturevalue("server")
    with connect(server.unix, timeout=PATIENCE) as client:
        bury(client)
        if request.param == "client":
            yield client.dead_letters
            return
    yield Awaited(partial(connect_async, server.unix, timeout=PATIENCE))


def bury(queues: Any) -> None:
    queues.set_policy("mail", {"retry": {"limit": 0}})
    for queue, id, reason in (
        ("mail", "a", "REJECTED"),
        ("mail", "b", "REJECTED"),
        ("mail", "c", "TIMEOUT"),
        ("post", "d", "REJECTED"),
    ):
        queues.publish(queue, yirangmq.NewMessage(payload={"id": id}, id=id))
        [delivery] = queues.lease(queue)
        queues.nack(delivery.lease_id, reason, "no such street")


def ids(letters: Any, *given: Any, **named: Any) -> list[str]:
    return [view.message.id for view in letters.list(*given, **named)]


def test_dead_letters_are_listed_shown_and_counted(letters: Any) -> None:
    assert (letters.sources("mail-dlq"), letters.sources("nothing")) == (["mail"], [])
    assert ids(letters, "mail-dlq") == ["a", "b", "c"] == ids(letters, "mail")
    assert ids(letters, "mail", "reasonCode=TIMEOUT") == ["c"]
    assert (ids(letters, "mail", limit=2), ids(letters, "mail", limit=0)) == (["a", "b"], [])
    assert letters.show("mail-dlq", "a").record()["failure"]["reasonMessage"] == "no such street"
    assert letters.show("mail", "a").record()["originalMessage"]["payload"] == {"id": "a"}
    assert letters.stats("mail")["byReason"] == {"REJECTED": 2, "TIMEOUT": 1}
    everything = letters.stats()
    assert (everything["queue"], everything["total"], everything["sources"]) == (None, 4, ["mail", "post"])
    with pytest.raises(NotFound):
        letters.show("mail", "d")


def test_dead_letters_are_redriven_quarantined_and_purged(letters: Any) -> None:
    assert letters.redrive("mail", "reasonCode=REJECTED", limit=1, dry_run=True) == MoveResult(1, ["a"])
    assert letters.redrive("mail", "reasonCode=REJECTED", limit=1) == MoveResult(1, ["a"])
    assert letters.quarantine("mail", ids=["b"]) == MoveResult(1, ["b"])
    assert ids(letters, "mail", state="parked") == ["b"]
    assert letters.purge("mail", all=True) == MoveResult(1, ["c"])
    assert letters.purge("mail", all=True, state="all") == MoveResult(1, ["b"])
    assert ids(letters, "mail", state="all") == []


@pytest.mark.parametrize("verb", ["redrive", "quarantine", "purge"])
def test_dead_letters_are_moved_only_if_a_selection_is_given(letters: Any, verb: str) -> None:
    for given, field in (({}, "filter"), ({"filter": " "}, "filter"), ({"ids": ["a"], "all": True}, "all")):
        with pytest.raises(BadInput) as caught:
            getattr(letters, verb)("mail", **given)
        assert caught.value.field == field
    assert ids(letters, "mail") == ["a", "b", "c"]


@pytest.mark.parametrize("method", ["dlq_requeue", "dlq_quarantine", "dlq_purge"])
def test_dead_letters_are_moved_by_native_calls_only_if_a_selection_is_given(
    server: RunningServer, method: str
) -> None:
    with connect(server.unix, timeout=PATIENCE) as client:
        bury(client)
        for values in ({}, {"filter": ""}, {"all": False}, {"all": True, "filter": "attempt=1"}):
            with pytest.raises(BadInput):
                client.call(method, queue="mail", **values)
        assert client.dead_letters.stats("mail")["total"] == 3
        assert client.call(method, queue="mail", all=True)["count"] == 3


def test_dead_letters_have_the_same_methods_and_arguments_everywhere() -> None:
    kinds = (DeadLetters, ClientDeadLetters, AsyncDeadLetters, EmbeddedAsyncDeadLetters)
    for name in OPERATIONS:
        signatures = [list(inspect.signature(getattr(kind, name)).parameters.values())[1:] for kind in kinds]
        shown = [[(one.name, one.kind, one.default) for one in signature] for signature in signatures]
        assert shown == [shown[0]] * len(kinds), name


def test_dead_letters_of_a_client_are_its_own_attribute(server: RunningServer) -> None:
    with connect(server.unix, timeout=PATIENCE) as client, pytest.raises(BadInput, match=r"client\.dead_letters"):
        DeadLetters(client)  # type: ignore[arg-type]


# -- a dead-letter queue is no queue to publish to --------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_publish_by_a_client_to_a_dead_letter_queue_is_refused(server: RunningServer, face: str) -> None:
    opened: AbstractContextManager[Any] = FACES[face](server.unix, ids=CountingIds(), timeout=PATIENCE)
    with opened as client:
        bury(client)
        for verb, message in (("publish", 1), ("publish_many", [1, 2]), ("publish_text", [b"1"])):
            with pytest.raises(QueueError, match="'mail-dlq' shows the dead letters of 'mail'") as caught:
                getattr(client, verb)("mail-dlq", message)
            assert (caught.value.code, caught.value.field) == ("bad_input", "queue")
        assert client.queues() == ["mail", "post"]


def test_publish_by_the_command_line_sends_one_request_beside_500_queues(
    tmp_path: Path, clock: ManualClock, capfd: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    queues: Queues = open_for_test(store=store, clock=clock)
    for number in range(500):
        queues.set_policy(f"old-{number}", {"dlq": {"queue": f"dead-{number}"}})
    server = RunningServer(store, tmp_path, clock).start()
    line = BadLine(server.unix)
    try:
        assert run_cli(["publish", "--store", line.address, "--queue", "new", "1"]) == 0
        published = line.requests.count(FrameKind.PUBLISH)
        assert run_cli(["publish", "--store", line.address, "--queue", "dead-499", "1"]) == 2
        assert (published, line.requests.count(FrameKind.PUBLISH)) == (1, 2)
        assert {*line.requests} <= {FrameKind.HELLO, FrameKind.PUBLISH, FrameKind.BYE}
        assert "queue: 'dead-499' shows the dead letters of 'old-499'" in capfd.readouterr().err
    finally:
        line.close()
        server.stop()
