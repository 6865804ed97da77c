"""A schedule: the server publishes a message at each time of a cron line.

    yirangmq serve &
    python examples/schedule.py unix:yirang-data/yirangmq.sock

It waits for the next full minute."""

import sys

import yirangmq

SCHEDULES = [
    {"name": "every-minute", "cron": "* * * * *", "message": {"payload": {"kind": "short"}, "type": "report"}},
    {
        "name": "nightly",
        "cron": "30 2 * * mon-fri",
        "timezone": "Europe/Berlin",
        "message": {"payload": {"kind": "daily"}, "type": "report"},
    },
]

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.set_policy("reports", {"schedules": SCHEDULES})
        for schedule in queues.schedules("reports"):
            print(f"{schedule['name']} is next due at {schedule['nextAt']}", flush=True)

        [delivery] = queues.lease("reports", wait=90)
        print(f"{delivery.id}: {delivery.value()}")  # the id has the time (UTC): no time is published twice
        queues.ack(delivery.lease_id)
        queues.set_policy("reports", {})
