"""JSON Schemas by message type and version: a message that does not fit becomes a dead letter with the reason.

    pip install 'yirangmq[schema]'
    python examples/json_schema.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq
from yirangmq import NewMessage

READING = {
    "type": "object",
    "required": ["celsius"],
    "properties": {"celsius": {"type": "number", "minimum": -273.15}},
}

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.set_policy("sensors", {"schemas": {"sensor.reading": {"1": READING}}})
        for payload in ({"celsius": 21.5}, {"celsius": "warm"}, {"celsius": -300}, {}):
            queues.publish("sensors", NewMessage(payload, type="sensor.reading", version=1))

        for delivery in queues.lease("sensors", 10):
            print("delivered:", delivery.value())
        for letter in queues.dead_letters.list("sensors"):
            print(f"{letter.failure.reason_code}: {letter.failure.reason_message}")
        queues.delete_queue("sensors")
