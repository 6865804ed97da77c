"""A TCP proxy before one etcd member, which can be told to cut, and to swallow what comes back or what is sent."""

import asyncio
import contextlib


class Proxy:
    """``async with Proxy("host:port") as proxy``. ``cut_after``: bytes of answers after which all connections are cut,
    once. ``deaf``: answers are swallowed; the member hears everything. ``holds``: requests are swallowed; the member
    hears nothing more. ``accepted`` counts connections."""

    def __init__(self, endpoint: str, cut_after: int = 0) -> None:
        self._target = endpoint
        self.cut_after = cut_after
        self.deaf = False
        self.holds = False
        self.cuts = 0
        self.accepted = 0
        self._passed = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        host, port = self._target.rsplit(":", 1)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            theirs, ours = await asyncio.open_connection(host, int(port))
            self._writers |= {writer, ours}
            await asyncio.gather(self._pass(reader, ours, answers=False), self._pass(theirs, writer, answers=True))
        self._tasks.discard(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await source.read(65536):
                if self.deaf if answers else self.holds:
                    continue
                sink.write(data)
                await sink.drain()
                self._passed += len(data) if answers else 0
                if self.cut_after and self._passed >= self.cut_after:
                    self.cut_after, self.cuts = 0, self.cuts + 1
                    self.cut()
                    return
        except OSError:
            pass
        finally:
            sink.transport.abort()
