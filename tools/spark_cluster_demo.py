"""A pipeline on a real Spark cluster, and kill -9 in the middle of it: ``make spark-cluster-demo``.

Starts a server, a standalone master and two workers on loopback, all in a temporary folder; streams a topic into a
queue and a topic, asking the server over HTTP for every record; kills an executor on the way; compares. The executors
see neither the server's files nor an installed yirangmq: the data source travels with each task."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from yirangmq.pipeline.local_cluster import LocalCluster
from yirangmq.pipeline.source.http_client import HttpBroker

PER_CALL = 1000
TARGET = "case when payload.amount >= 900 then 'queue:large' else 'topic:orders.checked' end target"
HIDE = """import sys
sys.path[:] = [path for path in sys.path if path.rstrip("/") not in {hidden!r}]
"""
"""For the executors' Python: what is installed here from a folder of sources is not there."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000, help="records to stream (default: 60000)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="yirangmq-spark-") as folder:
        return demo(Path(folder), chosen.rows)


def demo(folder: Path, rows: int) -> int:
    print("starting a server")
    server = subprocess.Popen(
        [sys.executable, "-m", "yirangmq", "serve", "--json", "--data", str(folder / "data"), "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        addresses = json.loads(server.stdout.readline())["addresses"]
        broker = HttpBroker(next(one for one in addresses if one.startswith("http:")), None, 60)
        publish(broker, rows)
        print("starting a master and two workers")
        with LocalCluster(folder / "cluster") as cluster:
            print(f"streaming {rows} records on {cluster.master}")
            stream(cluster, broker.address, folder, rows)
        is_whole = compare(broker, rows)
        broker.close()
        return 0 if is_whole else 1
    finally:
        server.kill()
        server.communicate()


def publish(broker: HttpBroker, rows: int) -> None:
    for begin in range(0, rows, PER_CALL):
        some = [{"id": n, "amount": n % 1000} for n in range(begin, min(begin + PER_CALL, rows))]
        broker.document("POST", "/v1/topics/orders/records", some)


def stream(cluster: LocalCluster, address: str, folder: Path, rows: int) -> None:
    """Everything there is, while an executor is killed."""
    from yirangmq.pipeline.session import session

    hidden = folder / "executors"
    hidden.mkdir()
    sources = [str(Path(__file__).parents[1] / "src"), str(Path.cwd())]
    (hidden / "sitecustomize.py").write_text(HIDE.format(hidden=sources))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {**cluster.settings(), "spark.executorEnv.PYTHONPATH": str(hidden)}
        spark = session("cluster demo", cluster.master, settings, ship=True)
    try:
        found = spark.readStream.format("yirangmq").options(
            broker=address, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=str(rows // 15),
            minPartitions="2",
        ).load()  # fmt: skip
        parsed = found.selectExpr(
            "value", "key", "from_json(cast(value as string), 'id bigint, amount bigint') payload"
        )
        sink = parsed.selectExpr("value", "key", TARGET).writeStream.format("yirangmq")
        sink = sink.options(broker=address, checkpointLocation=str(folder / "checkpoint"))
        query = sink.trigger(availableNow=True).start()
        killed = False
        while not query.awaitTermination(0.2):  # type: ignore[arg-type]
            last: Any = query.lastProgress
            if not killed and last is not None and last["batchId"] >= 3:
                process = cluster.executors()[0]
                os.kill(process, signal.SIGKILL)
                killed = True
                print(f"batch {last['batchId']} is done; executor {process} is killed with -9")
        if not killed:
            raise SystemExit("the stream was over before an executor could be killed; give more --rows")
    finally:
        spark.stop()


def compare(broker: HttpBroker, rows: int) -> bool:
    """Whether each record is there once: in the queue or in the topic."""
    topics = {row["topic"]: row for row in broker.document("GET", "/v1/topics")["topics"]}
    checked = topics["orders.checked"]["topicSequence"] if "orders.checked" in topics else 0
    large = broker.document("GET", "/v1/queues/large")["ready"]
    batches = broker.document("GET", "/v1/batches")["batches"]
    refused = sum(one["refused"] for one in batches)
    wanted = sum(1 for n in range(rows) if n % 1000 >= 900)
    print(f"{rows} records in; {checked} in the topic, {large} in the queue; {len(batches)} batches, {refused} refused")
    is_whole: bool = (checked, large) == (rows - wanted, wanted)
    print("0 lost, 0 duplicated" if is_whole else f"WRONG: {rows - wanted} and {wanted} were expected")
    return is_whole


if __name__ == "__main__":
    begun = time.monotonic()
    code = main()
    print(f"{time.monotonic() - begun:.0f} s")
    sys.exit(code)
