"""Prometheus text format, and the table of all metrics.

A metric is a row of ``METRICS``; a test compares docs/metrics.md with it. Queues without separate series are summed up
under the label ``_other``. The text is built in parts of 100 queues' histograms, so that the event loop can run between
two parts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from yirangmq.observe.metrics import Histogram, Metrics, QueueMetrics

OTHER = "_other"
"""Label of the sum of all queues without separate series."""
QUEUES, FOLDED = "yirangmq_queues", "yirangmq_queues_folded"
QUEUES_PER_PART = 100
"""Queues per part of the text. A histogram takes about 20 lines per queue."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]
MetricValue = Samples | Histogram
"""Value of one metric as reported by a part of the server."""

METRICS: dict[str, tuple[str, str]] = {
    # per queue, current values from the store
    "yirangmq_queue_backlog": ("gauge", "messages that are ready or delayed"),
    "yirangmq_queue_ready": ("gauge", "messages that may be leased"),
    "yirangmq_queue_delayed": ("gauge", "messages that become ready at a later time"),
    "yirangmq_queue_leased": ("gauge", "messages that consumers have leased"),
    "yirangmq_queue_dead": ("gauge", "dead letters"),
    "yirangmq_queue_parked": ("gauge", "messages in quarantine (state parked)"),
    "yirangmq_queue_done": ("gauge", "acked messages kept as history"),
    "yirangmq_queue_oldest_age_seconds": ("gauge", "age of the message that is delivered next; 0 if there is none"),
    "yirangmq_queue_paused": ("gauge", "1 while the queue is paused"),
    "yirangmq_queues": ("gauge", "queues in the store"),
    "yirangmq_queues_folded": ("gauge", "queues without separate series: the series _other has their sums"),
    # per queue, totals that the store keeps since the queue was created
    "yirangmq_published_total": ("counter", "messages published"),
    "yirangmq_acked_total": ("counter", "messages acked"),
    "yirangmq_failed_total": ("counter", "failed attempts: nacks, expired leases, rejected and expired messages"),
    "yirangmq_dropped_total": ("counter", "messages dropped"),
    "yirangmq_redriven_total": ("counter", "dead letters redriven"),
    # per queue, since this server started
    "yirangmq_published_bytes_total": ("counter", "payload bytes published"),
    "yirangmq_leased_total": ("counter", "messages leased"),
    "yirangmq_nacked_total": ("counter", "messages nacked, by reason"),
    "yirangmq_released_total": ("counter", "messages released"),
    "yirangmq_extended_total": ("counter", "leases extended"),
    "yirangmq_lapsed_total": ("counter", "leases that expired without ack, nack or release"),
    "yirangmq_died_total": ("counter", "messages that became dead letters, by reason"),
    "yirangmq_gone_total": ("counter", "messages dropped, by reason: asked, expired, retention, quota, given_up"),
    "yirangmq_refused_total": ("counter", "messages rejected at publishing, by the code of the error"),
    "yirangmq_wait_seconds": ("histogram", "time from ready to leased"),
    "yirangmq_processing_seconds": ("histogram", "time from lease to ack"),
    # topics, if the server has any
    "yirangmq_topic_last_sequence": ("gauge", "sequence of the latest record of the topic"),
    "yirangmq_topic_bytes": ("gauge", "bytes of the topic's records that are kept"),
    "yirangmq_feed_last_sequence": ("gauge", "sequence of the latest record of all topics"),
    "yirangmq_feed_published_total": ("counter", "records published since the start"),
    "yirangmq_feed_published_bytes_total": ("counter", "bytes of the frames of published records"),
    "yirangmq_feed_commits_total": ("counter", "commits of published records"),
    "yirangmq_feed_commit_seconds": ("histogram", "time to write and sync a commit of records"),
    "yirangmq_feed_online": ("gauge", "1 while the publisher accepts and sends records"),
    "yirangmq_feed_recovering": ("gauge", "subscribers whose catch-up is running on a recovery worker"),
    "yirangmq_subscribers": ("gauge", "subscribers, by state"),
    "yirangmq_subscriber_lag": ("gauge", "matching records not yet confirmed (not durable: not yet sent)"),
    "yirangmq_subscriber_late": ("gauge", "connected subscribers whose lag is above topic_lag_limit"),
    # bridges from topics to queues
    "yirangmq_bridge_lag": ("gauge", "records between a bridge and the end of the log"),
    "yirangmq_bridge_records_total": ("counter", "records that a bridge stored in its queue since the start"),
    "yirangmq_bridge_running": ("gauge", "1 while a bridge is neither paused, waiting nor stopped"),
    # queues in etcd: `cluster status --metrics`; the last one also of a server that leads its cluster
    "yirangmq_cluster_inbox": ("gauge", "messages of etcd clients in the inbox, not in the line yet"),
    "yirangmq_cluster_line": ("gauge", "messages in the line, leased or not"),
    "yirangmq_cluster_waiting": ("gauge", "messages in the line that were never delivered"),
    "yirangmq_cluster_leased": ("gauge", "messages delivered to a consumer and not acked"),
    "yirangmq_cluster_returned": (
        "gauge",
        "messages in the line that were returned after a delivery, leased again or not",
    ),
    "yirangmq_cluster_dead": ("gauge", "dead letters of the queue"),
    "yirangmq_cluster_consumers": ("gauge", "registered consumers"),
    "yirangmq_cluster_moved_total": ("counter", "messages moved into the line since the queue was created"),
    "yirangmq_cluster_acked_total": ("counter", "messages acked and removed since the queue was created"),
    "yirangmq_cluster_ignored_keys": ("gauge", "keys of etcd clients that no node acts on, at most 5 of a kind"),
    # STOMP listener, if it is on
    "yirangmq_stomp_connections": ("gauge", "STOMP clients connected"),
    "yirangmq_stomp_frames_total": ("counter", "frames since the start, by command: those of clients, and MESSAGE"),
    "yirangmq_stomp_errors_total": ("counter", "ERROR frames since the start, by the code of the error"),
    # pair, if this server is one of two
    "yirangmq_pair_active": ("gauge", "1 while this node is active"),
    "yirangmq_pair_term": ("gauge", "term of the pair; it rises with each takeover"),
    "yirangmq_pair_silence_seconds": ("gauge", "time since the latest heartbeat of the other node, or since the start"),
    "yirangmq_pair_link_delay_seconds": (
        "gauge",
        "time from a heartbeat to its echo, without the time at the other node",
    ),
    "yirangmq_pair_switches": ("gauge", "switches of this node in the last day"),
    "yirangmq_pair_heartbeats_total": (
        "counter",
        "heartbeats since the start, by kind: sent, heard (received), refused",
    ),
    # alerts
    "yirangmq_alerts_open": ("gauge", "open alerts, by level"),
    "yirangmq_alerts_total": ("counter", "changes of alerts, by event (docs/alerts.md)"),
    "yirangmq_alert_notices_total": ("counter", "notices by sink and outcome since the start: sent, failed, lost"),
    "yirangmq_alert_notices_pending": ("gauge", "notices that a sink has not accepted yet"),
    # server
    "yirangmq_commit_requests": ("histogram", "requests per commit"),
    "yirangmq_commit_messages": ("histogram", "messages changed per commit"),
    "yirangmq_commit_work_seconds": ("histogram", "work inside a commit, before it is written"),
    "yirangmq_commit_sync_seconds": ("histogram", "time to write and sync a commit"),
    "yirangmq_loop_stall_seconds": (
        "histogram",
        "lateness of the event loop's timers; a blocked loop delays all clients",
    ),
    "yirangmq_connections": ("gauge", "clients connected"),
    "yirangmq_connections_total": ("counter", "clients accepted since the start"),
    "yirangmq_clients_refused_total": (
        "counter",
        "programs that were refused a connection or a request",
    ),
    "yirangmq_delayed_attempts_total": (
        "counter",
        "tokens examined late because of too many wrong ones from their address",
    ),
    "yirangmq_deliveries_total": ("counter", "deliveries that ended, of queues with a strategy, by queue and status"),
    "yirangmq_sent_away_total": ("counter", "connections that the server refused or closed, by reason"),
    "yirangmq_store_used_bytes": ("gauge", "bytes of the store in use, where the store reports them"),
    "yirangmq_disk_free_bytes": ("gauge", "free bytes on the disk of the store"),
    "yirangmq_uptime_seconds": ("gauge", "seconds since the start"),
    "yirangmq_resident_memory_bytes": ("gauge", "memory of the server's process"),
    "yirangmq_info": ("gauge", "always 1; the labels are version, node and durability"),
}


