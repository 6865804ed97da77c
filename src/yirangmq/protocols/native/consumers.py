"""Consumer side of one native session: leases, waiting leases, subscriptions with a credit window, settling.

Sans-IO. A waiting lease gets an empty answer when its wait times out or the server stops. Settled messages free their
credit before their commit, so the commit that settles them also delivers the next ones. No messages are pushed to a
client that does not read."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from yirangmq.broker import operations, settle
from yirangmq.broker.credit_window import CreditWindow, PendingLeaseRequest, UnsettledLeases
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.settle import MAX_PER_CALL, Leases, Results
from yirangmq.broker.waiting_consumers import MAX_BYTES_PER_WAITER
from yirangmq.core import transitions, validation
from yirangmq.core.access import CONSUME, AccessGrant
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import check_reason
from yirangmq.core.policy import QueuePolicy, show_policy
from yirangmq.core.ports import Clock, Transaction
from yirangmq.format.delivery import MessageDelivery, rules_of
from yirangmq.format.json_codec import dumps
from yirangmq.protocols.native import codec
from yirangmq.wire import messages as calls
from yirangmq.wire.frames import FrameKind

MAX_SUBSCRIPTIONS = 64
"""Upper bound of subscriptions per client."""
MAX_WAITING_LEASES = 256
"""Upper bound of leases of one client that wait for messages at the same time."""
MAX_CONSUMER_NAMES = 10_000
"""Upper bound of consumer names remembered until the server stops."""
LEASE_WEIGHT = 4
"""Weight of a lease among pending requests: its answer may be 4 times as large as that to a publish (weight 1)."""


class ConsumerSession(Protocol):
    """Session as its consumer side sees it."""

    client: str
    closed: bool
    is_write_paused: bool
    grant: AccessGrant | None
    """Grant of the client's program, or None if the client may do everything."""

    def answer(self, kind: FrameKind, request: int, body: Any) -> None: ...

    def deliver(self, request: int, body: calls.Deliver) -> None: ...

    def allow(self, verb: str, name: str) -> None: ...

    def allow_leases(self, transaction: Transaction, leases: Leases) -> None:
        """Raise ``NotAllowed`` unless the client may consume from the queue of each lease."""

    def submit(
        self, request: int, work: Callable[[Any], Any], reply: Callable[[Any], None], weight: int = 1
    ) -> None: ...


