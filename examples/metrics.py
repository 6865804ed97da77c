"""Metrics: read what Prometheus reads, and print the numbers of one queue.

    yirangmq serve &
    python examples/metrics.py http://127.0.0.1:8080

Alert rules and a dashboard for Grafana are in deploy/prometheus and deploy/grafana."""

import json
import re
import sys
import urllib.request

SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")


def post(url, document):
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(document).encode(), headers)) as answer:
        answer.read()


def samples(url, queue):
    """(name, value) of each sample of a queue."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            match = SAMPLE.fullmatch(line)
            if match and match[2] == f'queue="{queue}"':
                yield match[1], float(match[3])


if __name__ == "__main__":
    url = sys.argv[1]
    post(f"{url}/v1/queues/measured/messages", [1, 2, 3])
    for name, value in samples(url, "measured"):
        if name in ("yirangmq_queue_ready", "yirangmq_published_total"):
            print(f"{name} {value:g}")
    post(f"{url}/v1/queues/measured/purge", {"all": True})
