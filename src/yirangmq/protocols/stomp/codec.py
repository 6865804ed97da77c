"""STOMP codec: frames to envelopes and records and back, heart-beats, and destinations.

Payloads are not parsed, except one with a JSON content type. STOMP's priority is 0 to 9, larger first; the store's is 0
first. So 9 is stored as 0, and 0 as 9.

Heart-beats follow the intervals that both sides agreed on. The server sends twice in each interval. It disconnects a
client after ``MAX_SILENT_INTERVALS`` intervals of silence. The caller passes the function that sets timers.

Destinations are ``/queue/x``, ``/topic/x`` and ``/temp-queue/x``; a bare ``x`` is a queue. A temporary queue belongs
to its connection, and the name of the session is part of the queue's name."""

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, TooLarge
from yirangmq.core.message import RANK_LAST, Envelope, new_envelope
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import NewRecord, Record
from yirangmq.core.validation import MAX_SECONDS
from yirangmq.format.delivery import MessageDelivery
from yirangmq.format.envelope import (
    JSON_TYPE,
    MAX_HEADER,
    MAX_TEXT,
    HeaderMembers,
    check_header,
    is_json_media_type,
    is_plain_json,
)
from yirangmq.format.json_codec import dumps, loads
from yirangmq.wire.stomp import V10, V12, escape

# -- messages and records ----------------------------------------------------------------------------------------------

MAX_PRIORITY = 9
DEFAULT_PRIORITY = 4
"""Priority of a message without one, as in JMS."""
LATEST_MS = 2**53
DELAY, GROUP, KEY = "AMQ_SCHEDULED_DELAY", "JMSXGroupID", "_AMQ_DUPL_ID"
SCHEDULES = ("AMQ_SCHEDULED_CRON", "AMQ_SCHEDULED_PERIOD", "AMQ_SCHEDULED_REPEAT")
CONTROL_HEADERS = frozenset(
    {
        *("destination", "content-length", "receipt", "transaction", "expires", DELAY),
        *("message-id", "timestamp", "subscription", "ack", "redelivered", "JMSXDeliveryCount", "receipt-id"),
    }
)
"""Headers of SEND that are not stored: they control sending, or the server writes them into each MESSAGE."""
ENVELOPE_HEADERS = {"type": "type", GROUP: "groupId", KEY: "deduplicationKey", "content-type": "contentType"}
"""Headers that become members of an envelope; all others become attributes."""


# -- SEND frames -------------------------------------------------------------------------------------------------------


class Header(NamedTuple):
    """Envelope header of a SEND: its JSON text, and the columns that are derived from it."""

    text: str
    facts: HeaderMembers


def envelope(queue: str, id: str, headers: Mapping[str, str], body: bytes, now: int) -> Envelope:
    """Build and check the envelope of a SEND to a queue."""
    kept = tuple(one for one in headers.items() if one[0] not in CONTROL_HEADERS)
    is_json = False
    if "content-type" in headers:
        is_json = is_json_media_type(headers["content-type"]) and is_plain_json(body)
    text, (rank, key, group, target) = _header(kept, is_json) if kept else NOTHING
    available = now + _whole(headers, DELAY, MAX_SECONDS * 1000)
    expires = _whole(headers, "expires", LATEST_MS)
    _refuse_schedules(headers)
    return new_envelope((queue, id, rank, now, available, expires, key, text, body, is_json, group, target))


NOTHING = Header("", HeaderMembers())


@lru_cache(maxsize=1024)
def _header(kept: tuple[tuple[str, str], ...], is_json: bool) -> Header:
    """Build the envelope header. Cached, because programs repeat the same headers."""
    header: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for name, value in kept:
        member = ENVELOPE_HEADERS.get(name)
        if name == "priority":
            attributes[name] = MAX_PRIORITY - _priority(value)
        elif member is None or len(value) > MAX_TEXT:
            attributes[name] = value
        elif value and not (is_json and member == "contentType" and value == JSON_TYPE):
            header[member] = value
    if attributes:
        header["attributes"] = attributes
    if not header:
        return NOTHING
    for name in (GROUP, KEY):
        if name in attributes:
            raise BadInput(f"has more than {MAX_TEXT} characters", field=name)
    facts = check_header(header)
    text = dumps(header)
    if len(text) > MAX_HEADER:
        raise TooLarge(f"{len(text)} bytes as JSON, at most {MAX_HEADER}", field="headers")
    return Header(text.decode(), facts)


def _priority(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= MAX_PRIORITY:
        return int(text)
    raise BadInput(f"must be from 0 to {MAX_PRIORITY}, not {text[:40]!r}", field="priority")


def _whole(headers: Mapping[str, str], name: str, most: int) -> int:
    text = headers.get(name)
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) <= most):
        raise BadInput(f"must be milliseconds, at most {most}, not {text[:40]!r}", field=name)
    return int(text)


