"""Report job: volume, durations, failures and retries per queue, as frames, as JSON and as an HTML page.

The input is messages of the data source (states together) or of an archive. Records of a topic count as published
messages only. The wait is known for messages that are leased now. If the rows have a column ``leased_at``, the wait is
known for all, and so is the processing time.

The HTML page draws its charts inline as SVG; it has no scripts and loads nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from html import escape
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from yirangmq.core.errors import BadInput

# -- frames ------------------------------------------------------------------------------------------------------------

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ACCURACY = 10_000
GROWTH = timedelta(days=1)
"""Period of the dead-letter comparison: dead letters of the last period are compared with those of the period
before."""


def report(messages: DataFrame, now: datetime, growth: timedelta = GROWTH) -> dict[str, DataFrame]:
    """Return the frames of the report by name; ``now`` must have a time zone."""
    if now.tzinfo is None:
        raise BadInput("needs a time zone", field="now")
    rows = normal(messages)
    return {
        "totals": totals(rows),
        "rates": rates(rows),
        "times": times(rows),
        "dead_letters": dead_letters(rows, now, growth),
        "retries": retries(rows),
        "weeks": weeks(rows),
    }


def normal(frame: DataFrame) -> DataFrame:
    """Return the columns a report uses, under the names of message columns."""
    if "global_seq" in frame.columns:
        made: Mapping[str, Column] = {
            "queue": F.col("topic"),
            "status": F.lit("record"),
            "attempt": F.lit(0),
            "enqueued_at": F.col("timestamp"),
            "ended_at": F.lit(None).cast("timestamp"),
            "leased_at": F.lit(None).cast("timestamp"),
            "failure_reason": F.lit(None).cast("string"),
            "size": F.octet_length("value"),
        }
        return frame.select(*(column.alias(name) for name, column in made.items()))
    leased = F.when(F.col("status") == "leased", F.col("changed_at"))
    if "leased_at" in frame.columns:
        leased = F.coalesce(F.col("leased_at"), leased)
    ended = F.when(F.col("status") == "done", F.col("changed_at")).when(
        F.col("status").isin("dead", "parked"), F.coalesce("failed_at", "changed_at")
    )
    return frame.select(
        "queue",
        "status",
        F.coalesce("attempt", F.lit(0)).alias("attempt"),
        "enqueued_at",
        ended.alias("ended_at"),
        leased.alias("leased_at"),
        F.coalesce("failure_reason", F.lit("unknown")).alias("failure_reason"),
        F.octet_length("value").alias("size"),
    )


def totals(rows: DataFrame) -> DataFrame:
    """Return a row per queue: number of messages by state, and the share of dead ones among those that ended."""
    done, dead = F.count_if(F.col("status") == "done"), F.count_if(_is_dead())
    return (
        rows.groupBy("queue")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            done.alias("done"),
            dead.alias("dead"),
            F.count_if(F.col("attempt") > 1).alias("retried"),
            F.sum("size").alias("bytes"),
            F.when(done + dead > 0, dead / (done + dead)).alias("failure_rate"),
        )
        .orderBy("queue")
    )


def rates(rows: DataFrame) -> DataFrame:
    """Return a row per queue and minute: number of messages published, done and dead."""
    happened = rows.select(
        "queue",
        F.explode(
            F.array(
                F.struct(F.lit("published").alias("what"), F.col("enqueued_at").alias("at")),
                F.struct(F.when(_is_dead(), "dead").otherwise("done").alias("what"), F.col("ended_at").alias("at")),
            )
        ).alias("one"),
    ).where("one.at is not null")
    return (
        happened.groupBy("queue", F.date_trunc("minute", "one.at").alias("minute"))
        .agg(*(F.count_if(F.col("one.what") == what).alias(what) for what in ("published", "done", "dead")))
        .orderBy("queue", "minute")
    )


def times(rows: DataFrame) -> DataFrame:
    """Return percentiles per queue and span, in seconds.

    The spans are published to leased (wait), leased to done (processing) and published to done (whole)."""
    is_done = F.col("status") == "done"
    spans = {
        "wait": _seconds("enqueued_at", "leased_at"),
        "processing": F.when(is_done, _seconds("leased_at", "ended_at")),
        "whole": F.when(is_done, _seconds("enqueued_at", "ended_at")),
    }
    each = F.explode(F.array(*(F.struct(F.lit(name).alias("span"), span.alias("s")) for name, span in spans.items())))
    found = rows.select("queue", each.alias("one")).where("one.s is not null")
    measures = [F.percentile_approx("one.s", share, ACCURACY).alias(name) for name, share in SHARES.items()]
    counted = F.count(F.lit(1)).alias("messages")
    grouped = found.groupBy("queue", F.col("one.span").alias("span"))
    return grouped.agg(counted, *measures, F.max("one.s").alias("most")).orderBy("queue", "span")


def dead_letters(rows: DataFrame, now: datetime, growth: timedelta) -> DataFrame:
    """Return a row per queue and reason: number of dead letters, of the last period, and of the period before."""
    edge, before = F.lit(now - growth), F.lit(now - 2 * growth)
    late = F.count_if(F.col("ended_at") >= edge)
    earlier = F.count_if((F.col("ended_at") >= before) & (F.col("ended_at") < edge))
    return (
        rows.where(_is_dead())
        .groupBy("queue", F.col("failure_reason").alias("reason"))
        .agg(
            F.count(F.lit(1)).alias("dead"),
            late.alias("late"),
            earlier.alias("before"),
            (late - earlier).alias("growth"),
        )
        .orderBy("queue", F.desc("dead"), "reason")
    )


def retries(rows: DataFrame) -> DataFrame:
    """Return a row per queue and number of attempts: number of messages."""
    tried = rows.where("attempt > 0")
    return tried.groupBy("queue", "attempt").agg(F.count(F.lit(1)).alias("messages")).orderBy("queue", "attempt")


def weeks(rows: DataFrame) -> DataFrame:
    """Return a row per queue and week, from Monday: number and bytes of published messages."""
    week = F.to_date(F.date_trunc("week", "enqueued_at")).alias("week")
    counted = [F.count(F.lit(1)).alias("published"), F.sum("size").alias("bytes")]
    return rows.groupBy("queue", week).agg(*counted).orderBy("queue", "week")


def _is_dead() -> Column:
    return F.col("status").isin("dead", "parked")


def _seconds(begin: str, end: str) -> Column:
    return F.col(end).cast("double") - F.col(begin).cast("double")


# -- JSON and HTML -----------------------------------------------------------------------------------------------------

Rows = list[dict[str, Any]]
TITLES = {
    "totals": "Queues",
    "rates": "Messages a minute",
    "times": "How long it took, in seconds",
    "dead_letters": "Dead letters by reason",
    "retries": "Attempts",
    "weeks": "Volume by week",
}
WIDTH, HEIGHT, PAD = 720, 200, 40
COLORS = {"published": "#2563eb", "done": "#16a34a", "dead": "#dc2626"}
MAX_ROWS = 200
MAX_QUEUES = 20
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1f2937;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}h3{font-size:1rem;margin:1rem 0 .2rem}
table{border-collapse:collapse;width:100%}th,td{padding:.25rem .6rem;text-align:left;border-bottom:1px solid #e5e7eb}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}figcaption,p.note{color:#6b7280}figure{margin:0}
svg{max-width:100%;height:auto}text{font-size:11px;fill:#6b7280}
@media(prefers-color-scheme:dark){body{background:#111827;color:#e5e7eb}th,td{border-color:#374151}}
"""


