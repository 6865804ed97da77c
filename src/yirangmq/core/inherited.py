"""What a queue's policy leaves open (null) is as the server says. Knows: policies and the server's defaults.
Does not know: where either comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from yirangmq.core.chain import EVERY, Chain
from yirangmq.core.policy import QueuePolicy

USUAL_BODY = QueuePolicy().max_body


@dataclass(frozen=True, slots=True)
class Defaults:
    """Of a whole server; those of the HTTP queue unless it is told otherwise."""

    unique: bool = False
    draft_ms: int = 60_000
    claim_ms: int = 60_000
    active_ms: int = 300_000
    concurrency: int | None = None
    """None: no limit."""
    set_body: int = USUAL_BODY
    chains: Mapping[str, Chain] = field(default_factory=dict)
    """By queue, or ``*``."""
    hooks: tuple[str, ...] = ()
    """Modules and packages whose functions chains may name."""
    max_queues: int = 0
    """How many queues there may be; 0: no limit, as in a program that opens a store itself."""

    def chain_in(self, policy: QueuePolicy, queue: str) -> Chain | None:
        chain = policy.chain
        if chain is not None or not self.chains:
            return chain
        return self.chains.get(queue) or self.chains.get(EVERY)

    def unique_in(self, policy: QueuePolicy) -> bool:
        return self.unique if policy.unique is None else policy.unique

    def draft_in(self, policy: QueuePolicy) -> int:
        return self.draft_ms if policy.draft_ms is None else policy.draft_ms

    def claim_in(self, policy: QueuePolicy) -> int:
        return self.claim_ms if policy.claim_ms is None else policy.claim_ms

    def active_in(self, policy: QueuePolicy) -> int:
        return self.active_ms if policy.active_ms is None else policy.active_ms

    def concurrency_in(self, policy: QueuePolicy) -> int | None:
        return self.concurrency if policy.concurrency is None else policy.concurrency

    def set_body_in(self, policy: QueuePolicy) -> int:
        """A queue that takes another size than the usual one has the last word."""
        return self.set_body if policy.max_body == USUAL_BODY else policy.max_body
