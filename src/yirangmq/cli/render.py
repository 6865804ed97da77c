"""Rendering for the screen: messages and dead letters, topics and subscribers, server summary.

Control characters of messages are escaped. Messages and dead letters are also rendered as one JSON document each."""

from typing import Any

from yirangmq.cli.arguments import count_text, format_duration
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn, safe
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.format import delivery
from yirangmq.format.delivery import MessageDelivery, MessageView
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


def delivery_block(delivery: MessageDelivery) -> str:
    title = f"-- {delivery.id}  attempt {delivery.attempt}  lease {delivery.lease_id}"
    return f"{title}\n   {header_text(delivery.envelope)}\n{payload_text(delivery.envelope)}"


def message_line(view: MessageView) -> bytes:
    """Encode a message as one JSON document: its state, envelope and latest failure.

    The envelope's JSON text is copied unchanged, so a JSON payload keeps its text."""
    message = as_json(view.envelope) if view.envelope is not None else b"null"
    failure = dumps(delivery.failure_document(view.failure)) if view.failure is not None else b"null"
    return b'%s,"message":%s,"failure":%s}' % (dumps(view.row())[:-1], message, failure)


def dead_letter_row(view: MessageView) -> dict[str, Any]:
    """Return the row of a dead letter for a list: its source queue, and the reason of the failure."""
    message, failure = view.message, view.failure
    return {
        "messageId": message.id,
        "sourceQueue": message.queue,
        "dlqQueue": view.rules.dlq.queue,
        "state": message.state.value,
        "reasonCode": message.reason or (failure.reason_code if failure else None),
        "reasonMessage": failure.reason_message if failure else None,
        "failedAt": iso(failure.failed_at if failure else message.changed_at),
        "attempt": message.attempt,
        "consumerId": (failure.consumer if failure else message.consumer) or None,
        "priority": None if message.rank == RANK_LAST else message.rank,
        "seq": message.seq,
    }


def dead_letter_record(view: MessageView) -> bytes:
    """Encode the dead-letter record as published; only its row if the envelope or the failure no longer exists."""
    if view.envelope is None or view.failure is None:
        return dumps(dead_letter_row(view))
    return delivery.dead_letter_record(view.message, view.envelope, view.failure, view.rules)


# -- topics and subscribers --------------------------------------------------------------------------------------------

SUBSCRIBER_COLUMNS = (
    TableColumn("subscriber"),
    TableColumn("state", marks=True),
    TableColumn("filter", shrinks=True, rank=2),
    TableColumn("sequence", right=True, rank=3),
    TableColumn("confirmed", right=True, rank=1),
    TableColumn("lag", right=True),
    TableColumn("peer", rank=4),
)


def publisher_line(about: dict[str, Any]) -> str:
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
    TableColumn("bridge"),
    TableColumn("to queue"),
    TableColumn("state", marks=True),
    TableColumn("lag", right=True),
)


def show_server_status(screen: Screen, value: dict[str, Any]) -> None:
    feed, following = value["topics"], value["following"]
    if feed is not None and (following or "epoch" in feed or feed["reason"]):
        screen.report()
        screen.report(publisher_line(feed))
        if following:
            show_subscribers(screen, following)
    if value["bridges"]:
        screen.report()
        names = ("name", "queue", "state", "lag")
        screen.table(BRIDGE_COLUMNS, [[row[name] for name in names] for row in value["bridges"]])
    if value["pair"] is not None:
        screen.report()
        for line in pair_lines(value["pair"]):
            screen.report(line)
    if value["alerts"] is not None and value["alerts"]["open"]:
        screen.note(f"{_alerts(value['alerts'])}; 'yirangmq alert list' shows them")


def pair_lines(about: dict[str, Any]) -> list[str]:
    works = "works" if about["works"] else "does not work"
    lines = [f"pair: {about['node']} {about['role']}, {about['status']}, term {about['term']}, {works}"]
    peer = about["peer"]
    if peer is None:
        return [*lines, "peer: no contact yet"]
    contact_text = f"last contact {format_duration(peer['heardSec'])} ago" + (", SILENT" if peer["silent"] else "")
    return [*lines, f"peer: {peer['node']} {peer['role']}, {peer['status']}, term {peer['term']}, {contact_text}"]


def _alerts(about: dict[str, int]) -> str:
    critical = f", {about['critical']} critical" if about["critical"] else ""
    return f"{count_text(about['open'], 'alert')} open{critical}"
