"""Payloads that lie together are what they would be by themselves; they go with the last message that has something
there, and not before."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.queues import answer_or_code, codes_of
from tests.support.store_contract import envelope, listed, picture
from yirangmq import NewMessage
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queues import Queues
from yirangmq.core.ports import Store, Transaction
from yirangmq.core.states import State
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.sqlite import payloads as sqlite_content
from yirangmq.stores.sqlite.payloads import Contents, number_of, pack_payloads, part
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import CountingIds, ManualClock, open_for_test

QUEUES = ("mail", "post")
POLICY = {"archive": {"maxMessages": 3}, "retry": {"limit": 1}, "tombstoneSec": 20, "visibilityTimeoutSec": 30}
LONG = 120
"""Seconds; who waits that long has its payload by itself."""
LAID = "SELECT seq, payload FROM message WHERE typeof(payload) = 'integer' ORDER BY seq"

payloads = st.binary(max_size=30) | st.sampled_from([b'"\xc3\xa4"', b"7", b'{"a":[]}', b'"' + b"x" * 18 + b'"'])
"""Of the latter each is JSON."""
picks = st.lists(st.integers(0, 8), min_size=1, max_size=4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few payloads, and payloads too large for them."""
    monkeypatch.setattr(sqlite_content, "MAX_ROW_BYTES", 40)
    monkeypatch.setattr(sqlite_content, "MAX_PACKED_BYTES", 20)
    monkeypatch.setattr(sqlite_content, "MAX_CACHED_ROWS", 2)
    monkeypatch.setattr(sqlite_content, "MAX_SWEEP_GAP", 2)


# -- how they are laid ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_payload_reference_leads_to_its_bytes() -> None:
    @given(st.lists(st.tuples(st.binary(max_size=30), st.booleans()), max_size=20), st.integers(1, 2**40))
    def look(sent: list[tuple[bytes, bool]], first: int) -> None:
        sent = [(b"1" * len(payload) if is_json else payload, is_json) for payload, is_json in sent]
        column, rows = pack_payloads(
            first, [envelope(f"m{n}", payload=one[0], is_json=one[1]) for n, one in enumerate(sent)]
        )
        assert sum(len(data) for *_, data in rows) == sum(len(payload) for payload, _ in sent if len(payload) <= 20)
        assert all(len(data) <= 40 for *_, data in rows)
        for seq, (number, (payload, is_json)) in enumerate(zip(column, sent, strict=True), first):
            if len(payload) > 20:
                assert number == (payload.decode() if is_json else payload)
                continue
            assert isinstance(number, int)
            [(begin, _, sizes, data)] = [row for row in rows if row[0] <= seq <= row[1]]
            assert (part(data, number), number & 1 == 1) == (payload, is_json)
            assert number_of(seq - begin, sizes) == number

    look()


def test_payload_reference_beyond_its_row_returns_nothing() -> None:
    _, [(_, _, sizes, data)] = pack_payloads(1, [envelope("a"), envelope("b")])
    number = number_of(1, sizes)
    assert number is not None
    assert part(data[:-1], number) is None
    assert part(data, -number) is None
    assert number_of(2, sizes) is None


# -- beside a store that knows nothing of it --------------------------------------------------------------------------


class Crash(Exception):
    pass


