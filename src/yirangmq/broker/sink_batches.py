"""Sink batches of a pipeline, exactly once: stages, the commit, and the ledger in store notes.

Tasks stage their rows; the commit makes all of them visible. One store commit contains the rows for queues, the dead
letters and the ledger entry. Rows for topics are appended to the log afterwards. Until they are in the log the entry is
``pending``, and a header of each record names the batch. If the server stops in between, it appends the missing records
at its next start. A batch that is committed again returns its first result and stores nothing.

The ledger is written in the commit that stores the rows; ``core.sink_batches`` defines its entries. Stages that are not
committed within an hour are removed. Event loop thread only; files are read and written on background threads."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from yirangmq.broker.bridge_worker import store_dead_letters
from yirangmq.broker.commit_jobs import Done, RunInThread
from yirangmq.broker.dead_letter_sources import check_publish
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import publish
from yirangmq.broker.quota import added_load, enforce_quota
from yirangmq.broker.sink_batch_rows import (
    DoubleBuffer,
    Loaded,
    Received,
    ReceivedStages,
    StagedRows,
    StageStorage,
    scan,
)
from yirangmq.core.errors import QueueError, StoreDamaged, TooLarge, Unavailable
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Clock, Ids, Transaction
from yirangmq.core.sink_batches import (
    BATCH_HEADER,
    STAGE_AGE_MS,
    BatchEntry,
    BatchStage,
    BatchState,
    check_new,
    expired_batches,
    key_of,
    prefix_of,
)
from yirangmq.core.topics import NewRecord, Record
from yirangmq.format.json_codec import dumps, loads
from yirangmq.format.sink_rows import Rows, dead_letter_oversized, dead_letter_rejected

# -- ledger ------------------------------------------------------------------------------------------------------------


def find(transaction: Transaction, query: str, batch: int) -> BatchEntry | None:
    text = transaction.note(key_of(query, batch))
    return None if text is None else _read(key_of(query, batch), text)


def add_entry(transaction: Transaction, entry: BatchEntry) -> None:
    """Add the entry of a new batch, and remove entries beyond the ledger's limit.

    ``WrongState`` if the batch is older than the ledger's oldest entry may be."""
    known = [int(key.rpartition("/")[2]) for key in transaction.notes(prefix_of(entry.query))]
    check_new(entry.batch, known)
    write(transaction, entry)
    for batch in expired_batches([*known, entry.batch]):
        transaction.set_note(key_of(entry.query, batch), None)


def write(transaction: Transaction, entry: BatchEntry) -> None:
    transaction.set_note(key_of(entry.query, entry.batch), dumps(entry._asdict()).decode())


def entries(transaction: Transaction, query: str = "") -> list[BatchEntry]:
    """Return the entries of one query or of all, in the order of queries and batches."""
    found = transaction.notes(prefix_of(query))
    return [_read(key, text) for key, text in found.items()]


def positions(transaction: Transaction, since_ms: int) -> dict[str, int]:
    """Return the topic sequence that each batch stored after ``since_ms`` has reached at least.

    ``behind`` was the end of the log when the batch became pending; all its rows were appended when it is done."""
    return {
        f"batch {entry.query}/{entry.batch}": entry.behind + entry.topic_rows * (entry.step is BatchState.DONE)
        for entry in entries(transaction)
        if entry.topic_rows and entry.at >= since_ms
    }


def _read(key: str, text: str) -> BatchEntry:
    try:
        given: dict[str, Any] = loads(text.encode())
        stages = tuple(BatchStage(*stage) for stage in given.pop("stages"))
        return BatchEntry(**{**given, "step": BatchState(given["step"]), "stages": stages})
    except (KeyError, TypeError, ValueError) as error:
        raise StoreDamaged(f"the note {key} cannot be read: {error}") from None


# -- batches -----------------------------------------------------------------------------------------------------------

MAX_PER_APPEND = 2_500
"""Upper bound of topic records per append: some milliseconds of the event loop's time, then other work runs."""
LONG_JOB_ROWS = 1_000
"""Number of queue rows from which a batch is stored on a background thread; that many take some 10 ms."""


class SinkTopicLog(Protocol):
    """Port to the topic log, for batches."""

    def last(self) -> int: ...

    def publish(self, records: Sequence[NewRecord], done: Done) -> None: ...

    def records_after(self, sequence: int) -> Iterator[Record]:
        """Iterate over the records after ``sequence``. Background threads only."""


