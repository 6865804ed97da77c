"""HTTP client of a server with retries, the topic log read through it, and the choice of access by options.

There is a single connection, opened when needed and again after it was lost. Every request may be repeated after a lost
response. Lost connections and statuses 429, 502, 503, 504 are retried until ``timeoutSec`` has passed, or only
``FIRST_TIMEOUT_SECONDS`` if the server never answered. A stream of records that breaks off continues after its last
record.

With the option ``path`` the log is read from files (``pipeline.source.local_log``), otherwise from the server."""

import json
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import urlsplit

from yirangmq.pipeline.source.errors import RequestRejected, SourceError, parse_retired
from yirangmq.pipeline.source.frames import CRC_FROM, MAX_FRAME_BYTES, FrameRun, find_frames
from yirangmq.pipeline.source.local_log import LocalLog, LogAccess, LogInfo, SplitPoint
from yirangmq.pipeline.source.options import Options
from yirangmq.pipeline.source.segment_file import BATCH_BYTES

# -- requests ----------------------------------------------------------------------------------------------------------

FIRST_TIMEOUT_SECONDS = 4.0
"""Timeout in seconds for a server that has never answered: its address may be wrong, and the user waits for the
error."""
PAUSE, MAX_PAUSE = 0.1, 2.0
RETRY_STATUSES = (429, 502, 503, 504)
"""HTTP statuses that are retried, because the condition may pass."""
CURSOR = "x-mq-cursor"


