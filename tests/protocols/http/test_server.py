"""The HTTP door on real sockets: who may come in, what goes out when, how it ends."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from tests.protocols.http.parts import RouteRecorder
from tests.support.credentials import client_context, server_context
from tests.support.http import Peer, ask, dial, request, serving
from tests.support.loops import Run
from tests.support.wait import PATIENCE, soon
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import QueueOperations
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.core.errors import CannotListen
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.router import HandlerRoutes, Params
from yirangmq.protocols.http.server import HttpSocket, HttpSocketServer, listen_tcp, listen_unix
from yirangmq.protocols.http.types import Exchange, Request, Response
from yirangmq.stores.memory import MemoryStore


@pytest.fixture
def stage() -> RouteRecorder:
    return RouteRecorder()


def only(door: HttpSocketServer) -> HttpSocket:
    [socket] = door.connections
    return socket


def now() -> float:
    return asyncio.get_running_loop().time()


# -- coming in ------------------------------------------------------------------------------------------------------


def test_keep_alive_answers_many_requests_on_one_connection(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes()) as (door, port):
            peer = await dial(port)
            for number in range(3):
                answer = await peer.ask("POST", "/echo", b"x" * 30_000 * number)
                assert (answer.status, len(answer.body)) == (200, 30_000 * number)
            assert (await peer.ask("HEAD", "/large")).headers["content-length"] == "500000"
            assert len((await peer.ask("GET", "/large")).body) == 500_000
            assert (door.accepted, door.total_requests) == (1, 5)
            assert stage.seen[0].peer.startswith("127.0.0.1:")

    run(main())


def test_tls_connection_answers_requests_and_rejects_plain_text(run: Run, stage: RouteRecorder, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(stage.routes(), tls=server_context(tmp_path)) as (door, port):
            peer = await dial(port, client_context(tmp_path))
            assert (await peer.ask("POST", "/echo", b"x" * 90_000)).body == b"x" * 90_000
            last = await peer.ask("GET", "/echo", headers={"Connection": "close"})
            assert last.status == 200
            assert await peer.read() == b""
            plain = await dial(port)
            plain.send(request("GET", "/echo"))
            assert await plain.read() == b""
            await soon(lambda: not door.connections)

    run(main())


def test_tls_disconnect_of_a_waiting_client_is_detected(run: Run, stage: RouteRecorder, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(stage.routes(), tls=server_context(tmp_path)) as (_, port):
            peer = await dial(port, client_context(tmp_path))
            peer.send(request("GET", "/wait"))
            await soon(lambda: bool(stage.waiting))
            peer.writer.close()
            await soon(lambda: stage.left == stage.waiting)

    run(main())


def test_unix_socket_listener_has_its_mode_and_names_the_peer_process(
    run: Run, stage: RouteRecorder, tmp_path: Path
) -> None:
    async def main() -> None:
        door = HttpSocketServer(stage.routes())
        server = await listen_unix(door, tmp_path / "h.sock", 0o600)
        peer = Peer(*await asyncio.open_unix_connection(str(tmp_path / "h.sock")))
        assert (await peer.ask("GET", "/echo")).status == 200
        assert stage.seen[0].peer == f"unix:{os.getpid()}"
        server.close()
        door.abort()
        await asyncio.sleep(0)

    run(main())
    assert stat.S_IMODE((tmp_path / "h.sock").stat().st_mode) == 0o600


def test_listener_on_a_port_in_use_fails_with_an_error_that_names_the_option(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes()) as (_, port):
            with pytest.raises(CannotListen, match=f"127.0.0.1:{port} is in use .* --http HOST:PORT") as caught:
                await listen_tcp(HttpSocketServer(stage.routes()), ("127.0.0.1", port))
            assert caught.value.field == "http"

    run(main())


def test_connection_limit_answers_503_with_retry_after(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(connections=2)) as (door, port):
            first, second = await dial(port), await dial(port)
            await soon(lambda: len(door.connections) == 2)
            third = await dial(port)
            answer = await third.hear()
            assert answer is not None
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert await third.read() == b""
            assert (await first.ask("GET", "/echo")).status == 200
            second.writer.close()
            await soon(lambda: len(door.connections) == 1)
            assert (await ask(port, "GET", "/echo")).status == 200
            assert door.closed_for == {"connections": 1}

    run(main())


# -- one write ------------------------------------------------------------------------------------------------------


def test_group_commit_responses_go_out_with_one_write_per_connection(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        desk = GroupCommitter(
            MemoryStore(), QueueOperations(clock, TimeOrderedIds()), clock, loop.call_soon, loop.call_later
        )

        def work(request: Request, exchange: Exchange, params: Params) -> None:
            desk.submit(lambda transaction: None, lambda value, error: exchange.answer(Response(200, b"done")))

        api = HandlerRoutes(lambda error: Response(500))
        api.add("GET", "/work", work)
        async with serving(api, desk=desk) as (door, port):
            peer = await dial(port)
            peer.send(request("GET", "/work"))
            assert await peer.hear() is not None
            written: list[int] = []
            transport = only(door)._transport
            assert transport is not None
            only(door)._transport = Counting(transport, written)  # type: ignore[assignment]
            peer.send(request("GET", "/work") * 10)
            for _ in range(10):
                assert await peer.hear() is not None
            assert len(written) == 1
            only(door)._transport = transport
            planned: list[bool] = []
            desk.after_commit.insert(0, lambda: planned.append(door.is_flush_scheduled or not door.dirty))
            assert (await peer.ask("GET", "/work")).status == 200
            assert planned == [False]  # they leave by the flush that follows the commit

    run(main())


class Counting:
    """A transport that counts what is written."""

    def __init__(self, transport: asyncio.Transport, written: list[int]) -> None:
        self._transport = transport
        self._written = written

    def write(self, data: bytes) -> None:
        self._written.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


# -- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "half", "reset"])
def test_disconnect_of_a_waiting_client_is_detected_at_once(run: Run, stage: RouteRecorder, way: str) -> None:
    async def main() -> None:
        async with serving(stage.routes()) as (door, port):
            peer = await dial(port)
            peer.send(request("GET", "/wait"))
            await soon(lambda: bool(stage.waiting))
            if way == "half":
                peer.writer.write_eof()
            elif way == "reset":
                raw = peer.writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                peer.writer.transport.abort()
            else:
                peer.writer.close()
            await soon(lambda: stage.left == stage.waiting)
            await soon(lambda: not door.connections)

    run(main())


def test_half_close_after_the_requests_still_gets_the_responses(run: Run, stage: RouteRecorder) -> None:
    """As with ``printf … | nc -N``."""

    async def main() -> None:
        async with serving(stage.routes()) as (door, port):
            peer = await dial(port)
            peer.send(request("GET", "/echo") + request("POST", "/hold", b"x"))
            peer.writer.write_eof()
            await soon(lambda: bool(stage.held))
            await soon(lambda: not only(door).http._parser.is_open, what="the end is seen before the answer")
            stage.held[0].answer(Response(200, b"done"))
            first, second = await peer.hear(), await peer.hear()
            assert first is not None
            assert second is not None
            assert (first.status, second.body) == (200, b"done")
            assert await peer.hear() is None
            await soon(lambda: not door.connections)

    run(main())


def test_disconnect_is_detected_while_backpressure_pauses_reading(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(pipelined=4)) as (door, port):
            peer = await dial(port)
            peer.send(request("GET", "/wait") * 5000)
            await soon(lambda: bool(door.connections) and not only(door)._is_reading)
            peer.writer.close()

            def is_noticed() -> bool:
                door.check_timeouts(now())
                return stage.left == stage.waiting

            await soon(is_noticed)
            await soon(lambda: not door.connections)

    run(main())


# -- streams --------------------------------------------------------------------------------------------------------


def test_backpressure_of_a_slow_stream_reader_bounds_memory_and_does_not_delay_others(
    run: Run, stage: RouteRecorder
) -> None:
    async def main() -> None:
        limits = HttpLimits(write_buffer=256 * 1024)
        async with serving(stage.routes(), limits) as (door, port):
            slow = await dial(port)
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            slow.send(request("GET", "/floods"))
            await soon(lambda: bool(door.connections) and only(door).http.is_write_paused)
            left = stage.flood.left if stage.flood else 0
            assert left > 900
            socket = only(door)
            assert socket.describe(now())["bytesHeld"] < 2 * limits.write_buffer
            assert (await ask(port, "GET", "/echo")).status == 200
            assert stage.flood is not None
            assert stage.flood.left == left
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            answer = await slow.hear()
            assert answer is not None
            assert len(answer.body) == 65536 * 1000

    run(main())


def test_sse_ping_is_sent_on_a_silent_stream_and_a_disconnect_is_detected(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(ping_seconds=15)) as (door, port):
            peer = await dial(port)
            peer.send(request("GET", "/events"))
            await soon(lambda: stage.stream.outlet is not None)
            stage.stream.write(b"data: 1\n\n")
            await asyncio.wait_for(peer.reader.readuntil(b"data: 1\n\n\r\n"), PATIENCE)
            start = now()
            door.check_timeouts(start)
            door.check_timeouts(start + 14)
            door.check_timeouts(start + 15)
            assert await peer.read() == b"3\r\n:\n\n\r\n"
            peer.writer.close()
            await soon(lambda: stage.stream.is_disconnected)

    run(main())


# -- what a client may cost -----------------------------------------------------------------------------------------


def test_write_timeout_closes_a_client_that_reads_nothing(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(write_buffer=64 * 1024, write_seconds=30)) as (door, port):
            peer = await dial(port)
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.send(request("GET", "/large") * 30)
            await soon(lambda: bool(door.connections) and not only(door)._is_reading)
            start = now()
            door.check_timeouts(start)
            door.check_timeouts(start + 29)
            assert door.connections
            door.check_timeouts(start + 31)
            await soon(lambda: not door.connections)
            assert door.closed_for == {"slow reader": 1}
            assert door.context.held == 0

    run(main())


def test_client_memory_limit_closes_a_client_with_too_many_unread_responses(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(client_memory=3_000_000, pipelined=200)) as (door, port):
            peer = await dial(port)
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.send(request("GET", "/large") * 90)
            await soon(lambda: door.closed_for == {"slow reader": 1})
            await soon(lambda: not door.connections)

    run(main())


def test_client_memory_limit_cuts_off_a_stream_that_ignores_backpressure(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(client_memory=3_000_000)) as (door, port):
            peer = await dial(port)
            peer.send(request("GET", "/pieces"))
            await soon(lambda: stage.stream.outlet is not None)
            written = 0
            while not stage.stream.is_disconnected:
                stage.stream.write(b"x" * 100_000)
                written += 100_000
            assert written == 3_000_000
            await soon(lambda: not door.connections)

    run(main())


def test_linger_delivers_an_error_response_while_the_client_still_sends(run: Run, stage: RouteRecorder) -> None:
    """A refusal must not be lost in a reset, which is what closing on unread bytes would send."""

    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(linger_seconds=2)) as (door, port):
            peer = await dial(port)
            peer.send(request("POST", "/echo", b"x" * 5_000_000))
            answer = await peer.hear()
            assert answer is not None
            assert (answer.status, answer.headers["connection"]) == (413, "close")
            await peer.writer.drain()
            assert await peer.read() == b""
            peer.writer.close()
            await soon(lambda: not door.connections)

    run(main())


def test_linger_timeout_closes_a_client_that_keeps_sending(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(linger_seconds=0.02)) as (door, port):
            peer = await dial(port)
            peer.send(b"nonsense\r\n\r\n")
            answer = await peer.hear()
            assert answer is not None
            assert answer.status == 501
            peer.send(b"x" * 1000)
            await soon(lambda: not door.connections)

    run(main())


# -- the end of the server ------------------------------------------------------------------------------------------


def test_stop_answers_open_requests_ends_idle_and_streaming_clients_and_rejects_the_rest_with_503(
    run: Run, stage: RouteRecorder
) -> None:
    async def main() -> None:
        async with serving(stage.routes()) as (door, port):
            idle, working, waiting, following, half = [await dial(port) for _ in range(5)]
            await idle.ask("GET", "/echo")
            working.send(request("POST", "/hold", b"x"))
            waiting.send(request("GET", "/wait"))
            following.send(request("GET", "/events"))
            half.send(request("POST", "/echo", b"x" * 1000)[:-10])
            await soon(lambda: bool(stage.held and stage.waiting and stage.stream.outlet))
            stage.stream.write(b"data: 1\n\n")
            await soon(lambda: len(door.connections) == 5 and door.context.held >= 990)
            door.stop()
            assert await idle.hear() is None
            told = await waiting.hear()
            assert told is not None
            assert (told.status, told.headers["connection"]) == (503, "close")
            ended = await following.hear()
            assert ended is not None
            assert ended.body == b"data: 1\n\n"
            cut = await half.hear()
            assert cut is not None
            assert cut.status == 503
            stage.held[0].answer(Response(200, b"done"))
            answered = await working.hear()
            assert answered is not None
            assert (answered.body, answered.headers["connection"]) == (b"done", "close")
            for peer in (idle, working, waiting, following, half):
                assert await peer.read() == b""
                peer.writer.close()
            await soon(lambda: door.is_idle)
            late = await dial(port)
            refused = await late.hear()
            assert refused is not None
            assert refused.status == 503

    run(main())


def test_stop_rejects_requests_that_remain_unanswered_with_503(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes()) as (door, port):
            peer = await dial(port)
            peer.send(request("POST", "/hold", b"x"))
            await soon(lambda: bool(stage.held))
            door.stop()
            door.send_goodbye()
            answer = await peer.hear()
            assert answer is not None
            assert answer.status == 503
            assert await peer.read() == b""

    run(main())


def test_idle_timeout_closes_a_silent_connection_and_not_a_waiting_one(run: Run, stage: RouteRecorder) -> None:
    async def main() -> None:
        async with serving(stage.routes(), HttpLimits(idle_seconds=72)) as (door, port):
            idle, waiting = await dial(port), await dial(port)
            await idle.ask("GET", "/echo")
            waiting.send(request("GET", "/wait"))
            await soon(lambda: bool(stage.waiting))
            door.check_timeouts(now() + 73)
            assert await asyncio.wait_for(idle.read(), PATIENCE) == b""
            stage.waiting[0].answer(Response(200, b"still here"))
            answer = await waiting.hear()
            assert answer is not None
            assert answer.body == b"still here"
            assert door.closed_for == {}

    run(main())
