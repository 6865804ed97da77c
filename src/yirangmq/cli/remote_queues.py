"""Queues of a server behind the interface of an opened store, for commands.

Operations use the client library. Reads use a transaction object that calls the server: each read is one call, and
several reads are not a consistent snapshot."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from yirangmq.cli.connection import NEEDS_FILES
from yirangmq.client.sync_client import Client, ClientDeadLetters
from yirangmq.clock import SystemClock
from yirangmq.core.errors import Unavailable
from yirangmq.core.message import Counts, Envelope, Message, MessageFailure
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import CheckProgress, Finding, Page, ReadTransaction, Transaction, no_progress
from yirangmq.core.states import State
from yirangmq.wire.messages import ViewParts, unpack

Answer = TypeVar("Answer")
MAX_PER_CALL = 10_000


class RemoteQueues:
    """Queues of a server, as commands use them (``broker.queue_api.QueueStore``); one client connection.

    Operations are the client's."""

    def __init__(self, client: Client, address: str) -> None:
        self._client = client
        self._core = client._core
        self.address = address

    publish = Client.publish
    publish_many = Client.publish_many
    publish_text = Client.publish_text
    lease = Client.lease
    ack = Client.ack
    ack_many = Client.ack_many
    nack = Client.nack
    nack_many = Client.nack_many
    release = Client.release
    release_many = Client.release_many
    extend = Client.extend
    extend_many = Client.extend_many
    peek = Client.peek
    walk = Client.walk
    show = Client.show
    queues = Client.queues
    counts = Client.counts
    durability = Client.durability
    policy = Client.policy
    check_policy = Client.check_policy
    set_policy = Client.set_policy
    try_out = Client.try_out
    pause = Client.pause
    resume = Client.resume
    dispatch = Client.dispatch
    set_dispatch = Client.set_dispatch
    register = Client.register
    deregister = Client.deregister
    deliveries = Client.deliveries
    schedules = Client.schedules
    drop = Client.drop
    purge = Client.purge
    delete_queue = Client.delete_queue
    sweep = Client.sweep
    consumer_beat = Client.consumer_beat
    consumer_list = Client.consumer_list
    consumer_wish = Client.consumer_wish
    close = Client.close
    call = Client.call

    @property
    def consumer(self) -> str:
        return self._client.consumer

    @property
    def dead_letters(self) -> ClientDeadLetters:
        return self._client.dead_letters

    def read(self, work: Callable[[ReadTransaction], Answer]) -> Answer:
        return work(RemoteTransaction(self._client))

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        raise Unavailable(NEEDS_FILES)

    def check(self, *, repair: bool = False, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        raise Unavailable(
            "this needs the store itself; give --direct where its files are, and stop the server to repair"
        )

    def now_ms(self) -> int:
        return SystemClock().now_ms()

    def wall_ms(self) -> int:
        return SystemClock().wall_ms()

    def ahead_ms(self) -> int:
        """Return 0: a server reports instants on its wall clock already."""
        return 0

    def __enter__(self) -> "RemoteQueues":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RemoteTransaction:
    """Reads of ``core.ports.ReadTransaction``, by calls to a server.

    ``envelopes`` and ``failures`` return data that came with the latest page, without a further call."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._page_parts: dict[int, ViewParts] = {}
        self._policies: dict[str, QueuePolicy] = {}

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        if limit is None and not after:
            return [*self._client.queues(prefix)]
        return [*self._client.call("queues", after=after, limit=limit or MAX_PER_CALL, prefix=prefix)]

    def queue_count(self) -> int:
        return len(self.queues())

    def has_queue(self, queue: str) -> bool:
        return self.queues(limit=1, prefix=queue) == [queue]

    def queues_with_policy(self) -> list[str]:
        return [*self._client.call("queues", policied=True)]

    def counts(self, queue: str) -> Counts:
        return self._client.counts(queue)

    def policy(self, queue: str) -> QueuePolicy:
        if queue not in self._policies:
            self._policies[queue] = read_policy(self._client.policy(queue), queue)
        return self._policies[queue]

    def policy_text(self, queue: str) -> str | None:
        found: str | None = self._client.call("policy_text", queue=queue)
        return found

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        page = self._client.call("peek", queue=queue, state=state.value, limit=min(limit, MAX_PER_CALL), cursor=cursor)
        return Page(*self._remember_page(page))

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        found, _ = self._remember_page(self._client.call("by_id", queue=queue, ids=[*ids]))
        known = {message.id: message for message in found}
        return [known.get(id) for id in ids]

    def due(self, now: int, limit: int) -> list[Message]:
        return self._remember_page(self._client.call("due", limit=min(limit, MAX_PER_CALL)))[0]

    def next_due(self, before: int | None = None) -> int | None:
        found: int | None = self._client.call("next_due")
        return None if found is None or (before is not None and found >= before) else found

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        return [self._page_parts[message.seq][1] for message in messages]

    def failures(self, messages: Sequence[Message]) -> list[MessageFailure | None]:
        return [self._page_parts[message.seq][2] for message in messages]

    def _remember_page(self, page: Any) -> tuple[list[Message], str]:
        views, cursor = unpack(page)
        self._page_parts = {parts[0].seq: parts for parts in views}
        return [parts[0] for parts in views], cursor
