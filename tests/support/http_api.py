"""The API without a network: requests as values, on a server whose time and turns are the test's."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.session import Server
from yirangmq.admin.health import StoreDisk
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Store
from yirangmq.protocols.http.types import Request, Response
from yirangmq.protocols.http.v1.api import NativeApi
from yirangmq.protocols.http.v1.endpoint import AccessCheck, allow_all


class Told(NamedTuple):
    """One event of a stream. ``id`` and ``name`` are empty where it has none."""

    name: str
    id: str
    about: Any


class Pipe:
    """``exchange.Outlet``: what a stream writes. ``has_room`` is the test's: False is a client that does not read."""

    def __init__(self) -> None:
        self.data = b""
        self.has_room = True
        self.is_ended = False

    def write(self, data: bytes) -> bool:
        assert not self.is_ended
        self.data += data
        return self.has_room

    def end(self) -> None:
        self.is_ended = True

    def fail(self) -> None:
        raise AssertionError("a stream of events never fails")

    def told(self) -> list[Told]:
        """The events since this was last asked."""
        blocks, self.data = self.data.decode().split("\n\n"), b""
        found = []
        for block in blocks:
            members = dict(line.split(": ", 1) for line in block.splitlines())
            if "data" in members:
                found.append(Told(members.get("event", ""), members.get("id", ""), json.loads(members["data"])))
        return found


class Line:
    """The way back to a client, as the protocol has it."""

    def __init__(self) -> None:
        self.outlet = Pipe()
        self.is_disconnected = False
        self.response: Response | None = None
        self._actions: list[Callable[[], None]] = []

    def answer(self, response: Response) -> None:
        assert self.response is None, "answered twice"
        self.response = response
        if response.stream is not None and not self.is_disconnected:
            response.stream.start(self.outlet)

    def on_disconnect(self, action: Callable[[], None]) -> None:
        self._actions.append(action)

    def leave(self) -> None:
        """The client hangs up."""
        self.is_disconnected = True
        if self.response is None:
            for action in self._actions:
                action()
        elif self.response.stream is not None:
            self.response.stream.disconnected()

    @property
    def status(self) -> int:
        assert self.response is not None, "not answered yet"
        return self.response.status

    @property
    def body(self) -> bytes:
        assert self.response is not None, "not answered yet"
        return self.response.body or b""

    @property
    def headers(self) -> dict[str, str]:
        assert self.response is not None, "not answered yet"
        return dict(self.response.headers)

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Web:
    """A server behind the API. ``ask`` sends one request and lets the server turn until nothing is left to do."""

    def __init__(
        self, store: Store | None = None, guard: AccessCheck = allow_all, disk: StoreDisk | None = None
    ) -> None:
        self.server = Server(store, disk=disk)
        self.api = NativeApi(self.server.house, self.server.observing.feed, guard=guard)
        self.peer = "127.0.0.1:1"
        """The connection by which requests come."""

    def send(self, method: str, target: str, body: Any = b"", **headers: str) -> Line:
        """One request; ``headers`` are spelled with underscores, a body that is not bytes is sent as JSON."""
        path, _, query = target.partition("?")
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        line = Line()
        route = self.api.find(method, path)
        request = Request(method, path, query, sent, body, self.peer)
        try:
            if route.admit is not None:
                route.admit(request)
            route.handle(request, line)
        except QueueError as error:
            line.answer(route.refuse(error))
        return line

    def ask(self, method: str, target: str, body: Any = b"", **headers: str) -> Line:
        line = self.send(method, target, body, **headers)
        self.server.turn()
        return line

    def good(self, method: str, target: str, body: Any = b"", **headers: str) -> Any:
        """The document of an answer that must be 200."""
        line = self.ask(method, target, body, **headers)
        assert line.status == 200, line.body
        return line.document

    def refused(self, method: str, target: str, body: Any = b"", **headers: str) -> tuple[int, str, str | None]:
        """(status, code, field) of an answer that must be an error in the one shape."""
        line = self.ask(method, target, body, **headers)
        error = line.document["error"]
        assert line.status >= 400
        assert error["message"]
        return line.status, error["code"], error.get("field")
