"""Verbs on messages that share their fate: decided once for all of a run, by the same rules.

Knows: runs, what must be told of them. Does not know: how a store keeps them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from yirangmq.broker.happenings import Happenings
from yirangmq.core import transitions
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Envelope, Message, Run
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Transaction
from yirangmq.format.delivery import Delivery, RunDeliveries


class RunDeeds(Protocol):
    """What goes with it (``broker.verbs.Verbs``)."""

    happened: Happenings
    defaults: Defaults
    touched: set[str]

    def tidy_after(self, transaction: Transaction, settled: int, now: int) -> None: ...


class Named(Protocol):
    """Leases as a caller names them (``broker.leases.Leases``)."""

    texts: Sequence[str]
    queue: str | None
    span: tuple[int, int, int] | None


def lease(
    deeds: RunDeeds,
    transaction: Transaction,
    runs: Sequence[tuple[Run, list[Envelope]]],
    turn: Callable[[Message], Message],
    now: int,
) -> Sequence[Delivery]:
    """``turn`` is what happens to a card. All of one queue."""
    leased = []
    for run, envelopes in runs:
        after = run._replace(card=turn(run.card))
        _swap(transaction, run, after.card)
        deeds.happened.leased_run(run, envelopes, now)
        leased.append((after, envelopes))
    return RunDeliveries(leased, transaction.policy(runs[0][0].card.queue)) if leased else []


def ack_runs(deeds: RunDeeds, transaction: Transaction, leases: Named, consumer: str | None, now: int) -> bool:
    """False where each must be looked at by itself; then nothing is done."""
    runs = transaction.in_runs()
    if runs is None or leases.span is None:
        return False
    first, last, fence = leases.span
    run = runs.held_run(first, last)
    if run is None or leases.queue not in (None, run.card.queue):
        return False
    policy = transaction.policy(run.card.queue)
    if deeds.defaults.unique_in(policy) or policy.dispatch is not None:
        return False
    try:
        transitions.held(run.card, fence, consumer, now, leases.texts[0])
    except QueueError:
        return False
    _swap(transaction, run, transitions.ack(run.card, policy, now))
    if deeds.defaults.concurrency_in(policy) is not None:
        deeds.touched.add(run.card.queue)
    deeds.happened.settled_run("ack", run, now)
    deeds.tidy_after(transaction, run.length, now)
    return True


def _swap(transaction: Transaction, run: Run, after: Message) -> None:
    runs = transaction.in_runs()
    assert runs is not None
    runs.swap_run(run, after)
