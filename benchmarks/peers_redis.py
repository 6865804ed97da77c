"""Redis Streams as a durable queue: XADD, XREADGROUP, XACK, every command on disk before its answer.

Run as a program it is a client process (``peers_worker``) on redis-py with hiredis; imported it starts the server."""

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from peers_process import Server, free_port
from peers_worker import Client, Progress, body, work

BATCH = 500
GROUP = "group"


class RedisServer(Server):
    """appendfsync always: an answer is sent after the fsync of what it speaks of. Rewriting the file in the
    background is off, so that it does not disturb."""

    name = "Redis"

    def open(self) -> None:
        socket_path, port = self.folder / "redis.sock", free_port()
        options = {
            "port": port,
            "bind": "127.0.0.1",
            "unixsocket": socket_path,
            "dir": self.folder,
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": 0,
            "save": "",
        }
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        self.launch([str(self.packages.redis), *words], self.packages.environment)
        self.address = {"port": port, "path": str(socket_path)}

    def first_message(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(self.address["path"])
            line.sendall(b"*5\r\n$4\r\nXADD\r\n$5\r\nfirst\r\n$1\r\n*\r\n$1\r\nb\r\n$1\r\nx\r\n")
            return line.recv(100).startswith(b"$")


class RedisClient:
    """redis-py keeps many requests under way only through a pipeline, which waits for all its answers. Its connection
    underneath can send on while answers are read, so that is what is used."""

    def __init__(self, orders: dict[str, Any]) -> None:
        import redis

        address = orders["address"]
        if orders.get("over") == "tcp":
            self._redis = redis.Redis(host="127.0.0.1", port=address["port"])
        else:
            self._redis = redis.Redis(unix_socket_path=address["path"])
        self._stream = orders["queue"]
        self._multi = bool(orders.get("multi"))
        self._consumer = f"consumer-{os.getpid()}"
        self._body = body()
        try:
            self._redis.xgroup_create(self._stream, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._line = self._redis.connection_pool.get_connection()

    def publish_singly(self, count: int, progress: Progress) -> None:
        for _ in range(count):
            self._redis.xadd(self._stream, {"b": self._body})
            progress.add(1)

    def publish_many(self, count: int, progress: Progress) -> None:
        if self._multi:
            self._publish_in_transactions(count, progress)
            return
        line = self._line
        under_way: list[int] = []
        for begin in range(0, count, BATCH):
            many = min(BATCH, count - begin)
            line.send_packed_command(line.pack_commands([self._command(self._body) for _ in range(many)]))
            under_way.append(many)
            if len(under_way) > 1:
                self._confirm(line, under_way.pop(0), progress)
        for many in under_way:
            self._confirm(line, many, progress)

    def _command(self, payload: bytes) -> tuple[Any, ...]:
        return ("XADD", self._stream, "*", "b", payload)

    def _confirm(self, line: Any, many: int, progress: Progress) -> None:
        for _ in range(many):
            line.read_response()
        progress.add(many)

    def _publish_in_transactions(self, count: int, progress: Progress) -> None:
        """MULTI … EXEC: a whole batch with one fsync."""
        for begin in range(0, count, BATCH):
            many = min(BATCH, count - begin)
            batch = self._redis.pipeline(transaction=True)
            for _ in range(many):
                batch.xadd(self._stream, {"b": self._body})
            batch.execute()
            progress.add(many)

    def consume(self, count: int, progress: Progress) -> None:
        """Acknowledge what came last and ask for more in one round trip."""
        taken: list[bytes] = []
        while progress.count + len(taken) < count:
            most = min(BATCH, count - progress.count - len(taken))
            taken = [id for id, _ in self._exchange(taken, most, progress.add)]
        self._exchange(taken, 0, progress.add)

    def _exchange(self, taken: list[bytes], most: int, confirmed: Callable[[int], None]) -> list[tuple[bytes, Any]]:
        """What was taken is confirmed as soon as that answer is there; the other one may have to wait for messages."""
        line, commands = self._line, []
        if taken:
            commands.append(("XACK", self._stream, GROUP, *taken))
        if most:
            wanted = ("COUNT", most, "BLOCK", 1000, "STREAMS", self._stream, ">")
            commands.append(("XREADGROUP", "GROUP", GROUP, self._consumer, *wanted))
        line.send_packed_command(line.pack_commands(commands))
        if taken:
            confirmed(line.read_response())
        return _entries(line.read_response()) if most else []

    def publish_paced(self, moments: list[float], bodies: Callable[[float], bytes]) -> None:
        line = self._line
        open_requests = 0
        for moment in moments:
            while (left := moment - time.monotonic()) > 0:
                time.sleep(left)
            line.send_packed_command(line.pack_command(*self._command(bodies(time.monotonic()))))
            open_requests += 1
            while open_requests and line.can_read(0):
                line.read_response()
                open_requests -= 1
        for _ in range(open_requests):
            line.read_response()

    def consume_timed(self, count: int, seen: Callable[[bytes], None]) -> None:
        taken: list[bytes] = []
        left = count
        while left:
            got = self._exchange(taken, BATCH, lambda _: None)
            for _, fields in got:
                seen(fields[1])
            taken = [id for id, _ in got]
            left -= len(got)
        self._exchange(taken, 0, lambda _: None)

    def clean(self) -> None:
        self._redis.delete(self._stream)


def _entries(answer: Any) -> list[tuple[bytes, Any]]:
    """What XREADGROUP found in the one stream it was asked about: (id, [field, value]). The answer's shape depends on
    the protocol spoken."""
    if not answer:
        return []
    return list(next(iter(answer.values())) if isinstance(answer, dict) else answer[0][1])


def connect(orders: dict[str, Any]) -> Client:
    return RedisClient(orders)


if __name__ == "__main__":
    work(connect)