def page(
    metrics: Metrics,
    rows: Sequence[Mapping[str, Any]] | None,
    server: Mapping[str, MetricValue],
    everything: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of all metrics."""
    return "\n".join(line for some in parts(metrics, rows, server, everything) for line in some) + "\n"


def samples_page(samples: Mapping[str, MetricValue]) -> str:
    """Return the text of these metrics alone."""
    lines: list[str] = []
    for name, (kind, about) in METRICS.items():
        if (value := samples.get(name)) is not None and not isinstance(value, Histogram):
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *_plain(name, value)]
    return "\n".join(lines) + "\n"


def parts(
    metrics: Metrics,
    rows: Sequence[Mapping[str, Any]] | None,
    server: Mapping[str, MetricValue],
    everything: Mapping[str, Any] | None = None,
) -> Iterator[list[str]]:
    """Yield the lines of all metrics, some thousand at a time.

    ``rows`` has the queues with separate series, as ``status`` shows them; None while the store cannot be read.
    ``everything`` has the sums of all queues; the difference is the series ``_other``. ``server`` has the server's
    samples by metric name."""
    is_read, rows = rows is not None, rows or ()
    if is_read and (everything is None or everything["queues"] <= len(rows)):  # rows has all queues
        metrics.forget(metrics.queues.keys() - {row["queue"] for row in rows})
    named = [({"queue": str(row["queue"])}, row) for row in rows]
    other = None if everything is None else _other(rows, everything)
    if other is not None:
        named.append(({"queue": OTHER}, other))
    known = [({"queue": queue}, numbers) for queue, numbers in sorted(metrics.queues.items())]
    if metrics.other.is_used:
        known.append(({"queue": OTHER}, metrics.other))
    if everything is not None:
        folded = everything["queues"] - len(rows)
        server = {**server, QUEUES: [({}, everything["queues"])], FOLDED: [({}, max(0, folded))]}
    for name, (kind, about) in METRICS.items():
        head = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for begin in range(0, max(1, len(known)), QUEUES_PER_PART) if kind == "histogram" else (0,):
            some = known[begin : begin + QUEUES_PER_PART] if kind == "histogram" else known
            samples = list(_samples(name, kind, metrics, named, some, server))
            if samples:
                yield [*head, *samples]
                head = []
            if name in server or name.startswith("yirangmq_commit_"):
                break


def _other(rows: Sequence[Mapping[str, Any]], everything: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the sums of the queues without separate series; None if there are none. The sums have no ages."""
    if everything["queues"] <= len(rows):
        return None
    sums = {name: everything[name] - sum(row[name] for row in rows) for name in ("backlog", *_STATES)}
    totals = {name: count - sum(row["totals"][name] for row in rows) for name, count in everything["totals"].items()}
    return {**{name: max(0, count) for name, count in sums.items()}, "totals": totals}


def _samples(
    name: str,
    kind: str,
    metrics: Metrics,
    rows: list[tuple[dict[str, str], Mapping[str, Any]]],
    known: list[tuple[dict[str, str], QueueMetrics]],
    server: Mapping[str, MetricValue],
) -> Iterable[str]:
    short = name.removeprefix("yirangmq_")
    if name in server:
        value = server[name]
        return _histogram(name, {}, value, 1) if isinstance(value, Histogram) else _plain(name, value)
    if short.startswith("queue_"):
        what = _ROW_OF.get(short, short.removeprefix("queue_"))
        return _plain(name, [(labels, float(row[what] or 0)) for labels, row in rows if what in row])
    if short in _TOTALS:
        return _plain(name, [(labels, row["totals"][_TOTALS[short]]) for labels, row in rows])
    if kind == "histogram" and short.startswith("commit_"):
        return _histogram(name, {}, _COMMIT[short](metrics), 1)
    if kind == "histogram" and short in _SPANS:
        return [line for labels, one in known for line in _histogram(name, labels, _SPANS[short](one), 1000)]
    if short in _COUNTERS:
        return _plain(name, [sample for labels, one in known for sample in _COUNTERS[short](labels, one)])
    return []


_ROW_OF = {"queue_oldest_age_seconds": "headAgeSec"}
_STATES = ("ready", "delayed", "leased", "dead", "parked", "done")
_TOTALS = {f"{what}_total": what for what in ("published", "acked", "failed", "dropped", "redriven")}
_COMMIT: dict[str, Callable[[Metrics], Histogram]] = {
    "commit_requests": lambda metrics: metrics.commit_requests,
    "commit_messages": lambda metrics: metrics.commit_messages,
    "commit_work_seconds": lambda metrics: metrics.work_seconds,
    "commit_sync_seconds": lambda metrics: metrics.sync_seconds,
}
_SPANS: dict[str, Callable[[QueueMetrics], Histogram]] = {
    "wait_seconds": lambda one: one.waited,
    "processing_seconds": lambda one: one.worked,
}
_COUNTERS: dict[str, Callable[[dict[str, str], QueueMetrics], Samples]] = {
    "published_bytes_total": lambda labels, one: [(labels, one.published_bytes)],
    "leased_total": lambda labels, one: [(labels, one.leased)],
    "nacked_total": lambda labels, one: _by(labels, "reason", one.nacked),
    "released_total": lambda labels, one: [(labels, one.settled["release"])],
    "extended_total": lambda labels, one: [(labels, one.settled["extend"])],
    "lapsed_total": lambda labels, one: [(labels, one.lapsed)],
    "died_total": lambda labels, one: _by(labels, "reason", one.died),
    "gone_total": lambda labels, one: _by(labels, "why", one.dropped),
    "refused_total": lambda labels, one: _by(labels, "code", one.refused),
}


def _by(labels: dict[str, str], label: str, counts: Mapping[str, int]) -> Samples:
    return [({**labels, label: name}, count) for name, count in sorted(counts.items())]


# -- the text ---------------------------------------------------------------------------------------------------------


def _plain(name: str, samples: Samples) -> Iterable[str]:
    return [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]


def _histogram(name: str, labels: Labels, histogram: Histogram, scale: int) -> list[str]:
    """Format a histogram. ``scale`` is the number of histogram units per unit of the metric."""
    bounds = [_number(bound / scale) for bound in histogram.bounds]
    counts = histogram.counts
    lines = [
        f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
        for bound, count in zip([*bounds, "+Inf"], counts, strict=True)
    ]
    lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.total / scale)}")
    lines.append(f"{name}_count{_labels(labels)} {counts[-1]}")
    return lines


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
