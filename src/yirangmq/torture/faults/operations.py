"""The operations of a fault injection run: how each is prepared and done, and what it may have changed.

A confirmed change is there, a refused one is not. Knows: operations, states. Does not know: faults."""

from collections.abc import Callable
from typing import Any, NamedTuple

from yirangmq.core.states import State
from yirangmq.torture.faults.protocols import Embedded, Protocols, Refused
from yirangmq.torture.faults.targets import LogTarget, States, StoreTarget

QUEUE = "work"
GONE = frozenset((State.DONE, State.DROPPED))
WAITING = frozenset((State.READY, State.DELAYED, State.HELD))
HELD = frozenset((State.LEASED, State.CLAIMED))
Target = StoreTarget | LogTarget


class Operation(NamedTuple):
    """``prepare`` gives what ``act`` needs; ``wrong`` says what is wrong with what was found afterwards."""

    prepare: Callable[[Protocols, bytes], Any]
    act: Callable[[Protocols, Any, bytes], Any]
    wrong: Callable[[States, bytes, bool], str | None]


def _seeded(protocol: Protocols, token: bytes) -> None:
    protocol.publish(QUEUE, b"seed")


def _published(protocol: Protocols, token: bytes) -> None:
    protocol.publish(QUEUE, token)


def _leased(protocol: Protocols, token: bytes) -> Any:
    protocol.publish(QUEUE, token)
    found = protocol.lease(QUEUE)
    if found is None or found[1] != token:
        raise Refused("torture", f"leased {found} instead of {token!r}")
    return found[0]


def _lease(protocol: Protocols, given: Any, token: bytes) -> Any:
    found = protocol.lease(QUEUE)
    if found is None or found[1] != token:
        raise Refused("torture", f"leased {found} instead of {token!r}")
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
    if is_confirmed and not set(states) <= GONE:
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


def _set_policy(protocol: Protocols, given: Any, token: bytes) -> None:
    assert isinstance(protocol, Embedded)
    protocol.do(lambda queues: queues.set_policy(QUEUE, {"retry": {"limit": 7}}))


def _sweep(protocol: Protocols, given: Any, token: bytes) -> None:
    assert isinstance(protocol, Embedded)
    protocol.do(lambda queues: queues.sweep())


def _drop(protocol: Protocols, given: Any, token: bytes) -> None:
    assert isinstance(protocol, Embedded)
    protocol.do(lambda queues: [queues.drop(QUEUE, [look.message.id for look in queues.peek(QUEUE)])])


def nothing(protocol: Protocols, token: bytes) -> None:
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
LIFE = ("open", "close")
"""Operations on the target as a whole."""


def _confirm(protocol: Protocols, given: Any, token: bytes) -> None:
    log: Any = protocol
    log.confirm(QUEUE)


CURSORS = {
    "confirm": Operation(lambda protocol, token: protocol.record(QUEUE, token), _confirm, unchanged),
}


def operations(target: Target, protocol: Protocols) -> dict[str, Operation]:
    if isinstance(target, LogTarget):
        return TOPICS if target.is_server else {**TOPICS, **CURSORS}
    return EMBEDDED if isinstance(protocol, Embedded) else QUEUES