class ConsumerSide:
    """Consumer side of a session: leases, long polls, subscriptions with a credit window, and settling.

    ``consumer_names`` collects the consumer names used in leases and subscriptions. Loop thread only."""

    def __init__(
        self, client: ConsumerSession, committer: GroupCommitter, clock: Clock, consumer_names: set[str]
    ) -> None:
        self._client = client
        self._committer = committer
        self._clock = clock
        self._consumer_names = consumer_names
        self._subscriptions: dict[int, CreditWindow[UnsettledLeases]] = {}
        self._waiting: dict[int, PendingLeaseRequest] = {}
        self._latest: tuple[QueuePolicy | None, str] = (None, "")

    @property
    def is_waiting(self) -> bool:
        return bool(self._subscriptions or self._waiting)

    def describe(self) -> dict[str, Any]:
        subscriptions = [one.describe() for one in self._subscriptions.values()]
        return {"waiting": len(self._waiting), "subscriptions": subscriptions}

    def wake(self) -> None:
        """Resume pushing: the client reads again."""
        for subscription in self._subscriptions.values():
            self._committer.notify_capacity(subscription.queue)

    def stop(self) -> None:
        """Answer all waiting leases with no messages, and stop pushing."""
        for request, waiting in list(self._waiting.items()):
            self._time_out(request, waiting)
        self.close()

    def redirect(self, why: QueueError) -> None:
        """Answer all waiting leases and subscriptions with the error: another node is active now."""
        failed = calls.failed(why)
        waiting = [*self._waiting, *self._subscriptions]
        self.close()
        for request in waiting:
            self._client.answer(FrameKind.ERROR, request, failed)

    def close(self) -> None:
        """Cancel all subscriptions and waiting leases without an answer."""
        for subscription in self._subscriptions.values():
            self._committer.remove_waiter(subscription)
        for waiting in self._waiting.values():
            self._remove_waiting(waiting)
        self._subscriptions.clear()
        self._waiting.clear()

    # -- leases and subscriptions --------------------------------------------------------------------------------------

    def lease(self, request: int, body: calls.Lease) -> None:
        queue, consumer = validation.check_queue(body.queue), self._consumer(body.consumer)
        if self._client.grant is not None:
            self._client.allow(CONSUME, queue)
        validation.check_count(body.limit, "limit", most=MAX_PER_CALL)
        span = None if body.span_ms is None else codec.milliseconds(body.span_ms, "leaseSeconds", least=1)
        if body.wait_ms and codec.milliseconds(body.wait_ms, "wait"):
            self._wait(
                request,
                PendingLeaseRequest(queue, consumer, span, body.limit, lambda got: self._leased(request, got)),
                body,
            )
            return
        self._client.submit(
            request,
            partial(
                operations.lease,
                self._committer.context,
                queue=queue,
                limit=body.limit,
                span=span,
                consumer_id=consumer,
                most_bytes=MAX_BYTES_PER_WAITER,
            ),
            lambda got: self._deliver(request, queue, got),
            LEASE_WEIGHT,
        )

    def _wait(self, request: int, waiting: PendingLeaseRequest, body: calls.Lease) -> None:
        if request in self._waiting or len(self._waiting) >= MAX_WAITING_LEASES:
            raise BadInput(f"{request} is in use, or {MAX_WAITING_LEASES} leases wait already", field="request")
        self._committer.add_waiter(waiting)
        self._waiting[request] = waiting
        waiting.alarm = self._committer.later(body.wait_ms / 1000, lambda: self._time_out(request, waiting))

    def _leased(self, request: int, deliveries: Sequence[MessageDelivery]) -> bool:
        waiting = self._waiting.pop(request, None)
        if waiting is None or self._client.closed:
            return False
        self._remove_waiting(waiting)
        self._deliver(request, waiting.queue, deliveries)
        return True

    def _time_out(self, request: int, waiting: PendingLeaseRequest) -> None:
        if self._waiting.get(request) is waiting:
            del self._waiting[request]
            self._remove_waiting(waiting)
            self._deliver(request, waiting.queue, [])

    def _remove_waiting(self, waiting: PendingLeaseRequest) -> None:
        self._committer.remove_waiter(waiting)
        if waiting.alarm is not None:
            waiting.alarm.cancel()

    def _deliver(self, request: int, queue: str, deliveries: Sequence[MessageDelivery]) -> None:
        policy = self._policy_text(rules_of(deliveries)) if deliveries else ""
        messages = codec.encode_deliveries(deliveries, self._clock.ahead_ms())
        self._client.deliver(request, calls.Deliver(queue, messages, policy))

    def subscribe(self, request: int, body: calls.Subscribe) -> None:
        queue, consumer = validation.check_queue(body.queue), self._consumer(body.consumer)
        self._client.allow(CONSUME, queue)
        validation.check_count(body.credit, "credit", most=MAX_PER_CALL)
        validation.check_count(len(body.held), "held", least=0, most=MAX_PER_CALL)
        span = codec.milliseconds(body.span_ms, "leaseSeconds", least=1)
        if request in self._subscriptions or len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise BadInput(f"{request} is in use, or there are {MAX_SUBSCRIPTIONS} already", field="request")
        subscription = CreditWindow(
            queue,
            consumer,
            span,
            body.credit,
            UnsettledLeases(self._clock, self._on_store_time(body.held)),
            lambda got: self._pushed(request, got),
            lambda: not self._client.is_write_paused,
        )
        self._committer.add_waiter(subscription)
        self._subscriptions[request] = subscription

    def _on_store_time(self, held: Mapping[str, int]) -> Mapping[str, int]:
        """Convert ends of leases from the wall clock, on which clients get them, to store time."""
        ahead = self._clock.ahead_ms()
        return {lease: until - ahead for lease, until in held.items()} if ahead else held

    def _pushed(self, request: int, deliveries: Sequence[MessageDelivery]) -> bool:
        subscription = self._subscriptions.get(request)
        if subscription is None or self._client.closed:
            return False
        policy, ledger = rules_of(deliveries), subscription.ledger
        text = "" if ledger.policy is policy else self._policy_text(policy)
        ledger.policy = policy
        messages = codec.encode_deliveries(deliveries, self._clock.ahead_ms())
        self._client.deliver(request, calls.Deliver(subscription.queue, messages, text))
        ledger.add(deliveries)
        return True

    def cancel(self, request: int, body: calls.Cancel) -> None:
        subscription = self._subscriptions.pop(body.subscription, None)
        if subscription is not None:
            self._committer.remove_waiter(subscription)
        self._client.answer(FrameKind.RESULT, request, calls.Result(subscription is not None))

    # -- settling -------------------------------------------------------------------------------------------------

    def ack(self, request: int, body: calls.Settle) -> None:
        self._settle(request, body.leases, partial(settle.ack, self._committer.context, consumer=body.consumer))

    def release(self, request: int, body: calls.Settle) -> None:
        self._settle(request, body.leases, partial(settle.release, self._committer.context, consumer=body.consumer))

    def nack(self, request: int, body: calls.Nack) -> None:
        delay = codec.milliseconds(body.delay_ms, "delay")
        cause = transitions.Cause(check_reason(body.reason), body.text, delay)
        verb = partial(settle.nack, self._committer.context, consumer=body.consumer, cause=cause)
        self._settle(request, body.leases, verb)

    def _settle(self, request: int, texts: list[str], verb: Callable[..., Results]) -> None:
        """Settle leases. Their credit is freed before the commit, so that this commit also delivers the next
        messages."""
        span = None
        for subscription in self._subscriptions.values():
            span = span or subscription.ledger.span_of(texts)
        leases = Leases(texts, span=span)
        self._client.submit(
            request,
            self._allowed(leases, verb),
            lambda results: self._client.answer(FrameKind.SETTLED, request, calls.SettleReply(_failures(results))),
        )
        for subscription in self._subscriptions.values():
            if subscription.ledger.settled(texts):
                self._committer.notify_capacity(subscription.queue)

    def extend(self, request: int, body: calls.Extend) -> None:
        leases = Leases(body.leases)
        span = codec.milliseconds(body.span_ms, "seconds", least=1)

        def reply(results: Results) -> None:
            self._client.answer(FrameKind.SETTLED, request, calls.SettleReply(_failures(results)))
            kept = [lease for lease, error in zip(body.leases, results, strict=True) if error is None]
            for subscription in self._subscriptions.values():
                subscription.ledger.extended(kept, span)

        verb = partial(settle.extend, self._committer.context, consumer=body.consumer, span=span)
        self._client.submit(request, self._allowed(leases, verb), reply)

    def _allowed(self, leases: Leases, verb: Callable[..., Results]) -> Callable[[Transaction], Results]:
        """Return the work that settles these leases by ``verb(transaction, leases=…)``, if the client may do so."""
        if self._client.grant is None:
            return partial(verb, leases=leases)

        def work(transaction: Transaction) -> Results:
            self._client.allow_leases(transaction, leases)
            return verb(transaction, leases=leases)

        return work

    # -- names and texts ------------------------------------------------------------------------------------------

    def _consumer(self, name: str) -> str:
        consumer = validation.check_consumer(name or self._client.client or "anonymous")
        if len(self._consumer_names) < MAX_CONSUMER_NAMES:
            self._consumer_names.add(consumer)
        return consumer

    def _policy_text(self, rules: QueuePolicy) -> str:
        """Return a policy as JSON. A policy is the same object until it changes, so the latest text is cached."""
        if self._latest[0] is not rules:
            self._latest = rules, dumps(show_policy(rules)).decode()
        return self._latest[1]


def _failures(results: Sequence[QueueError | None]) -> dict[int, tuple[str, str]]:
    return {n: (error.code, str(error)) for n, error in enumerate(results) if error is not None}