def _refuse_schedules(headers: Mapping[str, str]) -> None:
    for name in SCHEDULES:
        if name in headers:
            raise BadInput("is not supported: set a schedule in the policy of the queue", field=name)


def record(topic: str, headers: Mapping[str, str], body: bytes) -> NewRecord:
    """Build the record of a SEND to a topic.

    A record has no priority and no expiry, so those headers are stored unchanged."""
    if DELAY in headers:
        raise BadInput("applies to queues only: records of topics have no delay", field=DELAY)
    _refuse_schedules(headers)
    kept = {name: value for name, value in headers.items() if name == "expires" or name not in CONTROL_HEADERS}
    return NewRecord(topic, body, kept.get(GROUP), kept)


# -- MESSAGE frames ----------------------------------------------------------------------------------------------------


class MessageAddress(NamedTuple):
    """First header lines of every MESSAGE of a subscription."""

    version: str
    subscription: str | None
    has_ack: bool
    """True if the client acknowledges messages."""

    def head(self, destination: str, id: str, ack: str) -> str:
        lines = f"MESSAGE\ndestination:{destination}\nmessage-id:{id}\n"
        if self.subscription is not None:
            lines += f"subscription:{escape(self.subscription, self.version)}\n"
        return f"{lines}ack:{ack}\n" if self.has_ack and self.version == V12 else lines


def message(address: MessageAddress, destination: str, delivery: MessageDelivery) -> bytes:
    """Encode a delivery as a MESSAGE frame. ``destination`` is already escaped."""
    state, sent, _ = delivery
    head = address.head(destination, sent.id, f"{state.seq}-{state.leases}")
    if state.leases > 1:
        head += f"redelivered:true\nJMSXDeliveryCount:{state.leases}\n"
    shown_headers = _stored_header_lines(sent.header, sent.is_json, state.rank, address.version)
    payload = sent.payload
    times = f"timestamp:{sent.published_at}\nexpires:{sent.expires_at}\n"
    text = f"{head}{times}{shown_headers}content-length:{len(payload)}\n\n"
    return b"%s%s\0" % (text.encode(), payload)


def record_message(address: MessageAddress, id: str, found: Record) -> bytes:
    """Encode a topic record as a MESSAGE frame."""
    head = address.head(escape(f"/topic/{found.topic}", address.version), id, id)
    lines = [f"timestamp:{found.at_ns // 1_000_000}\n"]
    shown_headers = {"expires": "0", "priority": str(DEFAULT_PRIORITY), **found.headers}
    if found.key is not None:
        shown_headers.setdefault(GROUP, found.key)
    kept = [one for one in shown_headers.items() if one[0] == "expires" or one[0] not in CONTROL_HEADERS]
    lines += [_line(name, value, address.version) for name, value in kept]
    text = f"{head}{''.join(lines)}content-length:{len(found.payload)}\n\n"
    return b"%s%s\0" % (text.encode(), found.payload)


@lru_cache(maxsize=4096)
def _stored_header_lines(header: str, is_json: bool, rank: int, version: str) -> str:
    """Encode the header lines of a stored message, published over any protocol."""
    known: dict[str, Any] = loads(header.encode()) if header else {}
    attributes = known.get("attributes") or {}
    priority = DEFAULT_PRIORITY if rank == RANK_LAST else max(0, MAX_PRIORITY - rank)
    lines = [f"priority:{priority}\n"]
    if is_json and "contentType" not in known:
        lines.append(f"content-type:{JSON_TYPE}\n")
    lines += [
        _line(name, str(known[member]), version) for name, member in ENVELOPE_HEADERS.items() if known.get(member)
    ]
    for name, value in attributes.items():
        if name != "priority" and name not in CONTROL_HEADERS and name not in ENVELOPE_HEADERS and value is not None:
            lines.append(_line(name, _text(value), version))
    return "".join(lines)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


def _line(name: str, value: str, version: str) -> str:
    if not name or (version == V10 and ":" in name):
        return ""  # no client could parse it
    return f"{escape(name, version)}:{escape(value, version)}\n"


# -- heart-beats -------------------------------------------------------------------------------------------------------

MIN_INTERVAL_MS = 500
"""Shortest heart-beat interval that the server offers, and that it requests, in ms."""
MAX_INTERVAL_MS = 86_400_000
MAX_SILENT_INTERVALS = 2
"""Silent intervals after which a client counts as lost; more than one, because packets may be late."""


