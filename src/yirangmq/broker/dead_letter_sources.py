"""Table of dead-letter queues: from the name of a dead-letter queue to the source queues whose dead letters it shows.

The default name follows from the name of the source queue and is in no table. A name that a policy sets is recorded in
notes, in the commit that sets the policy: ``HEAD`` + name holds one source queue, and ``PAIRS`` + name + source exists
for each of them. A lookup therefore reads one note, independent of the number of queues. An entry counts only while
the policy of its source queue still names the dead-letter queue.

A store of an earlier version has no table. Until ``COMPLETE`` exists a lookup reads every policy; the first new queue
or policy writes the table. A policy file that is written by hand is not in the table: ``sources`` reads every policy
for a name that it does not find, and ``check_publish`` does not know the name until the policy is set by a command."""

from collections.abc import Iterable

from yirangmq.broker.quota import check_new_queues
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.policy import DLQ_SUFFIX, MAX_DLQ_NAME_CHARS, default_dlq_name
from yirangmq.core.ports import Transaction

COMPLETE = "dead-letter-queues/complete"
"""Note that exists once the table covers all policies of the store."""
HEAD = "dead-letter-queues/names/"
PAIRS = "dead-letter-queues/sources/"


# -- lookups -----------------------------------------------------------------------------------------------------------


def sources(transaction: Transaction, name: str) -> list[str]:
    """Return the source queues of a dead-letter queue, and the queue of that name, if there is one."""
    found = {source for source in _likely(transaction, name) if name in (source, dlq_name(transaction, source))}
    if transaction.note(COMPLETE) is not None:
        pairs = [key.rpartition("/")[2] for key in transaction.notes(f"{PAIRS}{name}/")]
        found |= {source for source in pairs if dlq_name(transaction, source) == name}
        if found:
            return sorted(found)
    named = transaction.queues_with_policy()
    return sorted(found | {source for source in named if name in (source, dlq_name(transaction, source))})


def check_publish(transaction: Transaction, queues: Iterable[str], most: int) -> None:
    """Raise if messages may not be published to these queues; only a queue that does not exist yet is refused.

    ``BadInput``: the name shows the dead letters of an existing queue, or of another one of ``queues``.
    ``QuotaExceeded``: the store would have more than ``most`` queues; 0 means no limit. Nothing is written."""
    coming = [queue for queue in queues if not transaction.has_queue(queue)]
    for queue in coming:
        source = _source(transaction, queue, coming)
        if source:
            raise BadInput(
                f"{queue!r} shows the dead letters of {source!r}; publish to that queue, or use another name",
                field="queue",
            )
    check_new_queues(transaction, coming, most)


def _source(transaction: Transaction, name: str, coming: list[str]) -> str:
    """Return a source queue of this name, "" if there is none. Queues in ``coming`` count as existing ones."""
    for source in coming:
        if source != name and dlq_name(transaction, source) == name:
            return source
    if transaction.note(COMPLETE) is None:
        return next((source for source in sources(transaction, name) if source != name), "")
    likely = [source for source in _likely(transaction, name) if dlq_name(transaction, source) == name]
    if likely:
        return likely[0]
    head = transaction.note(HEAD + name)
    if head is None:
        return ""
    if dlq_name(transaction, head) == name:
        return head
    return next((source for source in sources(transaction, name) if source != name), "")


def _likely(transaction: Transaction, name: str) -> list[str]:
    """Return the existing queues that have this name, or whose default dead-letter queue may have it."""
    likely = [source for source in (name, name.removesuffix(DLQ_SUFFIX)) if source and transaction.has_queue(source)]
    if len(name) >= MAX_DLQ_NAME_CHARS:  # the default name is shortened if the queue name is too long
        likely += transaction.queues(prefix=name.removesuffix(DLQ_SUFFIX))
    return list(dict.fromkeys(likely))


def dlq_name(transaction: Transaction, queue: str) -> str:
    """Return the name of a queue's dead-letter queue, "" if its policy cannot be parsed (edited by hand)."""
    try:
        return transaction.policy(queue).dlq.queue
    except BadPolicy:
        return ""


# -- changes -----------------------------------------------------------------------------------------------------------


def set_policy(transaction: Transaction, queue: str, text: str | None) -> None:
    """Set a validated policy document, and record the dead-letter queue that it names."""
    before = dlq_name(transaction, queue)
    transaction.set_policy(queue, text)
    after = dlq_name(transaction, queue)
    if before != after:
        _remove(transaction, before, queue)
        _add(transaction, after, queue)


def delete_queue(transaction: Transaction, queue: str) -> None:
    """Delete a queue with its policy and its entry in the table."""
    before = dlq_name(transaction, queue)
    transaction.delete_queue(queue)
    _remove(transaction, before, queue)


def complete(transaction: Transaction) -> None:
    """Write the table for a store of an earlier version; once in the life of a store."""
    if transaction.note(COMPLETE) is not None:
        return
    for queue in transaction.queues_with_policy():
        _add(transaction, dlq_name(transaction, queue), queue)
    transaction.set_note(COMPLETE, "1")


def _add(transaction: Transaction, name: str, queue: str) -> None:
    if name in ("", default_dlq_name(queue)):
        return
    transaction.set_note(f"{PAIRS}{name}/{queue}", "1")
    if transaction.note(HEAD + name) is None:
        transaction.set_note(HEAD + name, queue)


def _remove(transaction: Transaction, name: str, queue: str) -> None:
    if name in ("", default_dlq_name(queue)) or transaction.note(f"{PAIRS}{name}/{queue}") is None:
        return
    transaction.set_note(f"{PAIRS}{name}/{queue}", None)
    if transaction.note(HEAD + name) == queue:
        left = transaction.notes(f"{PAIRS}{name}/")
        transaction.set_note(HEAD + name, next(iter(left)).rpartition("/")[2] if left else None)
