"""Queues out of one store and into another: every pair of stores."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores import KINDS, Place
from yirangmq.broker import export_import
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.message import with_traceback
from yirangmq.format.envelope import NewMessage, as_json
from yirangmq.format.json_codec import loads
from yirangmq.testing import CountingIds, ManualClock, open_for_test

GOLDEN = Path(__file__).parents[1] / "golden" / "export-v1.jsonl"
PAYLOADS: tuple[object, ...] = (
    {"temp": 36.1},
    b"\x00\xff\r\n raw",
    b"",
    NewMessage(payload=b'{\n  "pretty": true\r\n}', content_type="application/json"),
    NewMessage(payload=b' {"spaces": 1.50e0} ', content_type="application/json"),
    NewMessage(payload="이랑 \u2028 \\u0000 text", type="note", version=3, trace_id="t-1", attributes={"x": [1, None]}),
    None,
)

Opener = Callable[..., Queues]


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Iterator[Opener]:
    """A fresh store of a kind at each call, on the test's clock unless it is given another."""
    places: list[Place] = []

    def make(kind: str, own_clock: ManualClock | None = None) -> Queues:
        folder = tmp_path / str(len(places))
        folder.mkdir()
        places.append(Place(kind, folder))
        return open_for_test(store=places[-1].open(), clock=own_clock or clock, ids=CountingIds(f"s{len(places)}"))

    yield make
    for place in places:
        place.close()


def exported(queues: Queues, wanted: list[str] | None = None) -> list[bytes]:
    lines: list[bytes] = []
    export_import.export(queues, lines.append, wanted)
    return lines


def documents(lines: list[bytes]) -> list[dict[str, Any]]:
    return [loads(line) for line in lines]


def settled(line: bytes) -> dict[str, Any]:
    """A line without what may differ: a message that nothing has happened to counts from its arrival in this store."""
    document: dict[str, Any] = loads(line)
    document.pop("exportedAt", None)
    if document.get("leases") == 0 and document["state"] in ("ready", "delayed"):
        del document["changedAt"]
    return document


def populate(queues: Queues, clock: ManualClock) -> None:
    """Every state a message can be in, in two queues, with priorities and failures."""
    queues.set_policy("mail", {"retry": {"limit": 3, "initialDelaySec": 60}, "dlq": {"queue": "graves"}})
    queues.publish_many("mail", [NewMessage(payload=n, id=f"mail-{n}") for n in range(12)])
    taken = queues.lease("mail", 7)
    queues.ack([taken[0].lease_id, taken[1].lease_id])
    queues.nack(taken[2].lease_id, "TIMEOUT", "slow")
    queues.nack([taken[4].lease_id, taken[3].lease_id], "REJECTED", with_traceback("no", "Traceback …\nError: no\n"))
    queues.nack(taken[5].lease_id, delay=0)
    DeadLetters(queues).quarantine("mail", ids=["mail-3"])
    queues.publish("mail", NewMessage(payload="soon", id="soon", delay=30, ttl=3600))
    queues.publish("mail", NewMessage(payload="now", id="urgent", priority=0))
    clock.advance(1_234)
    queues.publish_many("things", PAYLOADS)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(KINDS, KINDS)))
def test_export_import_restores_all_states_between_all_stores_and_makes_leased_messages_ready(
    opened: Opener, clock: ManualClock, source: str, target: str
) -> None:
    first, second = opened(source), opened(target)
    populate(first, clock)
    lines = exported(first)
    done = export_import.load(second, lines)
    assert (done.queues, done.stored, done.duplicates, done.policies) == (["mail", "things"], 21, 0, 1)
    assert second.policy("mail") == first.policy("mail")
    there, here = [settled(line) for line in exported(second)], [settled(line) for line in lines]
    leased = [line for line in here if line.get("state") == "leased"]
    assert [line["messageId"] for line in leased] == ["mail-6"]
    for line in leased:
        line.update(state="ready", dueAt=None, consumerId=None)
    by_id = {line["messageId"]: line for line in there if line["kind"] == "message"}
    assert by_id == {line["messageId"]: line for line in here if line["kind"] == "message"}