class ContentMachine(RuleBasedStateMachine):
    """A SQLite store and a memory store, told the same at the same moments."""

    @staticmethod
    def made(path: Path) -> SqliteStore:
        return SqliteStore(path, durability="os")

    def __init__(self) -> None:
        super().__init__()
        self._closing = contextlib.ExitStack()
        self._path = Path(self._closing.enter_context(tempfile.TemporaryDirectory())) / "queue.db"
        self._closing.callback(self._close)
        self.clock, self.ids = ManualClock(), (CountingIds(), CountingIds())
        self.stores: list[Store] = [self.made(self._path), MemoryStore()]
        self.queues = [self._opened(0), self._opened(1)]
        self.held: list[str] = []
        for queue in QUEUES:
            for queues in self.queues:
                queues.set_policy(queue, POLICY)

    def _opened(self, which: int) -> Queues:
        return open_for_test(store=self.stores[which], clock=self.clock, ids=self.ids[which])

    def _close(self) -> None:
        for queues in self.queues:
            queues.close()

    def teardown(self) -> None:
        self._closing.close()

    def both(self, ask: Callable[[Queues], object]) -> object:
        ours, theirs = (answer_or_code(queues, ask) for queues in self.queues)
        assert ours == theirs
        return ours

    def work(self, do: Callable[[Transaction], None]) -> None:
        for store in self.stores:
            with store.transaction() as transaction:
                do(transaction)

    def _go_on_alike(self) -> None:
        """With the same number: SQLite leaves some out."""
        with self.stores[0].transaction() as ours, self.stores[1].transaction() as theirs:
            theirs.places(ours.places(1) - theirs.places(1))

    @rule(queue=st.sampled_from(QUEUES), sent=st.lists(payloads, min_size=1, max_size=9), known=st.integers(0, 9))
    def publish(self, queue: str, sent: list[bytes], known: int) -> None:
        """``known``: the one whose id may be there already. (Then SQLite has used up the numbers of a first try.)"""
        with self.stores[1].transaction() as theirs:
            if known < len(sent) and theirs.by_id(queue, ["again"]) != [None]:
                theirs.places(len(sent))
        new = [NewMessage(payload=one, id="again" if n == known else None) for n, one in enumerate(sent)]
        self.both(lambda queues: queues.publish_many(queue, new))
        self._go_on_alike()

    @rule(queue=st.sampled_from(QUEUES), texts=st.lists(st.text(max_size=9), min_size=2, max_size=5))
    def publish_json(self, queue: str, texts: list[str]) -> None:
        self.both(lambda queues: queues.publish_many(queue, texts))

    @rule(queue=st.sampled_from(QUEUES), limit=st.integers(1, 9))
    def lease(self, queue: str, limit: int) -> None:
        ours = self.both(lambda queues: [(one.lease_id, one.payload) for one in queues.lease(queue, limit)])
        assert isinstance(ours, list)
        self.held += [lease for lease, _ in ours]

    def _chosen(self, picks: list[int]) -> list[str]:
        chosen = list(dict.fromkeys(self.held[pick % len(self.held)] for pick in picks if self.held))
        self.held = [lease for lease in self.held if lease not in chosen]
        return chosen

    @rule(picks=picks)
    def ack(self, picks: list[int]) -> None:
        leases = self._chosen(picks)
        self.both(lambda queues: codes_of(queues.ack_many(leases)))

    @rule()
    def ack_all(self) -> None:
        leases, self.held = self.held, []
        self.both(lambda queues: codes_of(queues.ack_many(leases)))

    @rule(picks=picks, reason=st.sampled_from(["HANDLER_ERROR", "REJECTED"]), delay=st.sampled_from([None, 0, 5, LONG]))
    def nack(self, picks: list[int], reason: str, delay: float | None) -> None:
        leases = self._chosen(picks)
        self.both(lambda queues: codes_of(queues.nack_many(leases, reason, delay=delay)))

    @rule(queue=st.sampled_from(QUEUES), verb=st.sampled_from(["redrive", "quarantine", "purge"]))
    def dead_letters(self, queue: str, verb: str) -> None:
        ids = [look.message.id for state in ("dead", "parked") for look in self.queues[0].walk(queue, state)]
        if ids:
            self.both(lambda queues: getattr(DeadLetters(queues), verb)(queue, ids=ids))

    @rule(queue=st.sampled_from(QUEUES), pick=st.integers(0, 9), payload=st.binary(max_size=30))
    def rewrite(self, queue: str, pick: int, payload: bytes) -> None:
        def do(transaction: Transaction) -> None:
            cards = listed(transaction, queue, State.READY)
            if cards:
                card = cards[pick % len(cards)]
                [sent] = transaction.envelopes([card])
                assert sent is not None
                transaction.rewrite([card], [sent._replace(payload=payload, is_json=False)])

        self.work(do)

    @rule(queue=st.sampled_from(QUEUES), pick=st.integers(0, 9))
    def drop(self, queue: str, pick: int) -> None:
        states = ("ready", "leased", "delayed")
        ids = [look.message.id for state in states for look in self.queues[0].walk(queue, state)]
        if ids:
            self.both(lambda queues: codes_of(queues.drop(queue, [ids[pick % len(ids)]])))

    @rule(milliseconds=st.sampled_from([1, 9_000, 31_000, LONG * 1000]))
    def time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.both(lambda queues: queues.sweep())

    @rule(queue=st.sampled_from(QUEUES))
    def delete_queue(self, queue: str) -> None:
        self.both(lambda queues: queues.delete_queue(queue))
        for queues in self.queues:
            queues.set_policy(queue, POLICY)

    @rule(queue=st.sampled_from(QUEUES))
    def crash(self, queue: str) -> None:
        """In the middle of work of which nothing may be seen again."""
        with contextlib.suppress(Crash), self.stores[0].transaction() as transaction:
            transaction.add([envelope(f"lost{n}", queue) for n in range(3)], self.clock.now_ms(), 0)
            for state in (State.READY, State.LEASED, State.DEAD):
                transaction.forget(listed(transaction, queue, state))
            transaction.trim(100)
            raise Crash

    @rule()
    def open_again(self) -> None:
        self.queues[0].close()
        self.stores[0] = self.made(self._path)
        self.queues = [self._opened(0), self._opened(1)]
        self._go_on_alike()

    @invariant()
    def agrees(self) -> None:
        """Once history is trimmed, which a verb does in passing, now or later."""
        for queues in self.queues:
            queues.sweep()
        assert picture(self.stores[0]) == picture(self.stores[1])
        assert list(self.stores[0].check(repair=False)) == []

    @invariant()
    def is_read_with_plain_sql(self) -> None:
        with contextlib.closing(apsw.Connection(str(self._path))) as db:
            shown = {row[0]: row[1] for row in db.execute("SELECT seq, payload FROM messages WHERE header IS NOT NULL")}
        with self.stores[1].transaction(write=False) as transaction:
            cards = [one for queue in QUEUES for state in State for one in listed(transaction, queue, state)]
            sent = {card.seq: one for card, one in zip(cards, transaction.envelopes(cards), strict=True) if one}
        assert shown == {seq: one.payload.decode() if one.is_json else one.payload for seq, one in sent.items()}


