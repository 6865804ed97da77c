"""Fault injection cases: the operations under test, how one case is run, and its verification.

A case prepares a queue, arms the injector, runs one operation and checks:

1. The caller got a reply in time: success, or an error with a code of the store.
2. A confirmed change is in the store, a rejected one is not.
3. While a fault lasts, health is not ok. After it, every protocol works and health is ok.
4. At the end of an operation's cases, a copy of the files, opened as after a kill, has the same content and is sound.

An ``Operation`` defines its preparation, the call, and the allowed changes. ``crashtest.faults.runner`` lists the
cases."""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yirangmq.core.errors import QueueError
from yirangmq.core.states import State
from yirangmq.crashtest.faults.injector import LOCKED, Injector, SystemCalls
from yirangmq.crashtest.faults.protocols import (
    ConnectionBroken,
    EmbeddedTestClient,
    NoReply,
    ProtocolTestClient,
    ServerErrorReply,
    V1TestClient,
)
from yirangmq.crashtest.faults.targets import LogTarget, StartServer, States, StoreTarget, target_of
from yirangmq.crashtest.runner import MEMORY_FOLDER

# -- operations --------------------------------------------------------------------------------------------------------

QUEUE = "work"
FINISHED = frozenset((State.DONE, State.DROPPED))
WAITING = frozenset((State.READY, State.DELAYED, State.HELD))
HELD = frozenset((State.LEASED, State.CLAIMED))
AnyTarget = StoreTarget | LogTarget


class Operation(NamedTuple):
    """An operation under test.

    ``prepare`` returns the argument of ``act``. ``wrong`` returns the problem in the states after the call, or None."""

    prepare: Callable[[ProtocolTestClient, bytes], Any]
    act: Callable[[ProtocolTestClient, Any, bytes], Any]
    wrong: Callable[[States, bytes, bool], str | None]


def _seeded(protocol: ProtocolTestClient, token: bytes) -> None:
    protocol.publish(QUEUE, b"seed")


def _published(protocol: ProtocolTestClient, token: bytes) -> None:
    protocol.publish(QUEUE, token)


def _leased(protocol: ProtocolTestClient, token: bytes) -> Any:
    protocol.publish(QUEUE, token)
    found = protocol.lease(QUEUE)
    if found is None or found[1] != token:
        raise ServerErrorReply("torture", f"leased {found} instead of {token!r}")
    return found[0]


def _lease(protocol: ProtocolTestClient, given: Any, token: bytes) -> Any:
    found = protocol.lease(QUEUE)
    if found is None or found[1] != token:
        raise ServerErrorReply("torture", f"leased {found} instead of {token!r}")
    return found[0]


def is_stored(found: States, token: bytes, is_confirmed: bool) -> str | None:
    states = found.get(token, [])
    if is_confirmed and states != [State.READY]:
        return f"a confirmed message is {_shown(states)}"
    if not is_confirmed and states:
        return f"a refused message is {_shown(states)}"
    return None


def _is_leased(found: States, token: bytes, is_confirmed: bool) -> str | None:
    return _is_one_of(found, token, HELD if is_confirmed else WAITING | HELD, is_confirmed)


def _is_done(found: States, token: bytes, is_confirmed: bool) -> str | None:
    states = found.get(token, [])
    if is_confirmed and not set(states) <= FINISHED:
        return f"an acked message is {_shown(states)}"
    return None if is_confirmed else _is_one_of(found, token, HELD | WAITING, False)


def _is_back(found: States, token: bytes, is_confirmed: bool) -> str | None:
    wanted = WAITING | {State.DEAD} if is_confirmed else HELD | WAITING
    return _is_one_of(found, token, wanted, is_confirmed)


def _is_one_of(found: States, token: bytes, wanted: frozenset[State], is_confirmed: bool) -> str | None:
    states = found.get(token, [])
    if len(states) == 1 and states[0] in wanted:
        return None
    return f"after a {'confirmed' if is_confirmed else 'refused'} call the message is {_shown(states)}"


def _shown(states: list[State]) -> str:
    return " and ".join(state.value for state in states) or "absent"


def unchanged(found: States, token: bytes, is_confirmed: bool) -> str | None:
    return None if found.get(token) == [State.READY] else f"the message is {_shown(found.get(token, []))}"


def _set_policy(protocol: ProtocolTestClient, given: Any, token: bytes) -> None:
    assert isinstance(protocol, EmbeddedTestClient)
    protocol.do(lambda queues: queues.set_policy(QUEUE, {"retry": {"limit": 7}}))


def _sweep(protocol: ProtocolTestClient, given: Any, token: bytes) -> None:
    assert isinstance(protocol, EmbeddedTestClient)
    protocol.do(lambda queues: queues.sweep())


