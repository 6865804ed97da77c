"""Webhook pusher of a queue: leases its messages, POSTs them, settles them by the response.

While the endpoint is failing, a single message at a time is tried, at growing intervals. Thus a dead endpoint does not
turn a full queue into dead letters. Leases of messages in flight are extended. Event loop thread only."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from yirangmq.broker import settle
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.credit_window import CreditWindow, UnsettledLeases
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.settle import Leases, Results
from yirangmq.core import transitions
from yirangmq.core.backoff import backoff_ms
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Reason
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.webhook import OutgoingNetworks
from yirangmq.format.cloudevents import content_type
from yirangmq.format.delivery import MessageDelivery
from yirangmq.format.envelope import header_of, iso
from yirangmq.webhooks.http_client import BadResponse, WebhookClient, WebhookOutcome, response_outcome, signature
from yirangmq.webhooks.webhooks import CONSUMER, PusherOptions

MIN_EXTEND_SECONDS = 0.05
MAX_PAUSE_SECONDS = 60.0
PLAIN = "!#$&'()*+,-./:;<=>?@[]^_`{|}~ "


@dataclass(slots=True)
class PusherCounters:
    """Counters and latest results of a pusher, for operators."""

    delivered: int = 0
    rejected: int = 0
    failed: int = 0
    last_status: int | None = None
    last_error: str | None = None
    last_at: str | None = None


SettleVerb = Callable[[TransactionContext, Transaction, Leases, str | None], Results]


class Pusher:
    """Pusher of one queue: a waiting consumer whose deliveries are POSTed. Loop thread only."""

    def __init__(
        self,
        committer: GroupCommitter,
        clock: Clock,
        options: PusherOptions,
        tls: Callable[[], ssl.SSLContext],
        networks: OutgoingNetworks,
    ) -> None:
        self.options = options
        self.counters = PusherCounters()
        self._committer = committer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._client = WebhookClient(options.hook.url, tls, networks)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leases = UnsettledLeases(clock)
        self._waiter = CreditWindow(
            options.queue, CONSUMER, None, options.hook.concurrency, self._leases, self._accept, self._has_capacity
        )
        self._held_until = 0.0
        self._streak = 0
        """Consecutive failures of the endpoint."""
        self._is_stopped = False
        self._extend_timer: Any = None

    # -- life cycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._committer.add_waiter(self._waiter)

    def stop(self) -> None:
        """Lease no more messages. Requests in flight are finished."""
        self._is_stopped = True
        self._committer.remove_waiter(self._waiter)
        if self.is_idle:
            self._client.close()

    def abort(self) -> None:
        """Cancel the requests in flight. Their messages are released, and the attempt does not count."""
        self.stop()
        for task in self._tasks.values():
            task.cancel()

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def describe(self) -> dict[str, Any]:
        counters = self.counters
        return {
            "queue": self.options.queue,
            "url": self.options.hook.url,
            "inFlight": len(self._tasks),
            "delivered": counters.delivered,
            "rejected": counters.rejected,
            "failed": counters.failed,
            "lastStatus": counters.last_status,
            "lastError": counters.last_error,
            "lastAt": counters.last_at,
            "heldSec": round(max(0.0, self._held_until - self._loop.time()), 3),
        }

    # -- taking ---------------------------------------------------------------------------------------------------

    def _has_capacity(self) -> bool:
        if self._loop.time() < self._held_until or self._is_stopped:
            return False
        return not (self._streak and self._tasks)

    def _accept(self, deliveries: Sequence[MessageDelivery]) -> bool:
        if self._is_stopped:
            return False
        for delivery in deliveries:
            lease = delivery.lease_id
            self._tasks[lease] = self._loop.create_task(self._push(delivery))
        self._leases.add(deliveries)
        self._extend_later()
        return True

    async def _push(self, delivery: MessageDelivery) -> None:
        lease = delivery.lease_id
        outcome: WebhookOutcome | None = None
        try:
            outcome = await self._attempt(delivery)
        finally:
            del self._tasks[lease]
            if outcome is None:
                self._settle(lease, settle.release)
            else:
                self._settle_outcome(lease, outcome)
            if self._is_stopped and self.is_idle:
                self._client.close()

    async def _attempt(self, delivery: MessageDelivery) -> WebhookOutcome:
        """Send one POST request. Every error becomes an outcome, except cancellation."""
        seconds = self.options.hook.timeout_ms / 1000
        self.counters.last_at = iso(self._clock.wall_ms())
        self.counters.last_status = None
        try:
            async with asyncio.timeout(seconds):
                answer = await self._client.post(self._headers(delivery), delivery.payload)
        except TimeoutError:
            return WebhookOutcome(Reason.TIMEOUT.value, f"the webhook did not answer within {seconds:g} seconds")
        except (OSError, BadResponse) as error:
            return WebhookOutcome(Reason.HANDLER_ERROR.value, f"the webhook cannot be reached: {error}")
        except Exception as error:
            return WebhookOutcome(Reason.HANDLER_ERROR.value, f"{type(error).__name__}: {error}")
        self.counters.last_status = answer.status
        return response_outcome(answer.status, answer.headers, answer.body, self._clock.wall_ms() / 1000)

    def _headers(self, delivery: MessageDelivery) -> list[tuple[str, str]]:
        sent = delivery.envelope
        timestamp = str(self._clock.wall_ms() // 1000)
        headers = [
            ("Content-Type", _plain(content_type(sent) or "application/octet-stream")),
            ("User-Agent", "yirangmq"),
            ("X-MQ-Queue", delivery.queue),
            ("X-MQ-Message-Id", delivery.id),
            ("X-MQ-Attempt", str(delivery.attempt)),
            ("X-MQ-Published-At", iso(sent.published_at)),
            ("X-MQ-Timestamp", timestamp),
        ]
        header = header_of(sent)
        for member, name in (("type", "X-MQ-Type"), ("traceId", "X-MQ-Trace-Id")):
            if header.get(member):
                headers.append((name, _plain(header[member])))
        if self.options.secret:
            headers.append(("X-MQ-Signature", signature(self.options.secret, timestamp, delivery.payload)))
        return headers + list(self.options.hook.headers.items())

    # -- settling -------------------------------------------------------------------------------------------------

    def _settle_outcome(self, lease: str, outcome: WebhookOutcome) -> None:
        counters = self.counters
        counters.last_error = outcome.text or None
        self._streak = self._streak + 1 if outcome.is_endpoint_failure else 0
        if not outcome.reason:
            counters.delivered += 1
            self._settle(lease, settle.ack)
            return
        if outcome.is_endpoint_failure:
            counters.failed += 1
            self._hold(max(outcome.hold, self._pause()))
        else:
            counters.rejected += 1
        delay = None if outcome.delay is None else round(outcome.delay * 1000)
        cause = transitions.Cause(Reason(outcome.reason), outcome.text, delay)
        self._settle(lease, partial(settle.nack, cause=cause))

    def _pause(self) -> float:
        """Return the pause in seconds: the policy's backoff, from the second consecutive failure on."""
        if self._streak < 2:
            return 0.0
        return min(backoff_ms(self.options.policy.retry, self._streak - 1) / 1000, MAX_PAUSE_SECONDS)

    def _hold(self, seconds: float) -> None:
        if seconds > 0:
            self._held_until = max(self._held_until, self._loop.time() + seconds)
            self._committer.later(seconds, lambda: self._committer.notify_capacity(self.options.queue))

    def _settle(self, lease: str, verb: SettleVerb) -> None:
        """Settle a lease. Its credit is free immediately, so the same commit also leases the next message."""
        leases = Leases([lease])
        self._committer.submit(lambda transaction: verb(self._committer.context, transaction, leases, None), _ignore)
        self._leases.settled([lease])
        self._committer.notify_capacity(self.options.queue)

    # -- lease extension --------------------------------------------------------------------------------------------

    def _extend_later(self) -> None:
        if self._extend_timer is None and self._tasks:
            seconds = max(self.options.policy.visibility_ms / 3000, MIN_EXTEND_SECONDS)
            self._extend_timer = self._committer.later(seconds, self._extend)

    def _extend(self) -> None:
        """Extend the leases of messages in flight, so that they do not expire before the response."""
        self._extend_timer = None
        texts = list(self._tasks)
        if texts:
            leases = Leases(texts)
            self._committer.submit(
                lambda work: settle.extend(self._committer.context, work, leases, None, None), _ignore
            )
            self._leases.extended(texts, self.options.policy.visibility_ms)
            self._extend_later()


def _plain(text: str) -> str:
    """Encode a header value: percent-encode everything but printable ASCII, and the percent sign."""
    return text if text.isascii() and text.isprintable() and "%" not in text else quote(text, safe=PLAIN)


def _ignore(value: Any, error: QueueError | None) -> None:
    """Ignore the error: a lost lease belongs to another consumer, and a lease that the store did not settle expires."""
