"""Consumer processes and the signals they get: a term drains, a second one does not wait, a kill loses nothing."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import yirangmq
from tests.consumer.processes import Process, process
from tests.support.wait import PATIENCE, until
from yirangmq.broker.queues import Queues
from yirangmq.core.states import State
from yirangmq.core.stop_signals import SIGNAL_REPEAT_SECONDS

pytestmark = pytest.mark.process
WAIT = ("consume", "-q", "mail", "--handler", "shop:wait", "--db", "q.db")


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[Queues]:
    with yirangmq.open(f"sqlite:{tmp_path / 'q.db'}") as queues:
        yield queues


def begun(folder: Path, id: str, attempt: int = 1) -> bool:
    return (folder / f"begun-{id}-{attempt}").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drain_on_a_signal_finishes_the_running_handler_and_releases_the_rest(
    queues: Queues, tmp_path: Path, number: signal.Signals
) -> None:
    first, *_ = (stored.id for stored in queues.publish_many("mail", [1, 2, 3, 4]))
    with process(tmp_path, *WAIT, "--prefetch", "2") as consumer:
        until(lambda: begun(tmp_path, first))
        until(lambda: queues.counts("mail").leased == 3)
        consumer.signal(number)
        until(lambda: queues.counts("mail").ready == 3, what="those not begun back in line")
        assert consumer.popen.poll() is None
        (tmp_path / "go").touch()
        code, out, _ = consumer.ended()
    assert (code, out) == (0, "1 done, 2 released\n")
    counts = queues.counts("mail")
    assert (counts.done, counts.ready, counts.leased) == (1, 3, 0)
    assert queues.consumer_list() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_drain_is_cut_short_by_a_second_signal_and_the_message_stays_leased(
    queues: Queues, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    id = queues.publish("mail", 1).id
    with process(tmp_path, *WAIT) as consumer:
        until(lambda: begun(tmp_path, id))
        consumer.signal(number)
        until(lambda: any(one["state"] == "draining" for one in queues.consumer_list()))
        later = time.monotonic() + SIGNAL_REPEAT_SECONDS + 0.1
        until(lambda: time.monotonic() > later)
        consumer.signal(number)
        assert consumer.ended()[0] == code
    assert queues.show("mail", id).message.state is State.LEASED, "it comes back when the lease ends"


@pytest.mark.parametrize("run", range(4))
def test_drain_counts_two_signals_at_the_same_time_as_one(queues: Queues, tmp_path: Path, run: int) -> None:
    """As from ``timeout``, which signals the child and then its group, or from a wrapper that forwards Ctrl-C. Several
    runs: in one of four both signals came without ending a wait of the main thread."""
    id = queues.publish("mail", 1).id
    with process(tmp_path, *WAIT) as consumer:
        until(lambda: begun(tmp_path, id))
        consumer.signal(signal.SIGTERM)
        consumer.signal(signal.SIGINT)
        until(lambda: any(one["state"] == "draining" for one in queues.consumer_list()))
        (tmp_path / "go").touch()
        code, out, _ = consumer.ended()
    assert (code, out) == (0, "1 done\n")
    assert queues.show("mail", id).message.state is State.DONE


def test_drain_timeout_of_a_process_nacks_the_unfinished_message(queues: Queues, tmp_path: Path) -> None:
    id = queues.publish("mail", 1).id
    with process(tmp_path, *WAIT, "--drain-seconds", "0.1") as consumer:
        until(lambda: begun(tmp_path, id))
        consumer.signal(signal.SIGTERM)
        code, out, err = consumer.ended()
    assert (code, out) == (0, "0 done, 1 failed\n")
    assert "drain_timed_out" in err
    assert queues.show("mail", id).message.reason == "TIMEOUT"


def test_lease_expiry_redelivers_the_message_of_a_killed_consumer_once(queues: Queues, tmp_path: Path) -> None:
    queues.set_policy("mail", {"visibilityTimeoutSec": 2})
    id = queues.publish("mail", 1).id
    with process(tmp_path, *WAIT) as consumer:
        until(lambda: begun(tmp_path, id))
        consumer.signal(signal.SIGKILL)
        consumer.ended()
    [card] = queues.consumer_list()
    look = queues.show("mail", id)
    assert (look.message.state, look.message.consumer) == (State.LEASED, card["consumerId"])
    [delivery] = queues.lease("mail", 10, wait=PATIENCE)
    assert (delivery.id, delivery.attempt) == (id, 2)
    assert queues.lease("mail") == []


def test_lease_expiry_lets_a_second_consumer_take_over_the_message_of_a_killed_consumer(
    queues: Queues, tmp_path: Path
) -> None:
    queues.set_policy("mail", {"visibilityTimeoutSec": 2})
    id = queues.publish("mail", 1).id
    with process(tmp_path, *WAIT) as dies, process(tmp_path, *WAIT) as lives:
        until(lambda: begun(tmp_path, id))
        if int((tmp_path / f"begun-{id}-1").read_text()) == lives.popen.pid:
            dies, lives = lives, dies
        dies.signal(signal.SIGKILL)
        until(lambda: begun(tmp_path, id, attempt=2))
        assert int((tmp_path / f"begun-{id}-2").read_text()) == lives.popen.pid
        (tmp_path / "go").touch()
        until(lambda: queues.counts("mail").done == 1)
        stop(lives)


def stop(consumer: Process) -> None:
    consumer.signal(signal.SIGTERM)
    assert consumer.ended()[0] == 0


def test_subprocess_handler_runs_in_its_own_process_group_and_finishes_after_ctrl_c(
    queues: Queues, tmp_path: Path
) -> None:
    """A terminal sends it to the whole foreground group, which the programs are not part of."""
    id = queues.publish("mail", 1).id
    script = f"touch begun-{id}-1; while [ ! -e go ]; do sleep 0.02; done; ps -o pgid= -p $$ > group"
    with process(tmp_path, "consume", "-q", "mail", "--shell", "--exec", script, "--db", "q.db") as consumer:
        until(lambda: begun(tmp_path, id))
        consumer.signal(signal.SIGINT)
        until(lambda: any(one["state"] == "draining" for one in queues.consumer_list()))
        (tmp_path / "go").touch()
        code, out, _ = consumer.ended()
        group = int((tmp_path / "group").read_text())
        assert (code, out) == (0, "1 done\n")
        assert group != consumer.popen.pid
    assert queues.show("mail", id).message.state is State.DONE