def _drop(protocol: ProtocolTestClient, given: Any, token: bytes) -> None:
    assert isinstance(protocol, EmbeddedTestClient)
    protocol.do(lambda queues: [queues.drop(QUEUE, [view.message.id for view in queues.peek(QUEUE)])])


def nothing(protocol: ProtocolTestClient, token: bytes) -> None:
    return None


QUEUES: dict[str, Operation] = {
    "publish": Operation(_seeded, lambda protocol, _, token: protocol.publish(QUEUE, token), is_stored),
    "publish-new": Operation(nothing, lambda protocol, _, token: protocol.publish(QUEUE, token), is_stored),
    "publish-large": Operation(_seeded, lambda protocol, _, token: protocol.publish(QUEUE, token), is_stored),
    "lease": Operation(_published, _lease, _is_leased),
    "ack": Operation(_leased, lambda protocol, handle, _: protocol.ack(handle), _is_done),
    "nack": Operation(_leased, lambda protocol, handle, _: protocol.nack(handle), _is_back),
}
EMBEDDED: dict[str, Operation] = {
    **QUEUES,
    "policy": Operation(_published, _set_policy, unchanged),
    "sweep": Operation(_published, _sweep, unchanged),
    "drop": Operation(_published, _drop, _is_done),
}
TOPICS: dict[str, Operation] = {
    "record": Operation(nothing, lambda protocol, _, token: protocol.record(QUEUE, token), is_stored),
    "record-large": Operation(nothing, lambda protocol, _, token: protocol.record(QUEUE, token), is_stored),
}
LIFECYCLE = ("open", "close")
"""Operations on the whole target."""


def _confirm(protocol: ProtocolTestClient, given: Any, token: bytes) -> None:
    log: Any = protocol
    log.confirm(QUEUE)


CURSORS = {
    "confirm": Operation(lambda protocol, token: protocol.record(QUEUE, token), _confirm, unchanged),
}


def operations(target: AnyTarget, protocol: ProtocolTestClient) -> dict[str, Operation]:
    if isinstance(target, LogTarget):
        return TOPICS if target.is_server else {**TOPICS, **CURSORS}
    return EMBEDDED if isinstance(protocol, EmbeddedTestClient) else QUEUES


# -- cases -------------------------------------------------------------------------------------------------------------

ONCE, WHILE = "once", "while"
STORE_CODES = frozenset(
    ["store_error", "store_full", "store_busy", "store_read_only", "store_damaged", "unavailable", "cannot_listen"]
)
"""Error codes that a caller may get when the store fails."""
RECOVERY_SECONDS = 5.0
"""Time limit in seconds for health to become ok after a fault."""
LARGE = 100_000
"""Size in bytes of a payload that does not fit the redo log."""
BLOCKING_PROTOCOLS = frozenset(("mq", "stomp"))
"""Protocols with a consumer that blocks until there is a message. It gets no error while the store fails, and receives
its message afterwards."""
FAULT_SECONDS = 0.2
"""Seconds that a fault lasts while such a consumer waits."""
PROBE = "probe"


class FaultCase(NamedTuple):
    target: str
    protocol: str
    operation: str
    mode: str
    error: str
    call: int

    def __str__(self) -> str:
        return f"{self.target}/{self.protocol}/{self.operation}/{self.mode}/{self.error}/{self.call}"


class CaseResult(NamedTuple):
    fired: str
    is_refused: bool
    complaints: list[str]


