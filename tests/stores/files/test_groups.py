"""Groups and messages for one consumer, on disk: what lies where, what a crash can leave, what a person can do."""

import random
import shutil
from pathlib import Path

import pytest

from tests.stores.files.parts import document, drop, only, open_queues, tree
from tests.support.store_contract import FAILURE, LATER, NOW, cards, envelope, move, picture, put
from yirangmq import NewMessage
from yirangmq.core.message import RANK_LAST
from yirangmq.core.ports import Change
from yirangmq.core.states import State
from yirangmq.core.validation import line_of
from yirangmq.stores.files.names import base36
from yirangmq.stores.files.secondary_indexes import GroupLists, Member
from yirangmq.stores.files.store import FilesStore
from yirangmq.testing import ManualClock

ORDER = line_of("order-7")


def test_group_has_its_first_message_ready_and_the_others_held(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}", group="order-7") for n in range(3)])
        assert f"G{base36(ORDER)}" in only(tmp_path / "mail" / "inbox").name
        assert [name.split("~")[1] for name in tree(tmp_path / "mail" / "held")] == ["m1.json", "m2.json"]
        queues.ack(queues.lease("mail", 9)[0].lease_id)
        assert document(only(tmp_path / "mail" / "inbox"))["groupId"] == "order-7"
        assert len(tree(tmp_path / "mail" / "held")) == 1


def test_target_consumer_has_a_folder_of_its_own_for_its_ready_messages(tmp_path: Path) -> None:
    line = tmp_path / "mail" / "inbox-for"
    with open_queues(tmp_path) as queues:
        queues.publish("mail", NewMessage(payload=1, id="m", target="worker-1", priority=5))
        assert only(line).relative_to(line).parts[:2] == (base36(line_of("worker-1")), "5")
        [delivery] = queues.lease("mail", consumer="worker-1")
        assert tree(line) == []
        queues.nack(delivery.lease_id, delay=0)
        assert document(only(line))["targetConsumerId"] == "worker-1"
        queues.publish_many("mail", list(range(1000)))
        for _ in range(2):
            queues.ack([delivery.lease_id for delivery in queues.lease("mail", 999, consumer="worker-1")])
        assert list(line.iterdir()) == [], "empty folders do not pile up"


def _grouped(folder: Path, count: int = 4) -> FilesStore:
    """One leased, the others held, in a queue with other things as well."""
    store = FilesStore(folder, durability="os")
    put(store, envelope("other"), envelope("else", group=line_of("else")))
    first, *behind = put(store, *[envelope(f"m{n}", group=ORDER) for n in range(count)])
    with store.transaction() as transaction:
        transaction.swap([Change(card, card._replace(state=State.HELD)) for card in behind])
    move(store, first, State.LEASED)
    return store


def _moved_by_power_cut(folder: Path, id: str, top: str) -> None:
    """As if one rename of a batch were on disk, and the others not."""
    [path] = (folder / "mail").rglob(f"*~{id}*.json")
    target = folder / "mail" / top / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)


@pytest.mark.parametrize("how", ["opened", "repaired"])
def test_group_next_message_is_made_ready_after_a_crash_before_its_release(tmp_path: Path, how: str) -> None:
    store = _grouped(tmp_path)
    with store.transaction() as transaction:
        [first] = transaction.by_id("mail", ["m0"])
        assert first is not None
        transaction.swap([Change(first, first._replace(state=State.DONE, changed_at=NOW))])
    kinds = {finding.kind for finding in store.check(repair=False)}
    assert kinds == {"stuck"}
    if how == "repaired":
        assert all(finding.is_repaired for finding in store.check(repair=True))
    else:
        shutil.rmtree(tmp_path / ".index")
    _check_turn(store, "m1", State.READY, held=["m2", "m3"])


def _check_turn(store: FilesStore, id: str, state: State, held: list[str]) -> None:
    with store.transaction(write=False) as transaction:
        [first] = transaction.group_first("mail", [ORDER])
        assert first is not None
        assert (first.id, first.state) == (id, state)
        assert [card.id for card in transaction.scan("mail", State.HELD, 9).messages] == held
    assert list(store.check(repair=False)) == []
    store.close()


