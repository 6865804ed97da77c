"""Operations outside the hot path: each calls a method of the server by name.

They are functions of any object with ``call``; ``client.async_client`` takes them in as methods."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from yirangmq.core import validation
from yirangmq.core.errors import QueueError, TooLarge
from yirangmq.core.message import Counts
from yirangmq.core.ports import MoveResult
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import JSON_TYPE, NewMessage
from yirangmq.format.json_codec import dumps
from yirangmq.wire.messages import error_of, unpack

MAX_PER_CALL = 10_000
Results = list[QueueError | None]
"""Result of a batch operation: for each message None on success, else the error."""


class Caller(Protocol):
    async def call(self, method: str, /, **values: Any) -> Any: ...


async def peek(client: Caller, queue: str, limit: int = 10, *, state: str = "ready") -> list[MessageView]:
    """Return the first messages of a state without leasing them."""
    validation.check_queue(queue)
    validation.check_count(limit, "limit", most=MAX_PER_CALL)
    found: list[MessageView] = []
    cursor = ""
    while True:
        page, cursor = await _page(client, queue, state, limit - len(found), cursor)
        found += page
        if not cursor or len(found) >= limit:
            return found


async def walk(client: Caller, queue: str, state: str, batch: int = 500) -> AsyncGenerator[MessageView, None]:
    """Iterate over every message of a state, one page at a time, so that memory use is constant. Changes during the
    walk are allowed."""
    cursor = ""
    while True:
        page, cursor = await _page(client, queue, state, batch, cursor)
        for view in page:
            yield view
        if not cursor:
            return


async def _page(client: Caller, queue: str, state: str, limit: int, cursor: str) -> tuple[list[MessageView], str]:
    found, cursor = unpack(await client.call("peek", queue=queue, state=state, limit=limit, cursor=cursor))
    return [MessageView(*parts) for parts in found], cursor


async def show(client: Caller, queue: str, id: str) -> MessageView:
    """Return one message, in any state."""
    validation.check_queue(queue)
    [parts], _ = unpack(await client.call("show", queue=queue, id=validation.check_id(id)))
    return MessageView(*parts)


async def queues(client: Caller, prefix: str = "") -> list[str]:
    """Return the names of all queues, or of those with a prefix, in order. A long list is fetched in pages."""
    if not prefix:
        try:
            return [*await client.call("queues")]
        except TooLarge:
            pass
    found: list[str] = []
    while True:
        page = await client.call("queues", after=found[-1] if found else "", limit=MAX_PER_CALL, prefix=prefix)
        found += page
        if len(page) < MAX_PER_CALL:
            return found


async def counts(client: Caller, queue: str) -> Counts:
    return Counts(**await client.call("counts", queue=queue))


async def policy(client: Caller, queue: str) -> dict[str, Any]:
    """Return the policy in force, with every member filled in."""
    return dict(await client.call("policy", queue=queue))


async def check_policy(client: Caller, queue: str, document: object) -> dict[str, Any]:
    """Check a policy document without setting it. Return its full form, or raise an error that names the field."""
    return dict(await client.call("check_policy", queue=queue, document=document))


async def set_policy(client: Caller, queue: str, document: object) -> dict[str, Any]:
    """Check a policy document and put it in force. None restores the defaults."""
    return dict(await client.call("set_policy", queue=queue, document=document))


async def try_out(client: Caller, queue: str, messages: Sequence[object]) -> dict[str, Any]:
    """Return the verdict of the queue's processor on these messages. This is a dry run: nothing is stored."""
    sent = [_as_call_values(message) for message in messages]
    return dict(await client.call("processor_check", queue=queue, messages=sent))


def _as_call_values(message: object) -> dict[str, Any]:
    new = message if isinstance(message, NewMessage) else NewMessage(payload=message)
    about: dict[str, Any] = {"id": new.id, "type": new.type, "version": new.version, "content_type": new.content_type}
    if isinstance(new.payload, bytes | bytearray | memoryview):
        about["payload"] = bytes(new.payload)
    else:
        about |= {"payload": dumps(new.payload), "content_type": JSON_TYPE}
    return {"attributes": dict(new.attributes), **{name: one for name, one in about.items() if one is not None}}


async def pause(client: Caller, queue: str) -> bool:
    """Stop leasing messages until ``resume``, also after a restart. Publishing continues. Return False if the queue
    was paused already."""
    return bool(await client.call("queue_pause", queue=queue))


async def resume(client: Caller, queue: str) -> bool:
    """Resume leasing; waiting consumers are served immediately. Return False if the queue was not paused."""
    return bool(await client.call("queue_resume", queue=queue))


async def dispatch(client: Caller, queue: str) -> dict[str, Any]:
    """Return the queue's dispatch strategy and its members."""
    return dict(await client.call("dispatch", queue=queue))


