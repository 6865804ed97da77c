"""Planned switch of a failover pair: by an operator's order, or before an orderly stop of the active node.

A planned switch makes this node active, or drains its work and hands over to a peer that is a running standby. The call
polls until both nodes have their roles, and raises ``Unavailable`` when the deadline passes. A switch to the role that
a node already has succeeds immediately.

Meanwhile the nodes also exchange heartbeats over TCP, so that a lost datagram costs no interval."""

import asyncio
from typing import Any

from yirangmq.core.errors import BadInput, Unavailable, WrongState
from yirangmq.core.failover import PROBE_FINDINGS, Decision, EvidenceStep, FailoverVerdict, Probe, Role, Status
from yirangmq.failover.node import PairNode

SWITCH_POLL_SECONDS = 0.02
EXCHANGE_SECONDS = 0.5
"""Interval of the heartbeats over TCP while a switch waits for the peer."""
BY_AN_OPERATOR = EvidenceStep("order", "by an operator")
BEFORE_A_STOP = EvidenceStep("order", "this node is being stopped")


async def switch(node: PairNode, to: str, seconds: float) -> dict[str, Any]:
    """Make node ``to`` active: this node hands over, or takes over. Idempotent.

    Raise ``BadInput`` for a node that is not in the pair, ``WrongState`` if the peer cannot take over, ``Unavailable``
    after ``seconds``."""
    own, peer = node.failover_node.own, node.failover_node.peer
    if to not in (own.node, peer.node if peer is not None else ""):
        raise BadInput(f"{to!r} is not one of this pair", field="to")
    wanted = Role.ACTIVE if to == own.node else Role.STANDBY
    loop = asyncio.get_running_loop()
    begun = loop.time()
    if not _is_switched(node, wanted):
        if wanted is Role.ACTIVE:
            _order_takeover(node)
        else:
            _check_peer(node)
            _start_hand_over(node, BY_AN_OPERATOR)
    await _wait_for_roles(node, wanted, begun + seconds)
    left = node.left if wanted is Role.STANDBY else {}
    return {**node.describe(), "seconds": round(loop.time() - begun, 3), "left": left}


async def hand_over_before_stop(node: PairNode, seconds: float) -> None:
    """Hand over to the standby, because this node, the active one, is being stopped.

    Raise ``WrongState`` if no standby is ready: the peer does not answer now, or is not running. Raise ``Unavailable``
    after ``seconds``."""
    deadline = asyncio.get_running_loop().time() + seconds
    found = await node.exchange()
    if found is not Probe.REACHED:
        raise WrongState(f"no standby is ready: {PROBE_FINDINGS[found]}", field="peer")
    _check_peer(node)
    _start_hand_over(node, BEFORE_A_STOP)
    await _wait_for_roles(node, Role.STANDBY, deadline)


def _order_takeover(node: PairNode) -> None:
    node.failover_node.order(True)
    node.driver.evaluate(node.now())
    node.send_heartbeat()


def _start_hand_over(node: PairNode, why: EvidenceStep) -> None:
    own = node.failover_node.own
    decision = Decision(FailoverVerdict.HAND_OVER, max(own.term, own.granted) + 1, (why,))
    node.driver.hand_over(decision, node.now())


def _check_peer(node: PairNode) -> None:
    peer, silence = node.failover_node.peer, node.failover_node.silence(node.now())
    if peer is None or silence > node.failover_node.pace.timeout or peer.status is not Status.RUNNING:
        found = (
            "has sent no heartbeat" if peer is None else f"is {peer.status}, last heartbeat {silence / 1000:.1f} s ago"
        )
        raise WrongState(f"the peer {found}: there is no standby to hand over to", field="switch")


async def _wait_for_roles(node: PairNode, wanted: Role, deadline: float) -> None:
    """Wait until this node has the wanted role, and the peer the other one. Raise ``Unavailable`` at the deadline."""
    loop = asyncio.get_running_loop()
    exchange_at = loop.time() + EXCHANGE_SECONDS
    while not _is_switched(node, wanted):
        if loop.time() > deadline:
            node.failover_node.order(False)
            raise Unavailable(f"not done in time: {_describe_evidence(node)}", field="switch")
        if loop.time() > exchange_at:
            await node.exchange()
            exchange_at = loop.time() + EXCHANGE_SECONDS
        else:
            await asyncio.sleep(SWITCH_POLL_SECONDS)


def _is_switched(node: PairNode, wanted: Role) -> bool:
    own, peer = node.failover_node.own, node.failover_node.peer
    if wanted is Role.ACTIVE:
        return own.role is Role.ACTIVE
    return own.role is Role.STANDBY and peer is not None and peer.role is Role.ACTIVE


def _describe_evidence(node: PairNode) -> str:
    latest = node.driver.latest
    return "; ".join(f"{step.step}: {step.found}" for step in latest.steps) if latest is not None else "unknown"