class HttpBroker:
    def __init__(
        self, address: str, token: str | None, timeout_seconds: float, certificates: str | None = None
    ) -> None:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        try:
            _ = parts.port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceError(f"broker: {address!r} is not an HTTP address such as http://127.0.0.1:8080")
        self._parts = parts
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._certificates = certificates
        self._connection: HTTPConnection | None = None
        self._has_answered = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a task. A task was planned with this server, so the server counts as reachable."""
        return {**self.__dict__, "_connection": None, "_has_answered": True}

    def mark_reachable(self) -> None:
        """Mark the server as reachable: it has answered another client object, so the full timeout applies."""
        self._has_answered = True

    @property
    def address(self) -> str:
        return self._parts.geturl()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        """Send a request and return the body of the response."""
        return self.request_page(method, path, body, kind)[0]

    def request_page(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[bytes, str]:
        """Send a request. Return the body, and the cursor of the next page if the response is a page."""
        for _ in self._attempts(path):
            with self._attempt():
                response = self._send(method, path, body, kind)
                return self._checked(response, response.read(), path), response.getheader(CURSOR) or ""
        raise AssertionError("not reached: the last try raises")

    def document(self, method: str, path: str, body: object = None) -> Any:
        raw = self.request(method, path, None if body is None else json.dumps(body).encode())
        return json.loads(raw) if raw else None

    def open_stream(self, path: str) -> HTTPResponse:
        """Send a GET request and return the response unread, for a long body."""
        for _ in self._attempts(path):
            with self._attempt():
                response = self._send("GET", path, None, "")
                if response.status != 200:
                    self._checked(response, response.read(), path)
                return response
        raise AssertionError("not reached: the last try raises")

    def _attempts(self, path: str) -> Iterator[None]:
        """Yield once per attempt, with growing pauses, until the timeout. Then raise the last failure."""
        begun, pause = time.monotonic(), PAUSE
        while True:
            self._last_error: Exception | None = None
            yield
            timeout_seconds = (
                self._timeout_seconds if self._has_answered else min(FIRST_TIMEOUT_SECONDS, self._timeout_seconds)
            )
            if time.monotonic() - begun + pause > timeout_seconds:
                if isinstance(self._last_error, SourceError):
                    raise self._last_error
                raise SourceError(f"the server at {self.address} does not answer: {self._last_error}") from None
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    def _attempt(self) -> "_Attempt":
        return _Attempt(self)

    def _send(self, method: str, path: str, body: bytes | None, kind: str) -> HTTPResponse:
        if self._connection is None:
            self._connection = self._connect()
        headers = {"content-type": kind} if body is not None else {}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        self._connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
        return self._connection.getresponse()

    def _connect(self) -> HTTPConnection:
        host = cast("str", self._parts.hostname)
        if self._parts.scheme == "http":
            return HTTPConnection(host, self._parts.port, timeout=self._timeout_seconds)
        try:
            context = ssl.create_default_context(cadata=self._certificates)
        except ssl.SSLError as error:
            raise SourceError(f"caFile: these are not certificates: {error}") from None
        return HTTPSConnection(host, self._parts.port, timeout=self._timeout_seconds, context=context)

    def _checked(self, response: HTTPResponse, raw: bytes, path: str) -> bytes:
        self._has_answered = True
        if 200 <= response.status < 300:
            return raw
        try:
            error = json.loads(raw)["error"]
            code, words = str(error["code"]), f"{error['code']}: {error['message']}"
        except (ValueError, KeyError, TypeError):
            code, words = "", raw[:200].decode("utf-8", "replace")
        if code == "retired" and (retired := parse_retired(words)) is not None:
            raise retired
        if response.status in (401, 403):
            words += "; give the option token"
        raise RequestRejected(
            f"the server refuses {path.partition('?')[0]} ({response.status}): {words}", code, response.status
        )


class _Attempt:
    """Context manager of one attempt: swallows errors that may be retried; all others pass."""

    def __init__(self, broker: HttpBroker) -> None:
        self._broker = broker

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is None:
            return False
        self._broker.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            return False
        may = isinstance(error, OSError | HTTPException) or (
            isinstance(error, RequestRejected) and error.status in RETRY_STATUSES
        )
        if may:
            self._broker._last_error = cast("Exception", error)
        return may


# -- topic log ---------------------------------------------------------------------------------------------------------


class BrokerLog:
    """Access to the log at a server (``LogAccess``)."""

    def __init__(self, broker: HttpBroker) -> None:
        self._broker = broker
        self._epoch = ""

    def close(self) -> None:
        self._broker.close()

    def info(self) -> LogInfo:
        found = self._broker.document("GET", "/v1/log")
        self._epoch = found["epoch"]
        return LogInfo(found["epoch"], found["first"], found["last"])

    def topics(self) -> list[str]:
        return sorted(row["topic"] for row in self._broker.document("GET", "/v1/topics")["topics"])

    def sequence_at(self, at_ms: int) -> int:
        found: int = self._broker.document("GET", f"/v1/log/sequence?atMs={at_ms}")["sequence"]
        return found

    def split_points(self, after: int, last: int) -> list[SplitPoint]:
        found = self._broker.document("GET", f"/v1/log/places?after={after}&last={last}")["places"]
        return [SplitPoint(*point) for point in found]

    def hints(self, after: int, last: int) -> Sequence[Any]:
        """Return the epoch, so that a log that was reset meanwhile is not read as this one."""
        return (self._epoch,) if self._epoch else ()

    def runs(self, after: int, last: int, hints: Sequence[Any] = ()) -> Iterator[FrameRun]:
        """Yield the records of the range. After a lost connection the stream is requested again from its last
        record."""
        epoch = f"&epoch={hints[0]}" if hints else ""
        trouble = 0
        while after < last:
            response = self._broker.open_stream(f"/v1/log/frames?after={after}&last={last}{epoch}")
            try:
                for run in runs_of(response):
                    yield run
                    after, trouble = run.last, 0
                return
            except (OSError, HTTPException) as error:
                self._broker.close()
                trouble += 1
                if trouble > 5:
                    raise SourceError(
                        f"the server at {self._broker.address} repeatedly ended answers at record {after + 1}: {error}"
                    ) from None


def runs_of(response: HTTPResponse) -> Iterator[FrameRun]:
    """Yield runs of whole frames as they arrive, of at most some megabytes.

    All runs share one buffer: a run is valid until the next one is requested. The bytes of an incomplete frame move to
    the front of the buffer."""
    memory, have = memoryview(bytearray(BATCH_BYTES)), 0
    while more := response.readinto(memory[have:]):
        have += more
        run = find_frames(memory[:have])
        if run.end:
            yield run
            rest = bytes(memory[run.end : have])
            have = len(rest)
            memory[:have] = rest
        elif have > MAX_FRAME_BYTES:
            raise SourceError("the server sent an invalid record")
        elif have == len(memory):
            memory = memoryview(bytearray(memory) + bytes(have))
    if have:
        number = struct.unpack_from(">Q", memory, CRC_FROM)[0] if have >= CRC_FROM + 8 else 0
        raise HTTPException(f"it ended in the middle of record {number}")


# -- access by options -------------------------------------------------------------------------------------------------


def log_of(options: Options) -> LogAccess:
    """Return access to the log: its files if the option path is given, else the broker."""
    if "path" in options:
        return LocalLog(options.needed("path"))
    return BrokerLog(broker_of(options))


def broker_of(options: Options) -> HttpBroker:
    if "broker" not in options:
        more = "only topics can be read by path" if "path" in options else "for topics also path, the data folder"
        raise SourceError(f"set the address of the server: the option broker, such as http://127.0.0.1:8080 ({more})")
    return HttpBroker(
        options.needed("broker"), options.text("token"), options.whole("timeoutSec"), options.text("caFile")
    )