@pytest.mark.parametrize("target", KINDS)
def test_export_import_keeps_the_order_of_delivery(opened: Opener, clock: ManualClock, target: str) -> None:
    first, second = opened("memory"), opened(target)
    populate(first, clock)
    export_import.load(second, exported(first))
    expected = ["urgent", "mail-6", "mail-7", "mail-8", "mail-9", "mail-10", "mail-11", "mail-5"]
    assert [delivery.id for delivery in second.lease("mail", 100, lease_seconds=3600)] == expected
    clock.advance(60_000)
    assert [delivery.id for delivery in second.lease("mail", 2, consumer="later")] == ["soon", "mail-2"]


@pytest.mark.parametrize("target", KINDS)
def test_export_import_keeps_positions_in_a_queue_that_requeues_at_the_front(
    opened: Opener, clock: ManualClock, target: str
) -> None:
    first, second = opened("memory"), opened(target)
    first.set_policy("jobs", {"requeue": "front", "retry": {"initialDelaySec": 1}})
    first.publish_many("jobs", [NewMessage(payload=1, id=id) for id in "abcd"])
    for delivery in first.lease("jobs", 2):
        first.nack(delivery.lease_id)
    export_import.load(second, exported(first))
    clock.advance(1_000)
    assert [delivery.id for delivery in second.lease("jobs", 10)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("target", KINDS)
def test_export_import_keeps_the_first_arrival_order_of_dead_letters(
    opened: Opener, clock: ManualClock, target: str
) -> None:
    first, second = opened("memory"), opened(target)
    first.publish_many("jobs", [NewMessage(payload=1, id=id) for id in "abc"])
    for delivery in reversed(first.lease("jobs", 3)):
        clock.advance(1_000)
        first.nack(delivery.lease_id, "REJECTED")
    export_import.load(second, exported(first))
    assert [look.message.id for look in DeadLetters(second).list("jobs")] == ["c", "b", "a"]
    DeadLetters(second).redrive("jobs", all=True)
    assert [delivery.id for delivery in second.lease("jobs", 10)] == ["a", "b", "c"]


@pytest.mark.parametrize("target", KINDS)
def test_export_import_keeps_payloads_byte_for_byte(opened: Opener, clock: ManualClock, target: str) -> None:
    first, second = opened("memory"), opened(target)
    first.publish_many("things", PAYLOADS)
    export_import.load(second, exported(first))
    sent, got = first.lease("things", 100), second.lease("things", 100)
    assert [delivery.payload for delivery in got] == [delivery.payload for delivery in sent]
    assert [as_json(delivery.envelope) for delivery in got] == [as_json(delivery.envelope) for delivery in sent]
    assert [delivery.envelope for delivery in got] == [delivery.envelope for delivery in sent]


@pytest.mark.parametrize("kind", KINDS)
def test_import_repeated_stores_nothing_twice(opened: Opener, clock: ManualClock, kind: str) -> None:
    first, second = opened(kind), opened(kind)
    populate(first, clock)
    lines = exported(first)
    export_import.load(second, lines)
    counts = {queue: second.counts(queue) for queue in second.queues()}
    again = export_import.load(second, lines)
    assert (again.stored, again.duplicates, again.policies, again.kept) == (0, 21, 0, [])
    assert {queue: second.counts(queue) for queue in second.queues()} == counts


@pytest.mark.parametrize("kind", KINDS)
def test_import_dry_run_reports_the_counts_of_an_import_and_stores_nothing(
    opened: Opener, clock: ManualClock, kind: str
) -> None:
    first, second = opened("memory"), opened(kind)
    populate(first, clock)
    lines = exported(first)
    assert export_import.load(second, lines, dry_run=True).stored == 21
    assert second.queues() == []
    export_import.load(second, exported(first, ["things"]))
    tried = export_import.load(second, lines, dry_run=True)
    assert (tried.stored, tried.duplicates, tried.policies) == (14, 7, 1)
    assert second.queues() == ["things"]


@pytest.mark.parametrize("kind", KINDS)
def test_export_import_keeps_messages_with_the_same_dedup_key_from_different_windows(
    opened: Opener, clock: ManualClock, kind: str
) -> None:
    first, second = opened("memory"), opened(kind)
    for id in ("old", "new"):
        first.publish("jobs", NewMessage(payload=1, id=id, deduplication_key="k"))
        clock.advance(300_000)
    first.publish("jobs", NewMessage(payload=1, id="fresh", deduplication_key="k"))
    assert export_import.load(second, exported(first)).stored == 3
    assert second.publish("jobs", NewMessage(payload=2, deduplication_key="k")).id == "fresh"
    keys = [delivery.header["deduplicationKey"] for delivery in second.lease("jobs", 10)]
    assert keys == ["k", "k", "k"]


def test_export_of_chosen_queues_contains_only_those_and_rejects_an_unknown_queue(
    opened: Opener, clock: ManualClock
) -> None:
    queues = opened("memory")
    populate(queues, clock)
    lines = documents(exported(queues, ["things"]))
    assert {line["queue"] for line in lines if "queue" in line} == {"things"}
    assert export_import.total(queues) == 21
    assert export_import.total(queues, ["things"]) == 7
    with pytest.raises(NotFound, match="thinks"):
        exported(queues, ["thinks"])


def test_import_keeps_replaces_or_skips_existing_policies_as_requested(opened: Opener) -> None:
    first = opened("memory")
    first.set_policy("jobs", {"ttlSec": 5})
    lines = exported(first)
    for how, seconds, kept in (("keep", 9, ["jobs"]), ("skip", 9, []), ("replace", 5, [])):
        second = opened("memory")
        second.set_policy("jobs", {"ttlSec": 9})
        assert export_import.load(second, lines, policies=how).kept == kept
        assert second.policy("jobs")["ttlSec"] == seconds
    with pytest.raises(BadInput, match="policies"):
        export_import.load(opened("memory"), lines, policies="merge")


def test_export_import_reports_progress(opened: Opener, clock: ManualClock) -> None:
    first, second = opened("memory"), opened("memory")
    populate(first, clock)
    lines: list[bytes] = []
    out: list[tuple[int, int]] = []
    back: list[tuple[int, int]] = []
    done = export_import.export(first, lines.append, progress=lambda messages, size: out.append((messages, size)))
    assert (out[-1][0], done.messages, done.bytes) == (21, 21, sum(map(len, lines)))
    export_import.load(second, lines, progress=lambda messages, size: back.append((messages, size)))
    assert back[-1][0] == 21
    assert back[-1][1] <= done.bytes


def test_export_import_handles_large_pages_and_large_payloads(opened: Opener) -> None:
    first, second = opened("sqlite"), opened("sqlite")
    first.publish_many("small", range(1_700))
    first.publish_many("large", [b"x" * 900_000 for _ in range(12)])
    export_import.load(second, exported(first))
    assert (second.counts("small").ready, second.counts("large").ready) == (1_700, 12)
    assert [delivery.value() for delivery in second.lease("small", 2_000)] == list(range(1_700))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [], "cut off"),
        (lambda lines: lines[:-1], "cut off"),
        (lambda lines: lines[1:], "line 1: an export begins"),
        (lambda lines: [*lines, lines[-1]], "line 6: there is more after"),
        (lambda lines: [*lines[:2], lines[0], *lines[2:]], "line 3: an export begins"),
        (lambda lines: [lines[0].replace(b'"format":1', b'"format":2'), *lines[1:]], "newer than this version"),
        (lambda lines: [lines[0], *lines[2:-2], lines[-1]], "line 3: messages: 1 messages came before it"),
        (lambda lines: [*lines[:2], b"not json\n", *lines[2:]], "line 3: malformed JSON"),
        (lambda lines: [*lines[:2], b"[1]\n", *lines[2:]], "line 3: document: must be a JSON object"),
        (lambda lines: [*lines[:2], b'{"kind":"letter"}\n'], "line 3: kind: 'letter'"),
        (lambda lines: [line.replace(b'"state":"ready"', b'"state":"gone"') for line in lines], "line 3: state"),
        (lambda lines: [line.replace(b'"attempt":0', b'"attempt":-1') for line in lines], "line 3: attempt"),
        (lambda lines: [line.replace(b'"queue":"jobs"', b'"queue":"../x"') for line in lines], "line 2: queue"),
        (lambda lines: [line.replace(b'"messageId":"a"', b'"messageId":7') for line in lines], "line 3: messageId"),
        (lambda lines: [line.replace(b'"leases":0', b'"leasis":0') for line in lines], "did you mean 'leases'"),
        (
            lambda lines: [line.replace(b'"payload":1', b'"payload":1,"payloadText":"1"') for line in lines],
            "give one of",
        ),
        (lambda lines: [line.replace(b'"payload":1', b'"payloadText":"{"') for line in lines], "is not JSON text"),
        (lambda lines: [line.replace(b'"payload":1', b'"payloadBase64":"*"') for line in lines], "is not Base64"),
        (lambda lines: [line.replace(b'"header":null', b'"header":{"version":-1}') for line in lines], "version"),
        (lambda lines: [line.replace(b'"header":null', b'"header":[]') for line in lines], "header"),
        (lambda lines: [line.replace(b"+00:00", b"") for line in lines], "no offset"),
        (lambda lines: [line.replace(b'"policy":{}', b'"policy":{"ttlSec":-1}') for line in lines], "line 2: ttlSec"),
    ],
)
def test_import_of_a_broken_export_is_rejected_with_the_line_and_the_reason(
    opened: Opener, change: Callable[[list[bytes]], list[bytes]], says: str
) -> None:
    first = opened("memory")
    first.set_policy("jobs", {})
    first.publish_many("jobs", [NewMessage(payload=1, id="a"), NewMessage(payload=2, id="b")])
    lines = exported(first)
    assert len(lines) == 5
    with pytest.raises(BadInput, match="import") as refused:
        export_import.load(opened("memory"), change(lines))
    assert says in str(refused.value)


