"""Any program as a handler: what it reads, what its exit code means, how it is ended."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.consumer import running
from tests.support.wait import PATIENCE, until
from yirangmq.broker.queues import Queues
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.routes import HandlerRoute, Validation
from yirangmq.consumer.settler import ConsumerSummary
from yirangmq.consumer.subprocess_handler import TAIL, SubprocessHandler
from yirangmq.core.message import MAX_FAILURE_TEXT, Reason
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import NewMessage
from yirangmq.format.json_codec import loads
from yirangmq.testing import ManualClock

pytestmark = pytest.mark.process


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def python(script: str) -> list[str]:
    return [sys.executable, "-S", "-c", script]


def consumer_of(queues: Queues, argv: list[str], **options: Any) -> Consumer:
    program = SubprocessHandler(argv, **options)
    consumer = Consumer(queues, drain_seconds=0.05)
    validation = Validation(decode=False)
    consumer.add(HandlerRoute(queue="mail", handle=program, validation=validation, cancel=program.cancel))
    return consumer


def given(
    queues: Queues, argv: list[str], message: object = "x", **options: Any
) -> tuple[MessageView, ConsumerSummary]:
    """One message through one program: where it stands then."""
    id = queues.publish("mail", message).id
    summary = consumer_of(queues, argv, **options).run(until_empty=True)
    return queues.show("mail", id), summary


def told(look: MessageView) -> tuple[str, str]:
    assert look.failure is not None
    return look.failure.reason_code, look.failure.reason_message


# -- what it is handed ------------------------------------------------------------------------------------------------


def test_subprocess_handler_reads_the_envelope_as_one_line_of_json(queues: Queues, tmp_path: Path) -> None:
    queues.publish_text("mail", [b'{"messageId":"x-1","type":"letter","payload":{"a":\n\r\n [1]}}'])
    assert consumer_of(queues, sh(f"cat > {tmp_path}/in")).run(until_empty=True) == ConsumerSummary(done=1)
    text = (tmp_path / "in").read_bytes()
    assert text.count(b"\n") == 1
    assert text.endswith(b"}\n")
    document = loads(text)
    assert (document["messageId"], document["type"], document["payload"]) == ("x-1", "letter", {"a": [1]})


def test_subprocess_handler_gets_bytes_that_are_not_json_as_base64_in_the_envelope(
    queues: Queues, tmp_path: Path
) -> None:
    given(queues, sh(f"cat > {tmp_path}/in"), b"\x00\xff")
    assert loads((tmp_path / "in").read_bytes())["payloadBase64"] == "AP8="


@pytest.mark.parametrize("payload", [b"", b"\n", bytes(range(256)) * 5, b'{"a":1e999}\r\n'])
def test_subprocess_handler_with_raw_gets_any_bytes_unchanged(queues: Queues, tmp_path: Path, payload: bytes) -> None:
    look, _ = given(queues, sh(f"cat > {tmp_path}/in"), payload, raw=True)
    assert look.message.state is State.DONE
    assert (tmp_path / "in").read_bytes() == payload


def test_subprocess_handler_gets_1_mib_though_it_writes_stderr_before_it_reads(queues: Queues, tmp_path: Path) -> None:
    payload = os.urandom(1 << 20)
    script = f"head -c 300000 /dev/zero >&2; cat > {tmp_path}/in; head -c 300000 /dev/zero >&2"
    look, _ = given(queues, sh(script), payload, raw=True)
    assert look.message.state is State.DONE
    assert (tmp_path / "in").read_bytes() == payload


def test_subprocess_handler_that_reads_nothing_may_succeed(queues: Queues) -> None:
    look, _ = given(queues, sh("exec true"), os.urandom(1 << 20), raw=True)
    assert look.message.state is State.DONE


def test_subprocess_handler_environment_describes_the_message(
    queues: Queues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("YIRANGMQ_")]:
        monkeypatch.delenv(name)
    message = NewMessage(payload=1, id="x-1", type="a\0b ü", trace_id="t-9")
    given(queues, sh(f"env | grep ^YIRANGMQ_ | sort > {tmp_path}/env"), message)
    assert (tmp_path / "env").read_text().splitlines() == [
        "YIRANGMQ_ATTEMPT=1",
        "YIRANGMQ_LEASE_ID=1-1",
        "YIRANGMQ_MESSAGE_ID=x-1",
        "YIRANGMQ_QUEUE=mail",
        "YIRANGMQ_TRACE_ID=t-9",
        "YIRANGMQ_TYPE=ab ü",
    ]


# -- what its end means -----------------------------------------------------------------------------------------------


def test_subprocess_handler_exit_code_0_acks(queues: Queues) -> None:
    look, summary = given(queues, sh("echo noise >&2; exit 0"))
    assert look.message.state is State.DONE
    assert summary == ConsumerSummary(done=1)


def test_subprocess_handler_exit_code_65_rejects(queues: Queues) -> None:
    look, summary = given(queues, sh("echo 'no such account' >&2; exit 65"))
    assert look.message.state is State.DEAD
    assert told(look) == (Reason.REJECTED, "no such account")
    assert summary == ConsumerSummary(rejected=1)


@pytest.mark.parametrize(("retry_after", "wait"), [(None, 1_000), (90, 90_000)])
def test_subprocess_handler_exit_code_75_retries_after_the_backoff_or_the_given_delay(
    queues: Queues, clock: ManualClock, retry_after: float | None, wait: int
) -> None:
    look, summary = given(queues, sh("exit 75"), retry_after=retry_after)
    assert (look.message.state, look.message.due_at) == (State.DELAYED, clock.now_ms() + wait)
    assert told(look) == (Reason.HANDLER_ERROR, "the program requested a retry")
    assert summary == ConsumerSummary(retried=1)


@pytest.mark.parametrize("argv", [sh("echo 'no route' >&2; exit 3"), python("import sys; sys.exit('no route')")])
def test_subprocess_handler_other_exit_code_is_a_failure_with_its_stderr(queues: Queues, argv: list[str]) -> None:
    code = 3 if argv[0] == "/bin/sh" else 1
    look, summary = given(queues, argv)
    assert look.message.state is State.DELAYED
    assert told(look) == (Reason.HANDLER_ERROR, f"exit code {code}: no route")
    assert summary == ConsumerSummary(failed=1)


def test_subprocess_handler_ended_by_a_signal_is_a_failure(queues: Queues) -> None:
    look, _ = given(queues, sh("kill -SEGV $$"))
    assert told(look) == (Reason.HANDLER_ERROR, "ended by SIGSEGV")


def test_subprocess_handler_keeps_the_end_of_a_long_stderr(queues: Queues) -> None:
    look, _ = given(queues, sh("head -c 500000 /dev/zero | tr '\\0' x >&2; printf '\\377 the end' >&2; exit 1"))
    text = told(look)[1]
    assert text.endswith("\ufffd the end")
    assert TAIL <= len(text) <= MAX_FAILURE_TEXT


def test_subprocess_handler_ends_with_its_program_while_a_child_holds_stderr_open(queues: Queues) -> None:
    """The helper holds stderr open; nobody waits for it."""
    look, _ = given(queues, sh("sleep 60 & echo $! >&2; exit 4"))
    text = told(look)[1]
    assert text.startswith("exit code 4: ")
    os.kill(int(text.split()[-1]), signal.SIGKILL)


def test_subprocess_handler_with_a_missing_program_is_a_failure(queues: Queues) -> None:
    look, summary = given(queues, ["/no/such/program"])
    assert told(look)[1].startswith("FileNotFoundError: ")
    assert summary == ConsumerSummary(failed=1)


# -- its end put to it ------------------------------------------------------------------------------------------------

WAITS = "trap 'echo asked >&2; exit 0' TERM; echo here >&2; while :; do sleep 0.02; done"
SOON = 3
"""Seconds; a shell has begun by then, also on a busy machine."""
STUBBORN = "trap '' TERM; echo here >&2; while :; do sleep 0.02; done"


def test_subprocess_handler_timeout_asks_the_program_to_end_and_keeps_its_output(queues: Queues) -> None:
    look, summary = given(queues, sh(WAITS), timeout=SOON)
    reason, text = told(look)
    assert reason == Reason.TIMEOUT
    assert text.startswith(f"the program was ended after {SOON} s: here\n")
    assert text.endswith("asked")
    assert summary == ConsumerSummary(failed=1)


def test_subprocess_handler_timeout_kills_a_program_that_ignores_the_request(queues: Queues, tmp_path: Path) -> None:
    look, _ = given(queues, sh(f"echo $$ > {tmp_path}/pid; {STUBBORN}"), timeout=SOON, grace=0.05)
    assert told(look) == (Reason.TIMEOUT, f"the program was ended after {SOON} s: here")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_subprocess_handler_timeout_ends_child_processes_of_the_program(queues: Queues, tmp_path: Path) -> None:
    given(queues, sh(f"sleep 60 & echo $! > {tmp_path}/pid; wait"), timeout=SOON)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _is_running(pid), what="the end of the helper")


def _is_running(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("listens", [True, False])
def test_drain_timeout_ends_subprocess_handlers_whether_or_not_they_handle_sigterm(
    queues: Queues, tmp_path: Path, listens: bool
) -> None:
    trap = "trap 'touch asked; exit 0' TERM" if listens else "trap '' TERM"
    script = f"cd {tmp_path}; {trap}; echo $$ > new; mv new pid; while :; do sleep 0.02; done"
    queues.publish("mail", "x")
    consumer = consumer_of(queues, sh(script), grace=PATIENCE if listens else 0.05)
    with running(consumer) as run:
        until((tmp_path / "pid").exists)
        consumer.stop()
        assert run.ended() == ConsumerSummary(failed=1)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _is_running(pid), what="the end of the program")
    assert (tmp_path / "asked").exists() == listens
    assert queues.counts("mail").delayed == 1


def test_subprocess_handler_programs_run_concurrently(queues: Queues, tmp_path: Path) -> None:
    """All of them run at once: each waits until it sees the others."""
    program = SubprocessHandler(
        sh(f"touch {tmp_path}/$YIRANGMQ_MESSAGE_ID; until [ $(ls {tmp_path} | wc -l) = 4 ]; do :; done")
    )
    consumer = Consumer(queues)
    consumer.add(HandlerRoute(queue="mail", handle=program, concurrency=4, cancel=program.cancel))
    queues.publish_many("mail", list(range(4)))
    assert consumer.run(until_empty=True) == ConsumerSummary(done=4)
