"""What the SQLite store remembers of what it wrote a moment ago is what is in the file, and not too much of it."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from yirangmq.broker import expiry_sweeper, operations
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.two_step import ClaimOperations, Drafts, MessageContent
from yirangmq.clock import TimeOrderedIds
from yirangmq.core.message import Envelope, Message
from yirangmq.core.ports import Transaction
from yirangmq.stores.sqlite import cache
from yirangmq.stores.sqlite.cache import NameCache
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import ManualClock

IDS = ("a", "b", "c")


class Desk:
    """The verbs of the HTTP document on one file, without a server."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.store = SqliteStore(path, durability="os")
        self.clock = clock
        context = TransactionContext(clock, TimeOrderedIds())
        self.context, self.drafts, self.orders = (
            context,
            Drafts(context),
            ClaimOperations(context),
        )

    def act(self, verb: str, id: str) -> None:
        orders, drafts = self.orders, self.drafts
        content = MessageContent("text/plain", b"%d" % self.clock.now_ms())
        acts: dict[str, Callable[[Transaction], object]] = {
            "draft": lambda t: drafts.draft(t, "q", [(id, 3)]),
            "set": lambda t: drafts.set(t, "q", [(id, content)]),
            "claim": lambda t: orders.claim(t, "q", 1),
            "unclaim": self._claim_in_vain,
            "fetch": lambda t: orders.fetch(t, "q", [id]),
            "lease": lambda t: operations.lease(self.context, t, "q", 1, None, "me"),
            "complete": lambda t: orders.complete(t, "q", [id]),
            "fail": lambda t: orders.fail(t, "q", [id]),
            "renew": lambda t: orders.renew(t, "q", [id]),
            "abandon": lambda t: orders.abandon(t, "q", [id]),
            "sweep": partial(expiry_sweeper.sweep, self.context),
            "clear": lambda t: orders.clear(t, "q"),
        }
        with self.store.transaction() as transaction:
            acts[verb](transaction)

    def _claim_in_vain(self, transaction: Transaction) -> None:
        for card in self.orders.claim(transaction, "q", 1):
            self.orders.unclaim(transaction, card)

    def seen(self) -> tuple[list[Message | None], list[Envelope | None]]:
        with self.store.transaction(write=False) as transaction:
            one_by_one = [card for id in IDS for card in transaction.by_id("q", [id])]
            cards = transaction.by_id("q", IDS)
            assert cards == one_by_one
            with_body = [card for card in cards if card is not None and card.body]
            alone = [envelope for card in with_body for envelope in transaction.envelopes([card])]
            envelopes = transaction.envelopes(with_body)
            assert envelopes == alone
            return cards, envelopes


VERBS = (
    "draft", "set", "claim", "unclaim", "fetch", "lease", "complete", "fail", "renew", "abandon", "sweep", "clear",
)  # fmt: skip
steps = st.tuples(st.sampled_from(VERBS), st.sampled_from(IDS), st.sampled_from([0, 1, 61_000, 700_000]))


def life(*verbs: str) -> list[tuple[str, str, int]]:
    return [(verb, "a", 1) for verb in verbs]


@given(st.lists(steps, max_size=15), st.booleans())
@example(life("draft", "set", "set", "claim", "fetch", "complete"), False)
@example(life("draft", "set", "claim", "fetch", "fail", "renew", "set", "claim", "abandon"), False)
@example(life("draft", "set", "claim", "fetch", "complete", "clear", "draft", "set"), True)
@example(
    [("draft", "a", 61_000), ("sweep", "a", 700_000), ("sweep", "a", 0), ("draft", "a", 1), ("set", "a", 1)], False
)
def test_cache_agrees_with_the_file_after_any_operations(taken: list[tuple[str, str, int]], are_two: bool) -> None:
    """Beside one who acts, or two in turns, one who has just opened the file."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        desks = [Desk(Path(folder) / "x.db", clock) for _ in range(1 + are_two)]
        for number, (verb, id, later) in enumerate(taken):
            desk = desks[number % len(desks)]
            desk.act(verb, id)
            clock.advance(later)
            stranger = Desk(Path(folder) / "x.db", clock)
            read = stranger.seen()
            assert all(one.seen() == read for one in desks)
            stranger.store.close()
        for desk in desks:
            desk.store.close()


def test_cache_forgets_a_transaction_that_failed(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "x.db", ManualClock())
    desk.act("draft", "a")
    before = desk.seen()
    try:
        with desk.store.transaction() as transaction:
            desk.drafts.set(transaction, "q", [("a", MessageContent("", b"never"))])
            desk.drafts.draft(transaction, "q", [("b", 1)])
            raise RuntimeError
    except RuntimeError:
        pass
    assert desk.seen() == before
    desk.store.close()


def test_cache_of_contents_is_bounded_in_bytes() -> None:
    named = NameCache()
    large = b"x" * (cache.MAX_NAMED_CONTENT_BYTES // 10)
    cards = []
    for seq in range(1, 40):
        sent = Envelope("q", f"m{seq}", 1, 0, 0, 0, None, "", large, False)
        named.add_drafts(seq, [sent], 9)
        cards += named.by_id("q", [f"m{seq}"], {}) or []
    kept = [card for card in cards if named.envelopes([card]) is not None]
    assert 0 < len(kept) <= 10
    assert kept[-1].seq == 39


def test_cache_of_names_is_bounded_in_number() -> None:
    named = NameCache()
    for seq in range(cache.MAX_NAMED_MESSAGES + 1):
        named.add_drafts(seq, [Envelope("q", f"m{seq}", 1, 0, 0, 0, None, "", b"", False)], 9)
    assert named.by_id("q", ["m0"], {}) is None
    assert named.by_id("q", [f"m{cache.MAX_NAMED_MESSAGES}"], {}) is not None