class ServedMachine(ContentMachine):
    """With commits that SQLite makes later, and again after a crash."""

    @staticmethod
    def made(path: Path) -> SqliteStore:
        return open_served_store(path, durability="os", seconds=None)


@pytest.mark.long
@pytest.mark.timeout(600 if settings().max_examples <= 100 else 3600)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("machine", [ContentMachine, ServedMachine])
def test_payloads_in_shared_rows_behave_like_payloads_in_rows_of_their_own(machine: type[ContentMachine]) -> None:
    examples = settings().max_examples // 4
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=25))


# -- how long they stay -----------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def queues(path: Path) -> Iterator[Queues]:
    with open_for_test(store=SqliteStore(path, durability="os")) as made:
        made.set_policy("mail", {"archive": {"maxMessages": 0}, "visibilityTimeoutSec": 600})
        yield made


def _asked(path: Path, statement: str) -> list[tuple[object, ...]]:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        return [tuple(row) for row in db.execute(statement)]


def _contents(path: Path) -> list[tuple[object, ...]]:
    return _asked(path, "SELECT first, last FROM content ORDER BY first")


def test_payloads_published_together_share_one_row(queues: Queues, path: Path) -> None:
    queues.publish_many("mail", [{"n": n} for n in range(100)])
    assert _contents(path) == [(1, 100)]
    assert len(_asked(path, LAID)) == 100
    assert [delivery.value()["n"] for delivery in queues.lease("mail", 100)] == list(range(100))


def test_payload_published_alone_delayed_or_with_a_ttl_is_kept_in_its_message_row(queues: Queues, path: Path) -> None:
    queues.publish("mail", 1)
    queues.publish_many("mail", [NewMessage(payload=2, delay=60), NewMessage(payload=3, ttl=60)])
    assert _contents(path) == []
    assert _asked(path, "SELECT payload FROM message") == [("1",), ("2",), ("3",)]


def test_payload_row_is_deleted_with_its_last_message_and_not_before(queues: Queues, path: Path) -> None:
    queues.publish_many("mail", range(5))
    leases = [delivery.lease_id for delivery in queues.lease("mail", 5)]
    for lease in (leases[2], leases[0], leases[4], leases[1]):
        queues.ack(lease)
        queues.sweep()
        assert _contents(path) == [(1, 5)]
    assert _asked(path, LAID) == [(4, (3 << 25) + 3)]
    with open_for_test(store=SqliteStore(path, durability="os")) as others:
        [left] = others.peek("mail", state="leased")
        assert left.envelope is not None
        assert left.envelope.payload == b"3"
    queues.ack(leases[3])
    queues.sweep()
    assert _contents(path) == []


def test_history_keeps_only_the_payload_rows_it_needs(queues: Queues, path: Path, small: None) -> None:
    queues.set_policy("mail", {"archive": {"maxMessages": 5}})
    queues.publish_many("mail", ["x" * 8] * 40)
    assert len(_contents(path)) == 10
    queues.ack([delivery.lease_id for delivery in queues.lease("mail", 40)])
    queues.sweep()
    assert _contents(path) == [(33, 36), (37, 40)]
    assert _asked(path, "SELECT payload FROM messages WHERE payload IS NOT NULL") == [(f'"{"x" * 8}"',)] * 5


@pytest.mark.parametrize("fate", ["dead", "parked", "delayed"])
def test_payload_of_a_dead_parked_or_long_delayed_message_is_moved_out_of_the_shared_row(
    queues: Queues, path: Path, fate: str
) -> None:
    queues.publish_many("mail", [NewMessage(payload=bytes([250, n]), id=f"m{n}") for n in range(5)])
    leases = [delivery.lease_id for delivery in queues.lease("mail", 5)]
    if fate == "delayed":
        queues.nack(leases[2], "HANDLER_ERROR", "later", delay=LONG)
    else:
        queues.nack(leases[2], "REJECTED", "never")
    if fate == "parked":
        DeadLetters(queues).quarantine("mail", ids=["m2"])
    assert _contents(path) == [(1, 5)]
    queues.ack([*leases[:2], *leases[3:]])
    queues.sweep()
    assert _contents(path) == []
    assert _asked(path, "SELECT state, payload FROM messages WHERE payload IS NOT NULL") == [(fate, bytes([250, 2]))]
    assert list(queues.check()) == []