async def set_dispatch(client: Caller, queue: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Change members of the policy's ``dispatch``, such as ``{"strategy": "round_robin"}``. Messages in flight are
    not affected. ``{"strategy": "none"}`` removes the dispatch."""
    return dict(await client.call("dispatch_set", queue=queue, members=dict(members)))


async def register(client: Caller, queue: str, consumer: str) -> bool:
    """Register a consumer with the queue's dispatch. It stays a member while it is disconnected. Return False if it
    was registered already."""
    return bool(await client.call("dispatch_register", queue=queue, consumer=consumer))


async def deregister(client: Caller, queue: str, consumer: str) -> bool:
    """Remove a consumer from the queue's dispatch. Return False if it was not registered."""
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
    """Return the latest deliveries of queues with a ``dispatch``, newest first, as far as the server's history
    reaches."""
    wanted = {"queue": queue, "id": id, "consumer": consumer, "status": status}
    given = {name: value for name, value in wanted.items() if value is not None}
    return [*await client.call("deliveries", limit=limit, **given)]


async def schedules(client: Caller, queue: str | None = None) -> list[dict[str, Any]]:
    """Return the schedules of all queues, or of one, each with its next firing time."""
    return [*await client.call("schedules", **({} if queue is None else {"queue": queue}))]


async def drop(client: Caller, queue: str, ids: Sequence[str]) -> Results:
    """Drop messages in any state. Return for each None, or the error."""
    validation.check_queue(queue)
    validation.check_many(ids, "ids")
    if not ids:
        return []
    answers = await client.call("drop", queue=queue, ids=[*ids])
    return [None if one is None else error_of(*one) for one in answers]


async def purge(
    client: Caller,
    queue: str,
    filter: str = "",
    *,
    all: bool = False,
    state: str = "backlog",
    limit: int | None = None,
    dry_run: bool = False,
) -> MoveResult:
    """Drop the waiting messages of a queue that match a filter, or ``all`` of them; ``limit`` takes the oldest.

    ``state`` is ``ready``, ``delayed``, ``held``, or ``backlog`` for the three. Other messages and the policy stay."""
    values: dict[str, Any] = {"filter": filter, "all": all, "state": state, "limit": limit, "dry_run": dry_run}
    moved = await client.call("queue_purge", queue=queue, **values)
    return MoveResult(moved["count"], moved["ids"])


async def sweep(client: Caller) -> int:
    """Run the server's sweep (expiry, delays, timeouts) completely. Return how many messages changed."""
    return int(await client.call("sweep"))


async def delete_queue(client: Caller, queue: str) -> None:
    await client.call("delete_queue", queue=queue)


async def consumer_beat(client: Caller, values: Mapping[str, Any]) -> str:
    """Send a consumer's heartbeat, once per second. Return the operator's request, or "" if there is none."""
    return str(await client.call("consumer_beat", **values))


async def consumer_list(client: Caller) -> list[dict[str, Any]]:
    """Return every consumer that sent a heartbeat within the last hour."""
    return [*await client.call("consumer_list")]


async def consumer_wish(client: Caller, id: str, wish: str) -> dict[str, Any]:
    """Request that a consumer does ``pause``, ``resume`` or ``drain``; it obeys within a second. Return its registry
    entry."""
    return dict(await client.call("consumer_wish", id=id, wish=wish))


# -- dead letters ------------------------------------------------------------------------------------------------------

Names = list[str]
LETTERS_PER_PAGE = 500
MAX_LETTERS = 10**9


class AsyncDeadLetters:
    """Operations on dead letters, as in ``broker.dead_letters``: each runs on the server in one call.

    ``queue`` is the name of a source queue or of a dead-letter queue. Every move needs a filter, ids, or
    ``all=True``."""

    def __init__(self, client: Caller) -> None:
        self._client = client

    async def sources(self, queue: str) -> Names:
        """Return the source queues of this name: the queues with this ``dlq.queue``, and the queue of that name."""
        return [*await self._client.call("dlq_sources", queue=queue)]

    async def list(
        self, queue: str, filter: str = "", *, state: str = "dead", limit: int | None = None
    ) -> AsyncGenerator[MessageView, None]:
        """Iterate over the matching dead letters, oldest first within each source queue and state.

        ``state`` is ``dead``, ``parked`` or ``all``."""
        left = MAX_LETTERS if limit is None else validation.check_count(limit, "limit", least=0, most=MAX_LETTERS)
        cursor, is_first = "", True
        while left and (cursor or is_first):
            given = {"filter": filter, "state": state, "limit": min(left, LETTERS_PER_PAGE), "cursor": cursor}
            found, cursor = unpack(await self._client.call("dlq_find", queue=queue, **given))
            is_first = False
            left -= len(found)
            for parts in found:
                yield MessageView(*parts)

    async def show(self, queue: str, id: str) -> MessageView:
        """Return one dead letter, by either name of its queue."""
        [parts], _ = unpack(await self._client.call("dlq_show", queue=queue, id=validation.check_id(id)))
        return MessageView(*parts)

    async def stats(self, queue: str | None = None) -> dict[str, Any]:
        """Count the dead letters of a name, or of all queues (None): by queue, by reason, and by UTC day of death."""
        return dict(await self._client.call("dlq_stats", **({} if queue is None else {"queue": queue})))

    async def redrive(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        state: str = "dead",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Make dead letters ready again, in order of arrival, with their attempts reset."""
        return await self._move("dlq_requeue", queue, filter, ids, all=all, state=state, limit=limit, dry_run=dry_run)

    async def quarantine(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Park dead letters for inspection. Parked messages do not expire and move only on request by state or id."""
        return await self._move("dlq_quarantine", queue, filter, ids, all=all, limit=limit, dry_run=dry_run)

    async def purge(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        state: str = "dead",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Drop dead letters permanently."""
        return await self._move("dlq_purge", queue, filter, ids, all=all, state=state, limit=limit, dry_run=dry_run)

    async def _move(self, method: str, queue: str, filter: str, ids: Sequence[str] | None, **values: Any) -> MoveResult:
        chosen = None if ids is None else [*ids]
        moved = await self._client.call(method, queue=queue, filter=filter, ids=chosen, **values)
        return MoveResult(moved["count"], moved["ids"])
