"""Queues of a store as a program uses them: every operation as a blocking, thread-safe method.

Each method checks its arguments, runs once through the committer and returns when the change is durable. The committer
is ``broker.group_commit_threads`` in an embedded store. Inside a server, ``admin.registry`` passes the job to the event
loop's committer."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from yirangmq.broker import dead_letter_sources, operations, policies, settle
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.cron_scheduler import schedule_rows
from yirangmq.broker.dispatch.dispatcher import drop_queue
from yirangmq.broker.event_buffer import EventBufferListener
from yirangmq.broker.expiry_sweeper import sweep
from yirangmq.broker.group_commit_threads import CommitterPort, ThreadedGroupCommitter
from yirangmq.broker.queries import check_state, inspect_messages, one, page
from yirangmq.broker.settle import MAX_PER_CALL, Leases, Results, raise_first
from yirangmq.broker.store_time import message_in_wall_time
from yirangmq.broker.subscription import ChangeNotifier, EmbeddedSender, EmbeddedSubscriptionOptions, Subscription
from yirangmq.clock import default_consumer
from yirangmq.core import ports, transitions, validation
from yirangmq.core.consumer_registry import ConsumerRegistry, MemoryConsumerRegistry
from yirangmq.core.errors import BadInput, Unavailable
from yirangmq.core.events import QueueChanged
from yirangmq.core.message import RANK_LAST, Counts, Envelope, Reason, check_reason, new_envelope
from yirangmq.core.policy import show_policy
from yirangmq.core.ports import AddResult, Clock, Finding, Ids, MoveResult, Store, Transaction
from yirangmq.format.delivery import MessageDelivery, MessageView
from yirangmq.format.envelope import NewMessage, build, read

if TYPE_CHECKING:
    from yirangmq.broker.bulk import BulkOperations
    from yirangmq.broker.dead_letters import DeadLetters

Answer = TypeVar("Answer")
NO_TOPICS = "topics are reached through a server: connect to its address"


class Queues(AbstractContextManager["Queues"]):
    """All queues of a store. Thread-safe. When a method returns, its changes are durable."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        consumer: str | None = None,
        committer: CommitterPort | None = None,
        registry: ConsumerRegistry | None = None,
        context: TransactionContext | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self.context = context or TransactionContext(clock, ids)
        """Context of the operations, for work passed to ``run``."""
        self._committer: CommitterPort = committer or ThreadedGroupCommitter(
            store, self.context.event_buffer, self.context.admission
        )
        self._waiters = ChangeNotifier(store)
        self._registry: ConsumerRegistry = registry or MemoryConsumerRegistry(clock)
        self.consumer = validation.check_consumer(consumer) if consumer else default_consumer()

    @cached_property
    def bulk(self) -> "BulkOperations":
        """Bulk operations on whole queues, a page per commit."""
        from yirangmq.broker.bulk import BulkOperations  # most programs need none of them

        return BulkOperations(self, self.context)

    @property
    def topics(self) -> NoReturn:
        """Raise ``Unavailable``: only a server has topics. Exists because the clients have this attribute."""
        raise Unavailable(NO_TOPICS)

    @property
    def dead_letters(self) -> "DeadLetters":
        """Dead letters of all queues: list, show, count, redrive, quarantine, purge."""
        from yirangmq.broker.dead_letters import DeadLetters  # imports this module

        return DeadLetters(self)

    # -- producing ------------------------------------------------------------------------------------------------

    def publish(self, queue: str, message: object) -> AddResult:
        """Publish a message: any JSON value, bytes, or a ``NewMessage``. Return when it is durable."""
        return self.publish_many(queue, [message])[0]

    def publish_many(self, queue: str, messages: Iterable[object]) -> list[AddResult]:
        """Publish messages in one commit, in this order. If one is invalid, the whole batch is refused."""
        validation.check_queue(queue)
        validation.check_many(messages, "messages")
        batch = messages if isinstance(messages, list) else list(messages)
        now = self._clock.now_ms()
        ids = self._ids.new(len(batch))
        return self.publish_envelopes(
            queue, [self._envelope(queue, m, id, now) for m, id in zip(batch, ids, strict=True)]
        )

    def publish_text(
        self,
        queue: str,
        texts: Iterable[bytes],
        *,
        delay: float | None = 0,
        ttl: float | None = None,
        read_as: str | None = None,
    ) -> list[AddResult]:
        """Publish JSON documents. One with ``messageId`` and ``payload`` is an envelope, any other is a payload.

        ``read_as="envelope"`` or ``read_as="payload"`` decides that for all of them."""
        validation.check_queue(queue)
        batch = list(texts)
        now = self._clock.now_ms()
        made = zip(batch, self._ids.new(len(batch)), strict=True)
        envelopes = [read(queue, text, id, now, delay=delay, ttl=ttl, read_as=read_as) for text, id in made]
        return self.publish_envelopes(queue, envelopes)

    def sender(
        self, queue: str, window: int = 64, *, on_receipt: Callable[[AddResult], object] | None = None
    ) -> EmbeddedSender:
        """Return a sender that publishes message by message and calls ``on_receipt`` with the receipt of each.

        Each message is durable when ``send`` returns. ``window`` has an effect only with a server."""
        validation.check_queue(queue)
        validation.check_count(window, "window", most=MAX_PER_CALL)
        return EmbeddedSender(self, queue, on_receipt)

    def _envelope(self, queue: str, message: object, id: str, now: int) -> Envelope:
        if type(message) is bytes:
            return new_envelope((queue, id, RANK_LAST, now, now, 0, None, "", message, False, 0, 0))
        new = message if isinstance(message, NewMessage) else NewMessage(payload=message)
        return build(queue, new, id, now)

    def publish_envelopes(self, queue: str, envelopes: Sequence[Envelope]) -> list[AddResult]:
        """Publish envelopes that a protocol has already validated and built."""
        if len(envelopes) > MAX_PER_CALL:
            raise BadInput(f"{len(envelopes)} in one call, at most {MAX_PER_CALL}", field="messages")
        if not envelopes:
            return []
        receipts = self._committer.run(
            lambda transaction: operations.publish(self.context, transaction, queue, envelopes)
        )
        self._waiters.notify()
        return receipts

    # -- consuming ------------------------------------------------------------------------------------------------

    def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: float = 0,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> list[MessageDelivery]:
        """Lease up to ``limit`` messages; wait up to ``wait`` seconds for the first one."""
        validation.check_queue(queue)
        validation.check_count(limit, "limit", most=MAX_PER_CALL)
        consumer_id = validation.check_consumer(consumer) if consumer is not None else self.consumer
        span = (
            None if lease_seconds is None else validation.check_milliseconds(lease_seconds, "leaseSeconds", least=0.001)
        )
        until = time.monotonic() + validation.check_milliseconds(wait, "wait") / 1000
        while True:
            seen = self._waiters.generation
            deliveries = self._committer.run(
                lambda transaction: operations.lease(self.context, transaction, queue, limit, span, consumer_id)
            )
            left = until - time.monotonic()
            if deliveries or left <= 0:
                return self._shown(deliveries)
            self._waiters.wait(seen, min(left, self._seconds_to_next_due()))

    def _shown(self, deliveries: Sequence[MessageDelivery]) -> list[MessageDelivery]:
        """Convert the end of the leases to the wall clock."""
        ahead = self._clock.ahead_ms()
        if not ahead:
            return [*deliveries]
        return [one._replace(message=message_in_wall_time(one.message, ahead)) for one in deliveries]

    def subscribe(
        self,
        queue: str,
        credit: int = 64,
        *,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle: float | None = None,
    ) -> Subscription:
        """Return a subscription that leases messages as they arrive, at most ``credit`` unsettled at a time.

        Iterate over it, and settle the deliveries by the methods of this class or by its ``ack_nowait``. It ends after
        ``idle`` seconds without a message."""
        validation.check_queue(queue)
        validation.check_count(credit, "credit", most=MAX_PER_CALL)
        if lease_seconds is not None:
            validation.check_milliseconds(lease_seconds, "leaseSeconds", least=0.001)
        if consumer is not None:
            validation.check_consumer(consumer)
        if idle is not None:
            validation.check_milliseconds(idle, "idle")
        terms = EmbeddedSubscriptionOptions(queue, credit, lease_seconds, consumer, idle)
        return Subscription(self, self._waiters, self._seconds_to_next_due, terms)

    def _seconds_to_next_due(self) -> float:
        due = self._committer.read(lambda transaction: transaction.next_due())
        return 3600.0 if due is None else max(0.0, (due - self._clock.now_ms()) / 1000)

    def ack(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None:
        """Acknowledge messages that were processed. All are tried, then the first error is raised."""
        raise_first(self.ack_many([leases] if isinstance(leases, str) else leases, consumer=consumer))

    def ack_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results:
        """Acknowledge messages in one commit; return None or an error for each. A repeated ack succeeds."""
        return self._settle(leases, lambda work, checked: settle.ack(self.context, work, checked, consumer))

    def nack(
        self,
        leases: str | Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> None:
        """Report failed messages. All are tried, then the first error is raised."""
        batch = [leases] if isinstance(leases, str) else leases
        raise_first(self.nack_many(batch, reason, text, delay=delay, consumer=consumer))

    def nack_many(
        self,
        leases: Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> Results:
        """Nack messages in one commit: each is retried after the policy's backoff (or ``delay`` seconds), or dead."""
        delay_ms = None if delay is None else validation.check_milliseconds(delay, "delay")
        cause = transitions.Cause(check_reason(reason), validation.check_text(text), delay_ms)
        return self._settle(
            leases, lambda transaction, checked: settle.nack(self.context, transaction, checked, consumer, cause)
        )

    def extend(self, leases: str | Sequence[str], seconds: float | None = None, *, consumer: str | None = None) -> None:
        """Extend leases to ``seconds`` from now; if None, to the queue's visibility timeout from now."""
        batch = [leases] if isinstance(leases, str) else leases
        raise_first(self.extend_many(batch, seconds, consumer=consumer))

    def extend_many(
        self, leases: Sequence[str], seconds: float | None = None, *, consumer: str | None = None
    ) -> Results:
        span = None if seconds is None else validation.check_milliseconds(seconds, "seconds", least=0.001)
        return self._settle(
            leases, lambda transaction, checked: settle.extend(self.context, transaction, checked, consumer, span)
        )

    def release(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None:
        """Release messages that were not processed. All are tried, then the first error is raised."""
        raise_first(self.release_many([leases] if isinstance(leases, str) else leases, consumer=consumer))

    def release_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results:
        """Release messages in one commit: they are ready again immediately, and the attempt does not count."""
        return self._settle(leases, lambda work, checked: settle.release(self.context, work, checked, consumer))

    def _settle(self, leases: Sequence[str], verb: Callable[[Transaction, Leases], Results]) -> Results:
        checked = Leases(leases)
        errors = self._committer.run(lambda transaction: verb(transaction, checked)) if leases else []
        self._waiters.notify()
        return errors

    # -- time -----------------------------------------------------------------------------------------------------

    def sweep(self) -> int:
        """Apply all expiries and due times now; return the number of changed messages."""
        total = 0
        while changed := self._committer.run(partial(sweep, self.context)):
            total += changed
            self._waiters.notify()
        return total

    # -- queries --------------------------------------------------------------------------------------------------

    def peek(self, queue: str, limit: int = 10, *, state: str = "ready") -> list[MessageView]:
        """Return the first messages of a state without leasing them."""
        validation.check_queue(queue)
        validation.check_count(limit, "limit", most=MAX_PER_CALL)
        wanted = check_state(state)
        ahead = self._clock.ahead_ms()
        return self._committer.read(
            lambda transaction: inspect_messages(transaction, transaction.scan(queue, wanted, limit).messages, ahead)
        )

    def walk(self, queue: str, state: str, batch: int = 500) -> Iterator[MessageView]:
        """Iterate over all messages of a state, page by page: memory is bounded and the queue may change meanwhile."""
        validation.check_queue(queue)
        wanted, cursor = check_state(state), ""
        while True:
            ahead = self._clock.ahead_ms()
            work = partial(page, queue=queue, state=wanted, limit=batch, cursor=cursor, ahead=ahead)
            cursor, found = self._committer.read(work)
            yield from found
            if not cursor:
                return

    def show(self, queue: str, id: str) -> MessageView:
        """Return a message by id, in any state."""
        validation.check_queue(queue)
        validation.check_id(id)
        return self._committer.read(partial(one, queue=queue, id=id, ahead=self._clock.ahead_ms()))

    def queues(self, prefix: str = "") -> list[str]:
        """Return the names of all queues, or of those with this prefix, in order."""
        return self._committer.read(lambda transaction: transaction.queues(prefix=prefix))

    def counts(self, queue: str) -> Counts:
        validation.check_queue(queue)
        return self._committer.read(lambda transaction: transaction.counts(queue))

    def durability(self) -> str:
        return self._store.durability()

    # -- control --------------------------------------------------------------------------------------------------

    def policy(self, queue: str) -> dict[str, Any]:
        """Return the effective policy with all members."""
        validation.check_queue(queue)
        return show_policy(self._committer.read(lambda transaction: transaction.policy(queue)))

    def check_policy(self, queue: str, document: object) -> dict[str, Any]:
        """Validate a policy document without setting it. Return its full form; an error names the invalid field."""
        return show_policy(policies.checked(document, queue, self.context.schemas, self.context.admission))

    def set_policy(self, queue: str, document: object) -> dict[str, Any]:
        """Validate and set a policy document; None restores the defaults."""
        full = self.check_policy(queue, document)
        self.bulk.set_policy(queue, document)
        return full

    def try_out(self, queue: str, messages: Sequence[object]) -> dict[str, Any]:
        """Dry run of the queue's processor: return its result for these messages without storing them."""
        from yirangmq.broker.admission import dry_run

        validation.check_queue(queue)
        now, ids = self._clock.now_ms(), self._ids.new(len(messages))
        envelopes = [self._envelope(queue, m, id, now) for m, id in zip(messages, ids, strict=True)]
        found = self.read(partial(dry_run.prepare, admission=self.context.admission, queue=queue, envelopes=envelopes))
        if found.needed is None:
            return found.report({})
        if not isinstance(self._committer, ThreadedGroupCommitter):
            raise Unavailable("call processor_check on the server")
        return found.report(self._committer.dry_run(found.needed))

    def pause(self, queue: str) -> bool:
        """Stop leasing until ``resume``, also after a restart; publishing continues. False if it was already paused."""
        return self.run(lambda transaction: policies.pause(transaction, self.context, queue, paused=True))

    def resume(self, queue: str) -> bool:
        """Resume leasing; waiting consumers are served immediately. Return False if the queue was not paused."""
        return self.run(lambda transaction: policies.pause(transaction, self.context, queue, paused=False))

    def dispatch(self, queue: str) -> dict[str, Any]:
        """Return the dispatch strategy of a queue and its consumers."""
        return self._committer.read(
            lambda transaction: policies.describe_dispatch(self.context, transaction, queue, self._clock.now_ms())
        )

    def set_dispatch(self, queue: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Set members of the policy's ``dispatch``, such as ``{"strategy": "round_robin"}``. Leased messages are not
        affected. ``{"strategy": "none"}`` removes the dispatch policy."""
        now = self._clock.now_ms()
        return self.run(lambda transaction: policies.change(self.context, transaction, queue, members, now))

    def register(self, queue: str, consumer: str) -> bool:
        """Register a consumer of the queue; it stays one while disconnected. Return False if it was registered."""
        now = self._clock.now_ms()
        return self.run(lambda transaction: policies.register(self.context, transaction, queue, consumer, now))

    def deregister(self, queue: str, consumer: str) -> bool:
        """Remove a registered consumer. Return False if it was not registered."""
        now = self._clock.now_ms()
        return self.run(lambda transaction: policies.deregister(self.context, transaction, queue, consumer, now))

    def deliveries(
        self,
        queue: str | None = None,
        *,
        id: str | None = None,
        consumer: str | None = None,
        status: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Return the latest deliveries of queues with a ``dispatch``, newest first, from this process's memory."""
        validation.check_count(limit, "limit", most=MAX_PER_CALL)
        wanted = {"queue": queue, "id": id, "consumer": consumer, "status": status}
        return policies.deliveries(self.context, wanted, limit)

    def schedules(self, queue: str | None = None) -> list[dict[str, Any]]:
        """Return the schedules of all queues, or of one, each with its next firing time."""
        if queue is not None:
            validation.check_queue(queue)
        return self._committer.read(lambda transaction: schedule_rows(transaction, self.wall_ms(), queue))

    def drop(self, queue: str, ids: Sequence[str]) -> Results:
        """Drop messages in any state; return None or an error for each."""
        validation.check_queue(queue)
        validation.check_many(ids, "ids")
        return self._committer.run(lambda transaction: operations.drop(self.context, transaction, queue, ids))

    def purge(
        self,
        queue: str,
        filter: str = "",
        *,
        all: bool = False,
        state: str = "backlog",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Drop the waiting messages of a queue that match a filter, or ``all`` of them; ``limit`` takes the oldest.

        ``state`` is ``ready``, ``delayed``, ``held``, or ``backlog`` for the three. Other messages and the policy
        stay."""
        from yirangmq.broker.message_moves import purge  # imports this module

        return purge(self, queue, filter, all=all, state=state, limit=limit, dry_run=dry_run)

    # -- consumer registry ----------------------------------------------------------------------------------------

    def consumer_beat(self, values: Mapping[str, Any]) -> str:
        """Record a consumer's heartbeat, sent once a second. Return the operator's request to it, "" if none."""
        return self._registry.report(values)

    def consumer_list(self) -> list[dict[str, Any]]:
        """Return the consumers that sent a heartbeat within the last hour."""
        return self._registry.entries()

    def consumer_wish(self, id: str, wish: str) -> dict[str, Any]:
        """Request a consumer to ``pause``, ``resume`` or ``drain``; it reacts within 1 s. Return its registry entry."""
        return self._registry.wish(id, wish)

    # -- other work in transactions (dead letters, export) --------------------------------------------------------

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run ``work`` in a commit (see ``ThreadedGroupCommitter.run``), then wake the consumers that wait for
        messages."""
        answer = self._committer.run(work)
        self._waiters.notify()
        return answer

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run read-only ``work`` on a consistent view of the store."""
        return self._committer.read(work)

    def add_listener(self, listener: EventBufferListener) -> None:
        """Call ``listener`` with the events (``core.events``) of each commit of this process, after it is durable."""
        self.context.event_buffer.add_listener(listener)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def ahead_ms(self) -> int:
        return self._clock.ahead_ms()

    def delete_queue(self, queue: str) -> None:
        validation.check_queue(queue)

        def work(transaction: Transaction) -> None:
            dead_letter_sources.delete_queue(transaction, queue)
            drop_queue(self.context, transaction, queue, self._clock.now_ms())
            self.context.event_buffer.add(QueueChanged(queue, "delete"))

        self._committer.run(work)

    def check(self, *, repair: bool = False, progress: ports.CheckProgress = ports.no_progress) -> Iterator[Finding]:
        return self._store.check(repair=repair, progress=progress)

    def close(self) -> None:
        if isinstance(self._committer, ThreadedGroupCommitter):
            self._committer.close()
        self._store.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
