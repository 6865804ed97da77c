"""How often, how long and where a client tries: its patience, without waiting for it."""

import os
from typing import Any

import pytest

from yirangmq.client.address import ServerAddress, read_addresses
from yirangmq.client.blocking_transport import ThreadLock, run
from yirangmq.client.connection import BACKOFF, PendingRequest, Pipeline, ReconnectingConnection
from yirangmq.client.session import ConnectionLost, Reply, Slot
from yirangmq.client.transport import ClientOptions
from yirangmq.core.errors import BadInput, NotAllowed, Unreachable
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

WELCOME = Reply(FrameKind.WELCOME, messages.Welcome("s", "n", "full", 1000))
PONG = Reply(FrameKind.PONG, messages.Empty())

SILENCE = object()
"""A while in which nothing is heard."""


class Script:
    """Connections that do as they are told: each is a list of answers, ``ConnectionLost`` among them, or an error to
    dialing."""

    def __init__(self, *lines: Any) -> None:
        self._lines = list(lines)
        self.dialled: list[str] = []
        self.slept: list[float] = []
        self.sent: list[tuple[int, FrameKind]] = []

    def lock(self) -> ThreadLock:
        return ThreadLock()

    async def dial(self, address: ServerAddress, seconds: float, patience: float) -> "ScriptedLine":
        self.dialled.append(str(address))
        answers = self._lines.pop(0) if self._lines else OSError("nobody")
        if isinstance(answers, Exception):
            raise answers
        return ScriptedLine(self, [WELCOME, *answers])

    async def speaks_tls(self, address: ServerAddress, seconds: float) -> bool:
        return False

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class ScriptedLine:
    def __init__(self, script: Script, answers: list[Any]) -> None:
        self._script = script
        self._answers = answers
        self._number = len(script.dialled)
        self.process = os.getpid()
        self.is_alive = True

    def apply_welcome(self, welcome: messages.Welcome) -> None:
        self.welcome = welcome

    async def request(self, kind: FrameKind, body: Any) -> Slot:
        self._script.sent.append((self._number, kind))
        if not self.is_alive:
            raise ConnectionLost("gone")
        return Slot(kind, 1)

    async def answer(self, slot: Slot, seconds: float) -> Reply:
        answer = self._answers.pop(0) if self._answers else ConnectionLost("silence")
        if isinstance(answer, ConnectionLost):
            self.is_alive = False
            raise answer
        reply: Reply = answer
        return reply

    async def subscribe(self, stream: Any, body: Any) -> int:
        raise NotImplementedError

    def remove_subscription(self, number: int) -> None:
        raise NotImplementedError

    def set_topic_inbox(self, feed: Any) -> None:
        raise NotImplementedError

    def notify_taken(self) -> None:
        raise NotImplementedError

    def abandon(self, slot: Slot) -> None:
        pass

    def process_received(self) -> None:
        raise NotImplementedError

    async def exchange(self) -> None:
        """Nothing to send or to read."""

    async def wait_for_data(self, one: Any, seconds: float) -> bool:
        """False for each ``SILENCE`` of the script."""
        is_silent = bool(self._answers) and self._answers[0] is SILENCE
        if is_silent:
            self._answers.pop(0)
        return not is_silent

    async def close(self) -> None:
        self.is_alive = False


def courier(
    script: Script, addresses: str = "unix:/a", retries: int = 3, chance: float = 0.5, timeout: float = 1.0
) -> ReconnectingConnection:
    return ReconnectingConnection(
        script, ClientOptions(read_addresses(addresses), "c", timeout, retries), lambda: chance
    )


def asked(courier: ReconnectingConnection, count: int = 1, window: int = 8) -> list[PendingRequest]:
    """Pings, several on their way at once, each seen through to its answer."""
    errands = [PendingRequest(FrameKind.PING, messages.Empty()) for _ in range(count)]
    pipeline = Pipeline(courier, window)

    async def all_of_them() -> None:
        for errand in errands:
            await pipeline.put(errand)
        await pipeline.finish()

    run(all_of_them())
    return errands


