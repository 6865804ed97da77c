"""Rendering for the screen: messages and dead letters, topics and subscribers, server summary.

Control characters of messages are escaped. Messages and dead letters are also rendered as one JSON document each."""

from typing import Any

from yirangmq.cli.arguments import counted, span
from yirangmq.cli.output import Screen
from yirangmq.cli.table import Column, safe
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.format import delivery
from yirangmq.format.delivery import Delivery, Look
from yirangmq.format.envelope import as_json, header_of, iso
from yirangmq.format.json_codec import dumps

# -- messages and dead letters -----------------------------------------------------------------------------------------

SHOWN_BYTES = 4096
"""Maximum bytes shown of a payload that is not text; --json and --raw print all of it."""


def payload_text(envelope: Envelope) -> str:
    """Format a payload for a terminal: text with control characters escaped, other bytes as a hex prefix."""
    try:
        text = envelope.payload.decode()
    except UnicodeDecodeError:
        more = " …" if len(envelope.payload) > SHOWN_BYTES else ""
        return f"{len(envelope.payload)} bytes: {envelope.payload[:SHOWN_BYTES].hex(' ')}{more}"
    return safe(text, keep="\n\t")


def header_text(envelope: Envelope) -> str:
    """Format the members of the envelope in one line, the named members before the attributes."""
    header = header_of(envelope)
    del header["messageId"], header["queue"]
    parts = [f"{name}={_short(value)}" for name, value in header.items()]
    return safe("  ".join(parts))


def _short(value: object) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


def delivery_block(delivery: Delivery) -> str:
    title = f"-- {delivery.id}  attempt {delivery.attempt}  lease {delivery.lease_id}"
    return f"{title}\n   {header_text(delivery.envelope)}\n{payload_text(delivery.envelope)}"


def look_line(look: Look) -> bytes:
    """Encode a message as one JSON document: its state, envelope and latest failure.

    The envelope's JSON text is copied unchanged, so a JSON payload keeps its text."""
    message = as_json(look.envelope) if look.envelope is not None else b"null"
    failure = dumps(delivery.failure_document(look.failure)) if look.failure is not None else b"null"
    return b'%s,"message":%s,"failure":%s}' % (dumps(look.card())[:-1], message, failure)


def letter_card(look: Look) -> dict[str, Any]:
    """Return the row of a dead letter for a list: its source queue, and the reason of the failure."""
    message, failure = look.message, look.failure
    return {
        "messageId": message.id,
        "sourceQueue": message.queue,
        "dlqQueue": look.rules.dlq.queue,
        "state": message.state.value,
        "reasonCode": message.reason or (failure.reason_code if failure else None),
        "reasonMessage": failure.reason_message if failure else None,
        "failedAt": iso(failure.failed_at if failure else message.changed_at),
        "attempt": message.attempt,
        "consumerId": (failure.consumer if failure else message.consumer) or None,
        "priority": None if message.rank == RANK_LAST else message.rank,
        "seq": message.seq,
    }


def letter_record(look: Look) -> bytes:
    """Encode the dead-letter record as published; only its row if the envelope or the failure no longer exists."""
    if look.envelope is None or look.failure is None:
        return dumps(letter_card(look))
    return delivery.dead_letter_record(look.message, look.envelope, look.failure, look.rules)


# -- topics and subscribers --------------------------------------------------------------------------------------------

SUBSCRIBER_COLUMNS = (
    Column("subscriber", shrinks=True),
    Column("state"),
    Column("filter", shrinks=True),
    Column("sequence", right=True),
    Column("confirmed", right=True),
    Column("lag", right=True),
    Column("peer", shrinks=True),
)


def feed_line(about: dict[str, Any]) -> str:
    """Format the state of a server's topic publisher and its log as one line."""
    state = about["state"] or about["reason"]
    if about["state"] and about["reason"]:
        state += f" ({about['reason']})"
    if "epoch" not in about:
        return f"feed {state}, nothing published yet"
    held = f"{about['first']} to {about['last']}" if about["first"] <= about["last"] else "nothing"
    return f"feed {state}, epoch {about['epoch']}, holds {held}"


def show_subscribers(screen: Screen, rows: list[dict[str, Any]]) -> None:
    names = ("subscriber", "state", "filter", "sequence", "confirmed", "lag", "peer")
    screen.table(SUBSCRIBER_COLUMNS, [[row.get(name) for name in names] for row in rows])


# -- server summary ----------------------------------------------------------------------------------------------------

BRIDGE_COLUMNS = (
    Column("bridge", shrinks=True),
    Column("to queue", shrinks=True),
    Column("state"),
    Column("lag", right=True),
)


def show_site(screen: Screen, value: dict[str, Any]) -> None:
    feed, following = value["topics"], value["following"]
    if feed is not None and (following or "epoch" in feed or feed["reason"]):
        screen.say()
        screen.say(feed_line(feed))
        if following:
            show_subscribers(screen, following)
    if value["bridges"]:
        screen.say()
        names = ("name", "queue", "state", "lag")
        screen.table(BRIDGE_COLUMNS, [[row[name] for name in names] for row in value["bridges"]])
    if value["pair"] is not None:
        screen.say()
        for line in pair_lines(value["pair"]):
            screen.say(line)
    if value["alerts"] is not None and value["alerts"]["open"]:
        screen.note(f"{_alerts(value['alerts'])}; 'yirangmq alert list' shows them")


def pair_lines(about: dict[str, Any]) -> list[str]:
    works = "works" if about["works"] else "does not work"
    lines = [f"pair: {about['node']} {about['role']}, {about['status']}, term {about['term']}, {works}"]
    peer = about["peer"]
    if peer is None:
        return [*lines, "peer: never heard"]
    heard = f"heard {span(peer['heardSec'])} ago" + (", SILENT" if peer["silent"] else "")
    return [*lines, f"peer: {peer['node']} {peer['role']}, {peer['status']}, term {peer['term']}, {heard}"]


def _alerts(about: dict[str, int]) -> str:
    critical = f", {about['critical']} critical" if about["critical"] else ""
    return f"{counted(about['open'], 'alert')} open{critical}"
