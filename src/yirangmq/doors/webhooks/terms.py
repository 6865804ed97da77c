"""What a webhook's pusher goes by. Values only."""

from dataclasses import dataclass, field

from yirangmq.core.policy import QueuePolicy
from yirangmq.core.webhook import Webhook

CONSUMER = "webhook"
"""Who leases what is pushed."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a pusher goes by; it lives as long as these do not change."""

    queue: str
    hook: Webhook
    secret: bytes
    policy: QueuePolicy = field(compare=False)