def test_backoff_grows_to_a_limit_and_the_error_counts_the_tries() -> None:
    script = Script()
    with pytest.raises(Unreachable, match=r"unix:/a: nobody \(tried 9 times\)"):
        run(courier(script, retries=8).transport())
    assert len(script.dialled) == 9
    assert script.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_backoff_jitter_is_half_of_the_pause_both_ways(chance: float) -> None:
    script = Script()
    with pytest.raises(Unreachable):
        run(courier(script, retries=1, chance=chance).transport())
    assert script.slept == [BACKOFF.first * (0.5 + chance)]


def test_reconnect_tries_every_address_before_it_pauses() -> None:
    script = Script(OSError("1"), OSError("2"), OSError("3"), [])
    run(courier(script, "unix:/a,unix:/b").transport())
    assert (script.dialled, len(script.slept)) == (["unix:/a", "unix:/b", "unix:/a", "unix:/b"], 1)


def test_reconnect_tries_the_address_that_worked_first() -> None:
    script = Script(OSError("1"), [ConnectionLost("cut")], [PONG])
    assert asked(courier(script, "unix:/a,unix:/b"))[0].resent
    assert script.dialled == ["unix:/a", "unix:/b", "unix:/b"]


def test_reconnect_gives_up_a_server_that_accepts_connections_and_drops_requests() -> None:
    script = Script([], [], [], [], [])
    with pytest.raises(Unreachable, match="unix:/a: no connection after 4 attempts: silence"):
        asked(courier(script))
    assert len(script.dialled) == 4
    assert script.slept == [BACKOFF.first, BACKOFF.first * 2]


def test_reconnect_stops_at_a_wrong_token_or_protocol_version() -> None:
    for error in (NotAllowed("token"), BadInput("version 9", field="version")):
        lost = ConnectionLost("refused")
        lost.__cause__ = error
        script = Script([])
        refused = ScriptedLine(script, [lost])

        async def dial(
            address: ServerAddress, seconds: float, patience: float, transport: ScriptedLine = refused
        ) -> ScriptedLine:
            return transport

        script.dial = dial  # type: ignore[method-assign]
        with pytest.raises(type(error)):
            run(courier(script).transport())
        assert script.slept == []


def test_reconnect_sends_all_unanswered_requests_again_in_order() -> None:
    script = Script([PONG, ConnectionLost("cut")], [PONG] * 9)
    errands = asked(courier(script), 5)
    assert [errand.sent for errand in errands] == [1, 2, 2, 2, 2]
    assert script.sent == [
        (1, FrameKind.HELLO),
        *[(1, FrameKind.PING)] * 5,
        (2, FrameKind.HELLO),
        *[(2, FrameKind.PING)] * 4,
    ]


def test_pipelining_sends_no_more_unanswered_requests_than_the_window() -> None:
    script = Script([PONG] * 2 + [ConnectionLost("cut")], [PONG] * 9)
    errands = asked(courier(script), 6, window=2)
    assert sum(errand.resent for errand in errands) == 2


def test_retry_repeats_a_request_answered_unavailable_after_a_backoff() -> None:
    later = Reply(FrameKind.ERROR, messages.ErrorBody("unavailable", "full", None))
    script = Script([later, later, PONG])
    assert asked(courier(script))[0].sent == 3
    assert script.slept == [BACKOFF.first]


def test_retry_is_not_done_for_any_other_error_answer() -> None:
    script = Script([Reply(FrameKind.ERROR, messages.ErrorBody("bad_input", "no", "queue"))])
    [errand] = asked(courier(script))
    with pytest.raises(BadInput, match="queue: no"):
        errand.value(FrameKind.PONG)
    assert script.slept == []


def test_reconnect_stops_after_close() -> None:
    script = Script([], [])
    one = courier(script)
    run(one.transport())
    run(one.close())
    with pytest.raises(Unreachable, match="closed"):
        run(one.transport())
    assert len(script.dialled) == 1


def frozen() -> ConnectionLost:
    lost = ConnectionLost("no answer")
    lost.__cause__ = TimeoutError("no answer")
    return lost


def test_keep_alive_ping_finds_a_silent_server_and_the_request_moves_to_the_next_address() -> None:
    script = Script([SILENCE, PONG, SILENCE, frozen()], [PONG])
    asked(courier(script, "unix:/a,unix:/b", timeout=600.0))
    assert script.dialled == ["unix:/a", "unix:/b"]
    assert [kind for _, kind in script.sent].count(FrameKind.PING) == 4, "the request, two questions, the request again"