def values(frames: Mapping[str, DataFrame]) -> dict[str, Rows]:
    """Return the rows of all frames as JSON values."""
    return {name: [_document(row) for row in frame.collect()] for name, frame in frames.items()}


def _document(row: Row) -> dict[str, Any]:
    return {name: _plain(value) for name, value in zip(row.__fields__, row, strict=True)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")  # Spark returns local time
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return [_plain(one) for one in value] if isinstance(value, list) else value


def page(found: Mapping[str, Rows], title: str, made_at: str) -> str:
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>",
        f"<meta name=viewport content='width=device-width'><h1>{escape(title)}</h1>",
        f"<p class=note>Made {escape(made_at)}; times are in UTC.</p>",
    ]
    for name, rows in found.items():
        parts.append(f"<h2>{escape(TITLES.get(name, name))}</h2>")
        parts += CHARTS[name](rows) if name in CHARTS and rows else ()
        parts.append(_table(rows))
    return "\n".join(parts) + "\n"


def _table(rows: Rows) -> str:
    if not rows:
        return "<p class=note>Nothing to show.</p>"
    numeric = {name for name in rows[0] if all(isinstance(row[name], int | float | None) for row in rows)}
    kind = {name: " class=n" if name in numeric else "" for name in rows[0]}
    head = "".join(f"<th{kind[name]}>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td{kind[name]}>{_cell(value)}</td>" for name, value in row.items()) + "</tr>"
        for row in rows[:MAX_ROWS]
    )
    more = f"<p class=note>{len(rows) - MAX_ROWS:,} more rows are in the JSON.</p>" if len(rows) > MAX_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def _by_queue(rows: Rows) -> Iterable[tuple[str, Rows]]:
    names = sorted({row["queue"] for row in rows})
    for name in names[:MAX_QUEUES]:
        yield name, [row for row in rows if row["queue"] == name]


