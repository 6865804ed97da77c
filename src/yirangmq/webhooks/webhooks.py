"""Webhooks of all queues: start, replace and stop pushers as policies change; their secrets and options.

Policies are read again every ``POLL_SECONDS``, and immediately after a change in this process. A pusher runs as long as
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

from yirangmq.admin.registry import Done, Given, MethodRegistry, read_arguments
from yirangmq.broker.cron_scheduler import PolicyTimer
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy, NotFound, QueueError
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.webhook import OutgoingNetworks, Webhook

if TYPE_CHECKING:
    from yirangmq.webhooks.pusher import Pusher


# -- secrets -----------------------------------------------------------------------------------------------------------

MAX_SECRET_BYTES = 4096


def read_secret(folder: Path, name: str) -> bytes:
    """Return the first line of the secret's file, without surrounding spaces."""
    path = folder / validation.check_id(name, "secret")
    try:
        with path.open("rb") as file:
            line = file.read(MAX_SECRET_BYTES).strip().partition(b"\n")[0].strip()
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", field="secret") from None
    if not line:
        raise BadInput(f"{path} is empty", field="secret")
    return line


# -- options -----------------------------------------------------------------------------------------------------------

CONSUMER = "webhook"
"""Consumer name under which messages are leased."""


@dataclass(frozen=True, slots=True)
class PusherOptions:
    """Options of a pusher. It is replaced if one of them changes, except ``policy``, which is not compared."""

    queue: str
    hook: Webhook
    secret: bytes
    policy: QueuePolicy = field(compare=False)


# -- webhooks ----------------------------------------------------------------------------------------------------------

POLL_SECONDS = 10.0
"""Interval in seconds between two reads of the policies, because another process may change them."""
log = logging.getLogger("yirangmq")
Secret = Callable[[str], bytes]
"""Return the secret of a name. Raises ``QueueError`` if it cannot be read."""


class Webhooks:
    """Pushers of all queues with a webhook. Loop thread only.

    Call ``register`` and ``start`` once; at shutdown ``stop``, then ``abort`` after the drain timeout."""

    def __init__(
        self,
        committer: GroupCommitter,
        clock: Clock,
        secret: Secret,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        networks: OutgoingNetworks = OutgoingNetworks(),  # noqa: B008  (it is frozen)
    ) -> None:
        self._committer = committer
        self._clock = clock
        self._secret = secret
        self._tls = tls
        self._networks = networks
        self._pushers: dict[str, Pusher] = {}
        self._stopping: list[Pusher] = []
        self._troubles: dict[str, tuple[str, str]] = {}
        """Webhooks that cannot be started: URL and error, by queue."""
        self._alarm = PolicyTimer(committer, self._poll)

    def register(self, methods: MethodRegistry, consumers: set[str]) -> None:
        """Register the method ``webhooks``, and add the consumer name of the pushers to ``consumers``."""
        methods.add_entry("webhooks", self._describe)
        consumers.add(CONSUMER)

    def start(self) -> None:
        """Start to push messages."""
        self._alarm.start()

    def stop(self) -> None:
        """Lease no more messages. Requests in flight are finished."""
        self._alarm.stop()
        for pusher in self._all:
            pusher.stop()
        self._stopping = [one for one in self._all if not one.is_idle]
        self._pushers.clear()

    def abort(self) -> None:
        for pusher in self._all:
            pusher.abort()

    @property
    def is_idle(self) -> bool:
        return all(pusher.is_idle for pusher in self._all)

    @property
    def _all(self) -> "list[Pusher]":
        return [*self._pushers.values(), *self._stopping]

    # -- policies -------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        self._alarm.set(POLL_SECONDS)
        try:
            found = self._committer.read(_queues_with_webhook)
        except QueueError as error:
            log.warning("webhooks_read_failed", extra={"values": {"error": str(error)}})
            return
        wanted = {
            options.queue: options for options in (self._read_options(*one) for one in found) if options is not None
        }
        for queue in [queue for queue, pusher in self._pushers.items() if wanted.get(queue) != pusher.options]:
            self._stop_pusher(self._pushers.pop(queue))
        for queue, options in wanted.items():
            if queue in self._pushers:
                self._pushers[queue].options = options  # the same webhook; its backoff may differ
            else:
                self._pushers[queue] = self._create_pusher(options)
                self._pushers[queue].start()
        self._troubles = {queue: problem for queue, problem in self._troubles.items() if queue in dict(found)}

    def _create_pusher(self, options: PusherOptions) -> "Pusher":
        from yirangmq.webhooks.pusher import Pusher  # a server without webhooks does not load it

        return Pusher(self._committer, self._clock, options, self._tls, self._networks)

    def _read_options(self, queue: str, policy: QueuePolicy) -> PusherOptions | None:
        assert policy.webhook is not None
        try:
            secret = self._secret(policy.webhook.secret) if policy.webhook.secret else b""
        except QueueError as error:
            if queue not in self._troubles:
                log.warning("webhook_secret_read_failed", extra={"values": {"queue": queue, "error": str(error)}})
            self._troubles[queue] = policy.webhook.url, str(error)
            return None
        self._troubles.pop(queue, None)
        return PusherOptions(queue, policy.webhook, secret, policy)

    def _stop_pusher(self, pusher: "Pusher") -> None:
        pusher.stop()
        self._stopping = [one for one in self._stopping if not one.is_idle]
        if not pusher.is_idle:
            self._stopping.append(pusher)

    # -- for operators ----------------------------------------------------------------------------------------------

    def _describe(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        read_arguments(given, lambda values: None)
        rows = [pusher.describe() for pusher in self._pushers.values()]
        rows += [_waiting(queue, *problem) for queue, problem in self._troubles.items()]
        done(sorted(rows, key=lambda row: str(row["queue"])), None)


def _waiting(queue: str, url: str, error: str) -> dict[str, Any]:
    counts = dict.fromkeys(("inFlight", "delivered", "rejected", "failed"), 0)
    return {"queue": queue, "url": url, **counts, "lastStatus": None, "lastError": error, "lastAt": None, "heldSec": 0}


def _queues_with_webhook(transaction: Transaction) -> list[tuple[str, QueuePolicy]]:
    """Return the queues with a webhook. A policy that cannot be read, for example after an edit by hand, is skipped."""
    found = []
    for queue in transaction.queues_with_policy():  # a webhook needs a policy
        try:
            policy = transaction.policy(queue)
        except BadPolicy:
            continue
        if policy.webhook is not None:
            found.append((queue, policy))
    return found
