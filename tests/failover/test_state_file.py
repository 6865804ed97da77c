"""What a node keeps on disk, and the witness that both can reach."""

from pathlib import Path

import pytest

from tests.support.clock import MillisecondClock
from yirangmq.core.errors import BadInput, StoreDamaged
from yirangmq.core.failover import FailoverTiming
from yirangmq.core.failover_witness import Witness, WitnessRequest, WitnessView
from yirangmq.failover.state_file import FailoverStateFolder
from yirangmq.failover.witness import FileWitness, open_witness


def test_failover_term_survives_a_restart(tmp_path: Path) -> None:
    memory = FailoverStateFolder(tmp_path / "pair")
    assert memory.term() == 0
    memory.save(7)
    assert FailoverStateFolder(tmp_path / "pair").term() == 7
    assert [path.name for path in (tmp_path / "pair").iterdir()] == ["term.json"]


@pytest.mark.parametrize("text", ["", "{", '{"term": "7"}', '{"term": -1}', "[]"])
def test_failover_term_that_is_unreadable_is_an_error_and_not_taken_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "term.json").write_text(text)
    with pytest.raises(StoreDamaged, match=r"term\.json"):
        FailoverStateFolder(tmp_path).term()


def test_failover_history_grows_and_survives_a_torn_line(tmp_path: Path) -> None:
    memory = FailoverStateFolder(tmp_path)
    assert memory.history(5) == []
    for number in range(4):
        memory.append_history("took-over", {"term": number})
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"at": "2026-01')
    assert [line["term"] for line in memory.history(10)] == [0, 1, 2, 3]
    memory.append_history("took-over", {"term": 4})
    assert [line["term"] for line in memory.history(2)] == [3, 4]


def test_witness_file_is_held_by_one_node_until_it_is_not_renewed(tmp_path: Path) -> None:
    clock = MillisecondClock()
    a, b = (FileWitness(tmp_path / "witness", WitnessView(name, 1000), clock) for name in ("a", "b"))
    assert b.exchange(WitnessRequest.WATCH, 0)[0] is Witness.THEIRS, "none is not free before the time-out is over"
    clock.ms = 1001
    assert a.exchange(WitnessRequest.HOLD, 1)[0] is Witness.THEIRS, "each counts for itself"
    assert b.exchange(WitnessRequest.HOLD, 1) == (Witness.OURS, 1001, 0)
    clock.ms = 2500
    assert a.exchange(WitnessRequest.HOLD, 2) == (Witness.THEIRS, 2500, 1)
    assert b.exchange(WitnessRequest.HOLD, 1)[0] is Witness.OURS
    clock.ms = 3501
    assert a.exchange(WitnessRequest.HOLD, 2)[0] is Witness.THEIRS, "it was renewed since"
    clock.ms = 4600
    assert a.exchange(WitnessRequest.HOLD, 2)[0] is Witness.OURS
    assert b.exchange(WitnessRequest.HOLD, 1) == (Witness.THEIRS, 4600, 2)
    assert a.exchange(WitnessRequest.RELEASE, 2)[0] is Witness.FREE
    assert b.exchange(WitnessRequest.HOLD, 3)[0] is Witness.OURS, "given back is free at once"


@pytest.mark.parametrize("text", ["{", "[]", '{"holder": "a"}'])
def test_witness_file_that_is_unreadable_counts_as_away(tmp_path: Path, text: str) -> None:
    clock = MillisecondClock()
    (tmp_path / "witness").write_text(text)
    assert (
        FileWitness(tmp_path / "witness", WitnessView("a", 1000), clock).exchange(WitnessRequest.HOLD, 1)[0]
        is Witness.UNREACHABLE
    )
    assert (
        FileWitness(tmp_path / "no" / "witness", WitnessView("a", 1000), clock).exchange(WitnessRequest.HOLD, 1)[0]
        is Witness.UNREACHABLE
    )


def test_witness_that_is_a_folder_is_refused_and_a_file_to_be_made_in_it_is_not(tmp_path: Path) -> None:
    """A node that can never reach its witness would never take over alone."""
    view, clock = WitnessView("a", 1000), MillisecondClock()
    with pytest.raises(BadInput, match="is a folder; name a file in it"):
        open_witness(f"file:{tmp_path}", view, FailoverTiming(), clock)
    witness = open_witness(f"file:{tmp_path / 'gateway'}", view, FailoverTiming(), clock)
    assert witness.exchange(WitnessRequest.HOLD, 1)[0] is not Witness.UNREACHABLE
