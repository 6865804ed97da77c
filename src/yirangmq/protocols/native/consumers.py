"""Consumer side of one native session: leases, waiting leases, subscriptions with a credit window, settling.

Sans-IO. A waiting lease gets an empty answer when its wait times out or the server stops. Settled messages free their
credit before their commit, so the commit that settles them also delivers the next ones. No messages are pushed to a
client that does not read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from yirangmq.broker.credit_window import PushedLeases, Subscription, Waiting
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.settle import MOST_PER_CALL, Leases, Results
from yirangmq.broker.waiting_consumers import BYTES_PER_TAKER
from yirangmq.core import transitions, validation
from yirangmq.core.access import CONSUME
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import check_reason
from yirangmq.core.policy import QueuePolicy, show_policy
from yirangmq.core.ports import Clock, Transaction
from yirangmq.format.delivery import Delivery, rules_of
from yirangmq.format.json_codec import dumps
from yirangmq.protocols.native import codec
from yirangmq.wire import messages as calls
from yirangmq.wire.frames import Kind

MOST_SUBSCRIPTIONS = 64
"""Upper bound of subscriptions per client."""
MOST_WAITING = 256
"""Upper bound of leases of one client that wait for messages at the same time."""
MOST_NAMES = 10_000
"""Upper bound of consumer names remembered until the server stops."""
LEASE_WEIGHT = 4
"""Weight of a lease among pending requests: its answer may be 4 times as large as that to a publish (weight 1)."""


class Client(Protocol):
    """Session as its consumer side sees it."""

    client: str
    closed: bool
    is_clogged: bool

    def answer(self, kind: Kind, request: int, body: Any) -> None: ...

    def deliver(self, request: int, body: calls.Deliver) -> None: ...

    def allow(self, verb: str, name: str) -> None: ...

    def allow_leases(self, transaction: Transaction, leases: Leases) -> None:
        """Raise ``NotAllowed`` unless the client may consume from the queue of each lease."""

    def submit(
        self, request: int, work: Callable[[Any], Any], reply: Callable[[Any], None], weight: int = 1
    ) -> None: ...


class Consuming:
    """Consumer side of a session: leases, long polls, subscriptions with a credit window, and settling.

    ``known`` collects the consumer names used in leases and subscriptions. Loop thread only."""

    def __init__(self, client: Client, desk: Desk, clock: Clock, known: set[str]) -> None:
        self._client = client
        self._desk = desk
        self._clock = clock
        self._known = known
        self._subscriptions: dict[int, Subscription[PushedLeases]] = {}
        self._waiting: dict[int, Waiting] = {}
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
            self._desk.hungry(subscription.queue)

    def stop(self) -> None:
        """Answer all waiting leases with no messages, and stop pushing."""
        for request, waiting in list(self._waiting.items()):
            self._give_up(request, waiting)
        self.end()

    def move(self, why: QueueError) -> None:
        """Answer all waiting leases and subscriptions with the error: another node is active now."""
        failed = calls.failed(why)
        waiting = [*self._waiting, *self._subscriptions]
        self.end()
        for request in waiting:
            self._client.answer(Kind.ERROR, request, failed)

    def end(self) -> None:
        """Cancel all subscriptions and waiting leases without an answer."""
        for subscription in self._subscriptions.values():
            self._desk.leave(subscription)
        for waiting in self._waiting.values():
            self._drop_waiting(waiting)
        self._subscriptions.clear()
        self._waiting.clear()

    # -- leases and subscriptions --------------------------------------------------------------------------------------

    def lease(self, request: int, body: calls.Lease) -> None:
        queue, who = validation.check_queue(body.queue), self._consumer(body.consumer)
        self._client.allow(CONSUME, queue)
        validation.check_count(body.limit, "limit", most=MOST_PER_CALL)
        span = codec.milliseconds(body.span_ms, "leaseSeconds", least=1)
        if codec.milliseconds(body.wait_ms, "wait"):
            self._wait(request, Waiting(queue, who, span, body.limit, lambda got: self._leased(request, got)), body)
            return
        self._client.submit(
            request,
            lambda transaction: self._desk.verbs.lease(transaction, queue, body.limit, span, who, BYTES_PER_TAKER),
            lambda got: self._deliver(request, queue, got),
            LEASE_WEIGHT,
        )

    def _wait(self, request: int, waiting: Waiting, body: calls.Lease) -> None:
        if request in self._waiting or len(self._waiting) >= MOST_WAITING:
            raise BadInput(f"{request} is in use, or {MOST_WAITING} leases wait already", field="request")
        self._desk.wait(waiting)
        self._waiting[request] = waiting
        waiting.alarm = self._desk.later(body.wait_ms / 1000, lambda: self._give_up(request, waiting))

    def _leased(self, request: int, deliveries: Sequence[Delivery]) -> bool:
        waiting = self._waiting.pop(request, None)
        if waiting is None or self._client.closed:
            return False
        self._drop_waiting(waiting)
        self._deliver(request, waiting.queue, deliveries)
        return True

    def _give_up(self, request: int, waiting: Waiting) -> None:
        if self._waiting.get(request) is waiting:
            del self._waiting[request]
            self._drop_waiting(waiting)
            self._deliver(request, waiting.queue, [])

    def _drop_waiting(self, waiting: Waiting) -> None:
        self._desk.leave(waiting)
        if waiting.alarm is not None:
            waiting.alarm.cancel()

    def _deliver(self, request: int, queue: str, deliveries: Sequence[Delivery]) -> None:
        policy = self._policy_text(rules_of(deliveries)) if deliveries else ""
        messages = codec.incoming(deliveries, self._clock.ahead_ms())
        self._client.deliver(request, calls.Deliver(queue, messages, policy))

    def subscribe(self, request: int, body: calls.Subscribe) -> None:
        queue, who = validation.check_queue(body.queue), self._consumer(body.consumer)
        self._client.allow(CONSUME, queue)
        validation.check_count(body.credit, "credit", most=MOST_PER_CALL)
        validation.check_count(len(body.held), "held", least=0, most=MOST_PER_CALL)
        span = codec.milliseconds(body.span_ms, "leaseSeconds", least=1)
        if request in self._subscriptions or len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise BadInput(f"{request} is in use, or there are {MOST_SUBSCRIPTIONS} already", field="request")
        subscription = Subscription(
            queue,
            who,
            span,
            body.credit,
            PushedLeases(self._clock, self._on_store_time(body.held)),
            lambda got: self._pushed(request, got),
            lambda: not self._client.is_clogged,
        )
        self._desk.wait(subscription)
        self._subscriptions[request] = subscription

    def _on_store_time(self, held: Mapping[str, int]) -> Mapping[str, int]:
        """Convert ends of leases from the wall clock, on which clients get them, to store time."""
        ahead = self._clock.ahead_ms()
        return {lease: until - ahead for lease, until in held.items()} if ahead else held

    def _pushed(self, request: int, deliveries: Sequence[Delivery]) -> bool:
        subscription = self._subscriptions.get(request)
        if subscription is None or self._client.closed:
            return False
        policy, ledger = rules_of(deliveries), subscription.ledger
        text = "" if ledger.policy is policy else self._policy_text(policy)
        ledger.policy = policy
        messages = codec.incoming(deliveries, self._clock.ahead_ms())
        self._client.deliver(request, calls.Deliver(subscription.queue, messages, text))
        ledger.add(deliveries)
        return True

    def cancel(self, request: int, body: calls.Cancel) -> None:
        subscription = self._subscriptions.pop(body.subscription, None)
        if subscription is not None:
            self._desk.leave(subscription)
        self._client.answer(Kind.RESULT, request, calls.Result(subscription is not None))

    # -- settling -------------------------------------------------------------------------------------------------

    def ack(self, request: int, body: calls.Settle) -> None:
        self._settle(request, body.leases, lambda work, leases: self._desk.verbs.ack(work, leases, body.consumer))

    def release(self, request: int, body: calls.Settle) -> None:
        self._settle(request, body.leases, lambda work, leases: self._desk.verbs.release(work, leases, body.consumer))

    def nack(self, request: int, body: calls.Nack) -> None:
        delay = codec.milliseconds(body.delay_ms, "delay")
        cause = transitions.Cause(check_reason(body.reason), body.text, delay)
        self._settle(
            request, body.leases, lambda work, leases: self._desk.verbs.nack(work, leases, body.consumer, cause)
        )

    def _settle(self, request: int, texts: list[str], verb: Callable[[Any, Leases], Results]) -> None:
        """Settle leases. Their credit is freed before the commit, so that this commit also delivers the next
        messages."""
        known = (subscription.ledger.span_of(texts) for subscription in self._subscriptions.values())
        leases = Leases(texts, span=next(filter(None, known), None))
        self._client.submit(
            request,
            self._allowed(leases, verb),
            lambda results: self._client.answer(Kind.SETTLED, request, calls.Settled(_failures(results))),
        )
        for subscription in self._subscriptions.values():
            if subscription.ledger.settled(texts):
                self._desk.hungry(subscription.queue)

    def extend(self, request: int, body: calls.Extend) -> None:
        leases = Leases(body.leases)
        span = codec.milliseconds(body.span_ms, "seconds", least=1)

        def reply(results: Results) -> None:
            self._client.answer(Kind.SETTLED, request, calls.Settled(_failures(results)))
            kept = [lease for lease, error in zip(body.leases, results, strict=True) if error is None]
            for subscription in self._subscriptions.values():
                subscription.ledger.extended(kept, span)

        def work(transaction: Transaction, leases: Leases) -> Results:
            return self._desk.verbs.extend(transaction, leases, body.consumer, span)

        self._client.submit(request, self._allowed(leases, work), reply)

    def _allowed(self, leases: Leases, verb: Callable[[Any, Leases], Results]) -> Callable[[Transaction], Results]:
        def work(transaction: Transaction) -> Results:
            self._client.allow_leases(transaction, leases)
            return verb(transaction, leases)

        return work

    # -- names and texts ------------------------------------------------------------------------------------------

    def _consumer(self, name: str) -> str:
        who = validation.check_consumer(name or self._client.client or "anonymous")
        if len(self._known) < MOST_NAMES:
            self._known.add(who)
        return who

    def _policy_text(self, rules: QueuePolicy) -> str:
        """Return a policy as JSON. A policy is the same object until it changes, so the latest text is cached."""
        if self._latest[0] is not rules:
            self._latest = rules, dumps(show_policy(rules)).decode()
        return self._latest[1]


def _failures(results: Sequence[QueueError | None]) -> dict[int, tuple[str, str]]:
    return {n: (error.code, str(error)) for n, error in enumerate(results) if error is not None}
