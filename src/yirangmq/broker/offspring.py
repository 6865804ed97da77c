"""New messages that hooks make of others: each names its cause, and is the same however often that is sent.

Knows: hooks, envelopes. Does not know: stores, how hooks are run."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput, HookFailed
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.core.processor import Hook
from yirangmq.format.envelope import NewMessage, build
from yirangmq.format.json_codec import dumps, loads

Made = tuple[tuple[Hook, NewMessage], ...]
"""Of one message."""


class Child(NamedTuple):
    """A new message, and the place of the one that it was made from."""

    parent: int
    envelope: Envelope


def children_of(
    envelopes: Sequence[Envelope], made: Sequence[Made], now: int, *, is_lenient: bool = False
) -> dict[str, list[Child]]:
    """By queue. ``is_lenient``: one that cannot be is left out."""
    found: dict[str, list[Child]] = {}
    for place, (envelope, new_ones) in enumerate(zip(envelopes, made, strict=True)):
        for number, (hook, new) in enumerate(new_ones):
            try:
                child = _child(envelope, hook, new, number, now)
            except HookFailed:
                if not is_lenient:
                    raise
                continue
            found.setdefault(hook.produces, []).append(Child(place, child))
    return found


def at_once(envelope: Envelope) -> Envelope:
    """Nobody waits for it any more: neither its time nor its group nor its consumer matters."""
    return envelope._replace(available_at=envelope.published_at, expires_at=0, group=0, target=0)


def _child(parent: Envelope, hook: Hook, new: NewMessage, number: int, now: int) -> Envelope:
    """Its id follows from its parent: however often that is sent, it is the same message."""
    name = "\0".join((parent.queue, parent.id, hook.name, str(number), sha256(parent.payload).hexdigest()))
    inherited: dict[str, Any] = {}
    if new.priority is None and parent.rank != RANK_LAST:
        inherited["priority"] = parent.rank
    if new.trace_id is None and '"traceId"' in parent.header:
        inherited["trace_id"] = loads(parent.header.encode()).get("traceId")
    try:
        child = build(hook.produces, replace(new, **inherited), sha256(name.encode()).hexdigest()[:32], now)
    except BadInput as error:
        raise HookFailed(f"hook {hook.name} made a message that is none: {error}", field="processor.hooks") from None
    cause = {"queue": parent.queue, "messageId": parent.id, "hook": hook.name}
    header = dumps({"causation": cause, **(loads(child.header.encode()) if child.header else {})}).decode()
    available = parent.available_at if not new.delay else child.available_at
    expires = parent.expires_at if new.ttl is None else child.expires_at
    return child._replace(header=header, available_at=max(available, now), expires_at=expires)
