"""A hook: a function of yours that checks each message before it is stored, and derives a message for another queue.

    python examples/hook.py sqlite:demo.db

The hook runs in a process of its own, with a time limit. For a server: yirangmq serve --hooks hook, in this folder."""

import sys
from typing import Any

import yirangmq
from yirangmq import Reject

PROCESSOR = {"hooks": [{"hook": "hook:check", "timeoutSec": 10}, {"hook": "hook:receipt", "produces": "receipts"}]}


def check(message: Any) -> None:
    """Refuse a message by an exception: nothing is stored, and the sender gets the reason."""
    if message.value()["cents"] <= 0:
        raise Reject("an amount must be positive")


def receipt(message: Any) -> Any:
    """Return the payload of a message for ``receipts``. It is stored in the same commit as the original."""
    return {"to": message.value()["from"], "text": f"received {message.value()['cents'] / 100:.2f}"}


if __name__ == "__main__":
    with yirangmq.open(sys.argv[1], hooks=["hook"]) as queues:
        queues.set_policy("payments", {"processor": PROCESSOR})
        for cents in (1250, -1):
            try:
                queues.publish("payments", {"from": "ann", "cents": cents})
                print(f"{cents} stored")
            except yirangmq.Unfit as error:
                print(f"{cents} refused: {error}".partition(" (message")[0])
        for queue in ("payments", "receipts"):
            for delivery in queues.lease(queue, 10):
                print(f"{queue}: {delivery.value()}")
            queues.delete_queue(queue)
