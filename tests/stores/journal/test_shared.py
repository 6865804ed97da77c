"""Files by date of two nodes that share one store and lead it in turn: each has the commits of its own terms."""

from pathlib import Path
from typing import Any

import pytest

from yirangmq.broker.queues import Queues
from yirangmq.core.errors import StoreError
from yirangmq.format.journal_line import read
from yirangmq.stores.journal import files
from yirangmq.stores.journal.files import JournalFiles
from yirangmq.stores.journal.maintenance import check
from yirangmq.stores.journal.store import JournaledStore
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, FailingStore, ManualClock, open_for_test


class Node:
    def __init__(self, name: str, store: FailingStore, folder: Path, clock: ManualClock, ids: CountingIds) -> None:
        self.root = folder / name
        self.shared = store
        self.store = JournaledStore(store, JournalFiles(self.root, durability="os"), clock, node=name)
        self._clock, self._ids = clock, ids

    def lead(self) -> Queues:
        self.found = self.store.begin_term()
        return open_for_test(store=self.store, clock=self._clock, ids=self._ids)

    def told(self) -> list[tuple[str, str, str]]:
        found = [read(line) for name in files.files(self.root) for line in files.lines(self.root / name)]
        return [(one["messageId"], one.get("state", one["record"]), _mark(one)) for one in found]

    def agrees(self, queues: Queues) -> None:
        assert check(self.root, queues.read, is_shared=True).findings == []


def _mark(record: dict[str, Any]) -> str:
    return "completed" if record.get("completed") else ""


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Node, Node]:
    store, clock, ids = FailingStore(MemoryStore()), ManualClock(), CountingIds()
    return Node("one", store, tmp_path, clock, ids), Node("two", store, tmp_path, clock, ids)


def test_files_by_date_of_a_shared_store_have_the_commits_of_each_nodes_terms(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    queues = one.lead()
    queues.publish_many("q", [b"1", b"2", b"3"])
    queues.ack(queues.lease("q")[0].lease_id)

    queues = two.lead()
    assert [(finding.kind, finding.is_repaired) for finding in two.found] == [("completed", True)]
    queues.publish("q", b"4")
    queues.ack(queues.lease("q")[0].lease_id)
    two.agrees(queues)
    waiting = [told for told in two.told() if told[0] != "m-1"]
    assert waiting == [
        ("m-2", "accepted", "completed"),
        ("m-3", "accepted", "completed"),
        ("m-4", "accepted", ""),
        ("m-2", "done", ""),
    ]

    queues = one.lead()
    one.agrees(queues)
    assert one.told() == [
        ("m-1", "accepted", ""),
        ("m-2", "accepted", ""),
        ("m-3", "accepted", ""),
        ("m-1", "done", ""),
        ("m-4", "accepted", "completed"),
    ], "what it knew is not repeated, and nothing is said of what the other one settled"
    for _ in range(2):
        queues.ack(queues.lease("q")[0].lease_id)
    assert one.told()[-2:] == [("m-3", "done", ""), ("m-4", "done", "")]


def test_files_by_date_of_a_shared_store_lose_lines_that_the_store_refused(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    queues = one.lead()
    queues.publish("q", b"1")
    one.shared.fail_at(1)
    with pytest.raises(StoreError):
        queues.publish("q", b"2")
    assert [id for id, _, _ in one.told()] == ["m-1"]
    [name] = files.files(one.root)
    with (one.root / name).open("ab") as file:  # killed between the lines and the commit
        file.write(b'{"record":"accepted","messageId":"never"}\n')
    two.lead()
    queues = one.lead()
    assert [finding.kind for finding in one.found] == ["unconfirmed"]
    assert [id for id, _, _ in one.told()] == ["m-1"]
    one.agrees(queues)