def read(text: str | None) -> tuple[int, int]:
    """Parse the heart-beat header of a client: its intervals of sending and of receiving, in ms; 0 is never."""
    if text is None:
        return 0, 0
    sends, comma, wants = text.partition(",")
    numbers = [one.strip() for one in (sends, wants)]
    if not comma or not all(one.isascii() and one.isdecimal() and len(one) <= 12 for one in numbers):
        raise BadInput(
            f"must be two numbers of milliseconds, such as 10000,10000, not {text[:40]!r}", field="heart-beat"
        )
    return min(int(numbers[0]), MAX_INTERVAL_MS), min(int(numbers[1]), MAX_INTERVAL_MS)


def shown(intervals: tuple[int, int]) -> str:
    """Format the server's heart-beat header. A direction that the client sets to 0 is 0 here too."""
    sends, wants = intervals
    return f"{MIN_INTERVAL_MS if wants else 0},{MIN_INTERVAL_MS if sends else 0}"


class HeartbeatTimers:
    """Heart-beat timers of one session.

    The session sets ``has_sent`` and ``has_received`` when it sends and receives. ``later`` calls a function after a
    delay in seconds. ``lost`` is called with the silent time in ms, and returns whether it ended the session; if not,
    the timer continues."""

    def __init__(
        self,
        intervals: tuple[int, int],
        later: Callable[[float, Callable[[], None]], Any],
        send_heartbeat: Callable[[], None],
        lost: Callable[[int], bool],
    ) -> None:
        sends, wants = intervals
        self.receive_ms = max(sends, MIN_INTERVAL_MS) if sends else 0
        self.send_ms = max(wants, MIN_INTERVAL_MS) if wants else 0
        self.has_sent = self.has_received = True
        self._silent = 0
        self._later = later
        self._send_heartbeat = send_heartbeat
        self._lost = lost
        self._is_over = False
        self._plan()

    def _plan(self) -> None:
        if self.send_ms:
            self._later(self.send_ms / 2000, self._send)
        if self.receive_ms:
            self._later(self.receive_ms / 1000, self._check_silence)

    def _send(self) -> None:
        """Send a heart-beat if nothing was sent since the last call.

        Runs twice in each interval, so that no whole interval passes in silence."""
        if self._is_over:
            return
        if not self.has_sent:
            self._send_heartbeat()
        self.has_sent = False
        self._later(self.send_ms / 2000, self._send)

    def _check_silence(self) -> None:
        if self._is_over:
            return
        self._silent = 0 if self.has_received else self._silent + 1
        self.has_received = False
        if self._silent < MAX_SILENT_INTERVALS or not self._lost(self.receive_ms * MAX_SILENT_INTERVALS):
            self._later(self.receive_ms / 1000, self._check_silence)

    def stop(self) -> None:
        self._is_over = True


# -- destinations ------------------------------------------------------------------------------------------------------

FIELD = "destination"
TEMPORARY = "stomp-temp."
"""Prefix of the names of temporary queues; they are deleted with their connection."""
WILD = re.compile(r"[*>]")


class DestinationKind(Enum):
    QUEUE = "/queue/"
    TOPIC = "/topic/"
    TEMPORARY = "/temp-queue/"


class Destination(NamedTuple):
    """Parsed destination header."""

    kind: DestinationKind
    name: str
    """In a SUBSCRIBE to a topic, it may contain the wildcards ``*`` and ``>``."""


@lru_cache(maxsize=1024)
def parse(text: str | None) -> Destination:
    if text is None:
        raise BadInput("is missing: /queue/NAME or /topic/NAME", field=FIELD)
    for kind in DestinationKind:
        if text.startswith(kind.value):
            return Destination(kind, text[len(kind.value) :])
    if text and "/" not in text:  # as in ActiveMQ
        return Destination(DestinationKind.QUEUE, text)
    raise BadInput(f"{text[:60]!r} must begin with /queue/, /topic/ or /temp-queue/", field=FIELD)


@lru_cache(maxsize=1024)
def checked(name: str) -> str:
    """Check and return the name of a queue or topic."""
    if "," in name:
        raise BadInput("has several destinations: send a frame to each", field=FIELD)
    return validation.check_queue(name, FIELD)


def temporary(session: str, name: str) -> str:
    """Return the name of the queue that stores a temporary queue of this session."""
    return checked(f"{TEMPORARY}{session}.{name}")


def topic_filter(name: str) -> Filter:
    """Convert an ActiveMQ pattern to a topic filter.

    ``*`` matches one level, ``>`` all levels that follow. ``a.>`` matches ``a`` too."""
    if not WILD.search(name):
        return make_filter([checked(name)])
    head, levels, rest = name.partition(">")
    if rest:
        raise BadInput(f"{name[:60]!r}: '>' is allowed only at the end", field=FIELD)
    pattern = head.replace("*", "+")
    if not levels:
        return make_filter([pattern])
    if head and not head.endswith("."):
        raise BadInput(f"{name[:60]!r}: '>' is a level of its own", field=FIELD)
    return make_filter([pattern + "*", *([pattern[:-1]] if pattern else [])])
