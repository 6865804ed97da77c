"""CONNECT, DISCONNECT, heart-beats, tokens, and how everything ends."""

import pytest

from tests.support.stomp import StompServer, bodies, error_of
from yirangmq.core.access import AccessGrant
from yirangmq.core.states import State
from yirangmq.protocols.stomp.codec import MIN_INTERVAL_MS
from yirangmq.wire.stomp import V10, V11, V12


@pytest.mark.parametrize(
    ("offered", "chosen"), [("1.0", V10), ("1.1", V11), ("1.2", V12), ("1.0,1.1,1.2", V12), ("1.3, 1.1", V11)]
)
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_stomp_version_is_the_newest_common_one(server: StompServer, command: str, offered: str, chosen: str) -> None:
    [frame] = server.dial().do(command, accept_version=offered)
    assert (frame.command, frame.headers["version"]) == ("CONNECTED", chosen)
    assert frame.headers["server"] == "test/1"
    assert frame.headers["session"]


def test_stomp_version_is_1_0_without_an_offer(server: StompServer) -> None:
    [frame] = server.dial().do("CONNECT", login="guest", passcode="guest")
    assert frame.headers["version"] == V10


def test_stomp_version_unknown_is_rejected_with_the_supported_versions(server: StompServer) -> None:
    client = server.dial()
    [frame] = client.do("CONNECT", accept_version="2.0")
    assert (frame.command, frame.headers["version"]) == ("ERROR", "1.0,1.1,1.2")
    assert client.is_closed


def test_stomp_connect_repeated_is_rejected(server: StompServer) -> None:
    assert "connected already" in error_of(server.connected().do("CONNECT"))


def test_stomp_connect_is_required_before_other_frames(server: StompServer) -> None:
    client = server.dial()
    assert "first frame must be CONNECT" in error_of(client.do("SEND", b"x", destination="/queue/a"))
    assert client.is_closed
    assert client.do("CONNECT") == []


@pytest.mark.parametrize("command", ["MESSAGE", "RECEIPT", "ERROR", "CONNECTED", "SUBSCRIBEX"])
def test_stomp_command_not_of_a_client_is_rejected(server: StompServer, version: str, command: str) -> None:
    client = server.connected(version)
    assert f"'{command}' is not a frame of a client" in error_of(client.do(command, receipt="7"))
    assert client.is_closed


def test_stomp_error_names_the_receipt_of_its_frame(server: StompServer) -> None:
    [frame] = server.connected().do("BEGIN", receipt="r-9")
    assert frame.headers["receipt-id"] == "r-9"
    assert frame.headers["message"] == "bad_input: transaction: is missing: the name of the transaction"
    assert frame.body.startswith(b"transaction: is missing")


def test_stomp_body_is_rejected_in_begin(server: StompServer) -> None:
    assert "BEGIN has no body" in error_of(server.connected().do("BEGIN", b"x", transaction="t"))


# -- tokens ---------------------------------------------------------------------------------------------------------

GRANTS = (
    AccessGrant("all-of-it"),
    AccessGrant("sends-only", frozenset({"publish"}), ("mail*",)),
    AccessGrant("takes-only", frozenset({"consume"})),
)


@pytest.mark.parametrize("headers", [{}, {"passcode": "wrong"}, {"login": "wrong", "passcode": ""}])
def test_token_missing_or_wrong_is_rejected_with_an_error_that_names_the_header(headers: dict[str, str]) -> None:
    client = StompServer(grants=GRANTS).dial()
    assert "CONNECT with a token of this server as the header passcode" in error_of(client.do("CONNECT", **headers))
    assert client.is_closed


@pytest.mark.parametrize("headers", [{"login": "anybody", "passcode": "all-of-it"}, {"login": "all-of-it"}])
def test_token_is_read_from_passcode_or_login(headers: dict[str, str]) -> None:
    client = StompServer(grants=GRANTS).connected(**headers)
    client.send("/queue/anything", b"x")


def test_token_as_login_is_ignored_beside_a_passcode() -> None:
    """Who has one token could guess others without being slowed down."""
    client = StompServer(grants=GRANTS).connected(login="all-of-it", passcode="sends-only")
    assert "this token does not allow to" in error_of(client.do("SEND", b"x", destination="/queue/post"))
    refused = StompServer(grants=GRANTS).dial().do("CONNECT", login="all-of-it", passcode="wrong")
    assert "CONNECT with a token" in error_of(refused)


