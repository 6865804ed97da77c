"""Retries: a failed message is delivered again after a growing delay, until its handler succeeds.

    python examples/retries.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq
from yirangmq import Consumer

POLICY = {"retry": {"limit": 5, "backoff": "exponential", "initialDelaySec": 0.1, "maxDelaySec": 10, "jitter": 0.2}}
"""At most 5 retries, after 0.1, 0.2, 0.4 … seconds, each ±20 %. Then the message becomes a dead letter."""

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.set_policy("pages", POLICY)
        queues.publish("pages", {"url": "https://example.org"})
        consumer = Consumer(queues)

        @consumer.handler("pages")
        def fetch(delivery):
            if delivery.attempt < 4:
                print(f"attempt {delivery.attempt}: no answer")
                raise ConnectionError("no answer")
            print(f"attempt {delivery.attempt}: fetched")
            consumer.stop()

        summary = consumer.run()
        print(f"{summary.done} done after {summary.failed} failures")
