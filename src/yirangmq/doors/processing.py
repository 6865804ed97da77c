"""Named methods about processors: ``processors``, ``processor_set``, ``processor_check``.

Knows: the desk, the forms of a message. Does not know: how messages are looked at."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from yirangmq.broker.admission import dry_run
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.operations import Verbs
from yirangmq.broker.queues import Queues
from yirangmq.broker.settle import MOST_PER_CALL
from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Transaction
from yirangmq.doors.paged import Done, Given
from yirangmq.doors.values import reading
from yirangmq.format.envelope import NewMessage, build

MEMBERS = frozenset({"payload", "id", "type", "version", "attributes", "content_type"})
"""Of a message that is tried."""


def listed(verbs: Verbs, transaction: Transaction, given: Given) -> list[dict[str, Any]]:
    """Every queue that has a processor, or the one asked for."""
    queue = reading(given, lambda values: values.some_queue())
    return dry_run.listed(transaction, verbs, queue)


def put(verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any] | None:
    """Check a processor and put it in force; the rest of the policy stays. Null takes it away."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    return dry_run.put(transaction, verbs, queue, document)


def put_paged(queues: Queues, given: Given) -> dict[str, Any] | None:
    """The same in a thread of its own: there schemas are compiled, so that the commit finds them in the cache."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    queues.check_policy(queue, {} if document is None else {"processor": document})
    return queues.run(lambda transaction: dry_run.put(transaction, queues.verbs, queue, document))


def check(desk: Desk, given: Given, done: Done) -> None:
    """Of each message whether it would be stored: bytes, or an object with a payload of bytes."""
    queue, messages = reading(given, lambda values: (values.queue(), values.take("messages", None)))
    if not isinstance(messages, list) or not 0 < len(messages) <= MOST_PER_CALL:
        raise BadInput(f"must be an array of 1 to {MOST_PER_CALL}", field="messages")
    now = desk.verbs.now_ms()
    try_out(desk, queue, [_envelope(queue, one, number, now) for number, one in enumerate(messages, 1)], done)


def try_out(desk: Desk, queue: str, envelopes: Sequence[Envelope], done: Done) -> None:
    """Nothing is stored, and the desk is free meanwhile."""
    tried = desk.read(partial(dry_run.tried, gate=desk.verbs.gate, queue=queue, envelopes=envelopes))
    if tried.needed is None:
        done(tried.report({}), None)
        return
    desk.look_at(
        tried.needed,
        lambda verdicts, error: done(None, error) if error is not None else done(tried.report(verdicts), None),
    )


def _envelope(queue: str, given: object, number: int, now: int) -> Envelope:
    members = {"payload": given} if isinstance(given, bytes) else given
    if not isinstance(members, dict) or not isinstance(members.get("payload"), bytes):
        raise BadInput("must be bytes, or objects with a payload of bytes", field="messages")
    if not members.keys() <= MEMBERS:
        raise BadInput(f"known members: {', '.join(sorted(MEMBERS))}", field="messages")
    return build(queue, NewMessage(**members), f"tried-{number}", now)
