"""What a server tells of itself: the facts of ``status``, its own metrics, who may come.

Knows: where each number stands. Does not know: who asks, or how it is shown."""

import time
from typing import TYPE_CHECKING, Any

from yirangmq import __version__
from yirangmq.admin.registry import Done, Given, reading
from yirangmq.broker.group_commit import Desk
from yirangmq.cli.parts import ServerParts
from yirangmq.core.access import show as show_programs
from yirangmq.observe.metrics import resident_bytes

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import Reading


class Telling:
    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts

    def facts(self) -> dict[str, Any]:
        parts, entrance = self._parts, self._parts.entrance
        return {
            "server": f"yirangmq {__version__}",
            "node": parts.config.node_name,
            "store": parts.config.store_url,
            "durability": parts.store.durability(),
            "addresses": entrance.addresses,
            "uptimeSec": self._uptime(),
            "connections": entrance.clients,
            "accepted": entrance.accepted,
            "sentAway": entrance.sent_away(),
            "topics": parts.topic_calls.facts(),
            "pair": None if parts.pair is None else parts.pair.facts(),
            "cluster": None if parts.cluster is None else parts.cluster.facts(),
            "bridges": parts.bridging.calls.facts(),
            "filesByDate": None if parts.day_files is None else parts.day_files.facts(),
            "alerts": parts.alerting.calls.facts(),
            "stomp": None if entrance.stomp is None else entrance.stomp.describe(),
        }

    def programs(self, desk: Desk, given: Given, done: Done) -> None:
        """Who may come, who may send to whom, and who was refused."""
        reading(given, lambda values: None)
        rows = show_programs(self._parts.config.programs, self._parts.config.routes)
        done({"programs": rows, "refused": self._parts.refusals.document()}, None)

    def samples(self) -> "dict[str, Reading]":
        """The server's own metrics, and those of its parts."""
        parts = self._parts
        found = self._own() | self._measured()
        for calls in (parts.topic_calls, parts.bridging.calls, parts.alerting.calls):
            found |= calls.samples()
        for part in (parts.entrance.stomp, parts.pair):
            found |= {} if part is None else part.samples()
        return found

    def _own(self) -> "dict[str, Reading]":
        parts, entrance = self._parts, self._parts.entrance
        labels = {
            "version": __version__,
            "node": parts.config.node_name,
            "durability": parts.store.durability(),
        }
        return {
            "yirangmq_loop_stall_seconds": parts.watchdog.delays,
            "yirangmq_connections": [({}, entrance.clients)],
            "yirangmq_connections_total": [({}, entrance.accepted)],
            "yirangmq_sent_away_total": [({"reason": why}, n) for why, n in sorted(entrance.sent_away().items())],
            "yirangmq_clients_refused_total": [
                ({"door": door, "reason": why}, n) for (door, why), n in sorted(parts.refusals.counts.items())
            ],
            "yirangmq_delayed_attempts_total": [
                ({}, 0 if parts.house.attempts is None else parts.house.attempts.delayed)
            ],
            "yirangmq_deliveries_total": [
                ({"queue": queue, "status": status}, n)
                for (queue, status), n in sorted(parts.desk.verbs.happened.deliveries.totals.items())
            ],
            "yirangmq_uptime_seconds": [({}, self._uptime())],
            "yirangmq_info": [(labels, 1)],
        }

    def _measured(self) -> "dict[str, Reading]":
        """Those that cannot be told are left out."""
        disk = self._parts.disk
        measured = {
            "yirangmq_resident_memory_bytes": resident_bytes(),
            "yirangmq_disk_free_bytes": None if disk is None else disk.free,
            "yirangmq_store_used_bytes": None if disk is None else disk.used,
        }
        return {name: [({}, value)] for name, value in measured.items() if value is not None}

    def _uptime(self) -> float:
        return round(time.monotonic() - self._parts.started, 3)
