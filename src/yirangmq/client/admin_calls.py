"""Operations outside the hot path: each calls a method of the server by name.

They are functions of any object with ``call``; ``client.async_client`` takes them in as methods."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from yirangmq.core import validation
from yirangmq.core.errors import QueueError, TooLarge
from yirangmq.core.message import Counts
from yirangmq.format.delivery import Look
from yirangmq.format.envelope import JSON_TYPE, NewMessage
from yirangmq.format.json_codec import dumps
from yirangmq.wire.messages import error_of, unpack

MOST_PER_CALL = 10_000
Results = list[QueueError | None]
"""For each message None, or why not."""


class Caller(Protocol):
    async def call(self, method: str, /, **values: Any) -> Any: ...


async def peek(client: Caller, queue: str, limit: int = 10, *, state: str = "ready") -> list[Look]:
    """See the first messages of a state without taking them."""
    validation.check_queue(queue)
    validation.check_count(limit, "limit", most=MOST_PER_CALL)
    found: list[Look] = []
    cursor = ""
    while True:
        page, cursor = await _page(client, queue, state, limit - len(found), cursor)
        found += page
        if not cursor or len(found) >= limit:
            return found


async def walk(client: Caller, queue: str, state: str, batch: int = 500) -> AsyncGenerator[Look, None]:
    """Every message of a state, a page at a time: memory stays flat, changes meanwhile are allowed."""
    cursor = ""
    while True:
        page, cursor = await _page(client, queue, state, batch, cursor)
        for look in page:
            yield look
        if not cursor:
            return


async def _page(client: Caller, queue: str, state: str, limit: int, cursor: str) -> tuple[list[Look], str]:
    found, cursor = unpack(await client.call("peek", queue=queue, state=state, limit=limit, cursor=cursor))
    return [Look(*parts) for parts in found], cursor


async def show(client: Caller, queue: str, id: str) -> Look:
    """One message, wherever it stands."""
    validation.check_queue(queue)
    [parts], _ = unpack(await client.call("show", queue=queue, id=validation.check_id(id)))
    return Look(*parts)


async def queues(client: Caller, prefix: str = "") -> list[str]:
    """The names of all queues, or of those that begin so, in order. Where there are many, a page at a time."""
    if not prefix:
        try:
            return [*await client.call("queues")]
        except TooLarge:
            pass
    found: list[str] = []
    while True:
        page = await client.call("queues", after=found[-1] if found else "", limit=MOST_PER_CALL, prefix=prefix)
        found += page
        if len(page) < MOST_PER_CALL:
            return found


async def counts(client: Caller, queue: str) -> Counts:
    return Counts(**await client.call("counts", queue=queue))


async def policy(client: Caller, queue: str) -> dict[str, Any]:
    """The policy in force, every member spelled out."""
    return dict(await client.call("policy", queue=queue))


async def check_policy(client: Caller, queue: str, document: object) -> dict[str, Any]:
    """Read a policy document without setting it; its full form, or an error naming the field."""
    return dict(await client.call("check_policy", queue=queue, document=document))


async def set_policy(client: Caller, queue: str, document: object) -> dict[str, Any]:
    """Check a policy document and put it in force; None goes back to the defaults."""
    return dict(await client.call("set_policy", queue=queue, document=document))


async def try_out(client: Caller, queue: str, messages: Sequence[object]) -> dict[str, Any]:
    """What the queue's processor would say of these messages; nothing is stored."""
    sent = [_described(message) for message in messages]
    return dict(await client.call("processor_check", queue=queue, messages=sent))


def _described(message: object) -> dict[str, Any]:
    new = message if isinstance(message, NewMessage) else NewMessage(payload=message)
    about: dict[str, Any] = {"id": new.id, "type": new.type, "version": new.version, "content_type": new.content_type}
    if isinstance(new.payload, bytes | bytearray | memoryview):
        about["payload"] = bytes(new.payload)
    else:
        about |= {"payload": dumps(new.payload), "content_type": JSON_TYPE}
    return {"attributes": dict(new.attributes), **{name: one for name, one in about.items() if one is not None}}


async def pause(client: Caller, queue: str) -> bool:
    """Hand nothing out until ``resume``, also after a restart; publishing goes on. False: it was paused already."""
    return bool(await client.call("queue_pause", queue=queue))


async def resume(client: Caller, queue: str) -> bool:
    """Those who wait are served at once. False: it was not paused."""
    return bool(await client.call("queue_resume", queue=queue))


async def dispatch(client: Caller, queue: str) -> dict[str, Any]:
    """By which strategy its messages are given out, and to whom."""
    return dict(await client.call("dispatch", queue=queue))


async def set_dispatch(client: Caller, queue: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Put members of the policy's ``dispatch`` in force, such as ``{"strategy": "round_robin"}``; nothing that is under
    way is touched. ``{"strategy": "none"}`` takes all of it away."""
    return dict(await client.call("dispatch_set", queue=queue, members=dict(members)))


async def register(client: Caller, queue: str, consumer: str) -> bool:
    """One of the queue's consumers from now on, also while it is away. False: it was already."""
    return bool(await client.call("dispatch_register", queue=queue, consumer=consumer))


async def deregister(client: Caller, queue: str, consumer: str) -> bool:
    """No longer one of them. False: it was not registered."""
    return bool(await client.call("dispatch_deregister", queue=queue, consumer=consumer))


async def deliveries(
    client: Caller,
    queue: str | None = None,
    *,
    id: str | None = None,
    consumer: str | None = None,
    status: str | None = None,
    limit: int = 100,
) -> list[dict[str, Any]]:
    """The latest deliveries of queues with a ``dispatch``, the newest first, as far as the server remembers."""
    wanted = {"queue": queue, "id": id, "consumer": consumer, "status": status}
    given = {name: value for name, value in wanted.items() if value is not None}
    return [*await client.call("deliveries", limit=limit, **given)]


async def schedules(client: Caller, queue: str | None = None) -> list[dict[str, Any]]:
    """The schedules of all queues, or of one, each with the time at which it fires next."""
    return [*await client.call("schedules", **({} if queue is None else {"queue": queue}))]


async def drop(client: Caller, queue: str, ids: Sequence[str]) -> Results:
    """Give messages up, in any state; for each None, or why not."""
    validation.check_queue(queue)
    validation.check_many(ids, "ids")
    if not ids:
        return []
    answers = await client.call("drop", queue=queue, ids=[*ids])
    return [None if one is None else error_of(*one) for one in answers]


async def sweep(client: Caller) -> int:
    """Do what time brings, now and completely; how many messages changed."""
    return int(await client.call("sweep"))


async def delete_queue(client: Caller, queue: str) -> None:
    await client.call("delete_queue", queue=queue)


async def consumer_beat(client: Caller, values: Mapping[str, Any]) -> str:
    """A consumer tells of itself, once a second; what an operator wishes of it, "" if nothing."""
    return str(await client.call("consumer_beat", **values))


async def consumer_list(client: Caller) -> list[dict[str, Any]]:
    """Every consumer that told of itself within the last hour."""
    return [*await client.call("consumer_list")]


async def consumer_wish(client: Caller, id: str, wish: str) -> dict[str, Any]:
    """Ask a consumer to ``pause``, ``resume`` or ``drain``; it follows within a second. Its card."""
    return dict(await client.call("consumer_wish", id=id, wish=wish))
