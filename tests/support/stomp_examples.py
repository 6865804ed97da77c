"""STOMP frames as they are written, one or more of each command; the golden file has their bytes."""

from typing import NamedTuple

from yirangmq.wire.stomp import V10, V11, V12, encode


class Example(NamedTuple):
    name: str
    version: str
    command: str
    headers: dict[str, str]
    body: bytes = b""

    def bytes(self) -> bytes:
        return encode(self.version, self.command, self.headers, self.body)


HARD = {"a:b": "c:d", "back\\slash": "line\nend", "return": "x\ry"}
EXAMPLES = (
    Example("connect", V12, "CONNECT", {"accept-version": "1.0,1.1,1.2", "host": "here", "passcode": "a:b\\c"}),
    Example("stomp", V11, "STOMP", {"accept-version": "1.1", "heart-beat": "1000,2000"}),
    Example("connected", V12, "CONNECTED", {"version": "1.2", "session": "s:1", "heart-beat": "0,0"}),
    Example("send", V12, "SEND", {"destination": "/queue/mail", "receipt": "r-1"}, b"hello"),
    Example("send-bytes", V11, "SEND", {"destination": "/queue/mail"}, bytes(range(256))),
    Example("send-empty", V10, "SEND", {"destination": "/queue/mail"}),
    Example("send-escaped-1.0", V10, "SEND", HARD, b"x"),
    Example("send-escaped-1.1", V11, "SEND", HARD, b"x"),
    Example("send-escaped-1.2", V12, "SEND", HARD, b"x"),
    Example("subscribe", V12, "SUBSCRIBE", {"id": "0", "destination": "/topic/a.>", "ack": "client"}),
    Example("unsubscribe", V12, "UNSUBSCRIBE", {"id": "0"}),
    Example("begin", V12, "BEGIN", {"transaction": "t"}),
    Example("commit", V12, "COMMIT", {"transaction": "t"}),
    Example("abort", V12, "ABORT", {"transaction": "t"}),
    Example("ack", V12, "ACK", {"id": "7-1", "transaction": "t"}),
    Example("nack", V11, "NACK", {"subscription": "0", "message-id": "m-1"}),
    Example("disconnect", V12, "DISCONNECT", {"receipt": "bye"}),
    Example("message", V12, "MESSAGE", {"subscription": "0", "message-id": "m-1", "ack": "7-1"}, b"\0\n\0"),
    Example("receipt", V12, "RECEIPT", {"receipt-id": "r-1"}),
    Example("error", V12, "ERROR", {"message": "bad_input: id: is missing"}, b"id: is missing\n"),
)
