"""The table of dead-letter queues: which name shows whose dead letters; nothing is published to such a name."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores import KINDS, Place
from yirangmq.broker import dead_letter_sources
from yirangmq.broker.operations import AtomicBundle
from yirangmq.broker.queues import Queues
from yirangmq.broker.two_step import Drafts
from yirangmq.core.errors import BadInput
from yirangmq.core.events import MessagesRefused
from yirangmq.core.ports import Store, Transaction
from yirangmq.format.envelope import NewMessage, build
from yirangmq.testing import ManualClock, open_for_test

REFUSED = "'all-dlq' shows the dead letters of '{}'; publish to that queue, or use another name"


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place = Place(request.param, tmp_path)
    try:
        yield place.open()
    finally:
        place.close()


@pytest.fixture
def own(store: Store, clock: ManualClock) -> Queues:
    """Queues of a store in this process."""
    return open_for_test(store=store, clock=clock)


def sources(queues: Queues, name: str = "all-dlq") -> list[str]:
    return queues.dead_letters.sources(name)


def refused(publish: Callable[[], object]) -> str:
    """The text of the refusal, which names the queue."""
    with pytest.raises(BadInput) as caught:
        publish()
    assert caught.value.field == "queue"
    return str(caught.value).removeprefix("queue: ")


# -- the rule, through every door -------------------------------------------------------------------------------------


def test_publish_to_a_dead_letter_queue_is_refused_and_stores_nothing(queues: Queues) -> None:
    """On every store, over the socket and over HTTP."""
    queues.publish("mail", 1)
    queues.set_policy("post", {"dlq": {"queue": "all-dlq"}})
    assert "'mail-dlq' shows the dead letters of 'mail'" in refused(lambda: queues.publish("mail-dlq", 1))
    assert "'all-dlq' shows the dead letters of 'post'" in refused(lambda: queues.publish_many("all-dlq", [1, 2]))
    assert queues.queues() == ["mail", "post"]
    queues.publish("post-dlq", 1)  # the default name of a queue that uses another one is free
    assert queues.counts("post-dlq").ready == 1


def test_publish_to_a_queue_that_existed_before_it_became_a_dead_letter_queue_is_allowed(queues: Queues) -> None:
    queues.publish("mail-dlq", 1)
    queues.publish("mail", 1)
    queues.publish("mail-dlq", 2)
    assert queues.counts("mail-dlq").ready == 2


# -- other ways to make a queue ----------------------------------------------------------------------------------------


def test_draft_in_a_dead_letter_queue_is_refused_and_stores_nothing(own: Queues, clock: ManualClock) -> None:
    """H-03: a draft makes a queue, too."""
    own.publish("mail", 1)
    drafts = Drafts(own.operations, clock)
    assert "shows the dead letters" in refused(
        lambda: own.run(lambda transaction: drafts.draft(transaction, "mail-dlq", [("m", 1)]))
    )
    assert own.queues() == ["mail"]


@pytest.mark.parametrize("names", [("mail", "mail-dlq"), ("mail-dlq", "mail")])
def test_bundle_for_a_new_queue_and_its_dead_letter_queue_changes_nothing(
    own: Queues, clock: ManualClock, names: tuple[str, ...]
) -> None:
    bundle = AtomicBundle()
    for name in names:
        bundle.add(build(name, NewMessage(payload=1), f"{name}-1", clock.now_ms()))
    refused(lambda: own.run(lambda transaction: bundle.perform(own.operations, transaction, clock.now_ms())))
    assert own.queues() == []


def test_outcomes_to_a_dead_letter_queue_are_refused_and_the_ack_succeeds(own: Queues) -> None:
    events: list[object] = []
    own.set_policy("mail", {"dispatch": {"strategy": "round_robin", "outcomes": "mail-dlq"}})
    own.publish("mail", 1)
    own.add_listener(events.extend)
    own.ack(own.lease("mail")[0].lease_id)
    assert MessagesRefused("mail-dlq", "bad_input", 1) in events
    assert own.queues() == ["mail"]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_dead_letter_queue_of_a_policy_follows_every_change_of_it(own: Queues) -> None:
    for queue in ("east", "west"):
        own.set_policy(queue, {"dlq": {"queue": "all-dlq"}})
    assert (sources(own), sources(own, "east-dlq")) == (["east", "west"], [])
    own.set_policy("east", {"dlq": {"queue": "other"}})
    assert (sources(own), sources(own, "other")) == (["west"], ["east"])
    assert refused(lambda: own.publish("all-dlq", 1)) == REFUSED.format("west")
    own.set_policy("east", {"dlq": {"queue": "all-dlq"}})
    own.delete_queue("west")
    assert refused(lambda: own.publish("all-dlq", 1)) == REFUSED.format("east")
    own.set_policy("east", None)
    assert (sources(own), sources(own, "east-dlq")) == ([], ["east"])
    own.publish("all-dlq", 1)
    assert sources(own) == ["all-dlq"]


def test_dead_letter_queue_with_a_shortened_default_name_is_found(own: Queues) -> None:
    long = "q" * 200
    own.publish(long, 1)
    name = own.policy(long)["dlq"]["queue"]
    assert (len(name), sources(own, name)) == (199, [long])
    refused(lambda: own.publish(name, 1))


def test_table_of_dead_letter_queues_is_written_for_a_store_of_an_earlier_version(own: Queues, store: Store) -> None:
    """Its policies were set without the table: they count at once, and from the first new queue on by the table."""
    with store.transaction() as transaction:
        for queue in ("east", "west"):
            transaction.set_policy(queue, '{"dlq":{"queue":"all-dlq"}}')
    assert sources(own) == ["east", "west"]
    assert refused(lambda: own.publish("all-dlq", 1)) == REFUSED.format("east")
    own.publish("mail", 1)
    with store.transaction(write=False) as transaction:
        kept = transaction.notes("dead-letter-queues/")
    assert kept == {
        dead_letter_sources.COMPLETE: "1",
        f"{dead_letter_sources.HEAD}all-dlq": "east",
        f"{dead_letter_sources.PAIRS}all-dlq/east": "1",
        f"{dead_letter_sources.PAIRS}all-dlq/west": "1",
    }
    assert refused(lambda: own.publish("all-dlq", 1)) == REFUSED.format("east")


def test_policy_file_written_by_hand_names_a_dead_letter_queue_that_is_listed(
    tmp_path: Path, clock: ManualClock
) -> None:
    place = Place("files", tmp_path)
    own = open_for_test(store=place.open(), clock=clock)
    own.publish("mail", 1)
    own.nack(own.lease("mail")[0].lease_id, "REJECTED")
    folder = Path(place.url.removeprefix("files:")) / "mail" / "config"
    folder.mkdir(exist_ok=True)
    (folder / "policy.json").write_text('{"dlq": {"queue": "by-hand"}}')
    assert [view.message.id for view in own.dead_letters.list("by-hand")] == ["m-1"]
    assert sources(own, "mail-dlq") == []
    own.publish("mail-dlq", 1)
    place.close()


class CountingStore:
    """A store that counts what its transactions look up."""

    METHODS = ("policy", "policy_text", "queues", "queues_with_policy", "counts", "note", "notes", "has_queue")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls = 0

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        return self._counted(write)

    @contextmanager
    def _counted(self, write: bool) -> Iterator[Transaction]:
        with self._store.transaction(write=write) as transaction:
            originals = {name: getattr(transaction, name) for name in self.METHODS}
            for name in self.METHODS:
                setattr(transaction, name, self._counting(originals[name]))
            try:
                yield transaction
            finally:
                for name in self.METHODS:
                    setattr(transaction, name, originals[name])

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.calls += 1
            return original(*given, **named)

        return counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_publish_to_a_new_queue_looks_up_as_much_beside_500_queues_as_beside_one(
    store: Store, clock: ManualClock
) -> None:
    """Each of the 500 has a policy that names a dead-letter queue."""
    counting = CountingStore(store)
    own = open_for_test(store=counting, clock=clock)
    numbers = []
    for first, last in ((0, 1), (1, 500)):
        for number in range(first, last):
            own.set_policy(f"old-{number}", {"dlq": {"queue": f"dead-{number}"}})
        before = counting.calls
        own.publish(f"new-{first}", 1)
        own.publish(f"new-{first}-dlq-not", 1)
        with pytest.raises(BadInput):
            own.publish("dead-0", 1)
        numbers.append(counting.calls - before)
    assert numbers[0] == numbers[1] < 60