def test_group_message_made_ready_too_early_by_a_crash_is_held_again(tmp_path: Path) -> None:
    store = _grouped(tmp_path)
    store.close()
    _moved_by_power_cut(tmp_path, "m1", "inbox/last/0000000000")
    _moved_by_power_cut(tmp_path, "m3", "delayed/0000000000")
    shutil.rmtree(tmp_path / ".index")
    _check_turn(FilesStore(tmp_path), "m0", State.LEASED, held=["m1", "m2", "m3"])


def test_group_lease_out_of_turn_after_a_crash_is_taken_back_by_check_and_keeps_its_fence(tmp_path: Path) -> None:
    store = _grouped(tmp_path)
    with store.transaction() as transaction:
        [second] = transaction.by_id("mail", ["m1"])
        assert second is not None
        leased = second._replace(state=State.LEASED, attempt=1, leases=1, due_at=LATER, consumer="worker-1")
        transaction.swap([Change(second, leased)])
    assert {finding.kind for finding in store.check(repair=True)} == {"out of turn"}
    with store.transaction(write=False) as transaction:
        assert transaction.by_id("mail", ["m1"]) == [second._replace(leases=1)], "its fence stays"
    _check_turn(store, "m0", State.LEASED, held=["m1", "m2", "m3"])


def test_group_next_message_waits_for_its_own_delay_after_a_crash(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with open_queues(tmp_path, clock) as queues:
        queues.publish("mail", NewMessage(payload=1, id="m1", group="order-7"))
        queues.publish("mail", NewMessage(payload=2, id="m2", group="order-7", delay=60))
    only(tmp_path / "mail" / "inbox").unlink()
    shutil.rmtree(tmp_path / ".index")
    with open_queues(tmp_path, clock) as queues:
        assert queues.show("mail", "m2").message.state is State.DELAYED
        clock.advance(60_000)
        assert [delivery.id for delivery in queues.lease("mail")] == ["m2"]


def test_group_first_messages_that_cannot_be_read_do_not_block_the_next(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}", group="order-7") for n in range(4)])
        for path in (tmp_path / "mail").rglob("*~m[012].json"):
            path.write_bytes(b'{"messageId":"m')
        taken = [*queues.lease("mail", 9), *queues.lease("mail", 9)]
        assert [delivery.id for delivery in taken] == ["m3"]
        assert list(queues.check()) == []
        assert len(list((tmp_path / "mail" / "quarantine").glob("*.reason.json"))) == 3


def test_group_next_message_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}", group="order-7") for n in range(4)])
        [first] = queues.lease("mail", 9)
        for path in (tmp_path / "mail" / "held").rglob("*~m[12].json"):
            path.write_bytes(b'{"messageId":"m')
        queues.ack(first.lease_id)
        assert [delivery.id for delivery in queues.lease("mail", 9)] == ["m3"]
        assert (queues.counts("mail").held, queues.counts("mail").leased) == (0, 1)
        assert list(queues.check()) == []


def test_group_first_message_removed_by_hand_does_not_block_the_next(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}", group="order-7") for n in range(2)])
        only(tmp_path / "mail" / "inbox").unlink()
        queues.publish("mail", NewMessage(payload=2, id="m2", group="order-7"))
        assert [delivery.id for delivery in queues.lease("mail", 9)] == ["m1"]
        assert list(queues.check()) == []


def test_group_and_target_of_an_inbox_file_are_respected(tmp_path: Path) -> None:
    inbox = tmp_path / "mail" / "inbox"
    with open_queues(tmp_path) as queues:
        queues.publish("mail", NewMessage(payload=0, id="m0", group="order-7"))
        for n in (1, 2):
            drop(inbox, f"{n}.json", {"messageId": f"m{n}", "groupId": "order-7", "payload": n})
        drop(inbox, "a.json", {"messageId": "a", "groupId": "order-8", "targetConsumerId": "anna", "payload": 3})
        drop(inbox, "b.json", {"messageId": "b", "groupId": "order-8", "payload": 4})
        assert [delivery.id for delivery in queues.lease("mail", 9)] == ["m0"]
        assert queues.counts("mail").held == 3
        assert [delivery.id for delivery in queues.lease("mail", 9, consumer="anna")] == ["a"]
        queues.drop("mail", ["m0", "a"])
        assert [delivery.id for delivery in queues.lease("mail", 9)] == ["m1", "b"]
        waiting = [look for state in ("leased", "held") for look in queues.walk("mail", state)]
        assert queues.counts("mail").bytes == sum(look.message.size for look in waiting) > 0
        assert list(queues.check()) == []


