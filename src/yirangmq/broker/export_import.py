"""Export and import of queues between stores of any kind, and adoption of another node's backlog.

An export lists each queue at a single moment, in the order in which another store should receive it. An import stores
one page per commit; a message with a known id is skipped. Memory stays flat: 8 bytes per message of a queue, and a page
of messages. The line format is in ``format.export``; the caller handles files and progress bars.

Adoption moves the backlog of a failed node's store into the active node's store. A mark in the failed node's store
first prevents that it is served (``broker.expiry_sweeper``). Each page is stored here together with its ids, then
dropped there; the mark is removed last. An interrupted adoption can be repeated: nothing is stored twice, even if it
was delivered here long ago. ``overlap`` lists the messages that changed here while both nodes were active."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from yirangmq.broker import dead_letter_sources
from yirangmq.broker.changes import apply_changes, hold_group_followers, no_events
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.expiry_sweeper import ADOPTION_MARK
from yirangmq.broker.queues import Queues
from yirangmq.broker.store_time import envelope_in_wall_time, failure_in_wall_time, message_in_wall_time
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound, TooLarge
from yirangmq.core.message import Envelope, Message
from yirangmq.core.policy import MAX_BODY, QueuePolicy
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State
from yirangmq.format.envelope import iso
from yirangmq.format.export import ExportClosing, ExportMessage, ExportOpening, ExportQueue, read, write
from yirangmq.format.json_codec import dumps, loads

MAX_PER_PAGE = 500
BYTES_PER_PAGE = 4 * 1024 * 1024
"""Bounds of a page, in messages and payload bytes. The first bound reached ends the page, so that large payloads do not
accumulate in memory or in one commit."""
MAX_LINE_BYTES = 8 * MAX_BODY
"""Longest accepted line, in bytes: the largest payload with every byte escaped, and space for the other members."""
POLICIES = ("keep", "replace", "skip")

Progress = Callable[[int, int], None]
"""Called now and then with the messages and bytes processed up to now."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    queues: list[str]
    messages: int
    bytes: int


@dataclass(slots=True)
class Imported:
    """Result of an import or its dry run. ``kept``: queues that kept their policy although the export has another."""

    queues: list[str] = field(default_factory=list)
    stored: int = 0
    duplicates: int = 0
    policies: int = 0
    kept: list[str] = field(default_factory=list)


def _silent(messages: int, size: int) -> None:
    pass


# -- export ------------------------------------------------------------------------------------------------------------


def total(queues: Queues, wanted: Sequence[str] | None = None) -> int:
    """Estimate the number of messages that an export will write, for a progress bar."""
    found = 0
    for queue in _checked_names(queues, wanted):
        counts = queues.counts(queue)
        found += sum(getattr(counts, state.value) for state in State if state is not State.DROPPED)
    return found


def export(
    queues: Queues, sink: Callable[[bytes], object], wanted: Sequence[str] | None = None, progress: Progress = _silent
) -> Exported:
    """Write every message that still has its envelope, with policies and failures, line by line to ``sink``.

    Each queue is listed at one moment. A message that changes during the export is written in its latest state."""
    chosen = _checked_names(queues, wanted)
    size = _sent(sink, write(ExportOpening(queues.wall_ms())))
    messages = 0
    for queue in chosen:
        policy, order = queues.read(partial(_listing, queue=queue))
        size += _sent(sink, write(ExportQueue(queue, policy, len(order))))
        for line in _lines(queues, order):
            size += _sent(sink, write(line))
            messages += 1
            progress(messages, size)
    size += _sent(sink, write(ExportClosing(messages)))
    return Exported(chosen, messages, size)


def _sent(sink: Callable[[bytes], object], line: bytes) -> int:
    sink(line)
    return len(line)