def test_import_that_was_cut_off_can_be_repeated(opened: Opener) -> None:
    first, second = opened("memory"), opened("memory")
    first.publish_many("jobs", range(600))
    lines = exported(first)
    with pytest.raises(BadInput, match="550 messages before it are stored"):
        export_import.load(second, lines[:552])
    done = export_import.load(second, lines)
    assert (done.stored, done.duplicates) == (50, 550)


@pytest.mark.parametrize("kind", KINDS)
def test_export_format_is_stable_and_an_earlier_export_still_imports(
    opened: Opener, clock: ManualClock, kind: str
) -> None:
    """Last release's export still opens, and means what it meant."""
    queues = opened(kind)
    golden = GOLDEN.read_bytes().splitlines(keepends=True)
    clock.advance(1_000)
    export_import.load(queues, golden)
    assert exported(queues) == golden


@pytest.mark.parametrize("kind", KINDS)
def test_import_keeps_ready_messages_ready_where_the_clock_is_behind(
    opened: Opener, clock: ManualClock, kind: str
) -> None:
    clock.advance(60_000)
    ahead, behind = opened("memory"), opened(kind, ManualClock())
    ahead.publish_many("jobs", [1, 2, 3])
    export_import.load(behind, exported(ahead))
    assert [delivery.value() for delivery in behind.lease("jobs", 10)] == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_adoption_dry_run_counts_what_the_adoption_then_does(opened: Opener, kind: str) -> None:
    ours, theirs = opened(kind), opened(kind)
    for queues, ids in ((ours, ("waits", "finished", "key-1")), (theirs, ("waits", "finished", "fresh"))):
        for id in ids:
            queues.publish("mail", NewMessage(payload=b"x", id=id, deduplication_key="k" if id == "key-1" else None))
    theirs.publish("mail", NewMessage(payload=b"x", id="key-2", deduplication_key="k"))
    [taken] = [one for one in ours.lease("mail", 10) if one.id == "finished"]
    ours.ack(taken.lease_id)
    tried = export_import.adopt(ours, theirs, "b", "a", dry_run=True)
    assert (tried["messages"], tried["known"]) == (1, 3)
    done = export_import.adopt(ours, theirs, "b", "a")
    assert {**done, "dryRun": True} == tried
