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
    "yirangmq_queue_backlog": ("gauge", "messages ready or delayed"),
    "yirangmq_queue_ready": ("gauge", "messages that may be taken"),
    "yirangmq_queue_delayed": ("gauge", "messages that wait for their time"),
    "yirangmq_queue_leased": ("gauge", "messages in the hands of consumers"),
    "yirangmq_queue_dead": ("gauge", "dead letters"),
    "yirangmq_queue_parked": ("gauge", "messages set aside"),
    "yirangmq_queue_done": ("gauge", "acknowledged messages kept as history"),
    "yirangmq_queue_oldest_age_seconds": ("gauge", "age of the message next in line; 0 if there is none"),
    "yirangmq_queue_paused": ("gauge", "1 while the queue is paused"),
    "yirangmq_queues": ("gauge", "queues in the store"),
    "yirangmq_queues_folded": ("gauge", "queues without series of their own: they are summed up as _other"),
    # per queue, totals that the store keeps since the queue was created
    "yirangmq_published_total": ("counter", "messages published"),
    "yirangmq_acked_total": ("counter", "messages acknowledged"),
    "yirangmq_failed_total": ("counter", "failed attempts: nacks, lapsed leases, refused and expired messages"),
    "yirangmq_dropped_total": ("counter", "messages given up for good"),
    "yirangmq_redriven_total": ("counter", "dead letters put back in line"),
    # per queue, since this server started
    "yirangmq_published_bytes_total": ("counter", "payload bytes published"),
    "yirangmq_leased_total": ("counter", "messages handed out"),
    "yirangmq_nacked_total": ("counter", "messages given back as failed, by reason"),
    "yirangmq_released_total": ("counter", "messages given back untouched"),
    "yirangmq_extended_total": ("counter", "leases extended"),
    "yirangmq_lapsed_total": ("counter", "leases that ended without a word"),
    "yirangmq_died_total": ("counter", "messages that became dead letters, by reason"),
    "yirangmq_gone_total": ("counter", "messages dropped, by why: asked, expired, retention, quota, given_up"),
    "yirangmq_refused_total": ("counter", "messages not taken in, by the code of the error"),
    "yirangmq_wait_seconds": ("histogram", "from the moment a message could be taken to its lease"),
    "yirangmq_processing_seconds": ("histogram", "from lease to ack"),
    # topics, if the server has any
    "yirangmq_topic_last_sequence": ("gauge", "sequence of the latest record of the topic"),
    "yirangmq_topic_bytes": ("gauge", "bytes of the topic's records that are kept"),
    "yirangmq_feed_last_sequence": ("gauge", "sequence of the latest record of all topics"),
    "yirangmq_feed_published_total": ("counter", "records published since the start"),
    "yirangmq_feed_published_bytes_total": ("counter", "bytes of their frames"),
    "yirangmq_feed_commits_total": ("counter", "commits they shared"),
    "yirangmq_feed_commit_seconds": ("histogram", "writing and syncing a commit of records"),
    "yirangmq_feed_online": ("gauge", "1 while records are taken and sent"),
    "yirangmq_feed_recovering": ("gauge", "subscribers that recovery workers are busy with"),
    "yirangmq_subscribers": ("gauge", "subscribers, by state"),
    "yirangmq_subscriber_lag": ("gauge", "records that match a subscriber's filter and are not sent yet"),
    "yirangmq_subscriber_late": ("gauge", "connected subscribers that are behind by more than topic_lag_limit"),
    # bridges from topics to queues
    "yirangmq_bridge_lag": ("gauge", "records between a bridge and the end of the log"),
    "yirangmq_bridge_records_total": ("counter", "records that a bridge brought into its queue since the start"),
    "yirangmq_bridge_running": ("gauge", "1 while a bridge is neither paused, waiting nor stopped"),
    # queues in etcd: `cluster status --metrics`; the last one also of a server that leads its cluster
    "yirangmq_cluster_inbox": ("gauge", "messages that etcd clients put and that are not in line yet"),
    "yirangmq_cluster_line": ("gauge", "messages in line, with and without a consumer"),
    "yirangmq_cluster_waiting": ("gauge", "messages in line that were never delivered"),
    "yirangmq_cluster_leased": ("gauge", "messages that a consumer has and has not acked"),
    "yirangmq_cluster_returned": ("gauge", "messages in line that came back after a delivery"),
    "yirangmq_cluster_dead": ("gauge", "dead letters of the queue"),
    "yirangmq_cluster_consumers": ("gauge", "registered consumers"),
    "yirangmq_cluster_moved_total": ("counter", "messages moved into line since the queue exists"),
    "yirangmq_cluster_acked_total": ("counter", "messages acked and removed since the queue exists"),
    "yirangmq_cluster_ignored_keys": ("gauge", "keys of etcd clients that no node acts on, at most 5 of a kind"),
    # STOMP listener, if it is on
    "yirangmq_stomp_connections": ("gauge", "STOMP clients connected"),
    "yirangmq_stomp_frames_total": ("counter", "frames since the start, by command: those of clients, and MESSAGE"),
    "yirangmq_stomp_errors_total": ("counter", "ERROR frames since the start, by the code of the error"),
    # pair, if this server is one of two
    "yirangmq_pair_active": ("gauge", "1 while this node is the active one"),
    "yirangmq_pair_term": ("gauge", "the term, which rises with every takeover"),
    "yirangmq_pair_silence_seconds": ("gauge", "since the other node was heard, or since the start"),
    "yirangmq_pair_link_delay_seconds": ("gauge", "from a heartbeat to its echo, without the time at the other node"),
    "yirangmq_pair_switches": ("gauge", "switches of this node in the last day"),
    "yirangmq_pair_heartbeats_total": ("counter", "heartbeats since the start, by way: sent, heard, refused"),
    # alerts
    "yirangmq_alerts_open": ("gauge", "alerts that are open, by level"),
    "yirangmq_alerts_total": ("counter", "what happened to alerts, by event (docs/alerts.md)"),
    "yirangmq_alert_notices_total": ("counter", "notices by sink and outcome since the start: sent, failed, lost"),
    "yirangmq_alert_notices_pending": ("gauge", "notices that a sink has not taken yet"),
    # server
    "yirangmq_commit_requests": ("histogram", "requests that shared a commit"),
    "yirangmq_commit_messages": ("histogram", "messages changed in a commit"),
    "yirangmq_commit_work_seconds": ("histogram", "work inside a commit, before it is written"),
    "yirangmq_commit_sync_seconds": ("histogram", "writing and syncing a commit"),
    "yirangmq_loop_stall_seconds": ("histogram", "how late the event loop ran its timers: what blocks it delays all"),
    "yirangmq_connections": ("gauge", "clients connected"),
    "yirangmq_connections_total": ("counter", "clients accepted since the start"),
    "yirangmq_clients_refused_total": (
        "counter",
        "programs not let in, or not allowed what they asked",
    ),
    "yirangmq_delayed_attempts_total": (
        "counter",
        "tokens that were looked at late, after too many wrong ones from their address",
    ),
    "yirangmq_deliveries_total": ("counter", "deliveries that ended, by queue and status, where there is a strategy"),
    "yirangmq_sent_away_total": ("counter", "clients refused or closed, by reason"),
    "yirangmq_store_used_bytes": ("gauge", "bytes of the store in use, where it can tell"),
    "yirangmq_disk_free_bytes": ("gauge", "free bytes on the disk of the store"),
    "yirangmq_uptime_seconds": ("gauge", "seconds since the start"),
    "yirangmq_resident_memory_bytes": ("gauge", "memory of the server's process"),
    "yirangmq_info": ("gauge", "always 1; its labels say version, node and durability"),
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
