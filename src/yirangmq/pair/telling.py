"""Both nodes of a pair in plain values, for people and programs, as one of them knows them."""

from typing import Any

from yirangmq.core.failover import Load, Role
from yirangmq.core.failover_node import Conduct, Partner
from yirangmq.pair.link import Link


def described(conduct: Conduct, link: Link, load: Load, now: int) -> dict[str, Any]:
    partner, decision = conduct.partner, conduct.latest
    own = partner.own
    return {
        "node": own.node,
        "role": own.role,
        "status": own.status,
        "term": own.term,
        "runningSec": (now - own.started_at) / 1000,
        "activeSec": (now - own.active_since) / 1000 if own.role is Role.ACTIVE else 0,
        "switches": partner.switches,
        "witness": conduct.witness,
        "linkDelayMs": partner.delay,
        "longestGapSec": partner.longest_gap / 1000,
        "intervalSec": partner.pace.interval / 1000,
        "timeoutSec": partner.pace.timeout / 1000,
        "heartbeats": {"sent": link.sent, "heard": link.heard, "refused": link.refused},
        "load": _load(load),
        "evidence": [list(step) for step in decision.steps] if decision is not None else [],
        "peer": _peer(partner, now),
    }


def _peer(partner: Partner, now: int) -> dict[str, Any] | None:
    beat = partner.latest
    if beat is None:
        return None
    silence = partner.silence(now)
    return {
        "node": beat.node,
        "role": beat.role,
        "status": beat.status,
        "term": beat.term,
        "heardSec": silence / 1000,
        "silent": silence > partner.pace.timeout,
        "runningSec": beat.running / 1000,
        "clockAheadSec": partner.skew / 1000,
        "addresses": beat.address.split(", ") if beat.address else [],
        "load": _load(beat.load),
    }


def _load(load: Load) -> dict[str, Any]:
    return {"cpu": round(load.cpu, 3), "memory": load.memory, "depth": load.depth}
