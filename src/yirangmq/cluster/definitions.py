"""What a queue of a cluster is told to be: its policy, kept in ``/q/{queue}/policy``. Knows: which members of a
policy a dispatcher acts on. Does not know: how."""

from yirangmq.cluster.etcd import Etcd, changed_at, put
from yirangmq.cluster.keys import Keys
from yirangmq.core.errors import BadPolicy
from yirangmq.core.policy import read_policy
from yirangmq.format.json_codec import loads

HONOURED = frozenset({"visibilityTimeoutSec", "retry", "dlq", "requeue", "dedupWindowSec", "paused"})
DEAD_LETTERS = frozenset({"enabled", "whenDisabled", "retentionDays"})
"""Dead letters lie beside their queue, under ``dead/``, so there is no other queue to name."""


async def define(etcd: Etcd, queue: str, text: bytes) -> bool:
    """Check a policy and set it; whether there was none before."""
    given = loads(text)
    read_policy(given, queue)
    for name in given:
        if name not in HONOURED:
            known = ", ".join(sorted(HONOURED))
            raise BadPolicy(f"a cluster does not act on it; it acts on {known}", field=name)
    for name in given.get("dlq", {}):
        if name not in DEAD_LETTERS:
            raise BadPolicy("a cluster does not act on it", field=f"dlq.{name}")
    keys = Keys(queue)
    answer = await etcd.txn(
        [changed_at(keys.policy, 0)], [put(keys.policy, text)], [put(keys.policy, text)], repeat=True
    )
    return bool(answer.succeeded)