class SinkBatches:
    """Staging and commits of sink batches. Event loop thread only.

    Commits of a batch that is being committed wait for that commit and get its result."""

    def __init__(
        self, committer: GroupCommitter, stages: StageStorage, run_in_thread: RunInThread, clock: Clock, ids: Ids
    ) -> None:
        self._committer = committer
        self._stages = stages
        self._run_in_thread = run_in_thread
        self._clock = clock
        self._ids = ids
        self.topics: SinkTopicLog | None = None
        self._under_way: dict[tuple[str, int], list[Done]] = {}
        self._laid = ReceivedStages()

    # -- stages -----------------------------------------------------------------------------------------------------

    def put(self, query: str, batch: int, stage: str, piece: int, data: bytes, done: Done) -> None:
        """Store a piece of a stage; ``done(Received)`` is called when it is on disk.

        Rows that cannot be parsed are rejected here, so that the task that sent them fails."""

        def work() -> Received:
            scanned = scan(data)
            self._stages.put(query, batch, stage, piece, data)
            return self._laid.note(query, batch, stage, piece, data, scanned)

        self._run_in_thread(work, done)

    def sweep(self, done: Done) -> None:
        """Remove stages that were not committed within ``STAGE_AGE_MS``; ``done`` gets their number.

        Stages of pending batches, and of commits in progress, are kept."""
        edge = self._clock.wall_ms() - STAGE_AGE_MS
        kept = {(entry.query, entry.batch) for entry in self._pending()}

        def work() -> int:
            old = [(query, batch) for query, batch, at in self._stages.batches() if at < edge]
            going = [key for key in old if key not in kept and key not in self._under_way]
            for query, batch in going:
                self._drop(query, batch)
            return len(going)

        self._run_in_thread(work, done)

    # -- commits ----------------------------------------------------------------------------------------------------

    def commit(self, query: str, batch: int, stages: Sequence[BatchStage], done: Done, bad_queue: str = "") -> None:
        """Commit a batch; ``done((entry, is_first))`` is called when everything is on disk.

        A batch that was committed before returns its ledger entry, with ``is_first`` false. With ``bad_queue``, rows
        that cannot be accepted become dead letters: of their own queue if they name one, else of ``bad_queue``."""
        is_under_way = (query, batch) in self._under_way  # another commit of it waits, or ``finish_pending`` runs it
        self._under_way.setdefault((query, batch), []).append(done)
        if is_under_way:
            return
        try:
            known = self._committer.read(lambda transaction: find(transaction, query, batch))
        except QueueError as error:
            self._end(query, batch, None, error)
            return
        if known is None:
            new = BatchEntry(query, batch, BatchState.DONE, 0, 0, 0, 0, 0, tuple(stages), bad_queue)
            self._run_in_thread(self._rows_of(new).load, partial(self._store, new))
        elif known.step is BatchState.PENDING:
            self._resume(known)
        else:
            again = known._replace(refused=known.refused + 1)
            self._committer.submit(
                lambda transaction: write(transaction, again),
                lambda _, error: self._end(query, batch, (again, False), error),
            )

    def finish_pending(self) -> None:
        """Complete batches that a stopped server left pending. Call it once at start."""
        for entry in self._pending():
            if (entry.query, entry.batch) not in self._under_way:
                self._under_way[entry.query, entry.batch] = []
                self._resume(entry)

    def _pending(self) -> list[BatchEntry]:
        found = self._committer.read(entries)
        return [entry for entry in found if entry.step is BatchState.PENDING]

    def _rows_of(self, entry: BatchEntry) -> StagedRows:
        return StagedRows(self._stages, self._laid, self._clock, self._ids, entry)

    def _drop(self, query: str, batch: int) -> None:
        self._stages.drop(query, batch)
        self._laid.forget(query, batch)

    def _store(self, new: BatchEntry, loaded: Loaded | None, error: QueueError | None) -> None:
        if loaded is None:
            self._end(new.query, new.batch, None, error)
            return
        if loaded.topic_rows and self.topics is None:
            self._end(new.query, new.batch, None, Unavailable("this server has no topics", field="target"))
            return
        if loaded.topic_rows and self.topics is not None:
            new = new._replace(step=BatchState.PENDING, topic_rows=loaded.topic_rows, behind=self.topics.last())
        work = partial(self._admit, new=new._replace(at=self._clock.wall_ms()), rows=loaded.rows)
        self._submit(work, loaded.rows, lambda entry, problem: self._stored(new, entry, loaded, problem))

    def _submit(self, work: Callable[[Transaction], BatchEntry], rows: Rows, done: Done) -> None:
        if rows.queue_rows + rows.dead_rows < LONG_JOB_ROWS:
            self._committer.submit(work, done)
        else:
            self._committer.submit_long(work, done, self._run_in_thread)

    def _admit(self, transaction: Transaction, new: BatchEntry, rows: Rows) -> BatchEntry:
        """Store the rows for queues, the dead letters and the ledger entry.

        Everything is checked before the first write: a batch is stored completely or not at all."""
        now = self._clock.now_ms()
        if new.bad_queue:
            for queue in list(rows.queues):
                dead_letter_oversized(rows, queue, transaction.policy(queue).max_body)
                dead_letter_rejected(
                    rows, queue, self._committer.context.admission.complaints(transaction, queue, rows.queues[queue])
                )
        for queue, envelopes in rows.queues.items():
            _check_fit(transaction, queue, envelopes, now)
        check_publish(transaction, {**rows.queues, **rows.dead}, self._committer.context.defaults.max_queues)
        self._committer.context.admission.check_all(transaction, rows.queues, now)
        for queue, found in rows.dead.items():
            _check_fit(transaction, queue, [envelope for envelope, _ in found], now, any_size=bool(new.bad_queue))
        entry = new._replace(queue_rows=rows.queue_rows, dead_rows=rows.dead_rows)
        add_entry(transaction, entry if entry.step is BatchState.PENDING else entry._replace(stages=()))
        context = self._committer.context
        for queue, envelopes in rows.queues.items():
            if envelopes:
                publish(context, transaction, queue, envelopes)
        for queue, found in rows.dead.items():
            store_dead_letters(context, transaction, queue, found, now)
        return entry

    def _stored(self, new: BatchEntry, entry: BatchEntry | None, loaded: Loaded, error: QueueError | None) -> None:
        if entry is None or error is not None:
            self._end(new.query, new.batch, None, error)
        elif entry.step is BatchState.DONE:
            self._end(entry.query, entry.batch, (entry._replace(stages=()), True), None)
        elif loaded.rows.records:
            self._append(entry, iter([loaded.rows.records]), is_first=True)
        else:
            self._append(entry, self._rows_of(entry).topic_records(), is_first=True)

    # -- topics -----------------------------------------------------------------------------------------------------

    def _resume(self, entry: BatchEntry) -> None:
        """Append the missing topic records of a pending batch; its queue rows are stored already.

        Records of the batch that are in the log are counted by their header."""
        topics = self.topics
        try:
            if topics is None:
                raise Unavailable("this server has no topics", field="target")
            topics.last()  # opens the log if it is not open
        except QueueError as error:
            self._end(entry.query, entry.batch, None, error)
            return

        def missing() -> Iterator[list[NewRecord]]:
            there = sum(
                1
                for record in topics.records_after(entry.behind)
                if record.headers.get(BATCH_HEADER) == f"{entry.query}/{entry.batch}"
            )
            yield from self._rows_of(entry).topic_records(there)

        self._append(entry, missing(), is_first=False)

    def _append(self, entry: BatchEntry, parts: Iterator[list[NewRecord]], *, is_first: bool) -> None:
        """Append the parts one after the other, then mark the ledger entry as done."""

        def over(error: QueueError | None) -> None:
            if error is not None:
                self._end(entry.query, entry.batch, None, error)
            else:
                self._mark_done(entry, is_first=is_first)

        DoubleBuffer(parts, self._run_in_thread, self._publish, over).start()

    def _publish(self, records: list[NewRecord], done: Done) -> None:
        def on_appended(_: Any, error: QueueError | None) -> None:
            if error is not None or len(records) <= MAX_PER_APPEND:
                done(None, error)
            else:
                self._publish(records[MAX_PER_APPEND:], done)

        try:
            if self.topics is None:
                raise Unavailable("this server has no topics", field="target")
            self.topics.publish(records[:MAX_PER_APPEND], on_appended)
        except QueueError as error:
            done(None, error)

    def _mark_done(self, entry: BatchEntry, *, is_first: bool) -> None:
        done = entry._replace(step=BatchState.DONE, stages=())
        self._committer.submit(
            lambda transaction: write(transaction, done),
            lambda _, error: self._end(entry.query, entry.batch, (done, is_first), error),
        )

    def _end(self, query: str, batch: int, result: tuple[BatchEntry, bool] | None, error: QueueError | None) -> None:
        waiting = self._under_way.pop((query, batch), [])
        if error is None:
            self._run_in_thread(partial(self._drop, query, batch), _ignore)
        for number, done in enumerate(waiting):
            entry_first = None if result is None else (result[0], result[1] and number == 0)
            done(entry_first, error)


def _check_fit(
    transaction: Transaction, queue: str, envelopes: list[Envelope], now: int, *, any_size: bool = False
) -> None:
    policy = transaction.policy(queue)
    largest = max((len(envelope.payload) for envelope in envelopes), default=0)
    if largest > policy.max_body and not any_size:
        raise TooLarge(f"{largest} bytes, queue {queue!r} takes {policy.max_body}", field="value")
    if policy.quota.is_set:
        enforce_quota(transaction, policy, queue, added_load(transaction, policy, queue, envelopes), now)


def _ignore(value: Any, error: QueueError | None) -> None:
    """Ignore the result of a removal. Stages that could not be removed are removed by a later sweep."""