def _rate_charts(rows: Rows) -> list[str]:
    return [_lines(name, [row["minute"] for row in found], found) for name, found in _by_queue(rows)]


def _lines(name: str, labels: Sequence[str], rows: Rows) -> str:
    """Draw a line per counter.

    Minutes without messages have no rows; the line drops to 0 between them."""
    at = [datetime.fromisoformat(label).timestamp() / 60 for label in labels]
    most = max(max(row[what] for what in COLORS) for row in rows) or 1
    wide = max(at[-1] - at[0], 1)
    drawn = []
    for what, color in COLORS.items():
        points: list[tuple[float, float]] = []
        for n, minute in enumerate(at):
            if n and minute - at[n - 1] > 1:
                points += [(at[n - 1] + 1, 0), (minute - 1, 0)]
            points.append((minute, rows[n][what]))
        path = " ".join(f"{_x((x - at[0]) / wide):.1f},{_y(y / most):.1f}" for x, y in points)
        if len(points) == 1:
            path += f" {WIDTH - PAD},{_y(points[0][1] / most):.1f}"
        drawn.append(f"<polyline fill=none stroke='{color}' stroke-width=1.5 points='{path}'/>")
    legend = ", ".join(f"<span style='color:{color}'>{what}</span>" for what, color in COLORS.items())
    return _figure(name, f"{legend}; at most {most:,} a minute", drawn, labels[0], labels[-1], most)


def _bar_charts(rows: Rows, label: str, value: str) -> list[str]:
    return [_bars(name, [(str(row[label]), row[value]) for row in found]) for name, found in _by_queue(rows)]


def _bars(name: str, found: Sequence[tuple[str, int]]) -> str:
    most = max(value for _, value in found) or 1
    step = (WIDTH - 2 * PAD) / len(found)
    drawn = [
        f"<rect x={PAD + n * step + 1:.1f} y={_y(value / most):.1f} width={max(step - 2, 1):.1f} "
        f"height={_y(0) - _y(value / most):.1f} fill='#2563eb'><title>{escape(label)}: {value:,}</title></rect>"
        for n, (label, value) in enumerate(found)
    ]
    return _figure(
        name, f"from {escape(found[0][0])} to {escape(found[-1][0])}", drawn, found[0][0], found[-1][0], most
    )


def _figure(name: str, caption: str, drawn: Iterable[str], first: str, last: str, most: int) -> str:
    axis = (
        f"<line x1={PAD} x2={WIDTH - PAD} y1={_y(0)} y2={_y(0)} stroke='#9ca3af'/>"
        f"<text x={PAD} y={HEIGHT - 8}>{escape(first)}</text>"
        f"<text x={WIDTH - PAD} y={HEIGHT - 8} text-anchor=end>{escape(last)}</text>"
        f"<text x={PAD - 6} y={_y(1) + 4} text-anchor=end>{most:,}</text>"
    )
    return (
        f"<figure><h3>{escape(name)}</h3><svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img aria-label='{escape(name)}'>"
        f"{axis}{''.join(drawn)}</svg><figcaption>{caption}</figcaption></figure>"
    )


def _x(share: float) -> float:
    return PAD + share * (WIDTH - 2 * PAD)


def _y(share: float) -> float:
    return HEIGHT - PAD - share * (HEIGHT - 2 * PAD)


CHARTS: dict[str, Callable[[Rows], list[str]]] = {
    "rates": _rate_charts,
    "dead_letters": lambda rows: _bar_charts(rows, "reason", "dead"),
    "retries": lambda rows: _bar_charts(rows, "attempt", "messages"),
    "weeks": lambda rows: _bar_charts(rows, "week", "published"),
}
