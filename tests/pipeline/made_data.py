"""A made set of messages and records, for jobs whose answers the tests work out in plain Python."""

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
MESSAGES = (
    "message_id string, queue string, value binary, type string, status string, priority bigint, attempt int, "
    "enqueued_at timestamp, changed_at timestamp, due_at timestamp, worker string, failure_reason string, "
    "failure_message string, failed_at timestamp, seq bigint, headers map<string,string>, leased_at timestamp"
)
RECORDS = (
    "key string, value binary, topic string, partition int, offset bigint, global_seq bigint, timestamp timestamp, "
    "headers map<string,string>"
)
REASONS = ("TIMEOUT", "REJECTED", None)


def messages() -> list[dict[str, Any]]:
    """600 of two queues over twelve days; times to the millisecond."""
    chance = random.Random(7)
    made = []
    for n in range(600):
        enqueued = NOW - timedelta(seconds=chance.randrange(86400, 12 * 86400), milliseconds=chance.randrange(1000))
        leased = enqueued + timedelta(milliseconds=chance.randrange(1, 90_000))
        changed = leased + timedelta(milliseconds=chance.randrange(1, 30_000))
        status = chance.choices(("done", "dead", "ready", "leased", "parked"), (70, 12, 8, 6, 4))[0]
        is_dead = status in ("dead", "parked")
        if is_dead and chance.random() < 0.6:
            changed = NOW - timedelta(seconds=chance.randrange(2 * 86400))
        made.append(
            {
                "message_id": f"m-{n:04d}",
                "queue": chance.choice(("mail", "orders")),
                "value": _payload(n, is_dead),
                "type": "order",
                "status": status,
                "priority": None,
                "attempt": 0 if status == "ready" else chance.choice((1, 1, 1, 2, 3, 5)),
                "enqueued_at": enqueued,
                "changed_at": leased if status == "leased" else changed,
                "due_at": None,
                "worker": None if status == "ready" else f"w-{n % 3}",
                "failure_reason": chance.choice(REASONS) if is_dead else None,
                "failure_message": "no" if is_dead else None,
                "failed_at": changed if is_dead and n % 2 else None,
                "seq": n + 1,
                "headers": {"traceId": f"t-{n}"},
                "leased_at": leased if status in ("done", "leased", "dead", "parked") else None,
            }
        )
    return made


def _payload(n: int, is_dead: bool) -> bytes:
    if is_dead and n % 5 == 0:
        return b"not json"
    if is_dead and n % 5 == 1:
        return json.dumps({"same": True}).encode()
    return json.dumps({"id": n, "name": f"n{n}"} if n % 2 else {"id": n, "lines": [1, 2]}).encode()


def records(count: int = 200) -> list[dict[str, Any]]:
    """Two topics over three days, as the log gives them: every third in an envelope."""
    made = []
    offsets = {"trades": 0, "quotes": 0}
    for n in range(1, count + 1):
        topic = "trades" if n % 3 else "quotes"
        offsets[topic] += 1
        payload: Any = {"price": n}
        if n % 3 == 0:
            payload = {"messageId": f"r-{n}", "type": "quote", "version": 1, "payload": payload}
        made.append(
            {
                "key": f"k{n % 4}" if n % 2 else None,
                "value": json.dumps(payload).encode(),
                "topic": topic,
                "partition": 0,
                "offset": offsets[topic],
                "global_seq": n,
                "timestamp": NOW - timedelta(days=3) + timedelta(seconds=3 * 86400 * n // count - 1),
                "headers": {"n": str(n)},
            }
        )
    return made


def frame(spark: SparkSession, rows: list[dict[str, Any]], schema: str) -> DataFrame:
    names = [part.split()[0] for part in schema.split(", ")]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)