def test_file_name_without_room_for_its_marks_is_completed_from_the_content(tmp_path: Path) -> None:
    """What stands in the content alone is known as ever: rank, group, target, size, and the folder that follows."""
    store = FilesStore(tmp_path, durability="os")
    sent = envelope("i" * 100, rank=RANK_LAST - 1, group=ORDER, target=line_of("anna"), dedup_key="k", expires_at=LATER)
    [card] = put(store, sent)
    long = {"attempt": 10**6, "leases": 10**7, "repeats": 10**6, "consumer": "c" * 64, "place": 10**11}
    ready = move(store, move(store, card, State.LEASED), State.READY, FAILURE, **long)
    [path] = (tmp_path / "mail" / "inbox-for").rglob("*.json")
    assert path.name.partition("~")[0].endswith("E")
    before = picture(store)
    store.close()
    shutil.rmtree(tmp_path / ".index")
    store = FilesStore(tmp_path, durability="os")
    assert picture(store) == before
    assert list(store.check(repair=False)) == []
    with store.transaction(write=False) as transaction:
        assert transaction.group_first("mail", [ORDER]) == [ready]
        assert transaction.heads("mail", 9, line_of("anna")) == [(ready, sent)]
    done = move(store, move(store, ready, State.LEASED), State.DONE)
    with store.transaction() as transaction:
        transaction.swap([Change(done, done._replace(body=False))])
    with store.transaction(write=False) as transaction:
        [remembered] = transaction.by_id("mail", [card.id])
        assert remembered is not None
        assert (remembered.state, remembered.body, remembered.leases) == (State.DONE, False, done.leases)
    with store.transaction() as transaction:
        transaction.delete_queue("mail")
        assert transaction.group_first("mail", [ORDER]) == [None]
    store.close()


def test_file_name_without_room_whose_content_is_lost_is_quarantined(tmp_path: Path) -> None:
    store = FilesStore(tmp_path, durability="os")
    [card] = put(store, envelope("i" * 100, rank=RANK_LAST - 1, group=ORDER))
    put(store, envelope("other"))
    long = {"attempt": 10**6, "leases": 10**7, "repeats": 10**6, "consumer": "c" * 64, "place": 10**11}
    move(store, card, State.LEASED, FAILURE, **long, expires_at=LATER)
    path = only(tmp_path / "mail" / "processing")
    assert path.name.partition("~")[0].endswith("E")
    path.write_bytes(b"{")
    with store.transaction(write=False) as transaction:
        assert transaction.by_seq([card.seq]) == [None]
    with store.transaction(write=False) as transaction:
        assert transaction.group_first("mail", [ORDER]) == [None]
        assert transaction.counts("mail").leased == 0
    assert (tmp_path / "mail" / "quarantine" / path.name).exists()
    assert list(store.check(repair=False)) == []
    store.close()


def test_group_chain_is_rebuilt_from_the_file_names_in_order(tmp_path: Path) -> None:
    store = _grouped(tmp_path, count=30)
    with store.transaction() as transaction:
        found = cards(transaction, [card.seq for card in transaction.scan("mail", State.HELD, 99).messages])
        for n in (3, 9, 20):  # some were redriven: their places are later than those of others
            place = transaction.places(1)
            transaction.swap([Change(found[n], found[n]._replace(place=place))])
    before = picture(store)
    store.close()
    shutil.rmtree(tmp_path / ".index")
    store = FilesStore(tmp_path, durability="os")
    assert picture(store) == before
    with store.transaction() as transaction:
        order = []
        while card := transaction.group_first("mail", [ORDER])[0]:
            order.append(card.place)
            transaction.forget([card])
        assert order == sorted(order)
        assert len(order) == 30
    store.close()


