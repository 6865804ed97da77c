"""Two-step operations of the HTTP queue: draft, then content; claim, then fetch; settling by message id.

Producer: a draft reserves a message id, and becomes a message when its content is set. Consumer: a claim returns ids, a
fetch leases those messages and returns their content, and messages are settled by their ids alone.

Each operation runs inside a transaction on many messages, by the rules of ``core.transitions``. It checks everything
before it writes anything. Operations on whole queues are in ``broker.bulk``."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from yirangmq.broker.admission.admission import Admitted
from yirangmq.broker.changes import RecordEvents, apply_changes, apply_leases, make_room, no_events
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.expiry_sweeper import prune_after, sweep_if_due, sweep_once
from yirangmq.broker.operations import admit, check_new_queue, publish_derived
from yirangmq.broker.quota import check_growth
from yirangmq.broker.selection import MAX_SWEEPS, allowance, damage_error, has_digests, leasable, quarantine
from yirangmq.broker.settle import Results
from yirangmq.core import transitions, validation
from yirangmq.core.dispatch import BY_NAME
from yirangmq.core.errors import NotFound, QueueError, TooLarge
from yirangmq.core.events import QueueChanged
from yirangmq.core.message import RANK_LAST, Counts, Envelope, Message, Reason, new_envelope, new_message
from yirangmq.core.policy import MessageLoad, QueuePolicy
from yirangmq.core.ports import AddResult, Change, Transaction, new_change
from yirangmq.core.states import State
from yirangmq.format.envelope import with_content, with_timestamp

# -- producer: draft and content ---------------------------------------------------------------------------------------

HTTP_QUEUE_POLICY = '{"retry":{"limit":null},"dlq":{"retentionDays":3660},"archive":{"enabled":false}}'
"""Policy of a queue whose first message is a draft, as the HTTP queue's documentation describes queues.

