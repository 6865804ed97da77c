"""Named methods on messages chosen by a filter: any state, and the dead letters. All of them are long (``paged``)."""

from functools import partial
from typing import Any

from yirangmq.broker.dead_letters import KINDS, DeadLetters, Moved, search_page
from yirangmq.broker.queries import check_state
from yirangmq.broker.queues import Queues
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.filter import Node, names_state, parse
from yirangmq.core.states import State
from yirangmq.doors.listing import gather
from yirangmq.doors.paged import Given
from yirangmq.doors.values import Values, reading
from yirangmq.format.delivery import Look
from yirangmq.format.json_codec import dumps, loads
from yirangmq.wire.messages import pack

DEFAULT_LIMIT = 100
MOST_MOVED = 10**9


def search(queues: Queues, given: Given) -> dict[str, Any]:
    """Messages of one state that match a filter: a page, and a cursor that begins the next one."""

    def read(values: Values) -> tuple[str, State, Node, int, str]:
        state = check_state(values.text("state", "ready"))
        return values.queue(), state, parse(values.text("filter")), values.limit(DEFAULT_LIMIT), values.text("cursor")

    queue, state, node, limit, cursor = reading(given, read)
    return pack(*gather(partial(_step, queues, queue, state, node), limit, cursor))


def _step(queues: Queues, queue: str, state: State, node: Node, count: int, cursor: str) -> tuple[str, list[Look]]:
    page = partial(search_page, queue=queue, state=state, limit=count, cursor=cursor, node=node, bodies=True)
    return queues.read(partial(page, ahead=queues.ahead_ms()))


# -- dead letters ---------------------------------------------------------------------------------------------------


def find(queues: Queues, given: Given) -> dict[str, Any]:
    """Dead letters under either name of a queue: a page, and a cursor that begins the next one."""

    def read(values: Values) -> tuple[str, Node, str, int, str]:
        node = parse(values.text("filter"))
        return values.queue(), node, _kind(values), values.limit(DEFAULT_LIMIT), values.text("cursor")

    queue, node, kind, limit, cursor = reading(given, read)
    states = KINDS["all"] if names_state(node, State.PARKED) else KINDS[kind]
    places = [(source, state) for source in DeadLetters(queues).sources(queue) for state in states]
    return pack(*gather(partial(_walk, queues, places, node), limit, cursor))


def _walk(
    queues: Queues, places: list[tuple[str, State]], node: Node, count: int, cursor: str
) -> tuple[str, list[Look]]:
    """One step through the states of several queues; the cursor says in which, and how far."""
    if not places:
        return "", []
    at, inner = _where(places, cursor) if cursor else (0, "")
    inner, found = _step(queues, *places[at], node, count, inner)
    if not inner:
        at += 1
    return dumps([*places[at], inner]).decode() if at < len(places) else "", found


def _where(places: list[tuple[str, State]], cursor: str) -> tuple[int, str]:
    try:
        source, state, inner = loads(cursor.encode())
        return places.index((source, State(state))), str(inner)
    except (BadInput, ValueError, TypeError):
        raise BadInput("is not one that this call gave out, or its queue is gone", field="cursor") from None


def _kind(values: Values) -> str:
    return values.choice("state", "dead", tuple(KINDS))


def show(queues: Queues, given: Given) -> dict[str, Any]:
    queue, id = reading(given, lambda values: (values.queue(), values.id()))
    return pack([DeadLetters(queues).show(queue, id)])


def stats(queues: Queues, given: Given) -> dict[str, Any]:
    return DeadLetters(queues).stats(reading(given, lambda values: values.queue()))


def requeue(queues: Queues, given: Given) -> dict[str, Any]:
    (queue, filter, ids), limit, state, dry_run = reading(
        given, lambda values: (_which(values), _most(values), _kind(values), _dry(values))
    )
    return _moved(DeadLetters(queues).requeue(queue, filter, ids, state=state, limit=limit, dry_run=dry_run))


def quarantine(queues: Queues, given: Given) -> dict[str, Any]:
    (queue, filter, ids), limit, dry_run = reading(given, lambda values: (_which(values), _most(values), _dry(values)))
    return _moved(DeadLetters(queues).quarantine(queue, filter, ids, limit=limit, dry_run=dry_run))


def purge(queues: Queues, given: Given) -> dict[str, Any]:
    (queue, filter, ids), limit, state, dry_run = reading(
        given, lambda values: (_which(values), _most(values), _kind(values), _dry(values))
    )
    return _moved(DeadLetters(queues).purge(queue, filter, ids, state=state, limit=limit, dry_run=dry_run))


def _which(values: Values) -> tuple[str, str, list[str] | None]:
    return values.queue(), values.text("filter"), values.some_ids()


def _most(values: Values) -> int | None:
    """At most so many, the first that arrived; null: all."""
    limit = values.take("limit", None)
    return None if limit is None else validation.check_count(limit, "limit", most=MOST_MOVED)


def _dry(values: Values) -> bool:
    return values.flag("dry_run", False)


def _moved(moved: Moved) -> dict[str, Any]:
    """How many, and the ids of the first few."""
    return {"count": moved.count, "ids": moved.ids}
