"""Messages and changes sorted by what is done to them together. Knows: values. Does not know: SQL.

A batch is mostly all of one sort, and there are many batches: that case is looked for first."""

from collections.abc import Sequence

from yirangmq.core.message import Message
from yirangmq.core.ports import Change
from yirangmq.core.states import State

Kind = tuple[str, State, bool, State, bool, bool]


def by_rank(messages: list[Message]) -> dict[int, list[int]]:
    """Places by rank, in the order given; mostly all are of one rank."""
    if messages and messages[0][4] == messages[-1][4]:
        rank = messages[0][4]
        places = [message[5] for message in messages if message[4] == rank]
        if len(places) == len(messages):
            return {rank: places}
    ranks: dict[int, list[int]] = {}
    for message in messages:
        ranks.setdefault(message[4], []).append(message[5])
    return ranks


def by_kind(changes: Sequence[Change]) -> dict[Kind, list[Change]]:
    """(queue, state and body before, state and body after, whether it failed): mostly all are of one kind."""
    if not changes:
        return {}
    first, then, failure = changes[0]
    kind = then[1], first[3], first[14], then[3], then[14], failure is not None
    queue, old, old_body, new, new_body, failed = kind
    alike = [
        change
        for change in changes
        if change[0][3] is old
        and change[1][3] is new
        and change[1][1] == queue
        and change[0][14] == old_body
        and change[1][14] == new_body
        and (change[2] is not None) == failed
    ]
    if len(alike) == len(changes):
        return {kind: alike}
    kinds: dict[Kind, list[Change]] = {}
    for change in changes:
        before, after, why = change
        key = after[1], before[3], before[14], after[3], after[14], why is not None
        kinds.setdefault(key, []).append(change)
    return kinds


def is_counted(state: State, body: bool) -> bool:
    return state is not State.DROPPED and (state is not State.DONE or body)
