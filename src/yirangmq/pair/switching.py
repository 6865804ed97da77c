"""A switch by order of an operator: which node is to be active, and waiting until it is.

Knows: the node, what it heard of the other. Does not know: how the work is handed over (``pair.node``), who asks."""

import asyncio
from typing import TYPE_CHECKING, Any

from yirangmq.core.errors import BadInput, Unavailable, WrongState
from yirangmq.core.failover import Decision, Role, Status, Step, Verdict

if TYPE_CHECKING:
    from yirangmq.pair.node import Node

LOOK_SECONDS = 0.02


async def switch(node: "Node", to: str, seconds: float) -> dict[str, Any]:
    """Node ``to`` becomes active: this one hands over, or takes over. Asked again it finds that it is done."""
    own, peer = node.partner.own, node.partner.peer
    if to not in (own.node, peer.node if peer is not None else ""):
        raise BadInput(f"{to!r} is not one of this pair", field="to")
    was = Role.STANDBY if to == own.node else Role.ACTIVE
    loop = asyncio.get_running_loop()
    begun = loop.time()
    if not _is_switched(node, was):
        _order(node, was)
    while not _is_switched(node, was):
        if loop.time() > begun + seconds:
            node.partner.order(False)
            raise Unavailable(f"not done within {seconds:g} s: {_why(node)}", field="switch")
        await asyncio.sleep(LOOK_SECONDS)
    left = node.left if was is Role.ACTIVE else {}
    return {**node.describe(), "seconds": round(loop.time() - begun, 3), "left": left}


def _order(node: "Node", was: Role) -> None:
    if was is Role.ACTIVE:
        _check_peer(node)
        term = max(node.partner.own.term, node.partner.own.granted) + 1
        steps = (Step("order", "by an operator"),)
        node.conduct.hand_over(Decision(Verdict.HAND_OVER, term, steps), node.now())
    else:
        node.partner.order(True)
        node.conduct.look(node.now())
        node.say()


def _check_peer(node: "Node") -> None:
    peer, silence = node.partner.peer, node.partner.silence(node.now())
    if peer is None or silence > node.partner.pace.timeout or peer.status is not Status.RUNNING:
        found = "was never heard" if peer is None else f"is {peer.status}, last heard {silence / 1000:.1f} s ago"
        raise WrongState(f"the peer {found}: there is nobody to hand over to", field="switch")


def _is_switched(node: "Node", was: Role) -> bool:
    if was is Role.STANDBY:
        return node.partner.own.role is Role.ACTIVE
    peer = node.partner.peer
    return node.partner.own.role is Role.STANDBY and peer is not None and peer.role is Role.ACTIVE


def _why(node: "Node") -> str:
    latest = node.conduct.latest
    return "; ".join(f"{step.step}: {step.found}" for step in latest.steps) if latest is not None else "unknown"