def test_token_allows_only_its_scopes_and_queues() -> None:
    server = StompServer(grants=GRANTS)
    server.connected(passcode="sends-only").send("/queue/mail-1", b"x")
    refused = [
        server.connected(passcode="sends-only").do("SEND", b"x", destination="/queue/post"),
        server.connected(passcode="sends-only").subscribe("/queue/mail-1"),
        server.connected(passcode="takes-only").do("SEND", b"x", destination="/queue/mail-1"),
    ]
    assert all("this token does not allow to" in error_of(frames) for frames in refused)
    assert bodies(server.connected(passcode="takes-only").subscribe("/queue/mail-1")) == [b"x"]


# -- heart-beats ------------------------------------------------------------------------------------------------------


def test_stomp_heartbeat_is_negotiated(server: StompServer) -> None:
    [frame] = server.dial().do("CONNECT", accept_version="1.2", heart_beat="4000,6000")
    assert frame.headers["heart-beat"] == f"{MIN_INTERVAL_MS},{MIN_INTERVAL_MS}"
    [frame] = server.dial().do("CONNECT", accept_version="1.2", heart_beat="0,0")
    assert frame.headers["heart-beat"] == "0,0"


@pytest.mark.parametrize("given", ["1000", "a,b", "-1,0", "1,2,3", ""])
def test_stomp_heartbeat_header_that_is_invalid_is_rejected(server: StompServer, given: str) -> None:
    assert "heart-beat: must be two numbers" in error_of(server.dial().do("CONNECT", heart_beat=given))


def test_stomp_heartbeat_is_sent_by_an_idle_server(server: StompServer) -> None:
    client = server.connected(heart_beat="0,1000")
    for _ in range(20):
        server.turns.advance(500)
    assert 9 <= client.beats <= 20


def test_stomp_heartbeat_timeout_closes_a_silent_client_and_returns_its_messages(server: StompServer) -> None:
    client = server.connected(heart_beat="1000,0")
    client.send("/queue/mail", b"x")
    assert bodies(client.subscribe("/queue/mail")) == [b"x"]
    server.turns.advance(1000)
    client.raw(b"\n")
    closed = []
    for _ in range(3):
        server.turns.advance(1000)
        closed.append(client.is_closed)
    assert closed == [False, False, True]
    assert "no data was received for 2000 ms" in error_of(client.heard())
    assert bodies(server.connected().subscribe("/queue/mail")) == [b"x"]


def test_stomp_heartbeat_timeout_does_not_run_while_backpressure_pauses_reading(server: StompServer) -> None:
    client = server.connected(heart_beat="1000,0")
    client.session.is_write_paused = True
    for _ in range(10):
        server.turns.advance(1000)
    assert client.heard() == []
    client.session.on_writable()
    server.turns.advance(1000)
    server.turns.advance(1000)
    assert "no data was received" in error_of(client.heard())


def test_stomp_heartbeat_not_promised_allows_a_silent_client(server: StompServer) -> None:
    client = server.connected()
    for _ in range(100):
        server.turns.advance(60_000)
    assert not client.is_closed
    assert client.session.is_waiting


# -- the end ----------------------------------------------------------------------------------------------------------


def test_disconnect_receipt_follows_all_receipts_before_it(server: StompServer, version: str) -> None:
    client = server.connected(version)
    frames = client.write("SEND", b"x", destination="/queue/mail", receipt="1") + client.write(
        "DISCONNECT", receipt="2"
    )
    said = client.raw(frames)
    assert [frame.headers["receipt-id"] for frame in said] == ["1", "2"]
    assert client.is_closed


def test_stomp_error_follows_the_receipts_of_earlier_frames(server: StompServer) -> None:
    client = server.connected()
    frames = [
        client.write("SEND", b"1", destination="/queue/mail", receipt="1"),
        client.write("SEND", b"2", destination="/nowhere/x", receipt="2"),
        client.write("SEND", b"3", destination="/queue/mail", receipt="3"),
    ]
    said = client.raw(b"".join(frames))
    assert [(frame.command, frame.headers["receipt-id"]) for frame in said] == [("RECEIPT", "1"), ("ERROR", "2")]
    assert bodies(server.connected().subscribe("/queue/mail")) == [b"1"]


def test_stop_sends_an_error_and_returns_held_messages_to_ready(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b"x")
    client.subscribe("/queue/mail")
    client.session.stop()
    server.turn()
    client.session.send_goodbye()
    assert "the server is stopping" in error_of(client.heard())
    with server.store.transaction(write=False) as transaction:
        [message] = transaction.scan("mail", State.READY, 10).messages
    assert (message.attempt, message.leases) == (0, 1)


def test_metrics_count_frames_by_command_and_errors_by_code(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b"1", b"2")
    client.subscribe("/queue/mail", "auto")
    client.do("NONSENSE")
    assert dict(server.parlour.frames) == {"CONNECT": 1, "SEND": 2, "SUBSCRIBE": 1, "MESSAGE": 2, "unknown": 1}
    assert dict(server.parlour.errors) == {"bad_input": 1}
