"""Interface of queues: what programs and commands do with them, in this process or through a server.

``QueueApi`` is implemented by an opened store (``broker.queues.Queues``), by the client (``client.sync_client.Client``)
and by the commands' connection to a server (``cli.remote_queues.RemoteQueues``). The asyncio forms of the first two
(``broker.async_queues``, ``client.async_client``) have the same methods as coroutines. Tests compare all signatures.

``QueueStore`` is what commands need in addition: reads in a transaction, clocks, and the check of a store."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from yirangmq.core.errors import QueueError
from yirangmq.core.message import Counts, Reason
from yirangmq.core.ports import AddResult, CheckProgress, Finding, MoveResult, ReadTransaction, Transaction, no_progress
from yirangmq.format.delivery import LeasedMessage, MessageView

Answer = TypeVar("Answer")
Results = list[QueueError | None]
"""Result of a call on many messages: for each message None on success, else the error."""


class DeadLetterApi(Protocol):
    """Dead letters of all queues (``broker.dead_letters``)."""

    def sources(self, queue: str) -> "list[str]": ...

    def list(
        self, queue: str, filter: str = "", *, state: str = "dead", limit: int | None = None
    ) -> Iterator[MessageView]: ...

    def show(self, queue: str, id: str) -> MessageView: ...

    def stats(self, queue: str | None = None) -> dict[str, Any]: ...

    def redrive(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        state: str = "dead",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult: ...

    def quarantine(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult: ...

    def purge(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        state: str = "dead",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult: ...


class QueueApi(Protocol):
    """Operations on queues. When a method returns, its changes are durable. The implementations have the docstrings."""

    @property
    def consumer(self) -> str: ...

    @property
    def dead_letters(self) -> DeadLetterApi: ...

    def publish(self, queue: str, message: object) -> AddResult: ...

    def publish_many(self, queue: str, messages: Iterable[object]) -> list[AddResult]: ...

    def publish_text(
        self,
        queue: str,
        texts: Iterable[bytes],
        *,
        delay: float | None = 0,
        ttl: float | None = None,
        read_as: str | None = None,
    ) -> list[AddResult]: ...

    def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: float = 0,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Sequence[LeasedMessage]: ...

    def ack(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None: ...

    def ack_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results: ...

    def nack(
        self,
        leases: str | Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> None: ...

    def nack_many(
        self,
        leases: Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> Results: ...

    def release(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None: ...

    def release_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results: ...

    def extend(
        self, leases: str | Sequence[str], seconds: float | None = None, *, consumer: str | None = None
    ) -> None: ...

    def extend_many(
        self, leases: Sequence[str], seconds: float | None = None, *, consumer: str | None = None
    ) -> Results: ...

    def peek(self, queue: str, limit: int = 10, *, state: str = "ready") -> list[MessageView]: ...

    def walk(self, queue: str, state: str, batch: int = 500) -> Iterator[MessageView]: ...

    def show(self, queue: str, id: str) -> MessageView: ...

    def queues(self, prefix: str = "") -> list[str]: ...

    def counts(self, queue: str) -> Counts: ...

    def durability(self) -> str: ...

    def policy(self, queue: str) -> dict[str, Any]: ...

    def check_policy(self, queue: str, document: object) -> dict[str, Any]: ...

    def set_policy(self, queue: str, document: object) -> dict[str, Any]: ...

    def try_out(self, queue: str, messages: Sequence[object]) -> dict[str, Any]: ...

    def pause(self, queue: str) -> bool: ...

    def resume(self, queue: str) -> bool: ...

    def dispatch(self, queue: str) -> dict[str, Any]: ...

    def set_dispatch(self, queue: str, members: Mapping[str, Any]) -> dict[str, Any]: ...

    def register(self, queue: str, consumer: str) -> bool: ...

    def deregister(self, queue: str, consumer: str) -> bool: ...

    def deliveries(
        self,
        queue: str | None = None,
        *,
        id: str | None = None,
        consumer: str | None = None,
        status: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]: ...

    def schedules(self, queue: str | None = None) -> list[dict[str, Any]]: ...

    def drop(self, queue: str, ids: Sequence[str]) -> Results: ...

    def purge(
        self,
        queue: str,
        filter: str = "",
        *,
        all: bool = False,
        state: str = "backlog",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult: ...

    def delete_queue(self, queue: str) -> None: ...

    def sweep(self) -> int: ...

    def consumer_beat(self, values: Mapping[str, Any]) -> str: ...

    def consumer_list(self) -> list[dict[str, Any]]: ...

    def consumer_wish(self, id: str, wish: str) -> dict[str, Any]: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class QueueStore(QueueApi, Protocol):
    """Queues as commands use them: an opened store, or those of a server."""

    def read(self, work: Callable[[ReadTransaction], Answer]) -> Answer:
        """Run read-only ``work``. Through a server each read is a call, and several are no consistent snapshot."""

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run ``work`` in a commit. Raises ``Unavailable`` through a server."""

    def check(self, *, repair: bool = False, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        """Check the files of the store. Raises ``Unavailable`` through a server."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def ahead_ms(self) -> int: ...