def _checked_names(queues: Queues, wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        return queues.queues()
    for name in wanted:
        validation.check_queue(name)
        if not queues.read(lambda transaction, name=name: transaction.has_queue(name)):  # type: ignore[misc]
            raise NotFound(f"there is no queue {name!r}", field="queue")
    return list(dict.fromkeys(wanted))


def _listing(transaction: Transaction, queue: str) -> tuple[dict[str, Any] | None, "array[int]"]:
    """Return a queue's policy, and the sequence numbers of its messages in the order for another store.

    Leased messages and retries come first, since they were delivered first. Then come ready messages in delivery order,
    delayed ones by arrival, and held ones (FIFO groups) in their own order. Dead, parked and done messages are
    last."""
    text = transaction.policy_text(queue)
    tried = _numbers(transaction, queue, State.LEASED, State.CLAIMED)
    waiting: array[int] = array("q")
    for message in scanned(transaction, queue, State.DELAYED):
        (tried if message.attempt else waiting).append(message.seq)
    order = _sorted(tried)
    order.extend(message.seq for message in scanned(transaction, queue, State.READY))
    order.extend(_sorted(waiting))
    order.extend(_by_place(scanned(transaction, queue, State.HELD)))
    for states in ((State.DEAD, State.PARKED), (State.DONE,)):
        order.extend(_sorted(_numbers(transaction, queue, *states)))
    return None if text is None else loads(text.encode()), order


def _numbers(transaction: Transaction, queue: str, *states: State) -> "array[int]":
    return array("q", (m.seq for state in states for m in scanned(transaction, queue, state) if m.body))


def _sorted(numbers: "array[int]") -> "array[int]":
    return numbers if _is_rising(numbers) else array("q", sorted(numbers))


def _by_place(messages: Iterable[Message]) -> "array[int]":
    numbers, places = array("q"), array("q")
    for message in messages:
        numbers.append(message.seq)
        places.append(message.place)
    if _is_rising(places):
        return numbers
    return array("q", (number for _, number in sorted(zip(places, numbers, strict=True))))


def _is_rising(numbers: "array[int]") -> bool:
    return all(numbers[at] < numbers[at + 1] for at in range(len(numbers) - 1))


def scanned(transaction: Transaction, queue: str, state: State) -> Iterator[Message]:
    cursor = ""
    while True:
        page = transaction.scan(queue, state, MAX_PER_PAGE, cursor)
        yield from page.messages
        cursor = page.cursor
        if not cursor:
            return


def _lines(queues: Queues, order: "array[int]") -> Iterator[ExportMessage]:
    """Yield the lines page by page. The payload bytes of each page determine the message count of the next."""
    begin, count = 0, 1
    while begin < len(order):
        work = partial(loaded, seqs=order[begin : begin + count].tolist(), ahead=queues.ahead_ms())
        page = queues.read(work)
        yield from page
        begin += count
        size = sum(len(line.envelope.payload) for line in page)
        count = min(count * 4, MAX_PER_PAGE, max(1, BYTES_PER_PAGE * count // max(1, size)))


def loaded(transaction: Transaction, seqs: list[int], ahead: int = 0) -> list[ExportMessage]:
    """Load messages, with their times converted to the wall clock, which is ``ahead`` ms ahead of this store's time."""
    messages = [message for message in transaction.by_seq(seqs) if message is not None and message.body]
    parts = zip(messages, transaction.envelopes(messages), transaction.failures(messages), strict=True)
    found = [ExportMessage(message, envelope, failure) for message, envelope, failure in parts if envelope is not None]
    return [_moved(line, ahead) for line in found] if ahead else found


def _moved(line: ExportMessage, by: int) -> ExportMessage:
    """Shift all times of a message by ``by`` ms."""
    return ExportMessage(
        message_in_wall_time(line.message, by),
        envelope_in_wall_time(line.envelope, by),
        None if line.failure is None else failure_in_wall_time(line.failure, by),
    )


# -- import ------------------------------------------------------------------------------------------------------------


def load(
    queues: Queues,
    lines: Iterable[bytes],
    *,
    policies: str = "keep",
    dry_run: bool = False,
    progress: Progress = _silent,
) -> Imported:
    """Store the messages of an export. A message with a known id is skipped, so nothing is stored twice.

    ``policies``: ``keep`` sets a policy only where the queue has none, ``replace`` always, ``skip`` never."""
    if policies not in POLICIES:
        raise BadInput(f"{policies!r} is not one of {', '.join(POLICIES)}", field="policies")
    work = _Import(queues, policies, dry_run, progress)
    for number, text in enumerate(lines, 1):
        try:
            work.take(number, text)
        except BadInput as error:
            raise type(error)(f"line {number}: {error}{work.so_far()}", field="import") from None
    work.finish()
    return work.done


class _Import:
    """State of an import: the current page of messages of one queue, and the result up to now."""

    def __init__(self, queues: Queues, policies: str, dry_run: bool, progress: Progress) -> None:
        self._queues = queues
        self._policies = policies
        self._dry_run = dry_run
        self._progress = progress
        self._page: list[ExportMessage] = []
        self._page_size = 0
        self._size = 0
        self._seen = 0
        self._closed = False
        self.done = Imported()

    def take(self, number: int, text: bytes) -> None:
        self._size += len(text)
        if len(text) > MAX_LINE_BYTES:
            raise TooLarge(f"longer than {MAX_LINE_BYTES} bytes")
        if not text.strip():
            return
        line = read(text)
        if isinstance(line, ExportOpening) != (number == 1):
            raise BadInput("an export begins with a line of kind 'export', and has only one")
        if self._closed:
            raise BadInput("there is more after the line of kind 'end'")
        match line:
            case ExportQueue():
                self._flush()
                self._queue(line)
            case ExportMessage():
                self._add(line, len(text))
            case ExportClosing(messages):
                self._close(messages)

    def finish(self) -> None:
        self._flush()
        if not self._closed:
            raise BadInput(f"the export is cut off: its last line is missing{self.so_far()}", field="import")

    def so_far(self) -> str:
        if self._dry_run or not self.done.stored:
            return ""
        return f" ({self.done.stored} messages before it are stored; importing again stores none of them twice)"

    def _close(self, messages: int) -> None:
        self._flush()
        if messages != self._seen:
            raise BadInput(f"{self._seen} messages came before it", field="messages")
        self._closed = True

    def _queue(self, line: ExportQueue) -> None:
        self.done.queues.append(line.queue)
        if self._policies == "skip" or line.policy is None:
            return
        full = self._queues.check_policy(line.queue, line.policy)
        known = self._queues.read(lambda transaction: transaction.policy_text(line.queue))
        if known is not None and self._policies == "keep":
            if self._queues.policy(line.queue) != full:
                self.done.kept.append(line.queue)
            return
        self.done.policies += 1
        if not self._dry_run:
            self._queues.set_policy(line.queue, line.policy)

    def _add(self, line: ExportMessage, size: int) -> None:
        if self._page and self._page[0].message.queue != line.message.queue:
            self._flush()
        self._page.append(line)
        self._page_size += size
        self._seen += 1
        if len(self._page) >= MAX_PER_PAGE or self._page_size >= BYTES_PER_PAGE:
            self._flush()

    def _flush(self) -> None:
        page, self._page, self._page_size = self._page, [], 0
        if not page:
            return
        if ahead := self._queues.ahead_ms():
            page = [_moved(line, -ahead) for line in page]
        now = self._queues.now_ms()
        if self._dry_run:
            stored = self._queues.read(partial(count_new, page=page, now=now))
        else:
            stored = self._queues.run(partial(store_page, context=self._queues.context, page=page, now=now))
        self.done.stored += stored
        self.done.duplicates += len(page) - stored
        self._progress(self._seen, self._size)


def count_new(transaction: Transaction, page: list[ExportMessage], now: int) -> int:
    """Return how many messages of a page ``store_page`` would store: those whose id and deduplication key are new."""
    if not page:
        return 0
    queue = page[0].message.queue
    policy = transaction.policy(queue)
    known = transaction.by_id(queue, [line.message.id for line in page])
    keys = [_with_open_window(line.envelope, policy, now).dedup_key for line in page]
    named = list(dict.fromkeys(key for key in keys if key is not None))
    holders = transaction.key_holders(queue, named, now) if named else []
    taken = {key for key, holder in zip(named, holders, strict=True) if holder is not None}
    count = 0
    for message, key in zip(known, keys, strict=True):
        if message is None and key not in taken:
            count += 1
            if key is not None:
                taken.add(key)
    return count


def store_page(transaction: Transaction, context: TransactionContext, page: list[ExportMessage], now: int) -> int:
    """Store a page in one commit: add the envelopes as if published, then restore the state of each message."""
    queue = page[0].message.queue
    policy = transaction.policy(queue)
    envelopes = [_with_open_window(line.envelope, policy, now) for line in page]
    until = max(envelope.published_at for envelope in envelopes) + policy.dedup_ms
    stored = transaction.add(envelopes, now, until)
    fresh = [(line, one.seq) for line, one in zip(page, stored, strict=True) if not one.duplicate]
    moved = [(line, seq) for line, seq in fresh if _has_a_past(line, now)]
    changes: list[Change] = []
    for (line, _), before in zip(moved, transaction.by_seq([seq for _, seq in moved]), strict=True):
        if before is not None:
            changes.append(Change(before, _arrived(before, line.message), line.failure))
    apply_changes(context, transaction, changes, now, no_events)
    hold_group_followers(transaction, [row for row in transaction.by_seq([seq for _, seq in fresh]) if row is not None])
    return len(fresh)


def _with_open_window(envelope: Envelope, policy: QueuePolicy, now: int) -> Envelope:
    """Remove a deduplication key with an expired window, so that it matches no other message. The header keeps it."""
    over = envelope.published_at + policy.dedup_ms <= now
    return envelope._replace(dedup_key=None) if over and envelope.dedup_key is not None else envelope


def _has_a_past(line: ExportMessage, now: int) -> bool:
    """Return True if the message has state that publishing its envelope would not restore.

    This store's clock may be behind the other's: then a ready message would become delayed."""
    message, envelope = line.message, line.envelope
    untouched = message.state in (State.READY, State.DELAYED) and not message.leases and not message.reason
    waits = message.state is State.READY and envelope.available_at > now
    return not untouched or waits or line.failure is not None or message.expires_at != envelope.expires_at


def _arrived(before: Message, old: Message) -> Message:
    """Return the message with its state of the other store. Leases of that store end: leased messages are ready."""
    in_hand = old.state in (State.LEASED, State.CLAIMED, State.HELD)
    state = State.READY if in_hand else old.state
    return before._replace(
        state=state,
        attempt=old.attempt,
        leases=old.leases,
        due_at=old.expires_at if state is State.READY else old.due_at,
        expires_at=old.expires_at,
        changed_at=old.changed_at,
        consumer="" if in_hand else old.consumer,
        reason=old.reason,
        repeats=old.repeats,
    )


# -- adoption ----------------------------------------------------------------------------------------------------------

ADOPTED_IDS = "pair-adopted"
"""Key prefix of the notes with the ids adopted from a node, by node, queue and page."""
ADOPTED_STATES = (State.LEASED, State.CLAIMED, State.READY, State.DELAYED, State.HELD)
"""States that are adopted, in order. Leased and claimed messages were delivered first; their leases end."""


def adopt(ours: Queues, theirs: Queues, here: str, there: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Move the backlog of ``theirs``, the store of node ``there``, into ``ours``. Return the number of new messages by
    queue."""
    if not dry_run:
        theirs.run(lambda transaction: transaction.set_note(ADOPTION_MARK, here))
    adopted: dict[str, int] = {}
    known = 0
    for queue in theirs.queues():
        policy = theirs.read(partial(_policy_text, queue=queue))
        seqs = theirs.read(partial(_waiting, queue=queue))
        before = ours.read(partial(_known, node=there, queue=queue))
        if policy is not None and not dry_run:
            ours.run(partial(_set_policy, queue=queue, text=policy))
        for begin in range(0, len(seqs), MAX_PER_PAGE):
            ahead = theirs.ahead_ms() - ours.ahead_ms()
            page = theirs.read(partial(loaded, seqs=seqs[begin : begin + MAX_PER_PAGE], ahead=ahead))
            fresh = [line for line in page if line.message.id not in before]
            if dry_run:
                stored = ours.read(partial(count_new, page=fresh, now=ours.now_ms()))
            else:
                stored = _move(ours, theirs, there, page, fresh)
            adopted[queue] = adopted.get(queue, 0) + stored
            known += len(page) - stored
    if not dry_run:
        theirs.run(lambda transaction: transaction.set_note(ADOPTION_MARK, None))
    return {"adopted": adopted, "messages": sum(adopted.values()), "known": known, "dryRun": dry_run}


def _move(ours: Queues, theirs: Queues, node: str, page: list[ExportMessage], fresh: list[ExportMessage]) -> int:
    stored = ours.run(partial(_store, context=ours.context, node=node, page=fresh, now=ours.now_ms())) if fresh else 0
    ids = [line.message.id for line in page]
    if ids:
        theirs.drop(page[0].message.queue, ids)
    return stored


def _store(
    transaction: Transaction, context: TransactionContext, node: str, page: list[ExportMessage], now: int
) -> int:
    queue = page[0].message.queue
    stored = store_page(transaction, context, page, now)
    number = len(transaction.notes(_place(node, queue)))
    transaction.set_note(f"{_place(node, queue)}{number}", dumps([line.message.id for line in page]).decode())
    return stored


def _place(node: str, queue: str) -> str:
    return f"{ADOPTED_IDS}/{node}/{queue}/"


def _known(transaction: Transaction, node: str, queue: str) -> set[str]:
    return {id for text in transaction.notes(_place(node, queue)).values() for id in loads(text.encode())}


def _waiting(transaction: Transaction, queue: str) -> list[int]:
    return [message.seq for state in ADOPTED_STATES for message in scanned(transaction, queue, state)]


def _policy_text(transaction: Transaction, queue: str) -> str | None:
    return transaction.policy_text(queue)


def _set_policy(transaction: Transaction, queue: str, text: str) -> None:
    """Set the policy if the queue has none in this store."""
    if transaction.policy_text(queue) is None:
        dead_letter_sources.set_policy(transaction, queue, text)


# -- overlap of two active nodes ---------------------------------------------------------------------------------------


def overlap(queues: Queues, since_ms: int, on_message: Callable[[dict[str, Any]], None]) -> int:
    """Call ``on_message`` with every message that was stored or changed here since ``since_ms``. Return their
    number."""
    count = 0
    since_ms -= queues.ahead_ms()
    for queue in queues.queues():
        for message in queues.read(partial(_changed, queue=queue, since_ms=since_ms)):
            on_message(_about(message))
            count += 1
    return count


def _changed(transaction: Transaction, queue: str, since_ms: int) -> list[Message]:
    return [message for message in _all(transaction, queue) if message.changed_at >= since_ms]


def _all(transaction: Transaction, queue: str) -> Iterator[Message]:
    for state in State:
        if state is not State.DROPPED:
            yield from scanned(transaction, queue, state)


def _about(message: Message) -> dict[str, Any]:
    return {
        "queue": message.queue,
        "messageId": message.id,
        "state": message.state.value,
        "attempt": message.attempt,
        "changedAt": iso(message.changed_at),
        "consumerId": message.consumer,
    }
