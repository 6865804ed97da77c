"""Webhooks of all queues: start, replace and stop pushers as policies change; their secrets and options.

Policies are read again every ``LOOK_SECONDS``, and immediately after a change in this process. A pusher runs as long as
its queue, webhook and secret stay the same; other changes of the policy are applied in place. If a secret cannot be
read, the webhook waits and the operator sees why.

Secrets are files in a folder that only the server reads; they never leave it. The pusher's module is loaded with the
first webhook. Event loop thread only."""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.admin.registry import Calls, Done, Given, reading
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.scheduler import Alarm
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy, NotFound, QueueError
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.webhook import OutgoingNetworks, Webhook

if TYPE_CHECKING:
    from yirangmq.webhooks.pusher import Pusher


# -- secrets -----------------------------------------------------------------------------------------------------------

MOST_BYTES = 4096


def read_secret(folder: Path, name: str) -> bytes:
    """Return the first line of the secret's file, without surrounding spaces."""
    path = folder / validation.check_id(name, "secret")
    try:
        with path.open("rb") as file:
            line = file.read(MOST_BYTES).strip().partition(b"\n")[0].strip()
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", field="secret") from None
    if not line:
        raise BadInput(f"{path} is empty", field="secret")
    return line


# -- options -----------------------------------------------------------------------------------------------------------

CONSUMER = "webhook"
"""Consumer name under which messages are leased."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Options of a pusher. It is replaced if one of them changes, except ``policy``, which is not compared."""

    queue: str
    hook: Webhook
    secret: bytes
    policy: QueuePolicy = field(compare=False)


# -- webhooks ----------------------------------------------------------------------------------------------------------

LOOK_SECONDS = 10.0
"""Interval in seconds between two reads of the policies, because another process may change them."""
log = logging.getLogger("yirangmq")
Secret = Callable[[str], bytes]
"""Return the secret of a name. Raises ``QueueError`` if it cannot be read."""


class Webhooks:
    """Pushers of all queues with a webhook. Loop thread only.

    Call ``begin`` and ``start`` once; at shutdown ``stop``, then ``abort`` after the drain timeout."""

    def __init__(
        self,
        desk: Desk,
        clock: Clock,
        secret: Secret,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        networks: OutgoingNetworks = OutgoingNetworks(),  # noqa: B008  (it is frozen)
    ) -> None:
        self._desk = desk
        self._clock = clock
        self._secret = secret
        self._tls = tls
        self._networks = networks
        self._pushers: dict[str, Pusher] = {}
        self._ending: list[Pusher] = []
        self._troubles: dict[str, tuple[str, str]] = {}
        """Webhooks that cannot be started: URL and error, by queue."""
        self._alarm = Alarm(desk, self._look)

    def begin(self, calls: Calls, consumers: set[str]) -> None:
        """Register the method ``webhooks``, and add the consumer name of the pushers to ``consumers``."""
        calls.add_entry("webhooks", self._describe)
        consumers.add(CONSUMER)

    def start(self) -> None:
        """Start to push messages."""
        self._alarm.start()

    def stop(self) -> None:
        """Lease no more messages. Requests in flight are finished."""
        self._alarm.stop()
        for pusher in self._all:
            pusher.stop()
        self._ending = [one for one in self._all if not one.is_idle]
        self._pushers.clear()

    def abort(self) -> None:
        for pusher in self._all:
            pusher.abort()

    @property
    def is_idle(self) -> bool:
        return all(pusher.is_idle for pusher in self._all)

    @property
    def _all(self) -> "list[Pusher]":
        return [*self._pushers.values(), *self._ending]

    # -- policies -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._alarm.set(LOOK_SECONDS)
        try:
            found = self._desk.read(_hooked)
        except QueueError as error:
            log.warning("webhooks_read_failed", extra={"values": {"error": str(error)}})
            return
        wanted = {terms.queue: terms for terms in (self._terms(*one) for one in found) if terms is not None}
        for queue in [queue for queue, pusher in self._pushers.items() if wanted.get(queue) != pusher.terms]:
            self._end(self._pushers.pop(queue))
        for queue, terms in wanted.items():
            if queue in self._pushers:
                self._pushers[queue].terms = terms  # the same webhook; its backoff may differ
            else:
                self._pushers[queue] = self._made(terms)
                self._pushers[queue].start()
        self._troubles = {queue: told for queue, told in self._troubles.items() if queue in dict(found)}

    def _made(self, terms: Terms) -> "Pusher":
        from yirangmq.webhooks.pusher import Pusher  # a server without webhooks does not load it

        return Pusher(self._desk, self._clock, terms, self._tls, self._networks)

    def _terms(self, queue: str, policy: QueuePolicy) -> Terms | None:
        assert policy.webhook is not None
        try:
            secret = self._secret(policy.webhook.secret) if policy.webhook.secret else b""
        except QueueError as error:
            if queue not in self._troubles:
                log.warning("webhook_secret_read_failed", extra={"values": {"queue": queue, "error": str(error)}})
            self._troubles[queue] = policy.webhook.url, str(error)
            return None
        self._troubles.pop(queue, None)
        return Terms(queue, policy.webhook, secret, policy)

    def _end(self, pusher: "Pusher") -> None:
        pusher.stop()
        self._ending = [one for one in self._ending if not one.is_idle]
        if not pusher.is_idle:
            self._ending.append(pusher)

    # -- for operators ----------------------------------------------------------------------------------------------

    def _describe(self, desk: Desk, given: Given, done: Done) -> None:
        reading(given, lambda values: None)
        rows = [pusher.describe() for pusher in self._pushers.values()]
        rows += [_waiting(queue, *told) for queue, told in self._troubles.items()]
        done(sorted(rows, key=lambda row: str(row["queue"])), None)


def _waiting(queue: str, url: str, error: str) -> dict[str, Any]:
    counts = dict.fromkeys(("inFlight", "delivered", "rejected", "failed"), 0)
    return {"queue": queue, "url": url, **counts, "lastStatus": None, "lastError": error, "lastAt": None, "heldSec": 0}


def _hooked(transaction: Transaction) -> list[tuple[str, QueuePolicy]]:
    """Return the queues with a webhook. A policy that cannot be read, for example after an edit by hand, is skipped."""
    found = []
    for queue in transaction.policied():  # a webhook needs a policy
        try:
            policy = transaction.policy(queue)
        except BadPolicy:
            continue
        if policy.webhook is not None:
            found.append((queue, policy))
    return found
