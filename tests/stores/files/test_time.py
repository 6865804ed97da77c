"""What time asks of the files store, near and far, and how little of the disk is looked at for it."""

import os
from pathlib import Path

import pytest

from tests.stores.files.parts import open_queues
from tests.support.faulty_disk import UnwillingDisk, willing
from tests.support.store_contract import NOW, bring, envelope, listed, move, put
from yirangmq import NewMessage
from yirangmq.core.errors import StoreError
from yirangmq.core.states import State
from yirangmq.stores.files.store import FilesStore
from yirangmq.testing import ManualClock

HOUR = 3_600_000
AHEAD = [1, 999, 1_000, 59_999, 119_999, 120_000, 61 * 60_000, 3 * HOUR - 1, 3 * HOUR, 5 * HOUR + 7, 400 * 24 * HOUR]


@pytest.mark.parametrize("step", [1_000, 45_000, 2 * HOUR, 500 * 24 * HOUR])
def test_delayed_message_is_ready_exactly_at_its_time_for_any_delay_and_clock_step(tmp_path: Path, step: int) -> None:
    """Far times are kept by the hour and come nearer by and by; each step looks, so that they do."""
    clock = ManualClock(NOW)
    with open_queues(tmp_path, clock) as queues:
        queues.publish_many("mail", [NewMessage(payload=ahead, delay=ahead / 1000) for ahead in AHEAD])
        for ahead in AHEAD:
            left = NOW + ahead - clock.now_ms()
            steps = min(left // step, 50)
            for _ in range(steps):
                clock.advance(min(step, left // steps - 1) if left // steps > 1 else 0)
                assert queues.lease("mail", 9) == []
            clock.advance(NOW + ahead - clock.now_ms() - 1)
            assert queues.lease("mail", 9) == []
            assert queues.read(lambda transaction: transaction.next_due()) == NOW + ahead
            clock.advance(1)
            [delivery] = queues.lease("mail", 9, lease_seconds=10 * 366 * 86_400 / 2)
            assert delivery.value() == ahead


def test_lease_that_expired_is_redelivered_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues:
        queues.publish("mail", 1)
        queues.lease("mail")
    clock.advance(30_000)
    with open_queues(tmp_path, clock) as queues:
        [delivery] = queues.lease("mail")
        assert delivery.attempt == 2


def test_history_that_expired_is_removed_with_its_day_folder(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues:
        queues.publish_many("mail", [1, 2])
        queues.ack([delivery.lease_id for delivery in queues.lease("mail", 2)])
        assert len(list((tmp_path / "mail" / "archive").iterdir())) == 1
        clock.advance(7 * 24 * HOUR)
        queues.sweep()
        assert list((tmp_path / "mail" / "archive").iterdir()) == []
        assert queues.counts("mail").done == 0
        assert queues.counts("mail").acked == 2


@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_history_is_listed_oldest_first_then_ids_without_content(tmp_path: Path, size: int) -> None:
    """Changes at the same moment, in the same minute and in other hours; numbers in another order than times."""
    store = FilesStore(tmp_path, durability="os")
    made = [bring(store, card, State.LEASED) for card in put(store, *[envelope(f"m{n}") for n in range(8)])]
    moments = [90_000, 5, 5, HOUR, 4, 90_000, 2 * HOUR, 0]
    done = [move(store, card, State.DONE, changed_at=NOW + at) for card, at in zip(made, moments, strict=True)]
    short = [move(store, card, State.DONE, changed_at=card.changed_at, body=False) for card in (done[4], done[1])]
    kept = sorted((card for card in done if card.id not in ("m4", "m1")), key=lambda card: (card.changed_at, card.seq))
    with store.transaction(write=False) as transaction:
        assert listed(transaction, "mail", State.DONE, size) == [*kept, short[1], short[0]]
        assert transaction.by_seq([card.seq for card in made]) == [
            {card.id: card for card in [*kept, *short]}[one.id] for one in made
        ]
    store.close()


def test_lease_lists_no_more_file_names_when_the_backlog_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[int] = []
    real = os.listdir

    def counting(path: str) -> list[str]:
        names = real(path)
        listed.append(len(names))
        return names

    with open_queues(tmp_path) as queues:
        monkeypatch.setattr(os, "listdir", counting)
        sums = []
        for _ in range(3):
            queues.publish_many("mail", list(range(1_000)))
            listed.clear()
            queues.ack(queues.lease("mail")[0].lease_id)
            sums.append(sum(listed))
    assert max(sums) < 1_200
    assert max(sums) - min(sums) < 50


@pytest.mark.parametrize(
    ("durability", "calls"),
    [
        ("full", ["open_write", "write", "fsync", "rename", "fsync_folder"]),
        ("os", ["open_write", "write", "rename"]),
    ],
)
def test_durability_full_syncs_a_message_before_confirming_and_os_does_not(
    tmp_path: Path, durability: str, calls: list[str]
) -> None:
    disk = UnwillingDisk()
    store = FilesStore(tmp_path, durability=durability, disk=disk)
    put(store, envelope("first"))
    disk.start(willing)
    put(store, envelope("m"))
    assert disk.calls == calls  # the totals follow from the names
    assert store.durability() == durability
    store.close()


def test_batch_of_many_messages_shares_its_syncs(tmp_path: Path) -> None:
    disk = UnwillingDisk()
    store = FilesStore(tmp_path, disk=disk)
    put(store, envelope("first"))
    disk.start(willing)
    put(store, *[envelope(f"m{n}") for n in range(100)])
    assert sum("sync" in name for name in disk.calls) == (2 if disk.has_syncfs else 101)
    assert disk.calls.index("rename") > max(at for at, name in enumerate(disk.calls) if name == "write")
    store.close()


def test_durability_that_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="durability"):
        FilesStore(tmp_path, durability="hope")
