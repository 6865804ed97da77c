"""The queue and its model side by side: hypothesis chooses what is done to both, and after each step they must agree.

The rules are the verbs, said by two openers of one place, with times at the edges and crashes in between. What is
promised is in ``agrees``."""

import contextlib
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties.model import Model, New, Refusal, Rules
from tests.support.stores import Place
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import QueueError
from yirangmq.core.message import RANK_LAST, Envelope, Message
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import UNFINISHED, State
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import CountingIds, ManualClock, open_for_test

QUEUE = "mail"
CONSUMERS = ("anna", "berta")
edges = st.sampled_from([1, 999, 1_000, 2_000, 2_999, 3_000, 4_000, 5_000, 8_639, 8_640])
moments = st.just(0) | st.just(0) | st.just(0) | edges
openers = st.integers(0, 1)
news = st.builds(
    New,
    id=st.sampled_from(["", "", "", "one", "two"]),
    rank=st.sampled_from([0, RANK_LAST, RANK_LAST]),
    payload=st.binary(max_size=3),
    delay=st.sampled_from([0, 0, 0, 1_000, 3_000]),
    ttl=st.sampled_from([0, 0, 0, 1_000, 4_000]),
    key=st.sampled_from([None, None, None, "k", "l"]),
    group=st.sampled_from(["", "", "g", "g", "h"]),
    target=st.sampled_from(["", "", "", *CONSUMERS]),
)
rules = st.builds(
    Rules,
    limit=st.integers(0, 2),
    poison_after=st.sampled_from([0, 0, 2]),
    backoff=st.sampled_from(["exponential", "linear", "fixed"]),
    dead_letters=st.sampled_from(["on", "on", "drop", "park"]),
    history=st.sampled_from([-1, 0, 2, 100]),
    on_expire=st.sampled_from(["drop", "dead"]),
    requeue=st.sampled_from(["back", "front"]),
)
whose = st.sampled_from([None, None, None, *CONSUMERS])
MOSTLY = 6
picks = st.lists(st.integers(0, MOSTLY + 2), min_size=1, max_size=3)
reasons = st.sampled_from(["HANDLER_ERROR", "HANDLER_ERROR", "TIMEOUT", "REJECTED"])