def test_payload_of_a_briefly_delayed_message_stays_in_the_shared_row(queues: Queues, path: Path) -> None:
    queues.publish_many("mail", range(3))
    queues.nack([delivery.lease_id for delivery in queues.lease("mail", 3)], "HANDLER_ERROR", "again", delay=5)
    assert len(_asked(path, LAID)) == 3


def test_delete_queue_leaves_the_payload_rows_of_another_queue(queues: Queues, path: Path) -> None:
    queues.publish_many("mail", range(3))
    queues.publish_many("post", range(3))
    queues.publish_many("mail", range(3))
    queues.delete_queue("mail")
    assert _contents(path) == [(4, 6)]
    assert [delivery.value() for delivery in queues.lease("post", 9)] == [0, 1, 2]


def test_payload_rows_of_a_batch_with_duplicates_leave_nothing_behind(queues: Queues, path: Path) -> None:
    queues.publish("mail", NewMessage(payload=0, id="known"))
    queues.publish_many("mail", [NewMessage(payload=n, id=id) for n, id in enumerate(["a", "known", "b", "c"], 1)])
    assert [delivery.value() for delivery in queues.lease("mail", 9)] == [0, 1, 3, 4]
    assert len(_contents(path)) == 1
    assert list(queues.check()) == []


def test_payload_row_is_read_once_for_all_its_messages(path: Path) -> None:
    with contextlib.closing(SqliteStore(path, durability="os")) as store, open_for_test(store=store) as queues:
        queues.publish_many("mail", range(50))
        asked: list[str] = []

        def hear(_: object, statement: str, __: object) -> bool:
            asked.append(statement)
            return True

        store.file.db.exec_trace = hear
        with store.transaction(write=False) as transaction:
            contents = Contents(store.file.db)
            for seq, number in store.file.db.execute(LAID):
                assert contents.payload(seq, number) == (str(seq - 1).encode(), True)
            assert [sent.payload for _, sent in transaction.heads("mail", 50)] == [str(n).encode() for n in range(50)]
        assert sum("FROM content" in statement for statement in asked) <= 2


# -- what a disk can do -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["DELETE FROM content", "UPDATE content SET data = substr(data, 1, 2)"])
def test_payload_that_is_lost_makes_its_message_dead_and_lets_the_others_be_leased(path: Path, harm: str) -> None:
    with open_for_test(store=SqliteStore(path, durability="os")) as queues:
        queues.publish_many("mail", range(10, 13))
        queues.publish("mail", "fine")
    _asked(path, harm)
    with open_for_test(store=SqliteStore(path, durability="os")) as queues:
        got = [delivery.value() for delivery in queues.lease("mail", 9)]
        assert got == ([10, "fine"] if "substr" in harm else ["fine"])
        dead = queues.peek("mail", state="dead")
        assert {look.message.reason for look in dead} == {"CORRUPT"}
        assert len(dead) + len(got) == 4
        assert list(queues.check()) == []


@pytest.mark.parametrize("verb", ["check", "lease"])
def test_payload_that_is_not_utf8_is_found_by_check_or_lease_and_dead_lettered(path: Path, verb: str) -> None:
    with open_for_test(store=SqliteStore(path, durability="os")) as queues:
        queues.publish_many("mail", ["ab", "cd", "ef"])
    _asked(path, "UPDATE content SET data = x'2261622222ff642222656622'")
    with open_for_test(store=SqliteStore(path, durability="os")) as queues:
        if verb == "check":
            assert "unreadable" in {finding.kind for finding in queues.check(repair=True)}
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == ["ab", "ef"]
        [dead] = queues.peek("mail", state="dead")
        assert dead.envelope is not None
        assert (dead.message.reason, dead.envelope.payload) == ("CORRUPT", b'"\xffd"')
        assert list(queues.check()) == []


def test_payload_rows_that_overlap_are_cut_by_check(path: Path) -> None:
    with open_for_test(store=SqliteStore(path, durability="os")) as queues:
        queues.publish_many("mail", [1, 2])
        queues.publish_many("mail", [3, 4])
        _asked(path, "UPDATE content SET last = 3 WHERE first = 1")
        assert [finding.kind for finding in queues.check(repair=True)] == ["torn"]
        assert _contents(path) == [(1, 2), (3, 4)]
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [1, 2, 3, 4]
