"""Topics by either face, and a line that loses, repeats or damages what the server says."""

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.client.parts import BadLine, Connect, InLoop
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.client.topic_subscription import AsyncTopicSubscription
from yirangmq.core.topics import SubscriberState
from yirangmq.wire.frames import Frame

Tamper = Callable[[Frame], list[Frame]]


class Woven:
    """Something of the asyncio face whose coroutines are run in the loop of its client."""

    def __init__(self, run: Callable[[Any], Any], target: Any) -> None:
        self._run = run
        self.target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        if inspect.isasyncgenfunction(found):
            return lambda *given, **named: self._steps(found(*given, **named))
        if inspect.iscoroutinefunction(found):
            return lambda *given, **named: self._run(found(*given, **named))
        if callable(found):
            return lambda *given, **named: self._wrapped(found(*given, **named))
        return found

    def _wrapped(self, made: Any) -> Any:
        return Woven(self._run, made) if isinstance(made, AsyncTopicSubscription) else made

    def _steps(self, steps: Any) -> Iterator[Any]:
        try:
            while True:
                yield self._run(anext(steps))
        except StopAsyncIteration:
            return

    def __iter__(self) -> Iterator[Any]:
        while (record := self._run(self.target.next())) is not None:
            yield record

    def __enter__(self) -> "Woven":
        self._run(self.target.connect())
        return self

    def __exit__(self, *reason: object) -> None:
        self._run(self.target.close())


class InLoopTopics(InLoop):
    @property
    def topics(self) -> Woven:
        return Woven(self.do, self._client.topics)

    def do(self, coroutine: Any) -> Any:
        async def whole() -> Any:
            return await coroutine

        return asyncio.run_coroutine_threadsafe(whole(), self._loop).result(PATIENCE)


TOPIC_FACES: dict[str, Connect] = {"blocking": connect, "asyncio": InLoopTopics}


class Tampering(BadLine):
    """``tamper`` gets every frame of the server and says what arrives in its place."""

    tamper: Tamper = staticmethod(lambda frame: [frame])

    def _backward(self, client: Any, server: Any, lost: set[int]) -> None:
        from tests.client.parts import _frames, _shut
        from yirangmq.wire.frames import encode

        for frame in _frames(server):
            try:
                for kind, request, body in self.tamper(frame):
                    client.sendall(encode(kind, request, bytes(body)))
            except OSError:
                break
        _shut(client, server)


def silent_until(subscription: Any, state: SubscriberState) -> None:
    """Nothing comes, and it gets into this state."""
    end = time.monotonic() + PATIENCE
    while subscription.state is not state:
        assert time.monotonic() < end, subscription.state
        assert subscription.next(0.05) is None
    assert subscription.next(0.05) is None