@pytest.mark.parametrize("seed", range(5))
def test_group_chain_stays_in_order_after_any_additions_and_removals(tmp_path: Path, seed: int) -> None:
    for name in ("groups", "links"):
        (tmp_path / name).mkdir()
    chains, chance = GroupLists(str(tmp_path)), random.Random(seed)
    there: dict[int, Member] = {}
    for _ in range(60):
        leaving = chance.sample(sorted(there.values()), min(len(there), chance.randint(0, 3)))
        numbers = chance.sample([n for n in range(1, 3_000) if n not in there], chance.randint(0, 3))
        joining = [Member(chance.randint(0, 1), chance.choice([5, 6]), chance.randint(1, 99), seq) for seq in numbers]
        chains.reserve(joining)
        chains.change(leaving, joining, 3_000)
        for member in leaving:
            del there[member.seq]
        there.update({member.seq: member for member in joining})
        for queue, group in ((0, 5), (0, 6), (1, 5), (1, 6)):
            mine = [m for m in there.values() if (m.queue, m.group) == (queue, group)]
            assert _walked(chains, queue, group) == [m.seq for m in sorted(mine, key=lambda m: (m.place, m.seq))]
    chains.change(list(there.values()), [], 3_000)
    assert all(path.stat().st_size == 0 for path in (tmp_path / "groups").iterdir())
    assert [path.name for path in (tmp_path / "links").iterdir()] == []


def _walked(chains: GroupLists, queue: int, group: int) -> list[int]:
    found = []
    seq = chains.first(queue, group)
    while seq:
        found.append(seq)
        seq = chains.behind(seq)
    return found


def test_group_chain_reservation_withdrawn_leaves_nothing(tmp_path: Path) -> None:
    for name in ("groups", "links"):
        (tmp_path / name).mkdir()
    chains = GroupLists(str(tmp_path))
    chains.reserve([Member(0, 5, 1, 1)])
    chains.withdraw([Member(0, 5, 1, 1)])
    assert chains.first(0, 5) == 0
    assert all(path.stat().st_size == 0 for path in (tmp_path / "groups").iterdir())


@pytest.mark.parametrize("payload", [b"as long", b"something longer"])
def test_rewrite_keeps_a_single_whole_content_when_a_power_cut_restores_the_old_file(
    tmp_path: Path, payload: bytes
) -> None:
    """A power cut between the new name and the end of the old one: one of the two stays, whole."""
    store = FilesStore(tmp_path, durability="os")
    [card] = put(store, envelope("m"))
    old = only(tmp_path / "mail" / "inbox")
    kept = tmp_path / "kept"
    shutil.copy(old, kept)
    new = envelope("m", payload=payload)
    with store.transaction() as transaction:
        transaction.rewrite([card], [new])
    store.close()
    if not old.exists():
        shutil.move(kept, old)
    shutil.rmtree(tmp_path / ".index")
    store = FilesStore(tmp_path, durability="os")
    with store.transaction(write=False) as transaction:
        [(found, sent)] = transaction.heads("mail", 9)
        assert sent in (new, envelope("m"))
        assert found.size == sent.size == transaction.counts("mail").bytes
    assert list(store.check(repair=False)) == []
    store.close()


def test_dedup_key_held_by_another_message_stays_with_it_after_an_index_rebuild(tmp_path: Path) -> None:
    store = FilesStore(tmp_path, durability="os")
    one, two = put(store, envelope("one", dedup_key="k"), envelope("two"))
    with store.transaction() as transaction:
        transaction.hold_keys("mail", {"k": (two.seq, "two")}, LATER)
    store.close()
    for _ in range(2):
        shutil.rmtree(tmp_path / ".index")
        store = FilesStore(tmp_path, durability="os")
        with store.transaction() as transaction:
            assert transaction.key_holders("mail", ["k"], NOW) == [(two.seq, "two")]
            transaction.forget(cards(transaction, [two.seq]) if transaction.by_seq([two.seq]) != [None] else [])
        assert list(store.check(repair=False)) == []
        store.close()
    assert one.id == "one"
