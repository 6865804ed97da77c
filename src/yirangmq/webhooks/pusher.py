"""Webhook pusher of a queue: leases its messages, POSTs them, settles them by the answer.

While the endpoint is failing, a single message at a time is tried, at growing intervals. Thus a dead endpoint does not
turn a full queue into dead letters. Leases of messages in flight are extended. Event loop thread only."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from yirangmq.broker.credit_window import PushedLeases, Subscription
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.settle import Leases, Results
from yirangmq.core import transitions
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Reason
from yirangmq.core.policy import backoff_ms
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.webhook import OutgoingNetworks
from yirangmq.format.cloudevents import content_type
from yirangmq.format.delivery import Delivery
from yirangmq.format.envelope import header_of, iso
from yirangmq.webhooks.http_client import BadAnswer, Outcome, Poster, judged, signature
from yirangmq.webhooks.webhooks import CONSUMER, Terms

LEAST_EXTENDING = 0.05
LONGEST_HOLD = 60.0
PLAIN = "!#$&'()*+,-./:;<=>?@[]^_`{|}~ "


@dataclass(slots=True)
class Tally:
    """For an operator."""

    delivered: int = 0
    rejected: int = 0
    failed: int = 0
    last_status: int | None = None
    last_error: str | None = None
    last_at: str | None = None


class Pusher:
    """Used from the loop's thread."""

    def __init__(
        self, desk: Desk, clock: Clock, terms: Terms, tls: Callable[[], ssl.SSLContext], networks: OutgoingNetworks
    ) -> None:
        self.terms = terms
        self.tally = Tally()
        self._desk = desk
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._poster = Poster(terms.hook.url, tls, networks)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leases = PushedLeases(clock)
        self._taker = Subscription(
            terms.queue, CONSUMER, None, terms.hook.concurrency, self._leases, self._take, self._has_room
        )
        self._held_until = 0.0
        self._streak = 0
        """Troubles of the endpoint without a success between them."""
        self._is_stopped = False
        self._extending: Any = None

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._desk.wait(self._taker)

    def stop(self) -> None:
        """Take nothing more; what is on its way is seen through."""
        self._is_stopped = True
        self._desk.leave(self._taker)
        if self.is_idle:
            self._poster.close()

    def abort(self) -> None:
        """What is still on its way is given back, and its attempt does not count."""
        self.stop()
        for task in self._tasks.values():
            task.cancel()

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def describe(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "queue": self.terms.queue,
            "url": self.terms.hook.url,
            "inFlight": len(self._tasks),
            "delivered": tally.delivered,
            "rejected": tally.rejected,
            "failed": tally.failed,
            "lastStatus": tally.last_status,
            "lastError": tally.last_error,
            "lastAt": tally.last_at,
            "heldSec": round(max(0.0, self._held_until - self._loop.time()), 3),
        }

    # -- taking ---------------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        if self._loop.time() < self._held_until or self._is_stopped:
            return False
        return not (self._streak and self._tasks)

    def _take(self, deliveries: Sequence[Delivery]) -> bool:
        if self._is_stopped:
            return False
        for delivery in deliveries:
            lease = delivery.lease_id
            self._tasks[lease] = self._loop.create_task(self._push(delivery))
        self._leases.add(deliveries)
        self._extend_later()
        return True

    async def _push(self, delivery: Delivery) -> None:
        lease = delivery.lease_id
        outcome: Outcome | None = None
        try:
            outcome = await self._attempt(delivery)
        finally:
            del self._tasks[lease]
            if outcome is None:
                self._settle(lease, self._desk.verbs.release)
            else:
                self._judge(lease, outcome)
            if self._is_stopped and self.is_idle:
                self._poster.close()

    async def _attempt(self, delivery: Delivery) -> Outcome:
        """One POST. Whatever goes wrong with it is an outcome; only being cancelled is none."""
        seconds = self.terms.hook.timeout_ms / 1000
        self.tally.last_at = iso(self._clock.wall_ms())
        self.tally.last_status = None
        try:
            async with asyncio.timeout(seconds):
                answer = await self._poster.post(self._headers(delivery), delivery.payload)
        except TimeoutError:
            return Outcome(Reason.TIMEOUT.value, f"the webhook did not answer within {seconds:g} seconds")
        except (OSError, BadAnswer) as error:
            return Outcome(Reason.HANDLER_ERROR.value, f"the webhook cannot be reached: {error}")
        except Exception as error:
            return Outcome(Reason.HANDLER_ERROR.value, f"{type(error).__name__}: {error}")
        self.tally.last_status = answer.status
        return judged(answer.status, answer.headers, answer.body, self._clock.wall_ms() / 1000)

    def _headers(self, delivery: Delivery) -> list[tuple[str, str]]:
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
        if self.terms.secret:
            headers.append(("X-MQ-Signature", signature(self.terms.secret, timestamp, delivery.payload)))
        return headers + list(self.terms.hook.headers.items())

    # -- settling -------------------------------------------------------------------------------------------------

    def _judge(self, lease: str, outcome: Outcome) -> None:
        tally, verbs = self.tally, self._desk.verbs
        tally.last_error = outcome.text or None
        self._streak = self._streak + 1 if outcome.is_trouble else 0
        if not outcome.reason:
            tally.delivered += 1
            self._settle(lease, verbs.ack)
            return
        if outcome.is_trouble:
            tally.failed += 1
            self._hold(max(outcome.hold, self._pause()))
        else:
            tally.rejected += 1
        delay = None if outcome.delay is None else round(outcome.delay * 1000)
        cause = transitions.Cause(Reason(outcome.reason), outcome.text, delay)
        self._settle(lease, lambda work, leases, consumer: verbs.nack(work, leases, consumer, cause))

    def _pause(self) -> float:
        """Growing as the policy's backoff does, from the second trouble in a row on."""
        if self._streak < 2:
            return 0.0
        return min(backoff_ms(self.terms.policy.retry, self._streak - 1) / 1000, LONGEST_HOLD)

    def _hold(self, seconds: float) -> None:
        if seconds > 0:
            self._held_until = max(self._held_until, self._loop.time() + seconds)
            self._desk.later(seconds, lambda: self._desk.hungry(self.terms.queue))

    def _settle(self, lease: str, verb: Callable[[Transaction, Leases, str | None], Results]) -> None:
        """Its credit is free at once, so that the commit that settles it hands out the next one too."""
        leases = Leases([lease])
        self._desk.submit(lambda transaction: verb(transaction, leases, None), _ignore)
        self._leases.settled([lease])
        self._desk.hungry(self.terms.queue)

    # -- keeping ----------------------------------------------------------------------------------------------------

    def _extend_later(self) -> None:
        if self._extending is None and self._tasks:
            seconds = max(self.terms.policy.visibility_ms / 3000, LEAST_EXTENDING)
            self._extending = self._desk.later(seconds, self._extend)

    def _extend(self) -> None:
        """Leases of what is on its way do not end before it."""
        self._extending = None
        texts = list(self._tasks)
        if texts:
            leases = Leases(texts)
            self._desk.submit(lambda work: self._desk.verbs.extend(work, leases, None, None), _ignore)
            self._leases.extended(texts, self.terms.policy.visibility_ms)
            self._extend_later()


def _plain(text: str) -> str:
    """For a header: what is not plain ASCII is percent-encoded, and so is the percent sign."""
    return text if text.isascii() and text.isprintable() and "%" not in text else quote(text, safe=PLAIN)


def _ignore(value: Any, error: QueueError | None) -> None:
    """A lease that was lost meanwhile belongs to somebody else now; where the store refused, it lapses by itself."""