class CaseRunner:
    """Runner of single cases: one target in a separate folder, with faulting I/O calls below it."""

    def __init__(self, name: str, start_server: StartServer) -> None:
        self._name = name
        self._start_server = start_server
        self._injector = Injector()
        self._tokens = 0
        self._refused: list[tuple[str, bytes]] = []

    def __enter__(self) -> "CaseRunner":
        self._top = Path(
            tempfile.mkdtemp(prefix="yirangmq-faults-", dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None)
        )
        self._folders = 0
        self._start_target()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_target()
        shutil.rmtree(self._top, ignore_errors=True)

    def _start_target(self) -> None:
        self._folders += 1
        self._folder = self._top / f"d{self._folders}"
        self._folder.mkdir(mode=0o700)  # a looser mode would degrade health
        self._calls = SystemCalls(self._injector, self._folder)
        self._calls.__enter__()
        self._opened = target_of(self._name, self._folder, self._injector, self._start_server)
        self.target = self._opened.__enter__()
        self.target.start()

    def _stop_target(self) -> None:
        self._injector.disarm()
        try:
            self.target.stop()
        except Exception:  # a target that failed a case may fail to stop; the case is already reported
            pass
        finally:
            try:
                self._opened.__exit__(None, None, None)
            finally:
                self._calls.__exit__(None, None, None)

    def restart(self) -> None:
        """Start a new target in a new folder after a failure, so that one fault is reported once."""
        self._stop_target()
        self._refused.clear()
        self._start_target()

    def pairs(self) -> list[tuple[str, str]]:
        found = [
            (protocol.name, name) for protocol in self.target.protocols for name in operations(self.target, protocol)
        ]
        return [*found, *(("-", name) for name in LIFECYCLE)]

    def _protocol(self, name: str) -> ProtocolTestClient:
        return next(one for one in self.target.protocols if one.name == name)

    def _token(self, operation: str) -> bytes:
        self._tokens += 1
        token = b"token-%d-" % self._tokens
        return token.ljust(LARGE, b"x") if operation.endswith("-large") else token

    # -- without a fault ----------------------------------------------------------------------------------------------

    def calls(self, protocol: str, name: str) -> dict[str, int]:
        """Run one operation without a fault. Return the number of I/O calls that can fail, by error."""
        if name in LIFECYCLE:
            return self._run_lifecycle(name, self._injector.count)[0]
        one = self._protocol(protocol)
        operation, token = operations(self.target, one)[name], self._token(name)
        given = operation.prepare(one, token)
        self._injector.count()
        try:
            operation.act(one, given, token)
        finally:
            counts = self._injector.counted()
        self.target.forget(QUEUE)
        return counts

    def _run_lifecycle(self, name: str, arm: Callable[[], None]) -> tuple[dict[str, int], Exception | None]:
        """Stop and start the target with faults armed in one step. Return the call counts and the raised error."""
        error: Exception | None = None
        steps: Sequence[tuple[str, Callable[[], None]]] = (("close", self.target.stop), ("open", self.target.start))
        counts: dict[str, int] = {}
        for step, act in steps:
            if step == name:
                arm()
            try:
                act()
            except Exception as raised:
                error = raised
            finally:
                if step == name:
                    counts = self._injector.counted()
        if name == "open" and error is not None:
            self.target.start()
        return counts, error

    # -- with a fault -------------------------------------------------------------------------------------------------

    def run_case(self, case: FaultCase) -> CaseResult:
        length = 1 if case.mode == ONCE else None
        if case.operation in LIFECYCLE:
            return self._run_lifecycle_case(case, length)
        protocol = self._protocol(case.protocol)
        operation, token = operations(self.target, protocol)[case.operation], self._token(case.operation)
        complaints: list[str] = []
        refusal: ServerErrorReply | None = None
        is_unknown = False
        try:
            given = operation.prepare(protocol, token)
        except (ServerErrorReply, NoReply, ConnectionBroken, QueueError) as error:
            return CaseResult("", False, [f"before the fault: {error!r}"])
        lock = contextlib.ExitStack()
        if case.error == LOCKED and isinstance(self.target, StoreTarget):
            lock.enter_context(self.target.locked())
        else:
            self._injector.arm(case.error, case.call, length)
        fault_timer: threading.Timer | None = None
        if case.mode == WHILE and case.operation == "lease" and protocol.name in BLOCKING_PROTOCOLS:
            fault_timer = threading.Timer(FAULT_SECONDS, self._injector.disarm)
            fault_timer.start()
        try:
            operation.act(protocol, given, token)
        except ServerErrorReply as error:
            refusal = error
            if error.code not in STORE_CODES:
                complaints.append(f"the caller was told {error}")
        except NoReply as error:
            complaints.append(f"no answer: {error}")
            is_unknown = True
        except ConnectionBroken as error:
            complaints.append(f"the connection was lost: {error}")
            is_unknown = True
        except Exception as error:
            complaints.append(f"the caller got {error!r}")
            is_unknown = True
        if case.mode == WHILE and refusal is not None and fault_timer is None:
            complaints += self._health_while()
        if fault_timer is not None:
            fault_timer.cancel()
        self._injector.disarm()
        lock.close()
        fired = LOCKED if case.error == LOCKED else self._shown()
        complaints += self._verify_after(operation, token, None if is_unknown else refusal is None, protocol)
        return CaseResult(fired, refusal is not None, complaints)

    def _run_lifecycle_case(self, case: FaultCase, length: int | None) -> CaseResult:
        token = self._token("")
        first = self.target.protocols[0]
        put = first.record if isinstance(self.target, LogTarget) else first.publish
        put(QUEUE, token)
        complaints: list[str] = []
        error: Exception | None = None
        try:
            _, error = self._run_lifecycle(case.operation, lambda: self._injector.arm(case.error, case.call, length))
        except Exception as raised:
            self._injector.disarm()
            return CaseResult(self._shown(), True, [f"does not open after {case.operation} failed: {raised!r}"])
        if error is not None and not isinstance(error, QueueError):
            complaints.append(f"{case.operation} raised {error!r}")
        elif isinstance(error, QueueError) and error.code not in STORE_CODES:
            complaints.append(f"{case.operation} raised {error.code}: {error}")
        operation = Operation(nothing, lambda *_: None, unchanged)
        return CaseResult(self._shown(), error is not None, [*complaints, *self._verify_after(operation, token, True)])

    def _shown(self) -> str:
        return ", ".join(f"{one.call} {Path(one.where).name}" for one in self._injector.fired[:3])

    def _verify_after(
        self, operation: Operation, token: bytes, is_confirmed: bool | None, protocol: ProtocolTestClient | None = None
    ) -> list[str]:
        """Verify the target after the fault: the operation, the next operations and health."""
        complaints: list[str] = []
        try:
            if is_confirmed is not None:
                wrong = operation.wrong(self.target.states(QUEUE), token, is_confirmed)
                complaints += [wrong] if wrong else []
                if not is_confirmed and operation.wrong is is_stored:
                    self._refused.append((QUEUE, token[:40]))
            if protocol is not None and not isinstance(self.target, LogTarget):
                complaints += self._probe_same(protocol)
            complaints += self._probes()
            complaints += self._health_after()
            self.target.forget(QUEUE)
        except Exception as error:
            complaints.append(f"after the fault: {error!r}")
        return complaints

    def _probes(self) -> list[str]:
        """Check that the next operation works through every protocol."""
        complaints = []
        for protocol in self.target.protocols:
            token = self._token("")
            try:
                if isinstance(self.target, LogTarget):
                    self._probe_log(protocol, token)
                    if self.target.states(PROBE).get(token) != [State.READY]:
                        complaints.append(f"{protocol.name}: the next record is not there")
                    continue
                queue = f"{PROBE}-{protocol.name}"
                protocol.publish(queue, token)
                found = protocol.lease(queue)
                if found is None or found[1] != token:
                    complaints.append(f"{protocol.name}: leased {found!r} next, not {token!r}")
                    continue
                protocol.ack(found[0])
            except (ServerErrorReply, NoReply, ConnectionBroken) as error:
                complaints.append(f"{protocol.name}: the next operation failed: {error!r}")
        return complaints

    def _probe_same(self, protocol: ProtocolTestClient) -> list[str]:
        """Check that the next publish works through the same protocol, to the same queue."""
        try:
            protocol.publish(QUEUE, self._token(""))
        except (ServerErrorReply, NoReply, ConnectionBroken) as error:
            return [f"{protocol.name}: the next publish to the same queue failed: {error!r}"]
        return []

    def _probe_log(self, protocol: ProtocolTestClient, token: bytes) -> None:
        """Append a record after a fault.

        A failed log must be reopened: by the embedding program, or by the server within 1 s."""
        until = time.monotonic() + RECOVERY_SECONDS
        while True:
            try:
                protocol.record(PROBE, token)
                return
            except ServerErrorReply:
                if time.monotonic() > until:
                    raise
            if self.target.is_server:
                time.sleep(0.05)
            else:
                self.target.stop()
                self.target.start()
                protocol = self.target.protocols[0]

    def _health(self) -> V1TestClient | None:
        return next((one for one in self.target.protocols if isinstance(one, V1TestClient)), None)

    def _health_while(self) -> list[str]:
        client = self._health()
        if client is None:
            return []
        try:
            status = client.health()
        except (NoReply, ConnectionBroken) as error:
            return [f"health does not answer while the fault lasts: {error!r}"]
        return ["health says ok while the fault lasts"] if status == "ok" else []

    def _health_after(self) -> list[str]:
        client = self._health()
        until = time.monotonic() + RECOVERY_SECONDS
        status = "ok"
        try:
            while client is not None and (status := client.health()) != "ok" and time.monotonic() < until:
                time.sleep(0.02)
        except (NoReply, ConnectionBroken) as error:
            return [f"health does not answer after the fault: {error!r}"]
        return [f"health says {status} {RECOVERY_SECONDS:g} s after the fault"] if status != "ok" else []

    # -- as after a kill ----------------------------------------------------------------------------------------------

    def check_copy(self) -> list[str]:
        """Verify a copy of the current files, as after a kill: it is sound and has no rejected message."""
        copy = self._top / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        try:
            with self.target.pause_removals():
                shutil.copytree(self._folder, copy, ignore=shutil.ignore_patterns("*.sock", "*-shm"))
            complaints = self.target.complaints(copy)
            for queue in {queue for queue, _ in self._refused}:
                there = {payload[:40] for payload in self.target.copied_states(copy, queue)}
                back = [token for of, token in self._refused if of == queue and token in there]
                complaints += [f"refused, and there after a kill: {token!r}" for token in back]
        except Exception as error:
            complaints = [f"a copy, opened as after a kill: {error!r}"]
        finally:
            shutil.rmtree(copy, ignore_errors=True)
            self._refused.clear()
        return complaints