Retries are unlimited, dead letters stay for 10 years (3,660 days), and completed messages are not archived."""


class MessageContent(NamedTuple):
    """Content of a message: a media type ("" if none) and bytes."""

    type: str
    body: bytes


class ContentChange(NamedTuple):
    """A content change: the stored message, with its envelope before and after."""

    row: Message
    old: Envelope
    new: Envelope
    admitted: Admitted | None = None

    @property
    def is_draft(self) -> bool:
        return self.row.state is State.DRAFT


class Drafts:
    """Producer side: drafts and their content. For the committing thread only."""

    def __init__(self, context: TransactionContext) -> None:
        self._context = context
        self._clock = context.clock

    def draft(
        self, transaction: Transaction, queue: str, drafts: Sequence[tuple[str, int]], namespace: str = ""
    ) -> None:
        """Reserve ids, each with its rank, for messages that get their content later.

        ``namespace`` is the queue's name in the HTTP queue if that name is too long for a queue name."""
        now = self._clock.now_ms()
        if not transaction.has_queue(queue):
            check_new_queue(self._context, transaction, queue, len(drafts))
        self._found(transaction, queue, namespace)
        until = now + self._context.defaults.draft_in(transaction.policy(queue))
        members = [(queue, id, rank, now, now, 0, None, _header(rank), b"", False, 0, 0) for id, rank in drafts]
        new = [new_envelope(one) for one in members]
        ahead = self._clock.ahead_ms()
        transaction.add([with_timestamp(one, ahead) for one in new] if ahead else new, now, now, until)

    def _found(self, transaction: Transaction, queue: str, namespace: str) -> None:
        """Give a queue that does not exist yet the policy ``HTTP_QUEUE_POLICY``, and record its namespace."""
        if transaction.policy(queue).retry.limit is None:
            return
        if transaction.policy_text(queue) is None and not any(transaction.counts(queue)):
            transaction.set_policy(queue, HTTP_QUEUE_POLICY)
            if namespace:
                transaction.set_note(note_of(queue), namespace)

    def set(self, transaction: Transaction, queue: str, contents: Sequence[tuple[str, MessageContent]]) -> Results:
        """Set contents by message id. Each has its own result.

        A draft becomes a message. A message that was not delivered yet gets the new content and keeps its place."""
        policy = transaction.policy(queue)
        chain = self._context.defaults.chain_in(policy, queue)
        if chain is not None:
            self._clear(transaction, queue, contents)
        is_simple = not (self._context.defaults.unique_in(policy) or policy.quota.is_set)
        if is_simple and not (chain is not None and chain.hooks) and len({id for id, _ in contents}) == len(contents):
            return self._set(transaction, queue, contents)
        return [error for one in contents for error in self._set(transaction, queue, [one])]

    def _clear(self, transaction: Transaction, queue: str, contents: Sequence[tuple[str, MessageContent]]) -> None:
        """Raise ``NeedsCheck`` before any write if the processor must check contents outside the transaction."""
        ids = [id for id in dict.fromkeys(id for id, _ in contents) if validation.IDENTIFIER.fullmatch(id)]
        rows = [row for row in transaction.by_id(queue, ids) if row is not None and row.body]
        old = {envelope.id: envelope for envelope in transaction.envelopes(rows) if envelope is not None}
        coming = [with_content(old[id], *content) for id, content in contents if id in old]
        self._context.admission.clear(transaction, queue, coming)

    def _set(self, transaction: Transaction, queue: str, contents: Sequence[tuple[str, MessageContent]]) -> Results:
        """Set contents of distinct messages; of a single one if the queue's messages depend on each other."""
        now = self._clock.now_ms()
        policy = transaction.policy(queue)
        defaults = self._context.defaults
        most = defaults.set_body_in(policy)
        is_passed = defaults.chain_in(policy, queue) is not None
        is_checked = defaults.unique_in(policy) or policy.quota.is_set
        rows = messages_by_id(self._context, transaction, queue, [id for id, _ in contents], now)
        envelopes = iter(transaction.envelopes([row for row in rows.values() if row is not None]))
        errors: Results = []
        writings: list[ContentChange] = []
        for (_, content), row in zip(contents, rows.values(), strict=True):
            old = next(envelopes) if row is not None else None
            try:
                writing = _writing(row, old, content, most)
                if is_passed:
                    writing = self._passed(transaction, policy, writing, now)
                if is_checked:
                    self._check(transaction, policy, writing, now)
            except QueueError as error:
                errors.append(error)
                continue
            errors.append(None)
            writings.append(writing)
        if writings:
            self._write(transaction, policy, writings, now)
        return errors

    def _passed(self, transaction: Transaction, policy: QueuePolicy, writing: ContentChange, now: int) -> ContentChange:
        """Apply the queue's processor to the new content."""
        queue = writing.row.queue
        chain = self._context.defaults.chain_in(policy, queue)
        if chain is None:
            return writing
        admitted = admit(self._context, transaction, queue, chain, [writing.new], now)
        return writing._replace(new=admitted.envelopes[0], admitted=admitted)

    def _check(self, transaction: Transaction, policy: QueuePolicy, writing: ContentChange, now: int) -> None:
        """Check the rules that depend on the queue's other messages: unique payloads and quota."""
        row, _, new, _ = writing
        if self._context.defaults.unique_in(policy):
            self._context.uniqueness.check(transaction, row, new.payload, now)
        if policy.quota.is_set:
            if writing.is_draft:
                make_room(self._context, transaction, policy, row.queue, MessageLoad(1, new.size), now)
            elif new.size > row.size:
                check_growth(transaction, policy, row.queue, new.size - row.size)

    def _write(
        self, transaction: Transaction, policy: QueuePolicy, writings: Sequence[ContentChange], now: int
    ) -> None:
        transaction.rewrite([one.row for one in writings], [one.new for one in writings])
        drafts = [one for one in writings if one.is_draft]
        if drafts:
            self._enter(transaction, policy, drafts, now)
        uniqueness = self._context.uniqueness
        if self._context.defaults.unique_in(policy):
            for one in writings:
                before = None if one.is_draft else one.old.payload
                uniqueness.rewritten(transaction, one.row, before, one.new.payload, now)
        elif len(drafts) < len(writings):
            uniqueness.invalidate(transaction, writings[0].row.queue)
        for one in writings:
            if one.admitted is not None and one.admitted.derived:
                receipt = AddResult(one.row.seq, one.row.id, False)
                publish_derived(self._context, transaction, one.admitted, [receipt], policy, now)

    def _enter(self, transaction: Transaction, policy: QueuePolicy, drafts: Sequence[ContentChange], now: int) -> None:
        """Make drafts ready or delayed, in this order."""
        context, queue = self._context, drafts[0].row.queue
        place = transaction.places(len(drafts))
        changes = []
        for offset, (row, _, new, _) in enumerate(drafts):
            *others, _ = row  # all but the size
            before = new_message((*others, new.size))
            changes.append(new_change((before, transitions.set_content(before, policy, now, place + offset), None)))
        apply_changes(context, transaction, changes, now, no_events)
        context.wake_queues.add(queue)
        sent = [new for _, _, new, _ in drafts]
        context.event_buffer.published(queue, sent, [len(new.payload) for new in sent], (), now)


# -- lookup by message id ----------------------------------------------------------------------------------------------


