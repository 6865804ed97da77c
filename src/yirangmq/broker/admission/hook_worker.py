"""Hook worker: the process that runs hooks, ``python -m yirangmq.broker.admission.hook_worker FD``.

It answers requests over a socket, one after the other. When the server closes the socket, a reader thread ends the
process, even while a hook runs. The worker has no timeouts: ``broker.admission.hooks`` kills it when a hook exceeds its
timeout.

A request without a message id only loads the hook. The outcome is ``fine``, ``unfit`` (the message is refused) or
``failed`` (an error of the hook); ``Reject``, ``BadInput`` and ``ValueError`` make a message unfit.

Frame: length of the rest, length of the JSON text (4 bytes each, big-endian), the JSON text, the payloads."""

import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope
from yirangmq.format.envelope import JSON_TYPE, NewMessage, header_of, payload_value
from yirangmq.format.json_codec import dumps

FINE, UNFIT, FAILED = "fine", "unfit", "failed"
Answer = dict[str, Any]
MESSAGE_FIELDS = (
    "id", "type", "version", "attributes", "trace_id", "deduplication_key", "priority", "delay", "ttl", "timestamp",
    "content_type", "group", "target",
)  # fmt: skip
"""Fields of a new message other than its payload."""


class HookMessage:
    """Argument of a hook: a read-only view of a message that is not stored yet."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    @property
    def queue(self) -> str:
        return self._envelope.queue

    @property
    def id(self) -> str:
        return self._envelope.id

    @property
    def payload(self) -> bytes:
        return self._envelope.payload

    @property
    def header(self) -> dict[str, Any]:
        """The envelope without its payload: messageId, timestamp, type, attributes, traceId …"""
        return header_of(self._envelope)

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.header.get("attributes") or {})

    def value(self) -> Any:
        """The payload decoded from JSON, or its bytes if it is not JSON."""
        return payload_value(self._envelope)


def frame(about: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(about).encode()
    return b"%s%s%s%s" % ((len(text) + len(body) + 4).to_bytes(4), len(text).to_bytes(4), text, body)


def unframe(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode a frame without its first length."""
    edge = 4 + int.from_bytes(data[:4])
    about: dict[str, Any] = json.loads(data[4:edge])
    return about, data[edge:]


def load(name: str) -> Callable[[HookMessage], Any]:
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for step in path.split("."):
        found = getattr(found, step)
    if not callable(found):
        raise TypeError(f"{name} is not a function")
    function: Callable[[HookMessage], Any] = found
    return function


def answer(hooks: dict[str, Callable[[HookMessage], Any]], about: dict[str, Any], payload: bytes) -> bytes:
    """Answer one request: load a hook, or call it with a message."""
    name = about["hook"]
    try:
        if name not in hooks:
            hooks[name] = load(name)
        if "id" not in about:
            return frame({"outcome": FINE})
        sent = (about["queue"], about["id"], 0, about["at"], about["at"], 0, None, about["header"], payload)
        value = hooks[name](HookMessage(Envelope(*sent, about["isJson"])))
        return _encode_result(value, produces=about["produces"])
    except BaseException as error:  # SystemExit too: a hook must not end the worker
        return frame(_raised(error))


def _encode_result(value: Any, *, produces: bool) -> bytes:
    if produces:
        made = value if isinstance(value, list | tuple) else [] if value is None else [value]
        parts = [_packed(one) for one in made]
        return frame({"outcome": FINE, "made": [about for about, _ in parts]}, b"".join(body for _, body in parts))
    if value is None or value is True:
        return frame({"outcome": FINE})
    if value is False or isinstance(value, str):
        return frame({"outcome": UNFIT, "text": value or "the hook refused the message"})
    kind = type(value).__name__
    return frame({"outcome": FAILED, "text": f"returned {kind}; a hook without produces returns nothing, or a reason"})


def _packed(value: Any) -> tuple[dict[str, Any], bytes]:
    new = value if isinstance(value, NewMessage) else NewMessage(payload=value)
    about = {name: getattr(new, name) for name in MESSAGE_FIELDS}
    about["attributes"] = dict(new.attributes)
    if isinstance(new.payload, bytes | bytearray | memoryview):
        body = bytes(new.payload)
    else:
        body, about["content_type"] = dumps(new.payload), JSON_TYPE
    return {**about, "size": len(body)}, body


def unpacked(about: dict[str, Any], body: bytes) -> list[NewMessage]:
    """Decode the new messages of an answer of ``_encode_result``."""
    made, at = [], 0
    for one in about.get("made", ()):
        size = one.pop("size")
        made.append(NewMessage(payload=body[at : at + size], **one))
        at += size
    return made


def _raised(error: BaseException) -> Answer:
    """Map an exception to an outcome.

    ``Reject``, ``BadInput`` and ``ValueError`` refuse the message; any other exception is an error of the hook."""
    text = str(error) or type(error).__name__
    if isinstance(error, BadInput):
        field = error.field or "payload"
        return {"outcome": UNFIT, "field": field, "text": text.removeprefix(f"{field}: ")}
    is_reject = any(kind.__name__ == "Reject" and kind.__module__.startswith("yirangmq.") for kind in type(error).mro())
    if is_reject or isinstance(error, ValueError):
        return {"outcome": UNFIT, "text": text}
    return {"outcome": FAILED, "text": f"{type(error).__name__}: {text}"}


def _read(connection: socket.socket, requests: "queue.SimpleQueue[bytes]") -> None:
    """Read requests on a separate thread, so that the worker exits when the socket is closed while a hook runs."""
    with connection.makefile("rb") as stream:
        while head := stream.read(4):
            requests.put(stream.read(int.from_bytes(head)))
    os._exit(0)


def main(descriptor: int, path: list[str]) -> None:
    """Answer requests. ``path`` is the module path of the process that started this one: it is searched last."""
    connection = socket.socket(fileno=descriptor)
    if os.getcwd() not in sys.path:  # noqa: PTH109  (sys.path holds strings)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    sys.path += [folder for folder in path if folder and folder not in sys.path]
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
    hooks: dict[str, Callable[[HookMessage], Any]] = {}
    while True:
        connection.sendall(answer(hooks, *unframe(requests.get())))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
