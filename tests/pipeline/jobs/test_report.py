"""The report's figures beside the same ones worked out in plain Python."""

import json
import math
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import made_data
from tests.pipeline.made_data import MESSAGES, NOW, RECORDS
from yirangmq.core.errors import BadInput
from yirangmq.pipeline.jobs import report as page
from yirangmq.pipeline.jobs.analysis import NO_SHAPE, audit, gaps, poison_messages, poison_shapes, repeats
from yirangmq.pipeline.jobs.report import report

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
DEAD = ("dead", "parked")
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, list[dict[str, Any]]]:
    return page.values(report(made_data.frame(spark, made_data.messages(), MESSAGES), NOW))


def ended(row: dict[str, Any]) -> datetime | None:
    if row["status"] == "done":
        return row["changed_at"]  # type: ignore[no-any-return]
    return (row["failed_at"] or row["changed_at"]) if row["status"] in DEAD else None


def moment(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def test_report_totals_per_queue_equal_those_of_plain_python(found: dict[str, Any]) -> None:
    for queue, told in zip(("mail", "orders"), found["totals"], strict=True):
        rows = [row for row in made_data.messages() if row["queue"] == queue]
        done = sum(row["status"] == "done" for row in rows)
        dead = sum(row["status"] in DEAD for row in rows)
        assert told["failure_rate"] == pytest.approx(dead / (done + dead))
        del told["failure_rate"]
        assert told == {
            "queue": queue,
            "messages": len(rows),
            "done": done,
            "dead": dead,
            "retried": sum(row["attempt"] > 1 for row in rows),
            "bytes": sum(len(row["value"]) for row in rows),
        }


def test_report_rates_are_counted_by_the_minute(found: dict[str, Any]) -> None:
    counted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in made_data.messages():
        for what, at in (
            ("published", row["enqueued_at"]),
            ("dead" if row["status"] in DEAD else "done", ended(row)),
        ):
            if at is not None:
                counted[row["queue"], moment(at.replace(second=0, microsecond=0))][what] += 1
    wanted = [
        {"queue": queue, "minute": minute, **{what: count[what] for what in ("published", "done", "dead")}}
        for (queue, minute), count in sorted(counted.items())
    ]
    assert found["rates"] == wanted


def test_report_times_are_percentiles_of_the_nearest_rank(found: dict[str, Any]) -> None:
    spans: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in made_data.messages():
        queue, leased = row["queue"], row["leased_at"]
        if leased is not None:
            spans[queue, "wait"].append((leased - row["enqueued_at"]).total_seconds())
        if row["status"] == "done":
            spans[queue, "processing"].append((row["changed_at"] - leased).total_seconds())
            spans[queue, "whole"].append((row["changed_at"] - row["enqueued_at"]).total_seconds())
    told = {(row["queue"], row["span"]): row for row in found["times"]}
    assert told.keys() == spans.keys()
    for key, seconds in spans.items():
        seconds.sort()
        assert told[key]["messages"] == len(seconds)
        assert told[key]["most"] == pytest.approx(seconds[-1], abs=1e-5)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert told[key][name] == pytest.approx(seconds[math.ceil(share * len(seconds)) - 1], abs=1e-5)


def test_report_dead_letters_are_counted_by_reason_with_their_growth(found: dict[str, Any]) -> None:
    dead = [row for row in made_data.messages() if row["status"] in DEAD]
    groups: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    for row in dead:
        at = ended(row)
        assert at is not None
        groups[row["queue"], row["failure_reason"] or "unknown"].append(at)
    wanted = []
    for (queue, reason), times in groups.items():
        late = sum(at >= NOW - DAY for at in times)
        before = sum(NOW - 2 * DAY <= at < NOW - DAY for at in times)
        wanted.append({"queue": queue, "reason": reason, "dead": len(times), "late": late, "before": before,
                       "growth": late - before})  # fmt: skip
    wanted.sort(key=lambda row: (row["queue"], -int(str(row["dead"])), row["reason"]))
    assert found["dead_letters"] == wanted
    assert any(row["growth"] != 0 for row in wanted)


def test_report_retries_by_attempt_and_publishes_by_week_are_counted(found: dict[str, Any]) -> None:
    rows = made_data.messages()
    tried = Counter((row["queue"], row["attempt"]) for row in rows if row["attempt"])
    assert found["retries"] == [
        {"queue": queue, "attempt": attempt, "messages": count} for (queue, attempt), count in sorted(tried.items())
    ]
    weeks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        day = row["enqueued_at"].astimezone(UTC).date()
        weeks[row["queue"], (day - timedelta(days=day.weekday())).isoformat()].append(len(row["value"]))
    assert found["weeks"] == [
        {"queue": queue, "week": week, "published": len(sizes), "bytes": sum(sizes)}
        for (queue, week), sizes in sorted(weeks.items())
    ]


def test_report_page_contains_everything_escaped_and_loads_nothing(found: dict[str, Any]) -> None:
    totals = [{**row, "queue": "<b>&"} for row in found["totals"]]
    text = page.page({**found, "totals": totals, "empty": []}, "Report", "now")
    assert text.count("<svg") == 8
    assert "&lt;b&gt;&amp;" in text
    assert "<b>&" not in text
    assert not any(word in text for word in ("http", "<script", "src=", "@import", "url("))
    json.dumps(found)


def test_report_counts_records_of_a_topic_too(spark: SparkSession) -> None:
    rows = made_data.records()
    told = page.values(report(made_data.frame(spark, rows, RECORDS), NOW))
    counted = Counter(row["topic"] for row in rows)
    assert [(row["queue"], row["messages"], row["failure_rate"]) for row in told["totals"]] == [
        ("quotes", counted["quotes"], None),
        ("trades", counted["trades"], None),
    ]
    assert told["times"] == told["dead_letters"] == told["retries"] == []
    with pytest.raises(BadInput, match="now"):
        report(made_data.frame(spark, rows, RECORDS), NOW.replace(tzinfo=None))


def test_audit_finds_missing_and_repeated_records(spark: SparkSession) -> None:
    rows = [row for row in made_data.records() if (row["topic"], row["offset"]) not in {("trades", 5), ("trades", 6)}]
    again = next(row for row in rows if (row["topic"], row["offset"]) == ("quotes", 9))
    frame = made_data.frame(spark, [*rows, again, {**again, "value": b"other"}], RECORDS)
    most = {topic: max(row["offset"] for row in rows if row["topic"] == topic) for topic in ("quotes", "trades")}
    assert [tuple(row) for row in audit(frame).collect()] == [
        ("quotes", 1, most["quotes"], most["quotes"] + 2, 0, 2),
        ("trades", 1, most["trades"], most["trades"] - 2, 2, 0),
    ]
    assert [tuple(row) for row in gaps(frame).collect()] == [("trades", 5, 6, 2)]
    assert [tuple(row) for row in repeats(frame).collect()] == [("quotes", 9, 3, True)]
    assert audit(frame.limit(0)).collect() == []


def test_poison_messages_are_the_payloads_that_keep_failing(spark: SparkSession) -> None:
    dead = [row for row in made_data.messages() if row["status"] in DEAD]
    frame = made_data.frame(spark, made_data.messages(), MESSAGES)
    groups: dict[tuple[str, bytes], list[dict[str, Any]]] = defaultdict(list)
    for row in dead:
        groups[row["queue"], row["value"]].append(row)
    wanted = {
        (queue, len(rows), sum(row["attempt"] for row in rows), len({row["worker"] for row in rows}),
         tuple(sorted({row["failure_reason"] for row in rows if row["failure_reason"]})),
         tuple(sorted(row["message_id"] for row in rows)[:3]))
        for (queue, _), rows in groups.items() if sum(row["attempt"] for row in rows) >= 5
    }  # fmt: skip
    told = poison_messages(frame, 5).collect()
    assert wanted
    assert wanted == {
        (row["queue"], row["messages"], row["failures"], row["workers"], tuple(row["reasons"]), tuple(row["ids"]))
        for row in told
    }
    assert [row["failures"] for row in told] == sorted((row["failures"] for row in told), reverse=True)


def test_poison_shapes_are_the_payload_shapes_that_keep_failing(spark: SparkSession) -> None:
    def shape(value: bytes) -> str:
        try:
            names = json.loads(value)
        except ValueError:
            return NO_SHAPE
        return ",".join(sorted(names))

    dead = [row for row in made_data.messages() if row["status"] in DEAD]
    wanted = Counter((row["queue"], shape(row["value"]), row["failure_reason"]) for row in dead)
    told = poison_shapes(made_data.frame(spark, made_data.messages(), MESSAGES), 4).collect()

    def members(text: str) -> str:
        names = [word.rstrip(":") for word in text.replace("OBJECT<", "").split() if word.endswith(":")]
        return text if text == NO_SHAPE else ",".join(sorted(names))

    counted = {(row["queue"], members(row["shape"]), row["reason"]): row["messages"] for row in told}
    assert counted == {key: count for key, count in wanted.items() if count >= 4}
    with pytest.raises(BadInput, match="least"):
        poison_shapes(made_data.frame(spark, [], MESSAGES), 0)
