"""Codec of the native protocol: published messages to envelopes, stored messages and deliveries to frame bodies.

Pure functions without socket or session. Deliveries are built as plain tuples, which encode to the same bytes as the
declared structs and take a third of the time to build."""

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, cast

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Envelope, id_of, new_envelope
from yirangmq.core.ports import AddResult, Ids
from yirangmq.format.delivery import MessageDelivery, RunDeliveries
from yirangmq.format.envelope import HeaderMembers, check_header, check_header_text
from yirangmq.format.json_codec import members
from yirangmq.wire import messages

_published_at, _header, _payload, _is_json = (
    itemgetter(Envelope._fields.index(name)) for name in ("published_at", "header", "payload", "is_json")
)
_new_id = attrgetter("id")
_id_of, _is_duplicate, _why_not = (itemgetter(AddResult._fields.index(name)) for name in ("id", "duplicate", "refused"))
_HEADER, _PAYLOAD = (
    itemgetter(messages.DeliveredMessageBody.__struct_fields__.index(name)) for name in ("header", "payload")
)
MESSAGE_BYTES = 160
"""Typical size of a message in a frame without payload and header, in bytes."""


def envelopes(queue: str, messages: Sequence[messages.OutgoingMessageBody], ids: Ids, now: int) -> list[Envelope]:
    """Validate messages to be published and build their envelopes. A message without an id gets a new one."""
    given = [*map(_new_id, messages)]
    if not all(given):
        fresh = iter(ids.new(given.count("")))
        given = [id or next(fresh) for id in given]
    validation.check_ids(given)
    for new in messages:
        # the rule for JSON payloads of envelopes: well formed, with numbers of any size
        if new.is_json and members(b'{"payload":%s}' % new.payload) != {"payload": new.payload.strip()}:
            raise BadInput("malformed JSON: more than one document", field="payload")
    made = []
    for new, id in zip(messages, given, strict=True):
        if new.header or new.delay_ms or new.ttl_ms:
            made.append(_envelope(queue, new, id, now))
        else:
            made.append(new_envelope((queue, id, RANK_LAST, now, now, 0, None, "", new.payload, new.is_json, 0, 0)))
    return made


def _envelope(queue: str, new: messages.OutgoingMessageBody, id: str, now: int) -> Envelope:
    delay = milliseconds(new.delay_ms, "delay") or 0
    ttl = milliseconds(new.ttl_ms, "ttl") or 0
    rank, key, *lines = check_header(check_header_text(new.header)) if new.header else HeaderMembers()
    expires = now + ttl if ttl else 0
    sent = (queue, id, rank, now, now + delay, expires, key, new.header, new.payload, new.is_json)
    return new_envelope((*sent, *lines))


def milliseconds(given: int | None, field: str, *, least: int = 0) -> int | None:
    if given is not None and not least <= given <= validation.MAX_SECONDS * 1000:
        raise BadInput(f"must be from {least} ms to {validation.MAX_SECONDS} s", field=field)
    return given


def stored(receipts: Sequence[AddResult]) -> messages.PublishReply:
    ids = [*map(_id_of, receipts)]
    if not any(map(_is_duplicate, receipts)) and not any(map(_why_not, receipts)):
        return messages.PublishReply(ids)
    duplicates = [n for n, one in enumerate(receipts) if one.duplicate]
    return messages.PublishReply(ids, duplicates, {n: one.refused for n, one in enumerate(receipts) if one.refused})


def encode_deliveries(deliveries: Sequence[MessageDelivery], ahead: int) -> list[messages.DeliveredMessageBody]:
    """Build the messages of a DELIVER frame as tuples, which encode to the same bytes as ``DeliveredMessageBody``.

    The end of a lease is converted from store time to the wall clock, which is ``ahead`` ms ahead."""
    if isinstance(deliveries, RunDeliveries):
        return _encode_runs(deliveries, ahead)
    found = [
        (
            f"{message.seq}-{message.leases}",
            message.id,
            message.attempt,
            message.due_at + ahead,
            sent.published_at,
            sent.header,
            sent.payload,
            sent.is_json,
        )
        for message, sent, _ in deliveries
    ]
    return cast("list[messages.DeliveredMessageBody]", found)


def size_of(body: messages.Deliver) -> int:
    """Return the approximate size of the encoded body, in bytes."""
    rows = cast("list[tuple[Any, ...]]", body.messages)
    headers, payloads = map(_HEADER, rows), map(_PAYLOAD, rows)
    return sum(map(len, headers)) + sum(map(len, payloads)) + MESSAGE_BYTES * (len(rows) + 1)


def _encode_runs(deliveries: RunDeliveries, ahead: int) -> list[messages.DeliveredMessageBody]:
    """Like ``encode_deliveries``, from whole runs: messages of a run share one card, so no card is built per
    message."""
    leases = deliveries.leases
    found: list[tuple[Any, ...]] = []
    for (state, _), envelopes in deliveries.runs:
        own = leases[len(found) : len(found) + len(envelopes)]
        found += zip(
            own,
            map(id_of, envelopes),
            repeat(state.attempt),
            repeat(state.due_at + ahead),
            map(_published_at, envelopes),
            map(_header, envelopes),
            map(_payload, envelopes),
            map(_is_json, envelopes),
        )
    return cast("list[messages.DeliveredMessageBody]", found)