def messages_by_id(
    context: TransactionContext, transaction: Transaction, queue: str, ids: Sequence[str], now: int
) -> dict[str, Message | None]:
    """Return messages by id, after due transitions are applied; None for an unknown or invalid id."""
    known = [id for id in dict.fromkeys(ids) if validation.IDENTIFIER.fullmatch(id)]
    rows = transaction.by_id(queue, known)
    for _ in range(MAX_SWEEPS):
        if not any(row is not None and 0 < row.due_at <= now for row in rows):
            break
        if not sweep_once(context, transaction, now):
            break
        rows = transaction.by_id(queue, known)
    found = dict(zip(known, rows, strict=True))
    return found if len(found) == len(ids) else {id: found.get(id) for id in ids}


def note_of(queue: str) -> str:
    """Return the key of the note with a queue's namespace, for namespaces that are too long to be queue names."""
    return f"mq/namespace/{queue}"


def _header(rank: int) -> str:
    """Return the header of a draft. Other protocols read the priority from its attributes."""
    return "" if rank == RANK_LAST else f'{{"attributes":{{"priority":{rank}}}}}'


def _writing(row: Message | None, old: Envelope | None, content: MessageContent, most: int) -> ContentChange:
    if len(content.body) > most:
        raise TooLarge(f"{len(content.body)} bytes, this queue takes {most}", field="payload")
    found = transitions.settable(row)
    if old is None:
        raise NotFound(transitions.NO_SUCH_MESSAGE)
    return ContentChange(found, old, with_content(old, content.type, content.body))


# -- consumer: claim, fetch, settle ------------------------------------------------------------------------------------

Decided = Callable[[Message | None, QueuePolicy], Change | None]


class Fetched(NamedTuple):
    """A message after its fetch, with its envelope."""

    message: Message
    envelope: Envelope


