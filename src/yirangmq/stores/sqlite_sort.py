"""Messages and changes sorted by what is done to them together. Knows: values. Does not know: SQL.

A batch is mostly all of one sort, and there are many batches: that case is looked for first."""

from collections.abc import Sequence

from yirangmq.core.message import Message
from yirangmq.core.ports import Change
from yirangmq.core.states import State

Kind = tuple[str, State, bool, State, bool, bool]
Fate = tuple[int, int, int, str]
SHARED = (State.LEASED, State.DONE)


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


def shared(cards: Sequence[Message]) -> list[Message]:
    """Those that can be in a batch (schema/004-runs.sql): taken for the first time, nothing special about them."""
    return [
        card
        for card in cards
        if card[7] == 1
        and card[6] == 1
        and card[5] == card[0]
        and not (card[9] or card[12] or card[13] or card[15] or card[16])
        and card[3] in SHARED
    ]


def is_start_alike(changes: list[Change]) -> bool:
    """Nothing differs but the state and two moments, and these are the same for all."""
    due_at, changed_at = changes[0][1][8], changes[0][1][10]
    return all(
        after[8] == due_at
        and after[10] == changed_at
        and before[4:8] == after[4:8]
        and before[9] == after[9]
        and before[11:] == after[11:]
        for before, after, _ in changes
    )


def by_fate(cards: list[Message]) -> dict[Fate, list[Message]]:
    """By what all of a batch have in common: rank, due, changed, consumer; mostly all are alike."""
    fate = rank, due_at, changed_at, consumer = cards[0][4], cards[0][8], cards[0][10], cards[0][11]
    alike = [
        card
        for card in cards
        if card[8] == due_at and card[10] == changed_at and card[4] == rank and card[11] == consumer
    ]
    if len(alike) == len(cards):
        return {fate: cards}
    fates: dict[Fate, list[Message]] = {}
    for card in cards:
        fates.setdefault((card[4], card[8], card[10], card[11]), []).append(card)
    return fates
