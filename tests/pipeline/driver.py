"""A Spark driver as a process of its own: a stream from a topic into a topic and a queue. To be killed.

    python -m tests.pipeline.driver '{"master": …, "broker": …, "checkpoint": …, "until": 0}'

Every tenth number goes to the queue ``k-out``, the others to the topic ``k.out``, in one commit a batch. ``path`` reads
the log's files instead of asking the server. ``until``: 0 goes on for ever, 1 ends when all there is was read."""

import json
import sys
import warnings
from typing import Any

from yirangmq.pipeline.session import session

OPTIONS = {"subscribe": "k.in", "startingOffsets": "earliest"}
PATIENT = {"timeoutSec": "900"}
"""A busy machine may take long to start a server again."""
TARGET = "case when cast(cast(value as string) as int) % 10 = 0 then 'queue:k-out' else 'topic:k.out' end target"


def main(told: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = session("killed", told["master"], told.get("settings"), ship=told.get("ship"))
    way = {"path": told["path"]} if "path" in told else {"broker": told["broker"], **PATIENT}
    more = {"maxOffsetsPerTrigger": str(told.get("perTrigger", 200)), "minPartitions": str(told.get("tasks", 2))}
    found = spark.readStream.format("yirangmq").options(**OPTIONS, **way, **more).load()
    sink = found.selectExpr("value", TARGET).writeStream.format("yirangmq")
    sink = sink.options(**PATIENT, broker=told["broker"], checkpointLocation=told["checkpoint"])
    query = (sink.trigger(availableNow=True) if told["until"] else sink).start()
    print(query.id, flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
