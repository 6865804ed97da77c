"""One example of every kind of frame. ``tools/wire_golden.py`` writes them to tests/golden/wire/frames.txt, once;
docs/wire.md shows some of them."""

from typing import NamedTuple

import msgspec

from yirangmq.wire import messages
from yirangmq.wire.frames import HEAD, FrameKind


class Example(NamedTuple):
    name: str
    kind: FrameKind
    request: int
    body: msgspec.Struct

    def bytes(self) -> bytes:
        return messages.frame(self.kind, self.request, self.body)


PAYLOAD = b'{"temp":36.1}'
EPOCH = "0123456789abcdef0123456789abcdef"
AT_NS = 1_768_296_060_000_000_000
EXAMPLES = (
    Example("hello", FrameKind.HELLO, 1, messages.Hello("billing", "s3cret")),
    Example("welcome", FrameKind.WELCOME, 1, messages.Welcome("yirangmq 0.1.0", "north", "full", 16 * 1024 * 1024)),
    Example(
        "publish", FrameKind.PUBLISH, 2, messages.Publish("telemetry", [messages.OutgoingMessageBody(PAYLOAD, True)])
    ),
    Example(
        "publish-all-members",
        FrameKind.PUBLISH,
        3,
        messages.Publish(
            "telemetry",
            [
                messages.OutgoingMessageBody(
                    b"\x00\xff", False, '{"attributes":{"priority":0}}', "alarm-1", 1500, 60_000
                )
            ],
        ),
    ),
    Example("stored", FrameKind.STORED, 2, messages.PublishReply(["m-1"])),
    Example(
        "stored-all-members",
        FrameKind.STORED,
        3,
        messages.PublishReply(["a", "b"], [0], {1: "payload.temp: is required"}),
    ),
    Example("lease", FrameKind.LEASE, 4, messages.Lease("telemetry", 10, 5000, 30_000, "worker-1")),
    Example(
        "deliver",
        FrameKind.DELIVER,
        4,
        messages.Deliver(
            "telemetry",
            [messages.DeliveredMessageBody("1-1", "m-1", 1, 1_768_296_090_000, 1_768_296_060_000, "", PAYLOAD, True)],
            '{"visibilityTimeoutSec":30}',
        ),
    ),
    Example("deliver-nothing", FrameKind.DELIVER, 4, messages.Deliver("telemetry", [])),
    Example("ack", FrameKind.ACK, 5, messages.Settle(["1-1"], "worker-1")),
    Example("nack", FrameKind.NACK, 6, messages.Nack(["2-1"], "HANDLER_ERROR", "no disk", 2000, None)),
    Example("extend", FrameKind.EXTEND, 7, messages.Extend(["3-1"], 60_000, None)),
    Example("release", FrameKind.RELEASE, 8, messages.Settle(["4-1"], None)),
    Example("settled", FrameKind.SETTLED, 5, messages.SettleReply()),
    Example("settled-with-errors", FrameKind.SETTLED, 6, messages.SettleReply({0: ("lease_expired", "it ran out")})),
    Example("subscribe", FrameKind.SUBSCRIBE, 9, messages.Subscribe("telemetry", 64, None, "worker-1")),
    Example(
        "subscribe-again",
        FrameKind.SUBSCRIBE,
        9,
        messages.Subscribe("telemetry", 64, None, "worker-1", {"1-1": 1_768_296_090_000}),
    ),
    Example("cancel", FrameKind.CANCEL, 10, messages.Cancel(9)),
    Example("call", FrameKind.CALL, 11, messages.Call("counts", {"queue": "telemetry"})),
    Example("result", FrameKind.RESULT, 11, messages.Result({"ready": 1})),
    Example("error", FrameKind.ERROR, 12, messages.ErrorBody("bad_input", "must be a string, not int", "queue")),
    Example("ping", FrameKind.PING, 13, messages.Empty()),
    Example("pong", FrameKind.PONG, 13, messages.Empty()),
    Example("bye", FrameKind.BYE, 0, messages.Empty()),
    Example(
        "topic-publish",
        FrameKind.TOPIC_PUBLISH,
        14,
        messages.TopicPublish(
            [messages.RecordBody("trades", PAYLOAD), messages.RecordBody("quotes", b"", "ABC", {"source": "north"})]
        ),
    ),
    Example(
        "topic-stored", FrameKind.TOPIC_STORED, 14, messages.TopicStored(EPOCH, 7, 8, AT_NS, {"trades": 3, "quotes": 5})
    ),
    Example("topic-subscribe", FrameKind.TOPIC_SUBSCRIBE, 15, messages.TopicSubscribe(["trades", "quotes.*"])),
    Example(
        "topic-subscribe-all",
        FrameKind.TOPIC_SUBSCRIBE,
        15,
        messages.TopicSubscribe([], 7, "ledger", "sequence", 42, EPOCH, False, 250),
    ),
    Example(
        "topic-subscribed",
        FrameKind.TOPIC_SUBSCRIBED,
        15,
        messages.TopicSubscribed(EPOCH, 43, 1, 50, [(45, 46)], True),
    ),
    Example("recovery-request", FrameKind.RECOVERY_REQUEST, 16, messages.TopicRecoveryRequest(42, EPOCH)),
    Example(
        "recovery-response", FrameKind.RECOVERY_RESPONSE, 16, messages.TopicRecoveryResponse(43, 50, 6, [(45, 46)])
    ),
    Example("recovery-complete", FrameKind.RECOVERY_COMPLETE, 16, messages.TopicRecoveryComplete(50, 6, AT_NS)),
    Example("confirm", FrameKind.CONFIRM, 17, messages.Confirm(50)),
    Example("confirmed", FrameKind.CONFIRMED, 17, messages.Confirmed(50)),
    Example("unsubscribe", FrameKind.UNSUBSCRIBE, 18, messages.Unsubscribe()),
    Example("progress", FrameKind.PROGRESS, 0, messages.TopicProgress(60, 6, 60, AT_NS)),
)


def spelled(frame: bytes) -> str:
    """Hexadecimal, the members of the head apart: length version kind flags request | body."""
    head, body = frame[: HEAD.size].hex(), frame[HEAD.size :].hex(" ")
    return f"{head[:8]} {head[8:10]} {head[10:12]} {head[12:16]} {head[16:]} | {body}".rstrip()