class ClaimOperations:
    """Consumer side: claim, fetch, settling by message id. For the committing thread only."""

    def __init__(self, context: TransactionContext) -> None:
        self._context = context
        self._clock = context.clock

    # -- delivery -------------------------------------------------------------------------------------------------

    def claim(self, transaction: Transaction, queue: str, limit: int) -> list[Message]:
        """Claim the first ready messages. Their content is fetched by id."""
        now = self._clock.now_ms()
        policy = transaction.policy(queue)
        limit = allowance(self._context, transaction, queue, policy, limit, now)
        dispatch = policy.dispatch
        if dispatch is not None and dispatch.strategy in BY_NAME:
            return []  # the strategy assigns by consumer id, and a claim has none
        found = self._first(transaction, queue, limit, now) if limit else []
        if not found:
            return []
        until = now + self._context.defaults.claim_in(policy)
        claimed = [transitions.claim(message, now, until, transitions.MQ_CONSUMER) for message in found]
        changes = [new_change((before, after, None)) for before, after in zip(found, claimed, strict=True)]
        apply_leases(self._context, transaction, changes, is_delivery=dispatch is not None)
        self._context.event_buffer.claimed(queue, found, now)
        return claimed

    def _first(self, transaction: Transaction, queue: str, limit: int, now: int) -> list[Message]:
        """Return the first ready messages, without reading their content unless it must be checked.

        ``scan`` lists messages addressed to a single consumer after all others."""
        policy = transaction.policy(queue)
        if not policy.schemas and not policy.is_ordered and not has_digests(self._context, policy, queue):
            found = transaction.scan(queue, State.READY, limit).messages
            if not any(message.target or 0 < message.expires_at <= now for message in found):
                return found
        return [message for message, _ in leasable(self._context, transaction, queue, limit, 0, now)]

    def unclaim(self, transaction: Transaction, claimed: Message) -> None:
        """Undo a claim whose reply could not be delivered, unless the message has changed since."""
        [row] = transaction.by_seq([claimed.seq])
        if row == claimed:
            now = self._clock.now_ms()
            change = Change(row, transitions.unclaim(row, now))
            apply_changes(self._context, transaction, [change], now, no_events)
            self._context.wake_queues.add(row.queue)

    def fetch(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> list[Fetched | QueueError]:
        """Lease the claimed messages, and return all of them with their content; others do not change."""
        now = self._clock.now_ms()
        rows = messages_by_id(self._context, transaction, queue, ids, now)
        until = now + self._context.defaults.active_in(transaction.policy(queue))
        claimed = [row for row in rows.values() if row is not None and row.state is State.CLAIMED]
        if claimed and has_digests(self._context, transaction.policy(queue), queue):
            envelopes = zip(claimed, transaction.envelopes(claimed), strict=True)
            heads = [(row, envelope) for row, envelope in envelopes if envelope is not None]
            if quarantine(self._context, transaction, queue, heads, now):
                rows = messages_by_id(self._context, transaction, queue, ids, now)
                claimed = [row for row in rows.values() if row is not None and row.state is State.CLAIMED]
        started = {row.id: transitions.start(row, now, until) for row in claimed}
        if claimed:
            changes = [new_change((row, started[row.id], None)) for row in claimed]
            apply_leases(self._context, transaction, changes, is_delivery=False)
        return self._shown(transaction, ids, {**rows, **started})

    def inspect(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> list[Fetched | QueueError]:
        """Return messages with their content without changing them."""
        return self._shown(
            transaction, ids, messages_by_id(self._context, transaction, queue, ids, self._clock.now_ms())
        )

    def _shown(
        self, transaction: Transaction, ids: Sequence[str], rows: Mapping[str, Message | None]
    ) -> list[Fetched | QueueError]:
        found: dict[str, Fetched | QueueError] = {}
        readable: list[Message] = []
        for id, row in rows.items():
            try:
                readable.append(transitions.readable(row))
            except QueueError as error:
                found[id] = error
        is_checked = False
        if readable:
            queue = readable[0].queue
            is_checked = has_digests(self._context, transaction.policy(queue), queue)
        for row, envelope in zip(readable, transaction.envelopes(readable), strict=True):
            if envelope is None:
                found[row.id] = NotFound(transitions.NO_SUCH_MESSAGE)
                continue
            trouble = damage_error(self._context, transaction, row, envelope) if is_checked else None
            found[row.id] = trouble or Fetched(row, envelope)
        return [found[id] for id in ids]

    # -- settling -------------------------------------------------------------------------------------------------

    def complete(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        now = self._clock.now_ms()

        def decided(row: Message | None, policy: QueuePolicy) -> Change | None:
            after = transitions.complete(row, policy, now)
            return None if after is None or row is None else new_change((row, after, None))

        record = partial(self._context.event_buffer.settled, "ack")
        errors, count = self._settle(transaction, queue, ids, decided, now, record)
        prune_after(self._context, transaction, count, now)
        return errors

    def fail(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        now = self._clock.now_ms()

        def decided(row: Message | None, policy: QueuePolicy) -> Change | None:
            outcome = transitions.fail_by_id(row, policy, now)
            return None if outcome is None or row is None else Change(row, *outcome)

        record = partial(self._context.event_buffer.settled, "nack", reason=Reason.HANDLER_ERROR)
        return self._settle(transaction, queue, ids, decided, now, record)[0]

    def renew(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        now = self._clock.now_ms()

        def decided(row: Message | None, policy: QueuePolicy) -> Change | None:
            [failure] = transaction.failures([row]) if row is not None else [None]
            after = transitions.renew(row, failure, now, transaction.places(1))
            return None if after is None or row is None else Change(row, after)

        record = partial(self._context.event_buffer.moved, State.READY)
        errors, count = self._settle(transaction, queue, ids, decided, now, record)
        if count:
            self._context.wake_queues.add(queue)
        return errors

    def abandon(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        now = self._clock.now_ms()

        def decided(row: Message | None, policy: QueuePolicy) -> Change | None:
            after = transitions.drop_by_id(row, policy, now)
            return None if after is None or row is None else Change(row, after)

        record = partial(self._context.event_buffer.dropped, "asked")
        return self._settle(transaction, queue, ids, decided, now, record)[0]

    def _settle(
        self,
        transaction: Transaction,
        queue: str,
        ids: Sequence[str],
        decided: Decided,
        now: int,
        record: RecordEvents,
    ) -> tuple[Results, int]:
        """Load the messages, decide each, and apply all changes together. A repeated id is decided once.

        Return the results, and the number of messages changed."""
        policy = transaction.policy(queue)
        errors: dict[str, QueueError | None] = {}
        changes: list[Change] = []
        for id, row in messages_by_id(self._context, transaction, queue, ids, now).items():
            try:
                change = decided(row, policy)
            except QueueError as error:
                errors[id] = error
                continue
            errors[id] = None
            if change is not None:
                changes.append(change)
        apply_changes(self._context, transaction, changes, now, record)
        return [errors[id] for id in ids], len(changes)

    # -- queues ---------------------------------------------------------------------------------------------------

    def stats(self, transaction: Transaction, queue: str) -> Counts:
        """Return the counts of a queue after due transitions are applied."""
        sweep_if_due(self._context, transaction, self._clock.now_ms())
        return transaction.counts(queue)

    def clear(self, transaction: Transaction, queue: str) -> None:
        """Delete everything of a queue but its policy, in one transaction. ``broker.bulk`` empties the queue first."""
        text = transaction.policy_text(queue)
        transaction.delete_queue(queue)
        if text is not None:
            transaction.set_policy(queue, text)
        self._context.event_buffer.deliveries.queue_emptied(queue, self._clock.now_ms())
        self._context.event_buffer.add(QueueChanged(queue, "clear"))
