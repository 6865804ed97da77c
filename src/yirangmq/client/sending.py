"""From what a program publishes to the frames that carry it. Sans-IO.

Everything is checked here, by the rules the server has, before it is sent; and every message gets its id here, so that
sending it a second time cannot store it twice."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Ids, Stored, new_stored
from yirangmq.format.envelope import NewMessage, build, read
from yirangmq.format.json_codec import dumps
from yirangmq.wire import messages
from yirangmq.wire.messages import Outgoing

FRAME_MESSAGES = 128
FRAME_BYTES = 256 * 1024
"""A frame is full when it has as much of either: past this frames get later, not cheaper."""
MESSAGE_BYTES = 200
"""What a message needs at most in a frame beside payload and header."""


def outgoing(queue: str, message: object, id: str) -> Outgoing:
    """Any JSON value, bytes, or a ``NewMessage``."""
    if type(message) is bytes:
        return Outgoing(message, False, "", id)
    if isinstance(message, NewMessage):
        return _from_envelope(build(queue, message, id, 0))
    if isinstance(message, bytes | bytearray | memoryview):
        return Outgoing(bytes(message), False, "", id)
    try:
        return Outgoing(dumps(message), True, "", id)
    except BadInput as error:
        raise BadInput(str(error), field="payload") from None


def all_outgoing(queue: str, messages: Iterable[object], ids: Ids) -> Iterator[Outgoing]:
    """Each with an id of its own; the messages are read a frame at a time."""
    source = iter(messages)
    while batch := list(islice(source, FRAME_MESSAGES)):
        for message, id in zip(batch, ids.new(len(batch)), strict=True):
            yield outgoing(queue, message, id)


def is_to_check(messages: Iterable[object]) -> bool:
    """Something in this list may be wrong. (Bytes cannot be, and an iterator cannot be read twice.)"""
    return isinstance(messages, list | tuple) and not all(type(message) is bytes for message in messages)


def outgoing_text(queue: str, text: bytes, id: str, delay: float, ttl: float | None) -> Outgoing:
    """A JSON document: an envelope as it is, anything else wrapped as a payload."""
    return _from_envelope(read(queue, text, id, 0, delay=delay, ttl=ttl))


def _from_envelope(made: Envelope) -> Outgoing:
    """Published at time 0, so that its instants are durations: time is the server's."""
    return Outgoing(made.payload, made.is_json, made.header, made.id, made.available_at, made.expires_at)


def in_frames(queue: str, made: Iterable[Outgoing], max_frame: int) -> Iterator[messages.Publish]:
    """A frame takes what makes it full, large as that may be, so that a small batch with a large message is one; but
    none is larger than the server takes, if it can be helped."""
    batch: list[Outgoing] = []
    size = 0
    for one in made:
        weight = len(one.payload) + 4 * len(one.header) + MESSAGE_BYTES
        if batch and (size >= FRAME_BYTES or len(batch) == FRAME_MESSAGES or size + weight > max_frame - MESSAGE_BYTES):
            yield messages.Publish(queue, batch)
            batch, size = [], 0
        batch.append(one)
        size += weight
    if batch:
        yield messages.Publish(queue, batch)


def receipts(sent: Sequence[Outgoing], stored: messages.Stored, resent: bool) -> list[Stored]:
    """What became of each message of a frame. One that is there already because an earlier sending of this very frame
    arrived is no duplicate. (A server does not tell its numbers of messages: ``seq`` is 0.)"""
    made = [new_stored((0, id, False, "")) for id in stored.ids]
    for n in stored.duplicates:
        if not (resent and stored.ids[n] == sent[n].id):
            made[n] = made[n]._replace(duplicate=True)
    for n, complaint in stored.refused.items():
        made[n] = made[n]._replace(refused=complaint)
    return made
