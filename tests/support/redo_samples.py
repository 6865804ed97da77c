"""Redo logs of killed servers: the changes that a sample holds, and what a store must show after their replay.

``python -m tests.support.redo_samples FOLDER`` writes a sample with the code in the path. The samples in tests/golden
were written once, each by the version that introduced its format."""

import json
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.golden_files import FOLDER
from tests.support.sqlite import after_a_kill, served
from tests.support.store_contract import FAILURE, LATER, NOW, REACHED, bring, cards, draft, envelope, picture, put
from yirangmq.core.message import Message
from yirangmq.core.ports import Store
from yirangmq.core.states import State
from yirangmq.testing import open_for_test

REDO_BYTES = 128 * 1024


def fill(store: Store) -> None:
    """Make one change of every kind, each as a small commit of its own."""
    with store.transaction() as transaction:
        transaction.set_policy("mail", '{"retry":{"limit":7},"archive":{"maxMessages":2}}')
        transaction.set_note("kept", "ä note")
        transaction.set_note("gone", "x")
    with store.transaction() as transaction:
        transaction.set_note("gone", None)
    put(store, *(envelope(f"plain-{n}", payload=b'{"n":%d}' % n, is_json=True) for n in range(5)))
    put(store, *(envelope(f"row-{n:02}", payload=bytes([n])) for n in range(12)))
    put(store, envelope("key", dedup_key="order-1"), envelope("key-2", dedup_key="order-2"))
    put(store, envelope("later", available_at=LATER), envelope("expires", expires_at=LATER))
    put(store, envelope("own", target=5), *(envelope(f"group-{n}", group=9) for n in range(3)))
    for state in REACHED:
        bring(store, put(store, envelope(f"is-{state}", queue="states"))[0], state)
        bring(store, put(store, envelope(f"own-{state}", queue="states", target=6))[0], state)
    draft(store, envelope("draft", queue="states"))
    with store.transaction() as transaction:
        transaction.hold_keys("mail", {"order-3": (7, "plain-1"), "order-4": (8, "plain-2")}, LATER)
        transaction.free_keys("mail", ["order-4"])
        transaction.forget_keys(NOW + 400_000, 1)
    with store.transaction() as transaction:
        found = _cards(transaction.by_id("states", ["is-ready", "is-leased"]))
        sent = [one for one in transaction.envelopes(found) if one is not None]
        transaction.rewrite(found, [one._replace(payload=b"\x00new", header='{"type":"t"}') for one in sent])
    with store.transaction() as transaction:
        transaction.forget(_cards(transaction.by_id("mail", ["plain-4", "group-1", "later"])))
    put(store, *(envelope(f"gone-{n}", queue="gone") for n in range(3)))
    with store.transaction() as transaction:
        transaction.delete_queue("gone")
    queues = open_for_test(store=store)
    for _ in range(6):
        queues.publish("runs", {"text": "ü"})
    queues.publish_many("runs", [{"n": n} for n in range(3)])
    queues.ack([one.lease_id for one in queues.lease("runs", 2)])
    queues.nack([one.lease_id for one in queues.lease("runs", 1)], "REJECTED", "never")
    queues.ack([one.lease_id for one in queues.lease("mail", 9)])
    queues.sweep()
    with store.transaction() as transaction:
        [message] = cards(transaction, [found[0].seq])
    bring(store, message, State.READY)
    with store.transaction() as transaction:
        assert transaction.failures(_cards(transaction.by_id("states", ["is-dead"]))) != [FAILURE]


def _cards(found: Sequence[Message | None]) -> list[Message]:
    messages = [one for one in found if one is not None]
    assert len(messages) == len(found)
    return messages


def shown(store: Store) -> Any:
    """Return everything that a store can be asked, as JSON values."""
    return json.loads(json.dumps(picture(store), default=lambda value: value.decode("latin-1"), sort_keys=True))


def unpack(name: str, folder: Path) -> Any:
    """Unpack a sample of tests/golden into ``folder``. Return what its store must show."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return json.loads((folder / "shown.json").read_text())


def write(folder: Path) -> None:
    """Write the files of a store whose server was killed, and what it showed before."""
    home = folder / "home"
    home.mkdir(parents=True)
    store = served(home, redo_bytes=REDO_BYTES)
    fill(store)
    after_a_kill(home, folder / "left")
    (folder / "left" / "shown.json").write_text(json.dumps(shown(store), sort_keys=True, indent=1) + "\n")
    store.close()
    shutil.rmtree(home)
    with tarfile.open(folder / "sample.tar.gz", "w:gz") as archive:
        for path in sorted((folder / "left").iterdir()):
            archive.add(path, path.name, filter=_without_owner)


def _without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    write(Path(sys.argv[1]))
