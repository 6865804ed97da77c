"""One connection without a connection: bytes in, bytes out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.client import session
from yirangmq.client.session import ClientSession, ConnectionLost, QueueInbox, Slot
from yirangmq.core.errors import BadInput, NotAllowed, QueueError, TooLarge, Unavailable
from yirangmq.wire import messages as calls
from yirangmq.wire.frames import FrameKind, FrameReader, encode

PING = calls.Empty()


def hear(talk: ClientSession, data: bytes) -> tuple[list[session.DataSource], bytes]:
    """Bytes from the server, put where it wants them."""
    news, back = [], b""
    while data:
        free_space = talk.free_space()[: len(data)]
        free_space[:] = data[: len(free_space)]
        data = data[len(free_space) :]
        found, owed = talk.receive(len(free_space))
        news += found
        back += owed
    return news, back


def asked(talk: ClientSession, kind: FrameKind = FrameKind.PING) -> Slot:
    return talk.request(kind, PING if kind is FrameKind.PING else calls.Lease("q", 1))[0]


def delivered(number: int, *leases: str) -> bytes:
    messages = [calls.DeliveredMessageBody(lease, f"m{lease}", 1, 2, 3, "", b"x", False) for lease in leases]
    return calls.frame(FrameKind.DELIVER, number, calls.Deliver("q", messages))


def test_session_assigns_answers_to_their_requests_in_any_order() -> None:
    talk = ClientSession()
    first, second = asked(talk), asked(talk)
    answers = [calls.frame(FrameKind.RESULT, slot.number, calls.Result(slot.number)) for slot in (second, first)]
    assert hear(talk, b"".join(answers)) == ([second, first], b"")
    for slot in (first, second):
        assert slot.reply is not None
        assert slot.reply.wanted(FrameKind.RESULT).value == slot.number


def test_session_accepts_bytes_split_anywhere() -> None:
    data = calls.frame(FrameKind.PONG, 1, PING) + calls.frame(FrameKind.RESULT, 2, calls.Result({"a": [1, "b"]}))
    for at in range(len(data) + 1):
        talk = ClientSession()
        slots = [asked(talk), asked(talk)]
        assert hear(talk, data[:at])[0] + hear(talk, data[at:])[0] == slots
        assert slots[1].reply is not None
        assert slots[1].reply.value == calls.Result({"a": [1, "b"]})


def test_session_queues_pushed_messages_in_their_stream_in_order() -> None:
    talk, stream = ClientSession(), QueueInbox()
    number, data = talk.subscribe(stream, calls.Subscribe("q", 9))
    [frame] = FrameReader().feed(bytes(data))
    assert (frame.kind, frame.request) == (FrameKind.SUBSCRIBE, number)
    assert hear(talk, delivered(number, "1-1") + delivered(number, "2-1"))[0] == [stream, stream]
    assert [push.messages[0].lease for push in stream.entries] == ["1-1", "2-1"]


def test_session_ends_a_refused_subscription_with_its_error() -> None:
    talk, stream = ClientSession(), QueueInbox()
    number, _ = talk.subscribe(stream, calls.Subscribe("q", 9))
    hear(talk, calls.frame(FrameKind.ERROR, number, calls.ErrorBody("bad_input", "no", "credit")))
    assert stream.is_over
    assert isinstance(stream.error, BadInput)


def test_session_releases_messages_of_a_lease_request_that_was_abandoned() -> None:
    talk = ClientSession()
    slot = asked(talk, FrameKind.LEASE)
    talk.abandon(slot)
    news, back = hear(talk, delivered(slot.number, "1-1", "2-1"))
    assert news == []
    [frame] = FrameReader().feed(back)
    assert frame.kind == FrameKind.RELEASE
    assert calls.read(frame.kind, frame.body).leases == ["1-1", "2-1"]


def test_session_ignores_an_empty_or_late_answer_to_an_abandoned_request() -> None:
    talk = ClientSession()
    lease, ping = asked(talk, FrameKind.LEASE), asked(talk)
    talk.abandon(lease)
    talk.abandon(ping)
    assert hear(talk, delivered(lease.number) + calls.frame(FrameKind.PONG, ping.number, PING)) == ([], b"")


def test_session_does_not_reuse_a_request_number_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_REQUEST_NUMBER", 4)
    talk = ClientSession()
    talk.subscribe(QueueInbox(), calls.Subscribe("q", 9))
    orphan = asked(talk, FrameKind.LEASE)
    talk.abandon(orphan)
    kept = asked(talk)
    assert [1, orphan.number, kept.number] == [1, 2, 3]
    for _ in range(3):
        slot = asked(talk)
        assert slot.number == 4
        talk.abandon(slot)


def test_session_ends_at_an_error_frame_without_a_request() -> None:
    talk = ClientSession()
    slot = asked(talk)
    with pytest.raises(ConnectionLost) as caught:
        hear(talk, calls.frame(FrameKind.ERROR, 0, calls.ErrorBody("not_allowed", "who are you", "token")))
    assert isinstance(caught.value.__cause__, NotAllowed)
    assert talk.failure is caught.value.__cause__
    assert talk.fail(OSError("later")) == [slot]
    assert isinstance(talk.failure, NotAllowed)


def test_session_ends_as_unavailable_at_a_bye_frame() -> None:
    talk = ClientSession()
    with pytest.raises(ConnectionLost) as caught:
        hear(talk, calls.frame(FrameKind.BYE, 0, PING))
    assert isinstance(caught.value.__cause__, Unavailable)


@pytest.mark.parametrize(
    "rubbish",
    [b"HTTP/1.1 400 Bad Request\r\n", b"\xff" * 40, calls.frame(FrameKind.PONG, 1, calls.Result(1))[:-1] + b"\xc1"],
)
def test_session_ends_at_malformed_bytes(rubbish: bytes) -> None:
    talk = ClientSession()
    asked(talk)
    with pytest.raises(ConnectionLost):
        hear(talk, rubbish)


def test_session_does_not_send_a_frame_larger_than_the_server_accepts() -> None:
    talk = ClientSession()
    talk.max_frame = 100
    with pytest.raises(TooLarge):
        talk.request(FrameKind.PUBLISH, calls.Publish("q", [calls.OutgoingMessageBody(b"x" * 100, False)]))
    slot, data = talk.request(FrameKind.PUBLISH, calls.Publish("q", [calls.OutgoingMessageBody(b"x" * 50, False)]))
    [frame] = FrameReader().feed(bytes(data))
    assert frame.request == slot.number


@pytest.mark.parametrize("value", [object(), 2**70, {1: {2: object()}}])
def test_session_refuses_values_that_cannot_be_encoded(value: object) -> None:
    with pytest.raises(BadInput) as caught:
        ClientSession().request(FrameKind.CALL, calls.Call("peek", {"queue": value}))
    assert caught.value.field == "values"


def test_session_raises_for_an_answer_of_the_wrong_kind_and_for_an_error_answer() -> None:
    talk = ClientSession()
    slot, other = asked(talk), asked(talk)
    hear(talk, calls.frame(FrameKind.PONG, slot.number, PING))
    hear(talk, calls.frame(FrameKind.ERROR, other.number, calls.ErrorBody("too_large", "much", "payload")))
    assert slot.reply is not None
    assert other.reply is not None
    with pytest.raises(QueueError):
        slot.reply.wanted(FrameKind.RESULT)
    with pytest.raises(TooLarge, match="payload: much"):
        other.reply.wanted(FrameKind.RESULT)


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(0, 19), st.integers(0, 4))
def test_session_fed_any_bytes_processes_them_or_raises_lost(bodies: list[bytes], kind: int, number: int) -> None:
    talk = ClientSession()
    asked(talk)
    talk.subscribe(QueueInbox(), calls.Subscribe("q", 9))
    talk.abandon(asked(talk, FrameKind.LEASE))
    try:
        for body in bodies:
            hear(talk, encode(kind, number, body))
            hear(talk, body)
    except ConnectionLost:
        assert talk.failure is not None
