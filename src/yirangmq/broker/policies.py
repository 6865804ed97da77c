"""Policies put in force: checked whole before anything is stored, and paused or resumed in place."""

from yirangmq.broker.gate import Gate, check_schemas
from yirangmq.broker.room import check_new_queues
from yirangmq.broker.schedules import check_schedules
from yirangmq.broker.validate import Schemas
from yirangmq.broker.verbs import Verbs
from yirangmq.core import validation
from yirangmq.core.errors import BadPolicy, NotFound
from yirangmq.core.events import Steered
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import Transaction
from yirangmq.format.json_codec import dumps, loads


def checked(document: object, queue: str, schemas: Schemas, gate: Gate | None = None) -> QueuePolicy:
    """The policy that a document stands for (None: the defaults), or ``BadPolicy`` naming the field. Without a gate
    nobody knows which hooks may run."""
    policy = read_policy({} if document is None else document, validation.check_queue(queue))
    schemas.check_policy(policy)
    check_schemas(policy.chain)
    if gate is not None:
        gate.check_hooks(policy.chain)
    check_schedules(queue, policy)
    return policy


def readable(transaction: Transaction, queue: str) -> QueuePolicy | None:
    """The policy in force; None if it cannot be read, edited by hand."""
    try:
        return transaction.policy(queue)
    except BadPolicy:
        return None


def put(transaction: Transaction, verbs: Verbs, queue: str, document: object, what: str = "policy") -> None:
    """In force from this commit on, for those who wait as well. The document is checked already."""
    check_new_queues(transaction, [queue], verbs.defaults.max_queues)
    transaction.set_policy(queue, None if document is None else dumps(document).decode())
    verbs.touched.add(queue)
    verbs.happened.add(Steered(queue, what))


def pause(transaction: Transaction, verbs: Verbs, queue: str, *, paused: bool) -> bool:
    """Nothing is handed out while a queue is paused; publishing goes on. True: it was not so before."""
    if not transaction.has_queue(validation.check_queue(queue)):
        raise NotFound(f"there is no queue {queue!r}", field="queue")
    if transaction.policy(queue).paused == paused:
        return False
    text = transaction.policy_text(queue)
    document = loads(text.encode()) if text else {}
    document.pop("paused", None)
    if paused:
        document["paused"] = True
    put(transaction, verbs, queue, document or None, "pause" if paused else "resume")
    return True
