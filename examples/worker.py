"""A worker: a handler for each message, with retries, rejections, a time limit, and an orderly stop.

    yirangmq publish --db demo.db --queue mail '{"to": "ann@example.org", "text": "hello"}'
    python examples/worker.py sqlite:demo.db --until-empty

Without --until-empty it waits for more. Ctrl-C lets running handlers finish, and ends. The address may also be a
server's: unix:PATH or tcp://HOST:PORT."""

import logging
import sys
from typing import Any

from yirangmq import Consumer, Reject, Retry


def check(mail: Any) -> None:
    """Refuse a payload that is no mail.

    A JSON Schema may stand in its place; that needs ``pip install yirangmq[schema]``."""
    if not isinstance(mail, dict) or not {"to", "text"} <= mail.keys() or len(str(mail["to"])) < 3:
        raise ValueError("a mail has the members to and text")


def deliver(to: str, text: str) -> None:
    """Where a real one would talk to a mail server."""
    if to.endswith("@busy.example"):
        raise ConnectionRefusedError(to)
    print(f"sent to {to}: {text}", flush=True)


def build(address: str) -> Consumer:
    consumer = Consumer(address, concurrency=4, timeout=60, poison_after=3)

    @consumer.handler("mail", schema=check)
    def send(delivery: Any) -> None:
        mail = delivery.value()
        if "@" not in mail["to"]:
            raise Reject(f"{mail['to']} is no address")
        try:
            deliver(mail["to"], mail["text"])
        except ConnectionRefusedError as error:
            raise Retry(after=30, reason=f"no answer from {error}") from error

    return consumer


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    summary = build(sys.argv[1]).run(until_empty="--until-empty" in sys.argv)
    print(f"{summary.done} done, {summary.retried} to be tried again, {summary.rejected} rejected")
