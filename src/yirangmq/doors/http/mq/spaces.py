"""Namespaces of the HTTP queue to names of our queues, and back.

A namespace may be empty, begin with a dot and have 255 characters; a queue's name may not. Nearly all namespaces are
names as they are. Those that are not, and those that begin like the names made for them, get a name that begins with
``_.``: the namespace behind it, or its hash where that is too long. Of the latter a note keeps the namespace."""

from functools import lru_cache
from hashlib import sha256

from yirangmq.broker.two_step import note_of
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Transaction
from yirangmq.core.validation import NAMESPACE, QUEUE

RESERVED = "_."
HASHED = "_.-"
LONGEST_SPACE = 200


@lru_cache(maxsize=4096)
def queue_of(namespace: str) -> str:
    """The queue, or ``BadInput`` if this is no namespace."""
    if not NAMESPACE.fullmatch(namespace):
        raise BadInput("must match ^[a-zA-Z0-9.\\-_]{0,255}$", field="namespace")
    if QUEUE.fullmatch(namespace) and not namespace.startswith(RESERVED):
        return namespace
    if len(namespace) <= LONGEST_SPACE - len(RESERVED):
        return RESERVED + namespace  # it is empty, or begins with "." or "_.": none of these looks like a hash
    return HASHED + sha256(namespace.encode()).hexdigest()


def is_hashed(queue: str) -> bool:
    return queue.startswith(HASHED)


def check_id(id: str) -> str:
    """An id of a message may be any text of this form; whether there is such a message is another question."""
    if not NAMESPACE.fullmatch(id):
        raise BadInput("must match ^[a-zA-Z0-9.\\-_]{0,255}$", field="id")
    return id


def namespace_of(transaction: Transaction, queue: str) -> str | None:
    """Under what it is known here; None: under nothing, it was made by another door with a reserved name."""
    if not queue.startswith(RESERVED):
        return queue
    if is_hashed(queue):
        return transaction.note(note_of(queue))
    behind = queue.removeprefix(RESERVED)
    return behind if queue_of(behind) == queue else None
