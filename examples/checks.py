"""Checks before a message is stored: the queue's processor refuses what does not fit, with an error for the sender.

    python examples/checks.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq
from yirangmq import NewMessage

PROCESSOR = {
    "integrity": "sha256",  # stored with each payload, and verified before each delivery
    "checks": [
        {"check": "headers", "fields": {"attributes.bank": {"is": "digits", "min": 3, "max": 3}}},
        {"check": "length", "max": 100},
        {"check": "json", "root": "object"},
    ],
}

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.set_policy("transfers", {"processor": PROCESSOR})
        for payload, bank in (({"cents": 500}, "012"), ({"cents": 500}, "12"), ([500], "012"), ("x" * 200, "012")):
            try:
                queues.publish("transfers", NewMessage(payload, attributes={"bank": bank}))
                print("stored")
            except yirangmq.Unfit as error:
                print(f"refused: {error}".partition(" (message")[0])

        [delivery] = queues.lease("transfers")
        print("SHA-256 of the payload:", delivery.header["payloadSha256"][:8])
        queues.delete_queue("transfers")
