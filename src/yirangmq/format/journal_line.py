"""Line of the message journal (files by date): one record as JSON, the payload last.

The members that identify a record come first and in a fixed order, so that ``head_of`` reads them without decoding the
line. A UTF-8 payload is stored as text, any other as Base64. Both are restored to the byte; the line has the SHA-256 of
the bytes (docs/files-by-date.md)."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput
from yirangmq.core.journal import JournalRecordKind, MessageOutcome
from yirangmq.core.message import Envelope
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps, loads

HEAD = re.compile(rb'\{"record":"([a-z_]+)","at":"([^"]*)","seq":(\d+),"queue":"([^"]*)","messageId":"([^"]*)"')
STATE = re.compile(rb',"state":"([a-z]+)"')


class JournalLineHead(NamedTuple):
    """Leading members of a line. ``state`` is set only for outcomes and deleted queues."""

    kind: str
    at: str
    seq: int
    queue: str
    id: str
    state: str = ""


@lru_cache(maxsize=64)
def instant(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def accepted(
    at: int,
    messages: Sequence[tuple[int, Envelope]],
    kind: JournalRecordKind = JournalRecordKind.ACCEPTED,
    *,
    completed: bool = False,
) -> Iterator[bytes]:
    """Yield a line per pair of number and envelope. ``completed`` marks a line written later than the event itself."""
    moment, mark = instant(at), ',"completed":true' if completed else ""
    for seq, sent in messages:
        payload, header = sent.payload, sent.header
        if "\n" in header or "\r" in header:
            header = dumps(loads(header.encode())).decode()
        head = (
            f'{{"record":"{kind}","at":"{moment}","seq":{seq},"queue":"{sent.queue}","messageId":"{sent.id}"{mark}'
            f',"enqueuedAt":"{instant(sent.published_at)}","bytes":{len(payload)},'
            f'"sha256":"{sha256(payload).hexdigest()}"'
            f"{_more(sent)}" + (f',"header":{header}' if header else "")
        )
        yield head.encode() + _payload(payload)


def _more(sent: Envelope) -> str:
    """Return the members that only some messages have, as JSON text."""
    found = "" if sent.is_json else ',"json":false'
    if sent.available_at > sent.published_at:
        found += f',"availableAt":"{instant(sent.available_at)}"'
    return found + (f',"expiresAt":"{instant(sent.expires_at)}"' if sent.expires_at else "")


def _payload(payload: bytes) -> bytes:
    try:
        return b',"payloadText":' + dumps(payload.decode()) + b"}\n"
    except UnicodeDecodeError:
        return b',"payloadBase64":"' + base64.b64encode(payload) + b'"}\n'


def outcome(at: int, message_outcome: MessageOutcome, *, completed: bool = False) -> bytes:
    row = message_outcome.row
    line = f'{{"record":"{JournalRecordKind.OUTCOME}","at":"{instant(at)}","seq":{row.seq},"queue":"{row.queue}",'
    line += f'"messageId":"{row.id}","state":"{message_outcome.state}"'
    line += ',"completed":true' if completed else ""
    line += f',"delivery":"{message_outcome.delivery}"' if message_outcome.delivery else ""
    line += f',"attempt":{message_outcome.attempt}'
    line += f',"leasedAt":"{instant(message_outcome.leased_at)}"' if message_outcome.leased_at else ""
    more: dict[str, str] = {
        "consumerId": message_outcome.consumer,
        "reasonCode": str(message_outcome.reason),
        "reasonMessage": message_outcome.text,
    }
    text = "".join(f',"{name}":{dumps(value).decode()}' for name, value in more.items() if value)
    return f"{line}{text}}}\n".encode()


def queue_deleted(at: int, queue: str, place: int) -> bytes:
    """Return the line of a deleted queue. All its messages with numbers up to ``place`` were deleted with it."""
    return (
        f'{{"record":"{JournalRecordKind.QUEUE_DELETED}","at":"{instant(at)}","seq":{place},"queue":"{queue}","messageId":"",'
        f'"state":"{State.DROPPED}"}}\n'
    ).encode()


# -- reading --------------------------------------------------------------------------------------------------------


def head_of(line: bytes) -> JournalLineHead:
    """Parse the leading members without decoding the rest of the line. Raise ``BadInput`` if it is not a record."""
    found = HEAD.match(line)
    if found is None:
        raise BadInput(f"is not a record of files by date: {line[:80]!r}")
    kind, at, seq, queue, id = found.groups()
    state = STATE.match(line, found.end())
    return JournalLineHead(
        kind.decode(), at.decode(), int(seq), queue.decode(), id.decode(), state[1].decode() if state else ""
    )


def read(line: bytes) -> dict[str, Any]:
    """Parse a whole record. Raise ``BadInput`` if it is not one."""
    head_of(line)
    value = loads(line)
    if not isinstance(value, dict):
        raise BadInput("is not a JSON object")
    return value


def payload_of(record: Mapping[str, Any]) -> bytes | None:
    """Return the payload bytes, verified against their SHA-256; None if the record has no payload.

    Raise ``BadInput`` if the digest differs or the Base64 is malformed."""
    if "payloadText" in record:
        payload = str(record["payloadText"]).encode()
    elif "payloadBase64" in record:
        try:
            payload = base64.b64decode(str(record["payloadBase64"]), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadInput(f"is not Base64: {error}", field="payloadBase64") from None
    else:
        return None
    if sha256(payload).hexdigest() != record.get("sha256"):
        raise BadInput(f"the payload of {record.get('messageId')} is not the one that was accepted", field="sha256")
    return payload
