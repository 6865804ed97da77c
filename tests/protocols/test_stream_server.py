"""The socket door on real sockets: who may come in, what a client may cost, who is sent away."""

import asyncio
import errno
import os
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.live import Peer, dial, dial_tcp, door, tcp_door, unix_door
from tests.support.credentials import client_context, server_context
from tests.support.loops import WRITERS, Run
from tests.support.session import MAX_FRAME
from tests.support.wait import PATIENCE, soon
from yirangmq.core.errors import BadInput, CannotListen
from yirangmq.protocols.listen import TlsServer, sockets_of
from yirangmq.protocols.stream_server import (
    BUFFER,
    LINGER_IDLE_SECONDS,
    LINGER_SECONDS,
    StreamConnection,
    StreamLimits,
    StreamServer,
    listen_tcp,
    listen_unix,
)
from yirangmq.wire import messages
from yirangmq.wire.frames import HEAD, FrameKind, encode

LARGE = b"x" * 50_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "y.sock"


def only(door: StreamServer) -> StreamConnection:
    [connection] = door.connections
    return connection


async def publish(peer: Peer, queue: str, *payloads: bytes) -> None:
    answer = await peer.ask(
        FrameKind.PUBLISH, messages.Publish(queue, [messages.OutgoingMessageBody(one, False) for one in payloads])
    )
    assert answer.kind is FrameKind.STORED


# -- answers --------------------------------------------------------------------------------------------------------


def test_group_commit_responses_are_written_in_the_same_loop_iteration(run: Run, path: Path) -> None:
    async def main() -> None:
        async with unix_door(path, StreamLimits()) as door:
            peer = await dial(path)
            await publish(peer, "mail", b"first")
            planned: list[bool] = []
            door.context.committer.after_commit.insert(
                0, lambda: planned.append(door.is_flush_scheduled or not door.dirty)
            )
            await publish(peer, "mail", b"second")
            assert planned == [False]
            assert not door.dirty

    run(main())


# -- coming in ------------------------------------------------------------------------------------------------------


def test_unix_socket_has_its_mode(run: Run, path: Path) -> None:
    async def main() -> None:
        async with unix_door(path, StreamLimits()) as door:
            server = await listen_unix(door, path.with_name("other.sock"), 0o600)
            server.close()

    run(main())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("other.sock").stat().st_mode) == 0o600