class QueueMachine(RuleBasedStateMachine):
    """Subclasses say which store; ``Place`` may be one that forgets, to see that it is found out."""

    kind = "memory"
    place_of: type[Place] = Place

    def __init__(self) -> None:
        super().__init__()
        self._closing = contextlib.ExitStack()
        folder = self._closing.enter_context(tempfile.TemporaryDirectory())
        self.place: Place = self.place_of(self.kind, Path(folder))
        self._closing.callback(self.place.close)
        self.clock = ManualClock()
        self.ids = CountingIds()
        self.given: dict[str, tuple[int, int]] = {}
        """Every lease there ever was, as the model knows it: whose it is, and which one."""
        self.has_news = False

    @initialize(rules=rules, batch=st.lists(news, min_size=2, max_size=5), limit=st.integers(1, 3))
    def begin(self, rules: Rules, batch: list[New], limit: int) -> None:
        """A queue that is already in use, so that no example is spent on an empty one."""
        self.model = Model(rules)
        self._open()
        self.queues[0].set_policy(QUEUE, rules.document())
        self._publish(0, batch)
        self._lease(0, limit)

    def _open(self) -> None:
        self.queues: list[Queues] = [
            open_for_test(store=self.place.open(), clock=self.clock, ids=self.ids, consumer=name) for name in CONSUMERS
        ]

    def teardown(self) -> None:
        self._closing.close()

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    # -- verbs ----------------------------------------------------------------------------------------------------

    @rule(by=openers, ms=moments, batch=st.lists(news, min_size=1, max_size=4))
    def publish(self, by: int, ms: int, batch: list[New]) -> None:
        self.clock.advance(ms)
        self._publish(by, batch)

    def _publish(self, by: int, batch: list[New]) -> None:
        self.has_news = True
        given = self.ids.new(len(batch))
        named = [New(**{**vars(new), "id": new.id or id}) for new, id in zip(batch, given, strict=True)]
        receipts = self.queues[by].publish_many(QUEUE, [_message(new) for new in named])
        expected = [self.model.publish(self.now, new) for new in named]
        assert [(receipt.id, receipt.duplicate) for receipt in receipts] == expected

    @rule(by=openers, ms=moments, limit=st.integers(1, 3))
    def lease(self, by: int, ms: int, limit: int) -> None:
        self.clock.advance(ms)
        self._lease(by, limit)

    def _lease(self, by: int, limit: int) -> None:
        self.has_news = True
        deliveries = self.queues[by].lease(QUEUE, limit)
        expected = self.model.lease(self.now, limit, CONSUMERS[by])
        assert [(d.id, d.attempt, d.payload) for d in deliveries] == [(e.id, e.attempt, e.payload) for e in expected]
        for delivery, entry in zip(deliveries, expected, strict=True):
            assert delivery.header.get("targetConsumerId", CONSUMERS[by]) == CONSUMERS[by], "somebody else's"
            assert self.given.get(delivery.lease_id) is None, "a lease id is given once"
            self.given[delivery.lease_id] = (entry.number, entry.fence)

    def _chosen(self, picks: list[int]) -> list[str]:
        """Some leases, mostly those in force, since most of those ever given are not."""
        given = list(self.given)
        leased = [(entry.number, entry.fence) for entry in self.model.among("leased")]
        live = [lease for lease in given if self.given[lease] in leased]
        chosen = [
            live[pick % len(live)] if live and pick < MOSTLY else given[-1 - (pick - MOSTLY) % len(given)]
            for pick in picks
        ]
        return list(dict.fromkeys(chosen))

    @precondition(lambda self: self.given)
    @rule(by=openers, ms=moments, picks=picks, who=whose)
    def ack(self, by: int, ms: int, picks: list[int], who: str | None) -> None:
        self.clock.advance(ms)
        leases = self._chosen(picks)
        errors = self.queues[by].ack_many(leases, consumer=who)
        _same(errors, [self.model.ack(self.now, *self.given[lease], who) for lease in leases])

    @precondition(lambda self: self.given)
    @rule(by=openers, ms=moments, picks=picks, who=whose, reason=reasons, delay=st.sampled_from([None, None, 0, 1_000]))
    def nack(self, by: int, ms: int, picks: list[int], who: str | None, reason: str, delay: int | None) -> None:
        self.clock.advance(ms)
        leases = self._chosen(picks)
        seconds = None if delay is None else delay / 1000
        errors = self.queues[by].nack_many(leases, reason, delay=seconds, consumer=who)
        _same(errors, [self.model.nack(self.now, *self.given[lease], who, reason, delay) for lease in leases])

    @precondition(lambda self: self.given)
    @rule(by=openers, ms=moments, picks=picks, who=whose, span=st.sampled_from([1, 1_000, 5_000]))
    def extend(self, by: int, ms: int, picks: list[int], who: str | None, span: int) -> None:
        self.clock.advance(ms)
        leases = self._chosen(picks)
        errors = self.queues[by].extend_many(leases, span / 1000, consumer=who)
        _same(errors, [self.model.extend(self.now, *self.given[lease], who, span) for lease in leases])

    @precondition(lambda self: self.model.entries)
    @rule(by=openers, verb=st.sampled_from(["redrive", "redrive", "park", "drop"]), picks=picks)
    def operate(self, by: int, verb: str, picks: list[int]) -> None:
        states = {"redrive": ("dead", "parked"), "park": ("dead",), "drop": tuple(State)}[verb]
        there = [entry.id for entry in self.model.among(*states)]
        ids = list(dict.fromkeys(there[pick % len(there)] for pick in picks if there))
        if verb == "drop":
            errors = self.queues[by].drop(QUEUE, ids)
            _same(errors, [self.model.drop(self.now, id) for id in ids])
        elif ids and verb == "redrive":
            DeadLetters(self.queues[by]).redrive(QUEUE, ids=ids)
            self.model.redrive(self.now, set(ids))
        elif ids:
            DeadLetters(self.queues[by]).quarantine(QUEUE, ids=ids)
            self.model.park(self.now, set(ids))

    @precondition(lambda self: self.has_news)
    @rule(ms=moments)
    def crash_and_reopen(self, ms: int) -> None:
        self.place.crash(self._unfinished)
        self.clock.advance(ms)
        self._open()
        self.has_news = False

    def _unfinished(self, transaction: Transaction) -> None:
        """Work that was never confirmed, and of which nothing may be seen again."""
        lost = Envelope(QUEUE, "lost", 0, self.now, self.now, 0, "lost", "", b"lost", False)
        transaction.add([lost], self.now, self.now + 9)
        heads = [head for head, _ in transaction.heads(QUEUE, 2)]
        transaction.swap([Change(head, head._replace(state=State.LEASED, due_at=self.now)) for head in heads[:1]])
        transaction.forget(heads[1:])

    # -- promises -------------------------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        self.queues[0].sweep()
        self.model.pass_time(self.now)
        looks = {state: list(self.queues[1].walk(QUEUE, state, batch=3)) for state in State}
        self._nothing_is_lost_or_doubled(looks)
        for state, seen in looks.items():
            expected = {entry.id: entry for entry in self.model.among(state.value)}
            assert {look.message.id for look in seen} == expected.keys(), f"who is {state}"
            for look in seen:
                entry = expected[look.message.id]
                message = look.message
                assert (message.attempt, message.leases) == (entry.attempt, entry.fence)
                assert (message.due_at or 2**60) == (entry.due or 2**60), f"when {state} {message.id} is due"
                assert (message.reason, message.repeats) == (entry.reason, entry.repeats)
                assert (look.envelope is not None) == message.body == entry.has_body
                assert look.envelope is None or look.envelope.payload == entry.payload
        order = [look.message.id for look in looks[State.READY]]
        assert order == [entry.id for entry in self.model.line()], "rank, then arrival"
        self._groups_take_turns([look.message for state in UNFINISHED for look in looks[state]])

    def _groups_take_turns(self, waiting: list[Message]) -> None:
        """Said once more without the model: of each group the first one is in line or in hand, all others are held."""
        for group in {message.group for message in waiting if message.group}:
            members = sorted((m for m in waiting if m.group == group), key=lambda message: message.place)
            assert [m.state is State.HELD for m in members] == [False] + [True] * (len(members) - 1), "in turn"

    def _nothing_is_lost_or_doubled(self, looks: dict[State, list[MessageView]]) -> None:
        everything = [look.message.id for seen in looks.values() for look in seen]
        assert len(everything) == len(set(everything)), "in two states"
        assert set(everything) == {entry.id for entry in self.model.entries.values()}
        assert self.queues[1].counts(QUEUE) == self.model.counts()
        assert list(self.queues[1].check()) == [], "the counters equal a recount"


def _message(new: New) -> NewMessage:
    return NewMessage(
        payload=new.payload,
        id=new.id,
        priority=None if new.rank == RANK_LAST else new.rank,
        delay=new.delay / 1000,
        ttl=new.ttl / 1000 if new.ttl else None,
        deduplication_key=new.key,
        group=new.group or None,
        target=new.target or None,
    )


def _same(errors: list[QueueError | None], refusals: list[Refusal]) -> None:
    assert [None if error is None else type(error) for error in errors] == refusals
