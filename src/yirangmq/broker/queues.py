"""Queues of a store as a program uses them: every operation as a blocking, thread-safe method.

Each method checks its arguments, runs once through the committer and returns when the change is durable. The committer
is ``broker.group_commit_threads`` in an embedded store. Inside a server, ``admin.registry`` passes the job to the event
loop's committer."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from yirangmq.broker import policies
from yirangmq.broker.admission import dry_run
from yirangmq.broker.bulk import Wholesale
from yirangmq.broker.event_buffer import Happenings, Hear
from yirangmq.broker.group_commit_threads import Lane, Way
from yirangmq.broker.operations import Verbs
from yirangmq.broker.queries import check_state, looks, one, page
from yirangmq.broker.scheduler import listed
from yirangmq.broker.settle import MOST_PER_CALL, Leases, Results
from yirangmq.broker.store_time import shown_message
from yirangmq.broker.subscription import Sender, Subscription, Terms, Waiters
from yirangmq.clock import default_consumer
from yirangmq.core import transitions, validation
from yirangmq.core.consumer_registry import Consumers, Roster
from yirangmq.core.errors import BadInput, Unavailable
from yirangmq.core.events import Steered
from yirangmq.core.message import RANK_LAST, Counts, Envelope, Reason, check_reason, new_envelope
from yirangmq.core.policy import show_policy
from yirangmq.core.ports import Clock, Finding, Ids, Store, Stored, Transaction
from yirangmq.format.delivery import Delivery, Look
from yirangmq.format.envelope import NewMessage, build, read

Answer = TypeVar("Answer")
NO_TOPICS = "topics are reached through a server: connect to its address"


class Queues(AbstractContextManager["Queues"]):
    """Every queue of one store. Safe to share between threads; what a method returned is on disk."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        consumer: str | None = None,
        lane: Way | None = None,
        roster: Roster | None = None,
        verbs: Verbs | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._verbs = verbs or Verbs(clock, ids)
        self._lane: Way = lane or Lane(store, self._verbs.happened, self._verbs.gate)
        self._waiters = Waiters(store)
        self._roster: Roster = roster or Consumers(clock)
        self.wholesale = Wholesale(self, self._verbs, clock)
        self.consumer = validation.check_consumer(consumer) if consumer else default_consumer()

    @property
    def topics(self) -> NoReturn:
        """Of a server's client they are topics; a store of queues has none."""
        raise Unavailable(NO_TOPICS)

    # -- producing ------------------------------------------------------------------------------------------------

    def publish(self, queue: str, message: object) -> Stored:
        """Put one message in: any JSON value, bytes, or a ``NewMessage``. Returns when it is on disk."""
        return self.publish_many(queue, [message])[0]

    def publish_many(self, queue: str, messages: Iterable[object]) -> list[Stored]:
        """Put many in with one commit, in this order. One bad message refuses the whole batch; nothing is stored."""
        validation.check_queue(queue)
        validation.check_many(messages, "messages")
        batch = messages if isinstance(messages, list) else list(messages)
        now = self._clock.now_ms()
        ids = self._ids.new(len(batch))
        return self.publish_envelopes(
            queue, [self._envelope(queue, m, id, now) for m, id in zip(batch, ids, strict=True)]
        )

    def publish_text(
        self, queue: str, texts: Iterable[bytes], *, delay: float = 0, ttl: float | None = None
    ) -> list[Stored]:
        """Put JSON documents in: envelopes as they are, anything else wrapped as a payload."""
        validation.check_queue(queue)
        batch = list(texts)
        now = self._clock.now_ms()
        made = zip(batch, self._ids.new(len(batch)), strict=True)
        return self.publish_envelopes(queue, [read(queue, text, id, now, delay=delay, ttl=ttl) for text, id in made])

    def sender(self, queue: str, window: int = 64, *, told: Callable[[Stored], object] | None = None) -> Sender:
        """Publish one by one; ``told`` is called with the receipt of each. Here each is on disk when ``send`` returns:
        ``window`` is for those who send it to a server."""
        validation.check_queue(queue)
        validation.check_count(window, "window", most=MOST_PER_CALL)
        return Sender(self, queue, told)

    def _envelope(self, queue: str, message: object, id: str, now: int) -> Envelope:
        if type(message) is bytes:
            return new_envelope((queue, id, RANK_LAST, now, now, 0, None, "", message, False, 0, 0))
        new = message if isinstance(message, NewMessage) else NewMessage(payload=message)
        return build(queue, new, id, now)

    def publish_envelopes(self, queue: str, envelopes: Sequence[Envelope]) -> list[Stored]:
        """The door's way in: envelopes already checked and built."""
        if len(envelopes) > MOST_PER_CALL:
            raise BadInput(f"{len(envelopes)} in one call, at most {MOST_PER_CALL}", field="messages")
        if not envelopes:
            return []
        receipts = self._lane.run(lambda transaction: self._verbs.publish(transaction, queue, envelopes))
        self._waiters.ring()
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
    ) -> list[Delivery]:
        """Take up to ``limit`` messages for a while; wait up to ``wait`` seconds for the first one."""
        validation.check_queue(queue)
        validation.check_count(limit, "limit", most=MOST_PER_CALL)
        who = validation.check_consumer(consumer) if consumer is not None else self.consumer
        span = (
            None if lease_seconds is None else validation.check_milliseconds(lease_seconds, "leaseSeconds", least=0.001)
        )
        until = time.monotonic() + validation.check_milliseconds(wait, "wait") / 1000
        while True:
            seen = self._waiters.generation
            deliveries = self._lane.run(lambda transaction: self._verbs.lease(transaction, queue, limit, span, who))
            left = until - time.monotonic()
            if deliveries or left <= 0:
                return self._shown(deliveries)
            self._waiters.wait(seen, min(left, self._seconds_to_next_due()))

    def _shown(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """With the end of their leases on the wall clock."""
        ahead = self._clock.ahead_ms()
        if not ahead:
            return [*deliveries]
        return [one._replace(message=shown_message(one.message, ahead)) for one in deliveries]

    def subscribe(
        self,
        queue: str,
        credit: int = 64,
        *,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle: float | None = None,
    ) -> Subscription:
        """Have messages handed out as they come, at most ``credit`` unsettled at a time. Iterate over it, and settle
        what you get with the verbs here or its own ``ack_nowait``; it ends when nothing came for ``idle`` seconds."""
        validation.check_queue(queue)
        validation.check_count(credit, "credit", most=MOST_PER_CALL)
        if lease_seconds is not None:
            validation.check_milliseconds(lease_seconds, "leaseSeconds", least=0.001)
        if consumer is not None:
            validation.check_consumer(consumer)
        if idle is not None:
            validation.check_milliseconds(idle, "idle")
        terms = Terms(queue, credit, lease_seconds, consumer, idle)
        return Subscription(self, self._waiters, self._seconds_to_next_due, terms)

    def _seconds_to_next_due(self) -> float:
        due = self._lane.read(lambda transaction: transaction.next_due())
        return 3600.0 if due is None else max(0.0, (due - self._clock.now_ms()) / 1000)

    def ack(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None:
        """It worked. Raises the first error, after all the others were acknowledged."""
        _raise_first(self.ack_many([leases] if isinstance(leases, str) else leases, consumer=consumer))

    def ack_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results:
        """Acknowledge many with one commit; for each None, or why not. Repeating an ack that succeeded succeeds."""
        return self._settle(leases, lambda work, checked: self._verbs.ack(work, checked, consumer))

    def nack(
        self,
        leases: str | Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> None:
        """It did not work. Raises the first error, after all the others were given back."""
        batch = [leases] if isinstance(leases, str) else leases
        _raise_first(self.nack_many(batch, reason, text, delay=delay, consumer=consumer))

    def nack_many(
        self,
        leases: Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> Results:
        """Give many back with one commit: retried after the policy's backoff (or ``delay`` seconds), or dead."""
        delay_ms = None if delay is None else validation.check_milliseconds(delay, "delay")
        cause = transitions.Cause(check_reason(reason), validation.check_text(text), delay_ms)
        return self._settle(
            leases, lambda transaction, checked: self._verbs.nack(transaction, checked, consumer, cause)
        )

    def extend(self, leases: str | Sequence[str], seconds: float | None = None, *, consumer: str | None = None) -> None:
        """Keep it longer: the lease ends ``seconds`` from now (the queue's visibility time-out if not said)."""
        batch = [leases] if isinstance(leases, str) else leases
        _raise_first(self.extend_many(batch, seconds, consumer=consumer))

    def extend_many(
        self, leases: Sequence[str], seconds: float | None = None, *, consumer: str | None = None
    ) -> Results:
        span = None if seconds is None else validation.check_milliseconds(seconds, "seconds", least=0.001)
        return self._settle(
            leases, lambda transaction, checked: self._verbs.extend(transaction, checked, consumer, span)
        )

    def release(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None:
        """Give back what was never worked on. Raises the first error, after all the others were given back."""
        _raise_first(self.release_many([leases] if isinstance(leases, str) else leases, consumer=consumer))

    def release_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results:
        """Give many back with one commit: at once in line again, and the attempt does not count."""
        return self._settle(leases, lambda work, checked: self._verbs.release(work, checked, consumer))

    def _settle(self, leases: Sequence[str], verb: Callable[[Transaction, Leases], Results]) -> Results:
        checked = Leases(leases)
        errors = self._lane.run(lambda transaction: verb(transaction, checked)) if leases else []
        self._waiters.ring()
        return errors

    # -- time -----------------------------------------------------------------------------------------------------

    def sweep(self) -> int:
        """Do what time brings, now and completely; how many messages changed."""
        total = 0
        while changed := self._lane.run(self._verbs.sweep):
            total += changed
            self._waiters.ring()
        return total

    # -- looking --------------------------------------------------------------------------------------------------

    def peek(self, queue: str, limit: int = 10, *, state: str = "ready") -> list[Look]:
        """See the first messages of a state without taking them."""
        validation.check_queue(queue)
        validation.check_count(limit, "limit", most=MOST_PER_CALL)
        wanted = check_state(state)
        ahead = self._clock.ahead_ms()
        return self._lane.read(
            lambda transaction: looks(transaction, transaction.scan(queue, wanted, limit).messages, ahead)
        )

    def walk(self, queue: str, state: str, batch: int = 500) -> Iterator[Look]:
        """Every message of a state, a page at a time: memory stays flat, changes meanwhile are allowed."""
        validation.check_queue(queue)
        wanted, cursor = check_state(state), ""
        while True:
            ahead = self._clock.ahead_ms()
            work = partial(page, queue=queue, state=wanted, limit=batch, cursor=cursor, ahead=ahead)
            cursor, found = self._lane.read(work)
            yield from found
            if not cursor:
                return

    def show(self, queue: str, id: str) -> Look:
        """One message, wherever it stands."""
        validation.check_queue(queue)
        validation.check_id(id)
        return self._lane.read(partial(one, queue=queue, id=id, ahead=self._clock.ahead_ms()))

    def queues(self, prefix: str = "") -> list[str]:
        """The names of all queues, or of those that begin so, in order."""
        return self._lane.read(lambda transaction: transaction.queues(prefix=prefix))

    def counts(self, queue: str) -> Counts:
        validation.check_queue(queue)
        return self._lane.read(lambda transaction: transaction.counts(queue))

    def durability(self) -> str:
        return self._store.durability()

    # -- steering -------------------------------------------------------------------------------------------------

    def policy(self, queue: str) -> dict[str, Any]:
        """The policy in force, every member spelled out."""
        validation.check_queue(queue)
        return show_policy(self._lane.read(lambda transaction: transaction.policy(queue)))

    def check_policy(self, queue: str, document: object) -> dict[str, Any]:
        """Read a policy document without setting it; its full form, or an error naming the field."""
        return show_policy(policies.checked(document, queue, self._verbs.schemas, self._verbs.gate))

    def set_policy(self, queue: str, document: object) -> dict[str, Any]:
        """Check a policy document and put it in force; None goes back to the defaults."""
        full = self.check_policy(queue, document)
        self.wholesale.set_policy(queue, document)
        return full

    def try_out(self, queue: str, messages: Sequence[object]) -> dict[str, Any]:
        """What the queue's processor would say of these messages; nothing is stored."""
        validation.check_queue(queue)
        now, ids = self._clock.now_ms(), self._ids.new(len(messages))
        envelopes = [self._envelope(queue, m, id, now) for m, id in zip(messages, ids, strict=True)]
        found = self.read(partial(dry_run.tried, gate=self._verbs.gate, queue=queue, envelopes=envelopes))
        if found.needed is None:
            return found.report({})
        if not isinstance(self._lane, Lane):
            raise Unavailable("ask the server: processor_check")
        return found.report(self._lane.look_at(found.needed))

    def pause(self, queue: str) -> bool:
        """Hand nothing out until ``resume``, also after a restart; publishing goes on. False: it was paused already."""
        return self.run(lambda transaction: policies.pause(transaction, self._verbs, queue, paused=True))

    def resume(self, queue: str) -> bool:
        """Those who wait are served at once. False: it was not paused."""
        return self.run(lambda transaction: policies.pause(transaction, self._verbs, queue, paused=False))

    def dispatch(self, queue: str) -> dict[str, Any]:
        """By which strategy its messages are given out, and to whom."""
        return self._lane.read(lambda transaction: policies.look(self._verbs, transaction, queue, self._clock.now_ms()))

    def set_dispatch(self, queue: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Put members of the policy's ``dispatch`` in force, such as ``{"strategy": "round_robin"}``; nothing that is
        under way is touched. ``{"strategy": "none"}`` takes all of it away."""
        now = self._clock.now_ms()
        return self.run(lambda transaction: policies.change(self._verbs, transaction, queue, members, now))

    def register(self, queue: str, consumer: str) -> bool:
        """One of the queue's consumers from now on, also while it is away. False: it was already."""
        now = self._clock.now_ms()
        return self.run(lambda transaction: policies.register(self._verbs, transaction, queue, consumer, now))

    def deregister(self, queue: str, consumer: str) -> bool:
        """No longer one of them. False: it was not registered."""
        now = self._clock.now_ms()
        return self.run(lambda transaction: policies.deregister(self._verbs, transaction, queue, consumer, now))

    def deliveries(
        self,
        queue: str | None = None,
        *,
        id: str | None = None,
        consumer: str | None = None,
        status: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """The latest deliveries of queues with a ``dispatch``, the newest first, as far as this process remembers."""
        validation.check_count(limit, "limit", most=MOST_PER_CALL)
        wanted = {"queue": queue, "id": id, "consumer": consumer, "status": status}
        return policies.deliveries(self._verbs, wanted, limit)

    def schedules(self, queue: str | None = None) -> list[dict[str, Any]]:
        """The schedules of all queues, or of one, each with the time at which it fires next."""
        if queue is not None:
            validation.check_queue(queue)
        return self._lane.read(lambda transaction: listed(transaction, self.wall_ms(), queue))

    def drop(self, queue: str, ids: Sequence[str]) -> Results:
        """Give messages up, in any state; for each None, or why not."""
        validation.check_queue(queue)
        validation.check_many(ids, "ids")
        return self._lane.run(lambda transaction: self._verbs.drop(transaction, queue, ids))

    # -- consumers at work ----------------------------------------------------------------------------------------

    def consumer_beat(self, values: Mapping[str, Any]) -> str:
        """A consumer tells of itself, once a second; what an operator wishes of it, "" if nothing."""
        return self._roster.beat(values)

    def consumer_list(self) -> list[dict[str, Any]]:
        """Every consumer that told of itself within the last hour."""
        return self._roster.cards()

    def consumer_wish(self, id: str, wish: str) -> dict[str, Any]:
        """Ask a consumer to ``pause``, ``resume`` or ``drain``; it follows within a second. Its card."""
        return self._roster.wish(id, wish)

    # -- work that is not a verb of its own (dead letters, transfer) ----------------------------------------------

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """``work`` in one commit of the lane (see ``Lane.run``); then those who wait for messages are woken."""
        answer = self._lane.run(work)
        self._waiters.ring()
        return answer

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """``work`` that changes nothing, on one consistent view of the store."""
        return self._lane.read(work)

    def listen(self, hear: Hear) -> None:
        """``hear`` is told what each commit of this process did (``core.events``), once it is on disk."""
        self._verbs.happened.listen(hear)

    @property
    def verbs(self) -> Verbs:
        """For work given to ``run``: cards change by its ``swap``."""
        return self._verbs

    @property
    def happened(self) -> Happenings:
        """For work given to ``run``: what it does to messages is to be told here."""
        return self._verbs.happened

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def ahead_ms(self) -> int:
        return self._clock.ahead_ms()

    def delete_queue(self, queue: str) -> None:
        validation.check_queue(queue)

        def work(transaction: Transaction) -> None:
            transaction.delete_queue(queue)
            self._verbs.dispatching.drop_queue(transaction, queue)
            self._verbs.happened.add(Steered(queue, "delete"))

        self._lane.run(work)

    def check(self, *, repair: bool = False) -> Iterator[Finding]:
        return self._store.check(repair=repair)

    def close(self) -> None:
        if isinstance(self._lane, Lane):
            self._lane.close()
        self._store.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _raise_first(errors: Results) -> None:
    for error in errors:
        if error is not None:
            raise error