def test_unix_socket_left_behind_is_replaced(run: Run, path: Path) -> None:
    async def main() -> None:
        for _ in range(2):
            async with unix_door(path, StreamLimits()):
                assert (await (await dial(path)).ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG

    run(main())


def test_unix_socket_in_use_is_kept_and_the_error_names_the_process(run: Run, path: Path) -> None:
    async def main() -> None:
        async with unix_door(path, StreamLimits()) as door:
            with pytest.raises(CannotListen, match=rf"{path} is in use by process {os.getpid()} .* --socket PATH"):
                await listen_unix(door, path)
            assert (await (await dial(path)).ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG

    run(main())


def test_unix_socket_path_with_another_file_is_rejected_and_the_file_stays(run: Run, path: Path) -> None:
    async def main() -> None:
        with pytest.raises(BadInput, match="not a socket"):
            async with unix_door(path, StreamLimits()):
                pass

    path.write_text("precious")
    run(main())
    assert path.read_text() == "precious"


def test_unix_socket_path_too_long_is_rejected(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(BadInput, match="107") as caught:
            async with unix_door(tmp_path / ("x" * 120), StreamLimits()):
                pass
        assert caught.value.field == "socket"

    run(main())


def test_connection_limit_rejects_one_client_too_many(run: Run, path: Path) -> None:
    async def main() -> None:
        async with unix_door(path, StreamLimits(connections=2)) as door:
            first, _ = await dial(path), await dial(path)
            await soon(lambda: len(door.connections) == 2)
            third = await dial(path)
            answer = await third.hear()
            assert answer is not None
            assert (answer.kind, answer.request, answer.value.code) == (FrameKind.ERROR, 0, "unavailable")
            assert await third.hear() is None
            assert (await first.ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG
            first.writer.close()
            await soon(lambda: len(door.connections) == 1)
            assert (await (await dial(path)).ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG

    run(main())


def test_token_is_required_over_tcp(run: Run) -> None:
    async def main() -> None:
        async with tcp_door(StreamLimits(), "s3cret") as (_, port):
            good, bad, rude = [await dial_tcp(port) for _ in range(3)]
            assert (await good.ask(FrameKind.HELLO, messages.Hello("a", "s3cret"))).kind is FrameKind.WELCOME
            await publish(good, "mail", b"x")
            assert (await bad.ask(FrameKind.HELLO, messages.Hello("a", "guess"))).value.code == "not_allowed"
            assert await bad.hear() is None
            rude.send(FrameKind.LEASE, messages.Lease("mail", 1))
            answer = await rude.hear()
            assert answer is not None
            assert answer.value.code == "not_allowed"
            assert await rude.hear() is None

    run(main())


def test_tls_connection_carries_frames_and_rejects_plain_text(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with tcp_door(StreamLimits(), "s3cret", server_context(tmp_path)) as (door, port):
            peer = await dial_tcp(port, client_context(tmp_path))
            assert (await peer.ask(FrameKind.HELLO, messages.Hello("a", "s3cret"))).kind is FrameKind.WELCOME
            await publish(peer, "mail", LARGE)
            answer = await peer.ask(FrameKind.LEASE, messages.Lease("mail", 1))
            assert answer.value.messages[0].payload == LARGE
            plain = await dial_tcp(port)
            plain.send(FrameKind.HELLO, messages.Hello("a", "s3cret"))
            assert await plain.hear() is None
            assert len(door.connections) == 1

    run(main())


def test_tls_handshakes_in_progress_end_with_the_server(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with tcp_door(StreamLimits(frame_seconds=10 * PATIENCE), "s3cret", server_context(tmp_path)) as (
            door,
            port,
        ):
            silent, _ = await open_raw(port)
            half_way, writer = await open_raw(port)
            hello = ssl.MemoryBIO()
            with pytest.raises(ssl.SSLWantReadError):
                client_context(tmp_path).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
            writer.write(hello.read())
            assert await asyncio.wait_for(half_way.read(1), PATIENCE)  # it came after the silent one
        for reader in (silent, half_way):
            with suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), PATIENCE)
        assert not door.connections

    run(main())


def test_tls_server_without_descriptors_accepts_again_later(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.protocols.listen.ACCEPT_RETRY_SECONDS", 0.01)
    tls = server_context(tmp_path)

    async def main() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"].errno))
        async with door(StreamLimits()) as made:
            listening = NoDescriptor()
            listening.bind(("127.0.0.1", 0))
            server = TlsServer([listening], lambda: StreamConnection(made, trusted=False), tls, PATIENCE)
            server.start(10)
            peer = await dial_tcp(listening.getsockname()[1], client_context(tmp_path))
            assert (await peer.ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG
            server.close()
        assert told == [errno.EMFILE]

    run(main())


class NoDescriptor(socket.socket):
    """Its first accept fails."""

    has_failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_tls_server_listens_at_every_address_of_a_name(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with door(StreamLimits()) as made:
            server = await listen_tcp(made, "localhost", 0, server_context(tmp_path))
            for listening in sockets_of(server):
                reader, writer = await asyncio.open_connection(
                    *listening.getsockname()[:2], ssl=client_context(tmp_path), server_hostname="localhost"
                )
                WRITERS.append(writer)
                assert (await Peer(reader, writer).ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG
            server.close()

    run(main())


async def open_raw(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    WRITERS.append(writer)
    return reader, writer


# -- what a client may cost -----------------------------------------------------------------------------------------


def test_idle_clients_share_one_receive_buffer(run: Run, path: Path) -> None:
    async def main() -> None:
        async with unix_door(path, StreamLimits()) as door:
            before = _resident()
            peers = [await dial(path) for _ in range(200)]
            for peer in peers:
                await peer.ask(FrameKind.PING, messages.Empty())
            assert len(door.buffer) == BUFFER
            assert (_resident() - before) / len(peers) < 64 * 1024  # both ends are in this process

    run(main())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_frame_limit_rejects_a_too_large_frame_by_its_head(run: Run, path: Path) -> None:
    async def main() -> None:
        async with unix_door(path, StreamLimits()):
            peer = await dial(path)
            peer.writer.write(HEAD.pack(MAX_FRAME + 1, 1, FrameKind.PUBLISH, 0, 1))
            answer = await peer.hear()
            assert answer is not None
            assert (answer.request, answer.value.code, answer.value.field) == (0, "too_large", "length")
            assert await peer.hear() is None

    run(main())


@pytest.mark.parametrize("is_sending", [True, False])
def test_frame_limit_error_lets_the_client_send_the_rest_within_bounds(run: Run, path: Path, is_sending: bool) -> None:
    """After the error the rest of the frame is read and discarded, then the connection is closed: at the latest when
    the client is silent for ``LINGER_IDLE_SECONDS``, or ``LINGER_SECONDS`` after the error."""

    async def main() -> None:
        async with unix_door(path, StreamLimits()) as door:
            peer = await dial(path)
            peer.writer.write(HEAD.pack(MAX_FRAME + 1, 1, FrameKind.PUBLISH, 0, 1))
            for _ in range(64):
                peer.writer.write(LARGE)
                await peer.writer.drain()
                assert all(one.describe(0)["bytesHeld"] < BUFFER for one in door.connections)
            answer = await peer.hear()
            assert answer is not None
            assert answer.value.code == "too_large"
            assert await peer.hear() is None
            connection = only(door)
            begun = connection._lingering_since
            if is_sending:
                connection._received_at = begun + LINGER_SECONDS
            door.check_timeouts(begun + LINGER_IDLE_SECONDS)
            assert only(door) is connection
            door.check_timeouts(begun + (LINGER_SECONDS if is_sending else LINGER_IDLE_SECONDS) + 0.1)
            await soon(lambda: not door.connections)

    run(main())


def test_frame_timeout_closes_a_client_with_an_incomplete_frame(run: Run, path: Path) -> None:
    async def main() -> None:
        async with unix_door(path, StreamLimits(frame_seconds=30)) as door:
            now = asyncio.get_running_loop().time
            peer, other = await dial(path), await dial(path)
            await other.ask(FrameKind.PING, messages.Empty())
            frame = encode(FrameKind.PING, 1, b"\x90")
            peer.writer.write(frame + frame[:5])
            assert await peer.hear() is not None
            await soon(lambda: any(one._session.held for one in door.connections))
            door.check_timeouts(now() + 29)
            peer.writer.write(frame[5:6])
            await soon(lambda: any(one._session.held == 6 for one in door.connections))
            door.check_timeouts(now() + 31)
            answer = await peer.hear()
            assert answer is not None
            assert (answer.value.code, answer.value.field) == ("timed_out", "frame")
            assert await peer.hear() is None
            assert (await other.ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG
            assert door.closed_for == {"frame": 1}

    run(main())


def test_hello_timeout_closes_an_untrusted_client(run: Run) -> None:
    async def main() -> None:
        async with tcp_door(StreamLimits(frame_seconds=30), "s3cret") as (door, port):
            peer = await dial_tcp(port)
            await soon(lambda: len(door.connections) == 1)
            door.check_timeouts(asyncio.get_running_loop().time() + 31)
            answer = await peer.hear()
            assert answer is not None
            assert answer.value.code == "timed_out"

    run(main())


def test_idle_timeout_closes_a_client_unless_it_waits_for_messages(run: Run, path: Path) -> None:
    """A client that waits for messages may be silent; one that waits for nothing may not."""

    async def main() -> None:
        async with unix_door(path, StreamLimits(idle_seconds=600)) as door:
            idle, waiting = await dial(path), await dial(path)
            await idle.ask(FrameKind.PING, messages.Empty())
            waiting.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 5))
            await waiting.ask(FrameKind.PING, messages.Empty())
            door.check_timeouts(asyncio.get_running_loop().time() + 601)
            answer = await idle.hear()
            assert answer is not None
            assert (answer.value.code, answer.value.field) == ("timed_out", "idle")
            assert await idle.hear() is None
            assert (await waiting.ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG

    run(main())


def test_backpressure_bounds_memory_of_a_slow_subscriber_that_later_gets_all_messages(run: Run, path: Path) -> None:
    async def main() -> None:
        limits = StreamLimits(write_buffer=256 * 1024)
        async with unix_door(path, limits) as door:
            slow = await dial(path)
            slow.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1000))
            await soon(lambda: len(door.connections) == 1)
            connection = only(door)
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            producer = await dial(path)
            for _ in range(100):
                await publish(producer, "mail", LARGE, LARGE[:1])
            assert connection.describe(0)["clogged"]
            assert connection.describe(0)["bytesHeld"] < limits.write_buffer + 2 * 1024 * 1024
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            got = 0
            while got < 200:
                answer = await slow.hear()
                assert answer is not None
                got += len(answer.value.messages)
            assert not connection.describe(0)["clogged"]

    run(main())


def test_backpressure_stops_reading_requests_of_a_client_that_does_not_read(run: Run, path: Path) -> None:
    async def main() -> None:
        limits = StreamLimits(write_buffer=64 * 1024)
        async with unix_door(path, limits) as door:
            producer = await dial(path)
            await publish(producer, "mail", LARGE)
            greedy = await dial(path)
            await soon(lambda: len(door.connections) == 2)
            greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(500):
                greedy.send(FrameKind.CALL, messages.Call("peek", {"queue": "mail"}))
            await soon(lambda: any(one.describe(0)["clogged"] for one in door.connections))
            [connection] = [one for one in door.connections if one.describe(0)["clogged"]]
            for _ in range(50):
                assert (await producer.ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG
            assert connection.describe(0)["bytesHeld"] < 3 * 1024 * 1024  # 16 answers under way, and half a frame
            greedy.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(500):
                assert await greedy.hear() is not None

    run(main())


def test_client_memory_limit_closes_a_slow_client_and_leaves_others_connected(run: Run, path: Path) -> None:
    async def main() -> None:
        limits = StreamLimits(write_buffer=4096, client_memory=64 * 1024, pending=1000)
        async with unix_door(path, limits) as door:
            producer = await dial(path)
            await publish(producer, "mail", LARGE)
            greedy = await dial(path)
            for _ in range(20):
                greedy.send(FrameKind.CALL, messages.Call("peek", {"queue": "mail"}))
            assert await greedy.hear() is None
            assert door.closed_for == {"slow": 1}
            assert (await producer.ask(FrameKind.PING, messages.Empty())).kind is FrameKind.PONG

    run(main())


def test_disconnect_during_a_group_commit_does_not_affect_other_clients(run: Run, path: Path) -> None:
    async def main() -> None:
        async with unix_door(path, StreamLimits()):
            gone, stays = await dial(path), await dial(path)
            for peer in (gone, stays):
                peer.send(FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"x", False)]))
            gone.writer.transport.abort()
            answer = await stays.hear()
            assert answer is not None
            assert answer.kind is FrameKind.STORED

    run(main())
