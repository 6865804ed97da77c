"""Queues reached over the HTTP API, with the verbs that a program uses everywhere else. For the scenarios only: what it
can do, anybody with an HTTP client can."""

import base64
import http.client
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.wait import PATIENCE
from yirangmq.client.values import Batch, Delivery, new_delivery
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound, QueueError
from yirangmq.core.message import RANK_LAST, Counts, Envelope, Message, MessageFailure
from yirangmq.core.policy import read_policy
from yirangmq.core.ports import AddResult
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import NewMessage
from yirangmq.format.envelope import read as read_envelope
from yirangmq.format.json_codec import dumps, loads, members
from yirangmq.wire.messages import DeliveredMessageBody, error_of

Results = list[QueueError | None]
LONGEST_POLL = 1.0
"""Seconds that one request waits; whoever waits longer asks again."""
FIELDS = {
    "max": "limit",
    "waitSec": "wait",
    "leaseSec": "leaseSeconds",
    "delaySec": "delay",
    "ttlSec": "ttl",
    "consumer": "consumerId",
    "reason": "reasonCode",
    "body": "document",
}
"""What the verbs call the fields of the API."""


class WebQueues:
    """Safe to share between threads: each has a connection of its own."""

    def __init__(self, port: int, consumer: str = "tester") -> None:
        self._port = port
        self.consumer = consumer
        self._own = threading.local()
        self._lines: list[http.client.HTTPConnection] = []

    # -- requests -------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """The bytes of the answer; an error, unless it tells of each message by itself."""
        line = self._line()
        sent = body if isinstance(body, bytes) else None if body is None else _written(body)
        line.request(method, path, sent, {} if sent is None else {"Content-Type": "application/json"})
        answer = line.getresponse()
        data = answer.read()
        if answer.status >= 400:
            document = json.loads(data)
            if "results" not in document:
                raise _error(document["error"])
        return data

    def get(self, method: str, path: str, body: object = None) -> Any:
        return json.loads(self.ask(method, path, body))

    def _line(self) -> http.client.HTTPConnection:
        line: http.client.HTTPConnection | None = getattr(self._own, "line", None)
        if line is None:
            line = self._own.line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
            self._lines.append(line)
        return line

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def __enter__(self) -> "WebQueues":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- producing ------------------------------------------------------------------------------------------------

    def publish(self, queue: str, message: object) -> AddResult:
        return self.publish_many(queue, [message])[0]

    def publish_many(self, queue: str, messages: Iterable[object]) -> list[AddResult]:
        path = f"{_path(queue)}/messages?as=envelope"
        validation.check_many(messages, "messages")
        documents = [_document(message) for message in messages]
        return self._stored(path, documents) if documents else []

    def publish_text(
        self,
        queue: str,
        texts: Iterable[bytes],
        *,
        delay: float | None = 0,
        ttl: float | None = None,
        read_as: str | None = None,
    ) -> list[AddResult]:
        given_times = {"delaySec": delay, "ttlSec": ttl, "as": read_as}
        times = {name: value for name, value in given_times.items() if value is not None}
        given: Iterable[object] = texts
        documents = [text if isinstance(text, bytes) else b"\xff" for text in given]
        return self._stored(f"{_path(queue)}/messages?{urlencode(times)}", documents)

    def _stored(self, path: str, documents: list[bytes]) -> list[AddResult]:
        answer = self.get("POST", path, b"[%s]" % b",".join(documents))
        return [AddResult(0, one["messageId"], one["duplicate"], one.get("refused", "")) for one in answer["messages"]]

    # -- consuming ------------------------------------------------------------------------------------------------

    def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: float = 0,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> list[Delivery]:
        given = {
            "max": limit,
            "leaseSec": lease_seconds,
            "consumer": self.consumer if consumer is None else consumer,
            "policy": True,
        }
        body = {name: value for name, value in given.items() if value is not None}
        until = time.monotonic() + wait
        while True:
            left = wait if wait < 0 else max(0.0, min(until - time.monotonic(), LONGEST_POLL))
            parts = members(self.ask("POST", f"{_path(queue)}/lease", {**body, "waitSec": left})) or {}
            messages = _elements(parts["messages"])
            if messages or time.monotonic() >= until:
                policy = parts.get("policy", b"{}").decode()
                return [_delivery(queue, policy, raw) for raw in messages]

    def ack(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None:
        _raise_first(self.ack_many(_several(leases), consumer=consumer))

    def ack_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results:
        return self._settle("ack", leases, consumer)

    def nack(
        self,
        leases: str | Sequence[str],
        reason: str = "HANDLER_ERROR",
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> None:
        _raise_first(self.nack_many(_several(leases), reason, text, delay=delay, consumer=consumer))

    def nack_many(
        self,
        leases: Sequence[str],
        reason: str = "HANDLER_ERROR",
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> Results:
        return self._settle("nack", leases, consumer, reason=reason, text=validation.check_text(text), delaySec=delay)

    def extend(self, leases: str | Sequence[str], seconds: float | None = None, *, consumer: str | None = None) -> None:
        _raise_first(self.extend_many(_several(leases), seconds, consumer=consumer))

    def extend_many(
        self, leases: Sequence[str], seconds: float | None = None, *, consumer: str | None = None
    ) -> Results:
        if seconds is not None:
            validation.check_milliseconds(seconds, "seconds", least=0.001)
        return self._settle("extend", leases, consumer, leaseSec=seconds)

    def release(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None:
        _raise_first(self._settle("release", _several(leases), consumer))

    def _settle(self, verb: str, leases: Sequence[str], consumer: str | None, **more: object) -> Results:
        """A lease id does not tell its queue; the scenarios have one or two, and each is asked for those it has."""
        given = {name: value for name, value in {"consumer": consumer, **more}.items() if value is not None}
        results: Results = [NotFound("nowhere")] * len(leases)
        for queue in self.queues() or ["none"]:
            todo = [n for n, error in enumerate(results) if isinstance(error, NotFound)]
            if not todo:
                break
            answer = self.get("POST", f"{_path(queue)}/{verb}", {"leases": [leases[n] for n in todo], **given})
            for n, error in zip(todo, _results(answer), strict=True):
                results[n] = error
        return results

    # -- looking --------------------------------------------------------------------------------------------------

    def peek(self, queue: str, limit: int = 10, *, state: str = "ready") -> list[MessageView]:
        return self._page(f"{_path(queue)}/messages", {"state": state, "limit": limit})[0]

    def walk(self, queue: str, state: str, batch: int = 500) -> Iterator[MessageView]:
        cursor: str | None = ""
        while cursor is not None:
            given = {"state": state, "limit": batch, "cursor": cursor}
            page, cursor = self._page(f"{_path(queue)}/messages", given)
            yield from page

    def dead(self, queue: str) -> list[MessageView]:
        return self._page(f"{_path(queue)}/dead-letters", {})[0]

    def _page(self, path: str, given: dict[str, object]) -> tuple[list[MessageView], str | None]:
        parts = members(self.ask("GET", f"{path}?{urlencode(given)}")) or {}
        return [_look(raw) for raw in _elements(parts["messages"])], loads(parts["cursor"])

    def show(self, queue: str, id: str) -> MessageView:
        return _look(self.ask("GET", f"{_path(queue)}/messages/{quote(validation.check_id(id), safe='')}"))

    def queues(self) -> list[str]:
        return [row["queue"] for row in self.get("GET", "/v1/queues")["queues"]]

    def counts(self, queue: str) -> Counts:
        try:
            return Counts(**self.get("GET", _path(queue))["counts"])
        except NotFound:
            return Counts()

    # -- steering -------------------------------------------------------------------------------------------------

    def policy(self, queue: str) -> dict[str, Any]:
        return dict(self.get("GET", f"{_path(queue)}/policy")["policy"])

    def check_policy(self, queue: str, document: object) -> dict[str, Any]:
        return dict(self.get("POST", f"{_path(queue)}/policy/check", document)["policy"])

    def set_policy(self, queue: str, document: object) -> dict[str, Any]:
        if document is None:
            return dict(self.get("DELETE", f"{_path(queue)}/policy")["policy"])
        return dict(self.get("PUT", f"{_path(queue)}/policy", document)["policy"])

    def pause(self, queue: str) -> bool:
        return bool(self.get("POST", f"{_path(queue)}/pause")["changed"])

    def resume(self, queue: str) -> bool:
        return bool(self.get("POST", f"{_path(queue)}/resume")["changed"])

    def drop(self, queue: str, ids: Sequence[str]) -> Results:
        validation.check_many(ids, "ids")
        return _results(self.get("POST", f"{_path(queue)}/drop", {"ids": [*ids]}))

    def sweep(self) -> int:
        return int(self.get("POST", "/v1/sweep")["changed"])

    def delete_queue(self, queue: str) -> None:
        self.get("DELETE", _path(queue))

    def move_dead(self, verb: str, queue: str) -> dict[str, Any]:
        return dict(self.get("POST", f"{_path(queue)}/dead-letters/{verb}", {"all": True}))


def _path(queue: str) -> str:
    return f"/v1/queues/{quote(validation.check_queue(queue), safe='')}"


def _written(body: object) -> bytes:
    try:
        return dumps(body)
    except BadInput as error:
        raise BadInput(str(error), field="payload") from None


def _error(told: Mapping[str, Any]) -> QueueError:
    """As the verb would have raised it: of one message, not of one in a batch."""
    field: str = told.get("field", "")
    if field.startswith("messages["):
        field = field.partition(".")[2] or "messages"
    if field.startswith("leases["):
        field = "leaseId"
    return error_of(told["code"], told["message"], FIELDS.get(field, field) or None)


def _several(leases: str | Sequence[str]) -> Sequence[str]:
    return [leases] if isinstance(leases, str) else leases


def _results(answer: Mapping[str, Any]) -> Results:
    return [None if one["ok"] else _error(one["error"]) for one in answer["results"]]


def _raise_first(errors: Results) -> None:
    for error in errors:
        if error is not None:
            raise error


def _elements(raw: bytes) -> list[bytes]:
    """Of a JSON array, each with its own text."""
    import msgspec

    return [bytes(one) for one in msgspec.json.decode(raw, type=list[msgspec.Raw])]


def _document(message: object) -> bytes:
    """Any JSON value, bytes, or a ``NewMessage``, as this API takes it."""
    new = message if isinstance(message, NewMessage) else NewMessage(payload=message)
    is_raw = isinstance(new.payload, bytes | bytearray | memoryview)
    attributes: Any = new.attributes
    if new.priority is not None:
        attributes = {**attributes, "priority": new.priority}
    given = {
        "messageId": new.id,
        "timestamp": new.timestamp,
        "type": new.type,
        "version": new.version,
        "attributes": attributes if attributes != {} else None,
        "traceId": new.trace_id,
        "deduplicationKey": new.deduplication_key,
        "contentType": new.content_type if is_raw and new.content_type != "application/json" else None,
        "groupId": getattr(new, "group", None),
        "targetConsumerId": getattr(new, "target", None),
        "delaySec": new.delay,
        "ttlSec": new.ttl,
    }
    head = _written({name: value for name, value in given.items() if value is not None})[:-1]
    if is_raw and new.content_type == "application/json":
        return b'%s,"payload":%s}' % (head, bytes(new.payload))  # type: ignore[call-overload]
    if is_raw:
        return b'%s,"payloadBase64":"%s"}' % (head, base64.b64encode(bytes(new.payload)))  # type: ignore[call-overload]
    return b'%s,"payload":%s}' % (head, _written(new.payload))


def _delivery(queue: str, policy: str, raw: bytes) -> Delivery:
    parts = members(raw) or {}
    lease = loads(parts["lease"])
    sent, header = _sent(queue, parts["message"], 0)
    incoming = DeliveredMessageBody(
        lease["leaseId"],
        sent.id,
        lease["attempt"],
        _ms(lease["leaseUntil"]),
        0,
        header,
        sent.payload,
        sent.is_json,
    )
    return new_delivery((incoming, Batch(queue, lease["consumerId"], policy)))


def _sent(queue: str, raw: bytes, published_at: int) -> tuple[Envelope, str]:
    envelope = read_envelope(queue, raw, "none", published_at)
    return envelope, envelope.header


def _look(raw: bytes) -> MessageView:
    parts = members(raw) or {}
    text = parts.pop("message")
    card = {name: loads(one) for name, one in parts.items()}
    failed = card["failure"]
    message = Message(
        card["seq"],
        card["queue"],
        card["messageId"],
        State(card["state"]),
        RANK_LAST if card["priority"] is None else card["priority"],
        0,
        card["attempt"],
        card["leases"],
        _ms(card["dueAt"]),
        _ms(card["expiresAt"]),
        _ms(card["changedAt"]),
        card["consumerId"] or "",
        card["reasonCode"] or "",
        0,
        text != b"null",
    )
    envelope = None if text == b"null" else _sent(message.queue, text, _ms(card["publishedAt"]))[0]
    failure = failed and MessageFailure(
        failed["reasonCode"],
        failed["reasonMessage"],
        _ms(failed["failedAt"]),
        failed["attempt"],
        failed["consumerId"] or "",
    )
    return MessageView(message, envelope, failure, read_policy({"dlq": {"queue": card["dlqQueue"]}}, message.queue))


def _ms(instant: str | None) -> int:
    return 0 if instant is None else round(datetime.fromisoformat(instant).timestamp() * 1000)
